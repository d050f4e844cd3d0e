"""Subword regularization, compared with enumerations of all segmentations and with SentencePiece's own encoding."""

import functools
import io
import itertools
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from lingua_flax.data.subword_sampling import SubwordSampler, bpe_dropout
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import UNK_ID
from tests.command_server import PROJECT_ON_PATH
from tests.data.test_data import PAIRS

DRAWS = 10_000


@functools.cache
def trained(**options) -> Tokenizer:
    config = TokenizerConfig(**{"vocab_size": 90, **options})
    return parse_tokenizers(train_tokenizer(PAIRS, config, ["<2fr>"]))


@functools.cache
def lines() -> list[str]:
    """Returns sentences of the corpus, and random lines made of truncated words of it and of unusual strings."""
    draw = random.Random(0)
    words = sorted({word for pair in PAIRS for side in pair for word in side.split()})
    unusual = ["日本", "x日", "<2fr>", "</s>", "THE", "Ça", "▁", "👍👍", "  ", "\u2028", "…"]
    random_lines = [
        " ".join(
            draw.choice(unusual)
            if draw.random() < 0.1
            else draw.choice(words)[draw.randint(0, 2) :] + draw.choice(words)
            for _ in range(draw.randint(0, 12))
        )
        for _ in range(300)
    ]
    return [side for pair in PAIRS[:8] for side in pair] + random_lines


def generators(seed=0):
    return (np.random.Generator(np.random.Philox([seed, number])) for number in itertools.count())


def shares(sampler: SubwordSampler, text: str) -> dict[tuple[int, ...], float]:
    """Returns the share of each segmentation in DRAWS samples."""
    rng = np.random.default_rng(0)
    counts = Counter(tuple(sampler.sample(text, rng)) for _ in range(DRAWS))
    return {ids: count / DRAWS for ids, count in counts.items()}


def assert_close(actual: dict, expected: dict) -> None:
    """Checks that all shares are within four standard deviations."""
    assert math.isclose(sum(expected.values()), 1.0)
    assert actual.keys() <= expected.keys()
    for outcome, share in expected.items():
        assert abs(actual.get(outcome, 0.0) - share) < 4 * math.sqrt(share * (1 - share) / DRAWS) + 1e-4, outcome


@pytest.mark.parametrize(
    ("text", "alpha"), [("the cat", 0.2), ("the black", 0.5), ("walked", 1.0), ("the日日t日", 0.3)]
)
def test_unigram_segmentations_have_the_probabilities_of_their_scores(text, alpha):
    """Compared with all segmentations into pieces that SentencePiece has; unknown characters are pieces."""
    processor = trained().source
    minimum = min(processor.get_score(i) for i in range(processor.get_piece_size()))

    def score(piece: str) -> float | None:
        if processor.piece_to_id(piece) != UNK_ID:
            return processor.get_score(processor.piece_to_id(piece))
        return minimum - 10 if len(piece) == 1 else None

    normalized = "▁" + text.replace(" ", "▁")
    weights = Counter()
    for cuts in itertools.product([False, True], repeat=len(normalized) - 1):
        bounds = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(normalized)]
        pieces = [normalized[a:b] for a, b in itertools.pairwise(bounds)]
        scores = [score(piece) for piece in pieces]
        if None not in scores:
            ids = [processor.piece_to_id(piece) for piece in pieces]
            merged = tuple(i for n, i in enumerate(ids) if i != UNK_ID or n == 0 or ids[n - 1] != UNK_ID)
            weights[merged] += math.exp(alpha * sum(scores))
    assert len(weights) > 2
    total = sum(weights.values())
    assert_close(shares(SubwordSampler(processor, alpha), text), {ids: w / total for ids, w in weights.items()})


@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_dropout_has_the_probabilities_of_the_algorithm(dropout):
    """Compared with the published algorithm, over all subsets of merges that may be dropped at each step."""
    processor = trained(kind="bpe").source
    pieces = {processor.id_to_piece(i): processor.get_score(i) for i in range(4, processor.get_piece_size())}

    def outcomes(word: tuple[str, ...]) -> Counter:
        possible = [i for i in range(len(word) - 1) if word[i] + word[i + 1] in pieces]
        result = Counter()
        for choice in itertools.product([False, True], repeat=len(possible)):
            probability = math.prod(1 - dropout if keep else dropout for keep in choice)
            kept = [i for i, keep in zip(possible, choice, strict=True) if keep]
            if not kept:
                result[word] += probability
                continue
            best = max(kept, key=lambda i: (pieces[word[i] + word[i + 1]], -i))
            merged = (*word[:best], word[best] + word[best + 1], *word[best + 2 :])
            for outcome, share in outcomes(merged).items():
                result[outcome] += probability * share
        return result

    expected = outcomes(tuple("▁where"))
    assert len(expected) > 5
    by_ids = {tuple(processor.piece_to_id(piece) for piece in outcome): share for outcome, share in expected.items()}
    assert_close(shares(SubwordSampler(processor, dropout), "where"), by_ids)


