"""Tokenizers: special pieces and tags, options, sizes of vocabularies, properties of every text; pairs on disk."""

import functools

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.tokenized_pairs import tokenize
from lingua_flax.data.tokenizer import Tokenizer, load_tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
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
    assert tagged.fingerprint == plain.fingerprint


def test_normalization():
    for options, expected in (
        ({"normalization": "nmt_nfkc"}, "21\u20442 می خواهم,A"),  # the zero-width non-joiner of Persian becomes a space
        ({"normalization": "nfkc"}, "21\u20442 می\u200cخواهم,A"),
        ({"normalization": "identity"}, "2½ می\u200cخواهم，Ａ"),
        ({"normalization": "identity", "lowercase": True}, "2½ می\u200cخواهم，ａ"),
    ):
        normalized = trained(**options).source.normalize("2½ می\u200cخواهم，Ａ")
        assert normalized.replace("▁", " ").strip() == expected


def test_lower_character_coverage_omits_rare_characters():
    (covered,), (rare,) = (trained(character_coverage=share).encode_source(["Ünï"]) for share in (1.0, 0.98))
    assert UNK_ID not in covered
    assert UNK_ID in rare


def test_sizes_named_in_errors_are_the_limits():
    for wrong, step, name in ((5000, 1, "largest"), (10, -1, "smallest")):
        with pytest.raises(UserError) as caught:
            trained(vocab_size=wrong)
        limit = int(str(caught.value).rsplit(" ", 1)[1])
        assert trained(vocab_size=limit).source_vocab_size == limit
        with pytest.raises(UserError, match=f"the {name} that works is {limit}"):
            trained(vocab_size=limit + step)


def test_model_with_other_special_ids_is_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pair.source for pair in PAIRS),
        model_prefix=str(tmp_path / "m"),
        vocab_size=50,
        minloglevel=2,
    )
    with pytest.raises(UserError, match=r"m.model: its ids of pad, eos, bos and unk are \(-1, 2, 1, 0\)"):
        load_tokenizer([tmp_path / "m.model"])


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
