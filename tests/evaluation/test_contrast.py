"""Flipped readings: which tokens are masked, and which translations count, with translations written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lingua_flax.data.corpora.phrasebook import find_readings
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.evaluation import contrast
from lingua_flax.evaluation.contrast import count_contrast, differing_word_index, right_pairs
from lingua_flax.options.schema import DecodingOptions, TokenizerConfig
from lingua_flax.translation.hypotheses import Hypothesis
from lingua_flax.translation.words import group_pieces

PAIRS = [
    ("We went across the river to the bank.", "Nous avons traversé la rivière vers la rive."),
    ("We went across the street to the bank.", "Nous avons traversé la rue vers la banque."),
    ("The bat is hungry.", "La chauve-souris a faim."),
    ("The bat is unbelievable.", "La batte est incroyable."),
    ("They know why.", "Ils savent pourquoi."),
    ("They know Marie.", "Ils connaissent Marie."),
    ("The date was sweet.", "La datte était douce."),
    ("The date was final.", "La date était définitive."),
]
SOURCES, REFERENCES = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]


@pytest.fixture(scope="module")
def translator():
    """Has only what counting needs, with a tokenizer that splits most words into several tokens."""
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=55)))
    return SimpleNamespace(tokenizer=tokenizer, max_length=64)


def words(translator, line):
    return group_pieces(translator.tokenizer.source_pieces(translator.tokenizer.encode_source([line])[0]))


def word_at(translator, line, positions):
    """Returns the word that has these tokens."""
    (word,) = (word for word in words(translator, line) if word.positions == tuple(positions))
    return word.text


def contrast_counts(*numbers):
    names = ("pairs", "right", "masked_pairs", "flipped", "flipped_control")
    return dict(zip((f"contrast_{name}" for name in names), numbers, strict=True))


def test_flips_are_counted_in_correct_pairs_for_the_masked_words(translator, monkeypatch):
    masked_words = []
    answers = [
        # With the deciding word masked: flipped, flipped too, neither reading. The control: one flips the other way.
        ["… la rive.", "… la rive.", "La batte.", "La batte.", "Ils parlent.", "Ils parlent."],
        ["… la rive.", "… la banque.", "La batte.", "La chauve-souris.", "Ils savent.", "Ils connaissent."],
    ]

    def record(_, lines, masked, options):
        masked_words.append([word_at(translator, *at) for at in zip(lines, masked, strict=True)])
        return answers[len(masked_words) - 1]

    monkeypatch.setattr(contrast, "translate_with_masked_tokens", record)
    translations = [*REFERENCES[:6], "La date était douce.", REFERENCES[7]]  # the last pair is not correct
    counts = count_contrast(translator, SOURCES, translations, REFERENCES, find_readings, DecodingOptions())
    assert counts == contrast_counts(4, 3, 3, 2, 1)
    assert masked_words[0] == ["river", "street", "hungry", "unbelievable", "why", "Marie"]
    assert masked_words[1] == ["across", "across", "The", "The", "They", "They"]


def test_differing_word_needs_exactly_one_difference(translator):
    sentence = "the bat is hungry."
    others = ("the bat is unbelievable.", sentence, "the date is sweet.", "the bat.")
    found = [differing_word_index(words(translator, sentence), words(translator, other)) for other in others]
    assert found == [3, None, None, None]


def test_contrast_pair_is_right_if_both_translations_are():
    assert right_pairs(list("abcxxfxx"), list("abcdefgh")) == [True, False, False, False]


def test_masked_positions_apply_to_their_own_sentences_in_order(translator, monkeypatch):
    """The search returns the tokens that are not masked."""

    def search(network, parts, options):
        assert options.beam_size == 1
        visible = [np.delete(part.source, part.masked).tolist() for part in parts]
        return [[Hypothesis(text, 0.0)] for text in translator.tokenizer.decode_target(visible)]

    monkeypatch.setattr(contrast, "search_parts", search)
    lines = [SOURCES[0], "The bat.", SOURCES[2]]
    masked = [words(translator, lines[0])[0].positions, [], range(words(translator, lines[2])[1].positions[0], 40)]
    translations = contrast.translate_with_masked_tokens(translator, lines, masked, DecodingOptions(batch_size=2))
    assert translations == [lines[0][3:], lines[1], "The"]
