"""Tokenizers, tokenized pairs and the batches of evaluation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from lingua_flax.data.batch import bucket_lengths, cut, length_batches, unpacked_batch
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.tokenized_pairs import TokenizedPairs, tokenize
from lingua_flax.data.tokenizer import Tokenizer, load_tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from tests.command_server import PROJECT_ON_PATH

PAIRS = [
    Pair("the cat eats fish .", "le chat mange du poisson ."),
    Pair("a dog sleeps", "un chien dort"),
    Pair("Ünï ça where is it?", "où est-ce ?"),
    Pair("the black cats were sleeping near the water", "les chats noirs dormaient près de l'eau"),
    Pair("every morning he drinks coffee with milk", "chaque matin il boit du café au lait"),
    Pair("nobody knows which bridge crosses the river", "personne ne sait quel pont traverse la rivière"),
    Pair("my grandmother keeps seven white geese", "ma grand-mère garde sept oies blanches"),
    Pair("yesterday we walked through the old village", "hier nous avons traversé le vieux village"),
] * 20
SMALL = {"vocab_size": 60}


def train_models(**options) -> list[bytes]:
    return train_tokenizer(PAIRS, TokenizerConfig(**{**SMALL, **options}))


def trained(**options) -> Tokenizer:
    return parse_tokenizers(train_models(**options))


def test_special_pieces_have_their_fixed_ids():
    tokenizer = trained()
    processor = tokenizer.source
    assert [processor.id_to_piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    (ids,) = tokenizer.encode_source(["the cat"])
    assert ids[-1] == EOS_ID
    assert not {PAD_ID, BOS_ID} & set(ids)


@pytest.mark.parametrize(
    "options", [{}, {"kind": "bpe"}, {"joint": False, "vocab_size": 45}, {"byte_fallback": True, "vocab_size": 350}]
)
def test_decoding_restores_the_text(options):
    tokenizer = trained(**options)
    lines = [pair.target for pair in PAIRS[:3]]
    assert tokenizer.decode_target(tokenizer.encode_target(lines)) == lines
    assert (tokenizer.source is tokenizer.target) == options.get("joint", True)


def test_byte_fallback_spells_unseen_characters():
    tokenizer = trained(byte_fallback=True, vocab_size=350)
    assert tokenizer.decode_target(tokenizer.encode_target(["日本"])) == ["日本"]


def test_lowercasing_folds_case():
    tokenizer = trained(lowercase=True)
    assert tokenizer.encode_source(["THE CAT"]) == tokenizer.encode_source(["the cat"])


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("nmt_nfkc", "21\u20442 می خواهم,A"),  # the zero-width non-joiner of Persian becomes a space
        ("nfkc", "21\u20442 می\u200cخواهم,A"),
        ("identity", "2½ می\u200cخواهم，Ａ"),
    ],
)
def test_normalization(normalization, expected):
    tokenizer = trained(normalization=normalization)
    assert tokenizer.source.normalize("2½ می\u200cخواهم，Ａ").replace("▁", " ").strip() == expected


def test_lower_character_coverage_omits_rare_characters():
    (covered,), (rare,) = (trained(character_coverage=share).encode_source(["Ünï"]) for share in (1.0, 0.98))
    assert UNK_ID not in covered
    assert UNK_ID in rare


def test_control_pieces_in_text_are_plain_text_and_output_is_one_line():
    tokenizer = trained(byte_fallback=True, vocab_size=350)
    (ids,) = tokenizer.encode_source(["</s> <pad> <s>"])
    assert ids.count(EOS_ID) == 1
    assert not {PAD_ID, BOS_ID} & set(ids)
    newline = tokenizer.target.piece_to_id("<0x0A>")
    assert "\n" not in tokenizer.decode_target([[newline, *tokenizer.encode_target(["le chat"])[0]]])[0]


def test_training_is_reproducible_in_another_process():
    arguments = json.dumps([PAIRS, SMALL]).encode()
    script, environment = Path(__file__).parent / "scripts" / "tokenizer_of_pairs.py", os.environ | PROJECT_ON_PATH
    done = subprocess.run([sys.executable, script], env=environment, input=arguments, capture_output=True, check=True)
    assert [done.stdout] == train_models()


def test_largest_vocabulary_named_in_the_error_is_the_limit():
    with pytest.raises(UserError) as caught:
        trained(vocab_size=5000)
    largest = int(str(caught.value).rsplit(" ", 1)[1])
    assert trained(vocab_size=largest).source_vocab_size == largest
    with pytest.raises(UserError, match=f"the largest that works is {largest}"):
        trained(vocab_size=largest + 1)


def test_smallest_vocabulary_named_in_the_error_is_the_limit():
    with pytest.raises(UserError) as caught:
        trained(vocab_size=10)
    smallest = int(str(caught.value).rsplit(" ", 1)[1])
    assert trained(vocab_size=smallest).source_vocab_size == smallest
    with pytest.raises(UserError, match=f"the smallest that works is {smallest}"):
        trained(vocab_size=smallest - 1)


def test_model_with_other_special_ids_is_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pair.source for pair in PAIRS),
        model_prefix=str(tmp_path / "m"),
        vocab_size=50,
        minloglevel=2,
    )
    with pytest.raises(UserError, match=r"m.model: its ids of pad, eos, bos and unk are \(-1, 2, 1, 0\)"):
        load_tokenizer([tmp_path / "m.model"])


def store(tmp_path, pairs=PAIRS, tokenizer=None, fingerprint="f") -> TokenizedPairs:
    return tokenize(pairs, fingerprint, tokenizer or trained(), tmp_path)


def test_tokenized_pairs_match_the_tokenizer(tmp_path):
    tokenizer = trained()
    tokenized = store(tmp_path, tokenizer=tokenizer)
    assert len(tokenized) == len(PAIRS)
    for index in (0, 1, 2, 88, 159):
        source, target = tokenized[index]
        assert source.tolist() == tokenizer.encode_source([PAIRS[index].source])[0]
        assert target.tolist() == tokenizer.encode_target([PAIRS[index].target])[0]


def test_length_filter_applies_to_both_sides(tmp_path):
    tokenized = store(tmp_path)
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


def test_new_tokenizer_or_corpus_is_tokenized_again(tmp_path):
    store(tmp_path)
    bpe = trained(kind="bpe")
    other = store(tmp_path, tokenizer=bpe)
    assert other[0][0].tolist() == bpe.encode_source([PAIRS[0].source])[0]
    changed = store(tmp_path, pairs=PAIRS[1:], fingerprint="g")
    assert len(changed) == len(PAIRS) - 1


def test_unpacked_batch_matches_one_made_by_hand():
    batch = unpacked_batch([[5, 6, 1]], [[7, 1]], rows=2, length=4)
    assert batch.source.tolist() == [[5, 6, 1, 0], [0, 0, 0, 0]]
    assert batch.target_in.tolist() == [[2, 7, 0, 0], [0, 0, 0, 0]]
    assert batch.target_out.tolist() == [[7, 1, 0, 0], [0, 0, 0, 0]]
    assert batch.source_segments.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]


def test_truncation_keeps_the_end_token():
    assert cut([5, 6, 7, 1], 4) == [5, 6, 7, 1]
    assert cut([5, 6, 7, 1], 3) == [5, 6, 1]


def test_evaluation_batches_have_at_most_four_lengths_and_all_sentences():
    lengths = np.random.default_rng(0).integers(1, 101, size=333).tolist()
    groups = list(length_batches(lengths, rows=16, max_length=100))
    assert sorted(i for group, _ in groups for i in group) == list(range(333))
    assert {length for _, length in groups} <= set(bucket_lengths(100))
    assert len(bucket_lengths(100)) == 4
    assert max(bucket_lengths(100)) == 100
    for group, length in groups:
        assert len(group) <= 16
        assert max(lengths[i] for i in group) <= length
