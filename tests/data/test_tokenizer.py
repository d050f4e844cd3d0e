"""Tokenizers: special pieces, options, and properties of every text; tokenized pairs; sampled segmentations."""

import functools
import io
import itertools
import math
import os
import random
import signal
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.subword_sampling import SubwordSampler, bpe_dropout
from lingua_flax.data.tokenized_pairs import tokenize
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.conftest import PROMPTLY
from tests.helpers.pairs import PAIRS
from tests.helpers.texts import LINES, TEXTS

BYTES = {"kind": "bpe", "byte_fallback": True, "vocab_size": 320}
KINDS = [{}, {"kind": "bpe"}, {"joint": False, "vocab_size": 55}, {"byte_fallback": True, "vocab_size": 350}]


@functools.cache
def trained(**options) -> Tokenizer:
    """The letters of a tag are in the corpus, so that what a user types can be spelled."""
    pairs = [*PAIRS, Pair("<2fr> a tag", "<2fr> in the corpus")]
    config = TokenizerConfig(**{"vocab_size": 60, **options})
    return parse_tokenizers(train_tokenizer(pairs, config, ["<2fr>", "<2de>"]))


@pytest.fixture(scope="module", params=[{}, BYTES], ids=["unigram", "bytes"])
def tokenizer(request):
    return trained(**request.param)


@given(TEXTS)
def test_no_text_is_encoded_as_special_ids(tokenizer, text):
    (ids,) = tokenizer.encode_source([text])
    assert ids[-1] == EOS_ID
    assert {PAD_ID, BOS_ID, EOS_ID}.isdisjoint(ids[:-1])
    assert all(0 <= number < tokenizer.source_vocab_size for number in ids)


@given(st.lists(st.integers(0, 59)), st.integers(0, 5))
@example(list(range(4, 60)), 0)
def test_any_ids_decode_to_one_line(tokenizer, ids, part):
    """Including byte pieces such as 0x0A, which a network may produce."""
    last = tokenizer.target_vocab_size - 1
    (decoded,) = tokenizer.decode_target([[min(number + 60 * part, last) for number in ids]])
    assert "\n" not in decoded
    assert "\r" not in decoded


@given(LINES)
def test_byte_fallback_preserves_every_text(line):
    """Apart from SentencePiece's normalization."""
    tokenizer = trained(**BYTES)
    (decoded,) = tokenizer.decode_target(tokenizer.encode_target([line]))
    assert decoded == tokenizer.target.normalize(line).replace("▁", " ").strip(" ")