@pytest.mark.parametrize(
    ("kind", "alpha", "options"),
    [
        ("unigram", 1e6, {}),
        ("unigram", 1e6, {"byte_fallback": True, "vocab_size": 350}),
        ("unigram", 1e6, {"lowercase": True}),
        ("bpe", 0.0, {}),
        ("bpe", 1e-12, {"byte_fallback": True, "vocab_size": 350}),
        ("bpe", 1e-12, {"lowercase": True}),
    ],
)
def test_segmentations_without_randomness_are_those_of_sentencepiece(kind, alpha, options):
    processor = trained(kind=kind, **options).source
    sampler = SubwordSampler(processor, alpha)
    for text, rng in zip(lines(), generators(), strict=False):
        assert sampler.sample(text, rng) == processor.encode(text), text


@pytest.mark.parametrize("options", [{}, {"byte_fallback": True, "vocab_size": 350}, {"lowercase": True}])
@pytest.mark.parametrize(("kind", "alpha"), [("unigram", 0.1), ("bpe", 0.3)])
def test_every_segmentation_spells_the_same_text(options, kind, alpha):
    processor = trained(kind=kind, **options).source
    sampler = SubwordSampler(processor, alpha)
    different = 0
    for text, rng in zip(lines(), generators(), strict=False):
        ids, best = sampler.sample(text, rng), processor.encode(text)
        assert processor.decode(ids) == processor.decode(best)
        assert (UNK_ID in ids) == (UNK_ID in best)
        different += ids != best
    assert different > 200


def test_dropping_every_merge_leaves_characters():
    sampler = SubwordSampler(trained(kind="bpe").source, 1 - 1e-9)
    ids = sampler.sample("the cat", np.random.default_rng(0))
    assert [sampler._ids["▁"], *(sampler._ids[c] for c in "the")] == ids[:4]
    assert len(ids) == len("▁the▁cat")


def test_samples_do_not_depend_on_whether_a_word_is_cached(monkeypatch):
    """Long words are not: Chinese and Japanese sentences have no spaces and hardly ever repeat."""
    for kind, alpha in (("unigram", 0.2), ("bpe", 0.2)):
        processor = trained(kind=kind).source
        samples = []
        for length in (0, 1000):
            monkeypatch.setattr("lingua_flax.data.subword_sampling._CACHED_LENGTH", length)
            sampler = SubwordSampler(processor, alpha)
            samples.append([sampler.sample("thecat" * 9, rng) for rng, _ in zip(generators(), range(20), strict=False)])
        assert samples[0] == samples[1]


def test_of_equal_scores_the_leftmost_is_merged_first():
    assert bpe_dropout({"a": 0.0, "aa": -1.0}, 0.0)("aaaaa", lambda: 0.5) == ("aa", "aa", "a")


def model(**options) -> sentencepiece.SentencePieceProcessor:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([side for pair in PAIRS for side in pair]),
        model_writer=written,
        minloglevel=2,
        **{"vocab_size": 80, **options},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.mark.parametrize(
    ("options", "alpha", "words"),
    [
        ({"model_type": "char", "vocab_size": 45}, 0.1, "of kind unigram or bpe"),
        ({"user_defined_symbols": ["<x>"]}, 0.1, "user-defined"),
        ({"treat_whitespace_as_suffix": True}, 0.1, "spaces only at the beginning"),
        ({"model_type": "bpe"}, 1.5, "must be below 1 for a tokenizer of kind bpe, got 1.5"),
    ],
)
def test_a_model_that_does_not_support_sampling_is_refused(options, alpha, words):
    """A model file given by the user may be of another kind than tokenizer.kind."""
    with pytest.raises(UserError, match=words):
        SubwordSampler(model(**options), alpha)


def test_another_process_draws_the_same_samples():
    processors = [trained(kind=kind).source for kind in ("unigram", "bpe")]
    models = [processor.serialized_model_proto() for processor in processors]
    process = subprocess.run(
        [sys.executable, Path(__file__).parent / "scripts" / "sample_segmentations.py"],
        input=pickle.dumps((models, lines())),
        env=os.environ | PROJECT_ON_PATH | {"PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        check=True,
    )
    samplers = [SubwordSampler(processor, 0.2) for processor in processors]
    rngs = list(itertools.islice(generators(), len(lines())))
    expected = [[sampler.sample(text, rng) for text, rng in zip(lines(), rngs, strict=True)] for sampler in samplers]
    assert json.loads(process.stdout) == expected
