"""Word alignments: compared with some made by hand, a slow reference, and rules worked by hand."""

import dataclasses
import gzip
import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

from lingua_flax.data.tokenizer import Characters
from lingua_flax.inspection.attention_maps import attention_maps
from lingua_flax.inspection.interventions import inspection_of
from lingua_flax.options.schema import AlignmentOptions, ComputeConfig, DecodingOptions
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import align_translations, pharaoh, word_links
from lingua_flax.translation.words import is_part_of_word, split_words, word_at
from tests.conftest import ROOT
from tests.helpers.commands import succeed
from tests.helpers.networks import LINE
from tests.helpers.translation import translator

__all__ = ["translator"]  # a fixture

GREEDY = DecodingOptions(beam_size=1)


def aligned_words(translator, translations, options=AlignmentOptions()):
    links = align_translations(translator, translations, options)
    return [word_links(own, line.source, line.text) for line, own in zip(translations, links, strict=True)]


@pytest.mark.parametrize(
    ("tokens", "words", "parts"),
    [
        ([" ", "(", " the", " riv", "er", ")"], [0, 0, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]),
        (["the", " ", "(", "riv", "er", ")"], [0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]),
        ([" ", "?", " a", " ", " b"], [0, 0, 1, 2, 2], [1, 1, 1, 1, 1]),
        (["a b", "c ", "d"], [0, 1, 2], [1, 1, 1]),  # with spaces inside, as of tokenizers trained elsewhere
        (["a", " \x85", " b"], [0, 1, 2], [1, 1, 1]),  # a space to Python, but not to SentencePiece
        (["a", "", "", "\U0001f600", " b"], [0, 0, 0, 0, 1], [1, 1, 1, 0, 1]),  # bytes of a character
        (["क", "ि", "ताब", "!"], [0, 0, 0, 0], [1, 1, 1, 0]),  # a vowel sign is no punctuation
        ([], [], []),
    ],
)
def test_tokens_belong_to_words_between_spaces(tokens, words, parts):
    text, ends = "".join(tokens), list(itertools.accumulate(map(len, tokens), initial=0))
    characters = [Characters(*pair) for pair in itertools.pairwise(ends)]
    assert [word_at(split_words(text), token) for token in characters] == words
    assert [is_part_of_word(text, split_words(text), token) for token in characters] == [bool(part) for part in parts]


def test_words_of_the_phrasebook_are_aligned_as_by_hand():
    """The alignment error rate of Och and Ney (2003) is 1 - (|A & S| + |A & P|) / (|A| + |S|).

    Each line of the file has words that are separated by spaces and counted from 0. A link 2-3 is sure (S); a link 2?3
    is possible (P), as sure ones are: one of both words is there only for the grammar of its language, such as an
    article or "est-ce que", or both end with the full stop.
    """
    lines = Path(__file__).with_name("aligned_by_hand.tsv").read_text(encoding="utf-8").splitlines()
    sources, targets, by_hand = zip(*(line.split("\t") for line in lines), strict=True)
    one_program = ComputeConfig(padding="longest")
    translator = Translator.load(ROOT / "checkpoints" / "phrasebook", devices=one_program)
    ids = translator.tokenizer.encode_target(targets)
    sides = zip(sources, targets, ids, map(translator.tokenizer.protect, sources), strict=True)
    hypotheses = [Translation(source, (Hypothesis(text, 0.0, own, protected=by),)) for source, text, own, by in sides]
    aligned = align_translations(translator, hypotheses)
    correct = total = 0
    for source, target, known, links in zip(sources, targets, by_hand, aligned, strict=True):
        sure = {link for link in known.split() if "-" in link}
        possible = {link.replace("?", "-") for link in known.split()}
        found = set(pharaoh(word_links(links, source, target)).split())
        correct += len(found & sure) + len(found & possible)
        total += len(found) + len(sure)
    assert 1 - correct / total < 0.07


def test_links_are_written_for_every_line(trained, run, tmp_path):
    lines, path = ["one two three four.", "", "  ", "nine."], tmp_path / "links.txt.gz"
    succeed(run, "translate", "--workdir", trained[0], "--beam-size", 1, "--alignments", path, input="\n".join(lines))
    translator = Translator.load(trained[0])
    links = aligned_words(translator, translator.translate(lines, GREEDY))
    assert gzip.decompress(path.read_bytes()).decode().splitlines() == list(map(pharaoh, links))
    assert pharaoh([(0, 0), (2, 1)]) == "0-0 2-1"


