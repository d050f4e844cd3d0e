"""Subword regularization, compared with enumerations of all segmentations and with SentencePiece's own encoding."""

import functools
import io
import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import sentencepiece

from lingua_flax.data.subword_sampling import SubwordSampler, bpe_dropout
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import UNK_ID
from tests.helpers.pairs import PAIRS

DRAWS = 10_000
BYTES = {"byte_fallback": True, "vocab_size": 350}


@functools.cache
def trained(**options) -> Tokenizer:
    config = TokenizerConfig(**{"vocab_size": 90, **options})
    return parse_tokenizers(train_tokenizer(PAIRS, config, ["<2fr>"]))


@functools.cache
def lines() -> list[str]:
    """Returns sentences of the corpus, and random lines made of truncated words of it and of unusual strings."""
    draw = random.Random(0)
    words = sorted({word for pair in PAIRS for side in pair for word in side.split()})
    mixed = [word[start:] for word in words for start in (0, 1, 2)]
    mixed += ["日本", "x日", "<2fr>", "</s>", "THE", "Ça", "▁", "👍👍", "  ", "\u2028", "…"] * 3
    drawn = [[draw.choice(mixed) + draw.choice(words) for _ in range(draw.randint(0, 12))] for _ in range(200)]
    too_long_to_be_cached = "thecat" * 9
    return [too_long_to_be_cached, *(side for pair in PAIRS[:8] for side in pair), *map(" ".join, drawn)]


def generators():
    return (np.random.Generator(np.random.Philox([0, number])) for number in itertools.count())


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


@pytest.mark.parametrize(("text", "alpha"), [("the cat", 0.2), ("walked", 1.0), ("the日日t日", 0.3)])
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


@pytest.mark.parametrize("options", [{}, BYTES, {"lowercase": True}])
@pytest.mark.parametrize(("kind", "alpha", "certain"), [("unigram", 0.1, 1e6), ("bpe", 0.3, 1e-12)])
def test_every_segmentation_spells_the_same_text(options, kind, alpha, certain):
    """Without randomness, it is that of SentencePiece."""
    processor = trained(kind=kind, **options).source
    sampler, other = SubwordSampler(processor, alpha), SubwordSampler(processor, certain)
    different = 0
    for text, rng in zip(lines(), generators(), strict=False):
        ids, best = sampler.sample(text, rng), processor.encode(text)
        assert other.sample(text, rng) == best, text
        assert processor.decode(ids) == processor.decode(best)
        assert (UNK_ID in ids) == (UNK_ID in best)
        different += ids != best
    assert different > 100


def test_of_equal_scores_the_leftmost_is_merged_first():
    assert bpe_dropout({"a": 0.0, "aa": -1.0}, 0.0)("aaaaa", lambda: 0.5) == ("aa", "aa", "a")


def test_a_model_that_does_not_support_sampling_is_refused():
    """A model file given by the user may be of another kind than tokenizer.kind."""
    for options, alpha, words in (
        ({"model_type": "char", "vocab_size": 45}, 0.1, "of kind unigram or bpe"),
        ({"user_defined_symbols": ["<x>"]}, 0.1, "user-defined"),
        ({"treat_whitespace_as_suffix": True}, 0.1, "spaces only at the beginning"),
        ({"model_type": "bpe"}, 1.5, "must be below 1 for a tokenizer of kind bpe, got 1.5"),
    ):
        model, lines = io.BytesIO(), iter([side for pair in PAIRS for side in pair])
        options = {"vocab_size": 80, "minloglevel": 2} | options
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **options)
        with pytest.raises(UserError, match=words):
            SubwordSampler(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()), alpha)
