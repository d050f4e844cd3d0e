"""Properties of translation that hold for every text: N lines in, N lines out, in order, nothing lost."""

import dataclasses
import gc
import itertools
import random
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.augmentation import AUGMENTATIONS, augmented
from lingua_flax.data.glossary import Glossary
from lingua_flax.data.known_words import known_words
from lingua_flax.data.placeholders import PLACEHOLDERS, Protected
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.line_splitting import divide_text, split_text
from tests.helpers.texts import LINES, assert_linear
from tests.helpers.translation import decisive_translator


@given(LINES, st.integers(1, 30))
def test_parts_of_a_line_add_up_to_the_line(line, longest):
    pieces = split_text(Protected(line), "en", lambda part: len(part.source) <= longest)
    parts = [part.source for part, _, _ in pieces]
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) <= longest for part in parts)


# Runs of each are what a pattern or a library could read again and again.
UNITS = [
    *"`a1é-+.,:/@#$%<>{}()~_\\ \t!?0٣–'\"“”「」»…中。กA\u0301\u0316",
    "\u0301\u0316",
    "{{",
    '"「',
    "Mr. ",
    "z.B. ",
    "http://a ",
    "12345 ",
]


def translator_that_knows(word):
    """Returns a translator with placeholders, a glossary, and a word of its training text."""
    translator = decisive_translator()
    known = {"placeholders": PLACEHOLDERS[:4], "words": known_words([word]), "glossary": Glossary((("a a a b", "c"),))}
    tokenizer = dataclasses.replace(translator.tokenizer, **known)
    return dataclasses.replace(translator, tokenizer=tokenizer, languages=("de", "fr"))


@pytest.mark.slow
def test_nothing_holds_the_interpreter_while_texts_are_divided():
    """For 5,000 characters, between any two calls of functions, and before a call returns, less than 50 ms pass."""
    translator, draw, times = translator_that_knows("a"), random.Random(0), []
    divide_text(translator, ["A first call imports modules: http://a.b/c."])
    gc.collect()
    gc.freeze()  # as the server does, or looking through what all tests have left takes 150 ms
    for unit in UNITS:
        text = (unit + draw.choice(["", "", *UNITS])) * 5000
        times.clear()
        sys.setprofile(lambda *_: times.append(time.thread_time()))
        try:
            translator.request(DecodingOptions()).parts(divide_text(translator, [text[:5000]]))
        finally:
            sys.setprofile(None)
        assert max(after - before for before, after in itertools.pairwise(times)) < 0.05, text[:10]
    gc.unfreeze()


@pytest.mark.parametrize("unit", UNITS)
def test_texts_are_divided_and_changed_in_linear_time(unit):
    """With everything that a text goes through before a search.

    With a single placeholder, most parts are translated around their spans, whatever the length of the text.
    """
    translator, draw = translator_that_knows("a"), random.Random(unit)
    tokenizer = dataclasses.replace(translator.tokenizer, placeholders=PLACEHOLDERS[:1])
    around = dataclasses.replace(translator, tokenizer=tokenizer)
    run = "".join(draw.choice([unit, *UNITS]) for _ in range(3)) + unit
    for step in (
        lambda text: divide_text(translator, [text]),
        lambda text: around.request(DecodingOptions()).parts(divide_text(around, [text])),
        lambda text: [augmented(text, name, "tr") for name in AUGMENTATIONS],
        lambda text: translator.tokenizer.protect(text).placed(text),
    ):
        assert_linear(step, run)


@given(st.lists(LINES, max_size=18).map(lambda lines: [*lines, "a dog", "the cat"]))
@settings(max_examples=25)
def test_translations_match_the_lines_in_number_and_order(lines):
    """By a network that takes few tokens, so that most lines are split into parts.

    A line has the same translation whatever other lines are translated with it. There are at least two sentences, since
    a single one needs other programs, with one row.
    """
    translator = decisive_translator(embed_dim=8, mlp_dim=8, max_length=8)
    options = DecodingOptions(beam_size=1, batch_size=4, max_decoding_length=6)
    translations = translator.translate(lines, options)
    assert [translation.source for translation in translations] == lines
    for line, translation in zip(lines, translations, strict=True):
        assert set(translation.text) & set("\n\r") <= set(line)  # white space between sentences stays as it is
    for line, translation in zip(lines[:2], translations, strict=False):
        first, second = translator.translate([line, line], options)
        assert first.text == second.text == translation.text