@pytest.mark.parametrize("options", KINDS)
def test_decoding_restores_the_text_and_a_typed_tag_is_text(options):
    plain = trained(**options)
    assert [plain.source.id_to_piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert (plain.source is plain.target) == options.get("joint", True)
    lines = [pair.target for pair in PAIRS[:3]]
    assert plain.decode_target(plain.encode_target(lines)) == lines
    tagged = plain.with_source_tag("<2fr>")
    tag = plain.source.piece_to_id("<2fr>")
    assert tag in (4, 5)
    lines = ["a dog", "<2fr> a dog", "", "   "]
    ids = plain.encode_source(lines)
    assert all(tag not in line for line in ids)
    assert tagged.encode_source(lines) == [[tag, *ids[0]], [tag, *ids[1]], [EOS_ID], [EOS_ID]]
    assert tagged.digest == plain.digest


def test_normalization():
    for options, expected in (
        ({"normalization": "nmt_nfkc"}, "21\u20442 می خواهم,A"),  # the zero-width non-joiner of Persian becomes a space
        ({"normalization": "nfkc"}, "21\u20442 می\u200cخواهم,A"),
        ({"normalization": "identity"}, "2½ می\u200cخواهم，Ａ"),
        ({"normalization": "nfkc", "lowercase": True}, "21\u20442 می\u200cخواهم,a"),
    ):
        normalized = trained(**options).source.normalize("2½ می\u200cخواهم，Ａ")
        assert normalized.replace("▁", " ").strip() == expected


def test_lower_character_coverage_omits_rare_characters():
    (covered,), (rare,) = (trained(character_coverage=share).encode_source(["Ünï"]) for share in (1.0, 0.98))
    assert UNK_ID not in covered
    assert UNK_ID in rare


VARIANTS = {"'": "’ʼ‘", '"': "“”„", "-": "‑–—", " ": "\u00a0\u3000", "e": "éèｅ", "o": "øöｏ", "l": "ł", ".": "．"}
UNKNOWN = ["👍", "👩‍👩‍👧", "Привет", "日本", "naïvеté", "→"]  # one with a Cyrillic letter
PLAIN = ["he", "said:", "\"it's", "a", "well", "known,", "open-ended", 'list."', "(the", "old", "one)"]


@pytest.fixture(scope="module", params=["identity", "nmt_nfkc"])
def plain_tokenizer(request):
    config = TokenizerConfig(vocab_size=35, normalization=request.param, placeholders=8)
    return parse_tokenizers(train_tokenizer([Pair(" ".join(PLAIN), " ".join(PLAIN))] * 9, config))


@given(st.lists(st.sampled_from(PLAIN + UNKNOWN), min_size=1, max_size=9), st.randoms())
def test_unknown_characters_are_written_as_the_nearest_or_kept(plain_tokenizer, words, draw):
    text = " ".join(words)
    for plain, variants in VARIANTS.items():
        text = "".join(draw.choice(variants) if own == plain and draw.random() < 0.3 else own for own in text)
    (source,) = plain_tokenizer.protect_text([text])
    assert [span.kept for span in source.spans] == [word for word in words if word in UNKNOWN]
    if source.has_placeholders:
        expected = iter(source.placeholders)
        plain = " ".join(next(expected) if word in UNKNOWN else word for word in words)
        assert plain_tokenizer.encode_protected([source]) == [[*plain_tokenizer.source.encode(plain), EOS_ID]]
        assert source.untranslated == text
        characters = plain_tokenizer.source_characters(source)
        assert "".join(source.source[slice(*own)] for own in characters).split() == text.split()
    for part, _, is_kept in source.chunks():
        assert is_kept or UNK_ID not in plain_tokenizer.encode_protected([part])[0]


def test_sizes_named_in_errors_are_the_limits():
    for wrong, step, name in ((5000, 1, "largest"), (10, -1, "smallest")):
        with pytest.raises(UserError) as caught:
            trained(vocab_size=wrong)
        limit = int(str(caught.value).rsplit(" ", 1)[1])
        assert trained(vocab_size=limit).source_vocab_size == limit
        with pytest.raises(UserError, match=f"the {name} that works is {limit}"):
            trained(vocab_size=limit + step)


def model_of_a_user(**options: Any) -> bytes:
    """Returns a model with the defaults of SentencePiece."""
    model, lines = io.BytesIO(), iter([side for pair in PAIRS for side in pair])
    options = {"vocab_size": 80, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **options)
    return model.getvalue()


def test_model_with_other_special_ids_is_refused():
    with pytest.raises(UserError, match=r"m.model: its ids of pad, eos, bos and unk are \(-1, 2, 1, 0\)"):
        parse_tokenizers([model_of_a_user()], ["m.model"])


def test_ctrl_c_is_handled_while_sentencepiece_trains(monkeypatch):
    """It runs no Python code for many seconds, so it trains in another thread than the one that handles signals."""
    handled = threading.Event()

    def train_for_long(**_):
        assert threading.current_thread() is not threading.main_thread()
        os.kill(os.getpid(), signal.SIGINT)
        assert handled.wait(PROMPTLY)

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", train_for_long)
    previous = signal.signal(signal.SIGINT, lambda *_: handled.set())
    train_tokenizer([Pair("a", "b")], TokenizerConfig())
    signal.signal(signal.SIGINT, previous)


# Pairs on disk.


def test_tokens_are_those_of_the_tokenizer_the_tag_and_the_corpus(tmp_path):
    """In one cache."""
    plain = trained()
    for each in (plain, trained(kind="bpe"), plain.with_source_tag("<2fr>"), plain.with_source_tag("<2de>")):
        tokenized = tokenize(PAIRS, "f", each, tmp_path)
        assert len(tokenized) == len(PAIRS)
        for index in (0, 1, 2, 88, 159):
            assert [ids.tolist() for ids in tokenized[index]] == [ids[0] for ids in each.encode_pairs([PAIRS[index]])]
    assert len(tokenize(PAIRS[1:], "g", plain, tmp_path)) == len(PAIRS) - 1


def test_length_filter_applies_to_both_sides(tmp_path):
    tokenized = tokenize(PAIRS, "f", trained(), tmp_path)
    lengths = [max(len(side) for side in tokenized[i]) for i in range(len(tokenized))]
    kept = tokenized
    for limit in sorted(set(lengths), reverse=True):
        expected = [i for i, length in enumerate(lengths) if length <= limit]
        kept = kept.no_longer_than(limit)
        for pairs in (kept, tokenized.no_longer_than(limit)):
            assert pairs.positions(np.arange(len(pairs))).tolist() == expected
            assert [pairs[i][0].tolist() for i in range(len(pairs))] == [tokenized[i][0].tolist() for i in expected]
    with pytest.raises(IndexError):
        kept[len(kept)]
    assert len(tokenized.no_longer_than(1)) == 0


# Sampled segmentations, compared with all possible ones and with those of SentencePiece.

DRAWS = 10_000


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


def check_shares(sampler: SubwordSampler, text: str, expected: dict[tuple[int, ...], float]) -> None:
    """Checks that the shares of all segmentations in DRAWS samples are within four standard deviations."""
    assert math.isclose(sum(expected.values()), 1.0)
    rng = np.random.default_rng(0)
    counts = Counter(tuple(sampler.sample(text, rng)) for _ in range(DRAWS))
    assert counts.keys() <= expected.keys()
    for ids, share in expected.items():
        assert abs(counts[ids] / DRAWS - share) < 4 * math.sqrt(share * (1 - share) / DRAWS) + 1e-4, ids


@pytest.mark.parametrize(("text", "alpha"), [("the cat", 0.2), ("walked", 1.0), ("the日日t日", 0.3)])
def test_unigram_segmentations_have_the_probabilities_of_their_scores(text, alpha):
    """Compared with all segmentations into pieces that SentencePiece has; unknown characters are pieces."""
    processor = trained(vocab_size=90).source
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
    check_shares(SubwordSampler(processor, alpha), text, {ids: weight / total for ids, weight in weights.items()})


@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_dropout_has_the_probabilities_of_the_algorithm(dropout):
    """Compared with the published algorithm, over all subsets of merges that may be dropped at each step."""
    processor = trained(vocab_size=90, kind="bpe").source
    pieces = {processor.id_to_piece(i): processor.get_score(i) for i in range(4, processor.get_piece_size())}

    def outcomes(word: tuple[str, ...]) -> Counter:
        possible = [i for i in range(len(word) - 1) if word[i] + word[i + 1] in pieces]
        result = Counter[tuple[str, ...]]()
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
    check_shares(SubwordSampler(processor, dropout), "where", by_ids)


@pytest.mark.parametrize("options", [{}, {"byte_fallback": True, "vocab_size": 350}, {"lowercase": True}])
@pytest.mark.parametrize(("kind", "alpha", "certain"), [("unigram", 0.1, 1e6), ("bpe", 0.3, 1e-12)])
def test_every_segmentation_spells_the_same_text(options, kind, alpha, certain):
    """Without randomness, it is that of SentencePiece."""
    processor = trained(**{"vocab_size": 90, "kind": kind} | options).source
    sampler, other = SubwordSampler(processor, alpha), SubwordSampler(processor, certain)
    different = 0
    for number, text in enumerate(lines()):
        rng = np.random.default_rng(number)
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
        with pytest.raises(UserError, match=words):
            SubwordSampler(sentencepiece.SentencePieceProcessor(model_proto=model_of_a_user(**options)), alpha)
