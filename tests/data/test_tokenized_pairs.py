"""Tokenized pairs on disk."""

import numpy as np
import pytest

from lingua_flax.data.tokenized_pairs import tokenize
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.options.schema import TokenizerConfig
from tests.helpers.pairs import PAIRS


@pytest.fixture(scope="module")
def tokenizer():
    return parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=80), ["<2fr>", "<2de>"]))


def test_tokens_are_those_of_the_tokenizer_the_tag_and_the_corpus(tmp_path, tokenizer):
    """In one cache."""
    bpe = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60, kind="bpe")))
    for each in (tokenizer, bpe, tokenizer.with_source_tag("<2fr>"), tokenizer.with_source_tag("<2de>")):
        tokenized = tokenize(PAIRS, "f", each, tmp_path)
        assert len(tokenized) == len(PAIRS)
        for index in (0, 1, 2, 88, 159):
            source, target = tokenized[index]
            assert source.tolist() == each.encode_source([PAIRS[index].source])[0]
            assert target.tolist() == each.encode_target([PAIRS[index].target])[0]
    assert len(tokenize(PAIRS[1:], "g", tokenizer, tmp_path)) == len(PAIRS) - 1


def test_length_filter_applies_to_both_sides(tmp_path, tokenizer):
    tokenized = tokenize(PAIRS, "f", tokenizer, tmp_path)
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
