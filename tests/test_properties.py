"""What holds for every text, found by generated ones: nothing is lost, nothing is out of order, N lines in, N out."""

import itertools
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.batch import bucket_lengths, length_batches
from data.text_files import read_lines
from data.tokenizer import parse_tokenizers, train_tokenizer
from model.transformer import initial_params, structure
from options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from options.special_ids import BOS_ID, EOS_ID, PAD_ID
from tests.test_data import PAIRS
from translation.line_splitting import split_line
from translation.translator import Translator

# The same examples in every run: what fails once fails for everybody.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# What has broken a text path somewhere: control characters, separators, both directions, joined and combining signs,
# and the names of special pieces as anybody may type them.
NASTY = ["\0", "\x1b[31m", "\ufeff", "\r", "\r\n", "\u2028", "\u2029", "\x85", "\v", "\f", "\t", "\u202eabc", "שלום",
         "مرحبا", "👩‍👩‍👧", "🇫🇷", "e\u0301", "\u200b", "\u3000", "▁", "⁇", "</s>", "<s>", "<pad>", "<unk>", "<2fr>",
         "<0x0A>", "\ufffd", "\U0010ffff", "ﬁ", "one", " ", "."]  # fmt: skip
CHARACTERS = st.characters(exclude_categories=["Cs"])  # a lone surrogate is no text: no UTF-8 file can hold one
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(CHARACTERS, max_size=9)), max_size=12).map("".join)
LINES = TEXTS.map(lambda text: text.replace("\n", ""))


@pytest.fixture(scope="module", params=["unigram", "bytes"])
def tokenizer(request):
    config = {"unigram": TokenizerConfig(vocab_size=60),
              "bytes": TokenizerConfig(vocab_size=320, kind="bpe", byte_fallback=True)}[request.param]  # fmt: skip
    return parse_tokenizers(train_tokenizer(PAIRS, config))


@given(TEXTS)
def test_no_text_gives_special_ids(tokenizer, text):
    (ids,) = tokenizer.encode_source([text])
    assert ids[-1] == EOS_ID
    assert {PAD_ID, BOS_ID, EOS_ID}.isdisjoint(ids[:-1])
    assert all(0 <= number < tokenizer.source_vocab_size for number in ids)


@given(st.lists(st.integers(0, 59)), st.integers(0, 5))
def test_all_ids_give_one_line(tokenizer, ids, part):
    """Whatever a network says, bytes such as 0x0A among it."""
    last = tokenizer.target_vocab_size - 1
    (decoded,) = tokenizer.decode_target([[min(number + 60 * part, last) for number in ids]])
    assert "\n" not in decoded
    assert "\r" not in decoded


@pytest.fixture(scope="module")
def spelling():
    """A tokenizer that spells what it has no piece for as bytes."""
    config = TokenizerConfig(vocab_size=320, kind="bpe", byte_fallback=True)
    return parse_tokenizers(train_tokenizer(PAIRS, config))


@given(LINES)
def test_bytes_spell_every_text(spelling, line):
    """What comes back is what SentencePiece's own normalizer makes of it."""
    (decoded,) = spelling.decode_target(spelling.encode_target([line]))
    assert decoded == spelling.target.normalize(line).replace("▁", " ").strip(" ")


@given(st.lists(LINES, max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_lines_that_are_written_are_read(lines, mark, windows, closed):
    """With and without a byte-order mark, Windows line ends, a line end behind the last line."""
    end = "\r\n" if windows else "\n"
    text = end.join(lines) + (end if closed or lines[-1:] == [""] else "") if lines else ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_bytes(("\ufeff" if mark else "").encode() + text.encode())
        read = list(read_lines(path))
    if lines and not mark:
        lines = [lines[0].removeprefix("\ufeff"), *lines[1:]]  # it is one
    # A lone "\r" before a line end is part of that.
    ended = [
        line.removesuffix("\r") if number < len(lines) - 1 or closed else line for number, line in enumerate(lines)
    ]
    assert read == (ended if not windows else lines)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 9))
def test_every_sentence_is_in_one_batch(lengths, rows):
    batches = list(length_batches(lengths, rows, 40))
    assert sorted(itertools.chain.from_iterable(group for group, _ in batches)) == list(range(len(lengths)))
    for group, length in batches:
        assert len(group) <= rows
        assert max(lengths[i] for i in group) <= length
        assert length in bucket_lengths(40)


@given(LINES, st.integers(1, 30))
def test_parts_of_a_line_are_all_of_it(line, longest):
    parts = split_line(line, lambda text: len(text) <= longest)
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) <= longest for part in parts)


@pytest.fixture(scope="module")
def translator():
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=8, num_heads=2, mlp_dim=8, max_length=16)
    params = initial_params(config, 60, 60, jax.random.key(0))
    return Translator(structure(config, 60, 60).graphdef, params, tokenizer, config)


@given(st.lists(LINES, max_size=20))
@settings(max_examples=25)
def test_as_many_translations_as_lines_in_their_order(translator, lines):
    options = DecodingOptions(beam_size=1, batch_size=8, max_decoding_length=6)
    together = translator.translate(lines, options)
    assert [found.source for found in together] == lines
    assert not any(set(found.text) & set("\n\r") for found in together)
    for line, found in zip(lines[:2], together, strict=False):
        assert translator.translate([line], options)[0].text == found.text
