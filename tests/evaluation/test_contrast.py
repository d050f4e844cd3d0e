"""Flipped readings: which tokens are masked, and which translations count, with translations written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lingua_flax.data.corpora.phrasebook import find_readings
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.evaluation import contrast
from lingua_flax.evaluation.bleu import score
from lingua_flax.evaluation.contrast import count_contrast, differing_word_index
from lingua_flax.evaluation.evaluate import EvaluationSet, evaluate, print_evaluation
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


def pieces(translator, line):
    return translator.tokenizer.source_pieces(translator.tokenizer.encode_source([line])[0])


def text_of(translator, line, positions):
    """Returns the text of the tokens at these positions."""
    return "".join(pieces(translator, line)[position] for position in positions).replace("▁", " ").strip()


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
        masked_words.append([text_of(translator, *at) for at in zip(lines, masked, strict=True)])
        return answers[len(masked_words) - 1]

    monkeypatch.setattr(contrast, "translate_with_masked_tokens", record)
    translations = [*REFERENCES[:6], "La date était douce.", REFERENCES[7]]  # the last pair is not correct
    counts = count_contrast(translator, SOURCES, translations, REFERENCES, find_readings, DecodingOptions())
    assert counts == contrast_counts(4, 3, 3, 2, 1)
    assert masked_words[0] == ["river", "street", "hungry", "unbelievable", "why", "Marie"]
    assert masked_words[1] == ["across", "across", "The", "The", "They", "They"]
    assert len(pieces(translator, "unbelievable")) > 3  # all tokens of a word are masked


def test_contrast_pairs_of_a_lowercase_model_ignore_case(monkeypatch):
    lower = [reference.lower() for reference in REFERENCES]
    translator = SimpleNamespace(
        tokenizer=parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=50, lowercase=True))),
        max_length=64,
        step=1,
        num_parameters=7,
        warm_up=lambda lines, options: None,
        translate_sentences=lambda lines, options, after_batch: [SimpleNamespace(text=text) for text in lower],
    )
    flipped = [lower[i ^ 1] for i in range(len(lower))]
    answers = iter([flipped, lower])  # the deciding word masked, then another one
    monkeypatch.setattr(contrast, "translate_with_masked_tokens", lambda *_: next(answers))
    _, record = evaluate(translator, EvaluationSet("lower", SOURCES, REFERENCES, find_readings), DecodingOptions())
    assert record.items() >= contrast_counts(4, 4, 4, 4, 0).items()


def test_differing_word_needs_exactly_one_difference(translator):
    def index(first, second):
        return differing_word_index(group_pieces(pieces(translator, first)), group_pieces(pieces(translator, second)))

    assert index("the bat is hungry.", "the bat is unbelievable.") == 3
    assert index("the bat is hungry.", "the bat is hungry.") is None
    assert index("the bat is hungry.", "the date is sweet.") is None
    assert index("the bat.", "the bat is.") is None


def test_masked_positions_apply_to_their_own_sentences_in_order(translator):
    """The search returns the tokens that are not masked."""

    def search(parts, num_hypotheses, options):
        assert (num_hypotheses, options.beam_size) == (1, 1)
        visible = [np.delete(part.source, part.masked).tolist() for part in parts]
        return [[Hypothesis(text, 0.0)] for text in translator.tokenizer.decode_target(visible)]

    copying = SimpleNamespace(tokenizer=translator.tokenizer, max_length=translator.max_length, search=search)
    lines = [SOURCES[0], "The bat.", SOURCES[2]]
    first = group_pieces(pieces(translator, lines[0]))[0]
    masked = [first.positions, [], range(1, 40)]
    translations = contrast.translate_with_masked_tokens(copying, lines, masked, DecodingOptions(batch_size=2))
    assert translations == [lines[0][3:], lines[1], text_of(translator, lines[2], [0])]


def test_readings_are_found_in_either_order():
    readings, senses = find_readings((SOURCES[0], SOURCES[1]), (REFERENCES[0], REFERENCES[1]))
    assert senses == (0, 1)
    texts = ("la rive", "les rives", "la banque", "une banque et une rive", "")
    assert [readings.of(text) for text in texts] == [0, None, 1, None, None]
    assert find_readings((SOURCES[1], SOURCES[0]), (REFERENCES[1], REFERENCES[0]))[1] == (1, 0)
    assert find_readings(("A cat.", "A dog."), ("Un chat.", "Un chien.")) is None


def test_an_evaluation_reports_flips(capsys):
    lines = ["a", "b"]
    how = {"checkpoint_step": 3, "beam_size": 5, "seconds": 1.0, "sentences_per_second": 2.0, "compile_seconds": 2.0}
    record = score(lines, lines) | how | contrast_counts(80, 60, 40, 30, 1)
    print_evaluation("title", EvaluationSet("split", lines, lines), lines, record)
    shown = capsys.readouterr().out
    assert "contrast pairs right                │ 60 of 80  (75.0%)" in shown
    assert "flipped by hiding the deciding word │ 30 of 40  (75.0%)" in shown
    assert "flipped by hiding another word      │ 1 of 40  (2.5%)" in shown