def links_of_maps(maps, weights, step="predict", tags=0):
    """Returns the links between words, from the weights [T, S] of one head or a mean of several.

    The first piece and each one that begins with a space begin a word; there is no attached punctuation.
    """
    sides = (maps.source_tokens[tags:], maps.target_tokens_written)
    source, target = (
        np.cumsum([not i or piece[0] == "\u2581" for i, piece in enumerate(pieces)]) - 1 for pieces in sides
    )
    strongest = weights.max(axis=0)
    links = set()
    for row, word in zip(weights[int(step == "read") :], target[:-1], strict=False):
        i = int((row / strongest**0.5).argmax())
        if tags <= i < len(maps.source_tokens) - 1 and row[i] >= 0.75 * strongest[i]:
            links.add((int(source[i - tags]), int(word)))
    return sorted(links)


@pytest.mark.parametrize(
    ("step", "layer", "head", "tags"),
    [("predict", None, None, ()), ("read", 1, None, ()), ("predict", 2, 3, ()), ("predict", None, None, (5, 9))],
)
def test_links_follow_from_the_attention_maps(translator, step, layer, head, tags):
    """Tags before the words of a source are no words."""
    tokenizer = dataclasses.replace(translator.tokenizer, source_tags=tags)
    translator = dataclasses.replace(translator, tokenizer=tokenizer)
    (translation,) = translator.translate([LINE], GREEDY)
    maps = attention_maps(inspection_of(translator, translation), tokenizer)
    options = AlignmentOptions(alignment_step=step, alignment_layer=layer, alignment_head=head)
    (links,) = aligned_words(translator, [translation], options)
    layers = range(len(maps.cross_attention)) if layer is None else [layer - 1]
    heads = range(maps.cross_attention.shape[1]) if head is None else [head - 1]
    weights = np.mean([maps.cross_attention[i, j] for i in layers for j in heads], axis=0)
    assert links == links_of_maps(maps, weights, step, len(tags))
    assert links


def test_words_are_those_of_the_line_as_it_is_typed(translator):
    """Normalization merges spaces and takes characters apart; the words of the line are counted nevertheless."""
    lines = [
        "the old village",
        "  the \u3000 old\u00a0village ",
        "the\u00b4old village",  # an accent, normalized to a space and a combining accent
        "the \x85 old village",  # SentencePiece keeps U+0085 as a word
    ]
    plain, odd, accented, marked = aligned_words(translator, translator.translate(lines, GREEDY))
    assert plain == odd
    assert {i for i, _ in accented} <= {0, 1}
    assert 3 in {i for i, _ in marked}


def test_parts_of_a_long_line_are_aligned_one_by_one(translator):
    lines = ["the old village sleeps near the water. " * 6, "x" * 100 + " the water"]
    together, split = translator.translate(lines, GREEDY)
    parts = together.hypotheses[0].parts
    assert len(parts) == 6
    singles = aligned_words(translator, translator.translate([text for text, _ in parts], GREEDY))
    source_words = target_words = 0
    expected = []
    for (text, hypothesis), own in zip(parts, singles, strict=True):
        expected += [(i + source_words, j + target_words) for i, j in own]
        source_words += len(text.split())
        target_words += len(hypothesis.text.split())
    assert aligned_words(translator, [together]) == [expected]
    assert {i for i, _ in aligned_words(translator, [split])[0]} <= {0, 1, 2}


def test_ensemble_averages_its_networks(translator):
    (translation,) = translator.translate([LINE], GREEDY)
    other = dataclasses.replace(translator, params=jax.tree.map(lambda leaf: leaf[::-1], translator.params))
    both = dataclasses.replace(translator, others=(other,))
    maps = [attention_maps(inspection_of(own, translation), own.tokenizer) for own in (translator, other)]
    own, of_other = (each.cross_attention.mean((0, 1)) for each in maps)
    (links,) = aligned_words(both, [translation])
    assert links == links_of_maps(maps[0], own + of_other)
    assert links not in (links_of_maps(maps[0], own), links_of_maps(maps[0], of_other))
