"""Properties that hold for every text, on generated examples: N lines in, N lines out, in order, nothing lost."""

import functools
import itertools
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lingua_flax.data.batch import bucket_lengths, length_batches
from lingua_flax.data.text_files import read_lines
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID
from lingua_flax.translation.line_splitting import split_text
from lingua_flax.translation.translator import Translator
from tests.data.test_data import PAIRS

# Every run tests the same examples, so a failure is reproducible.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Text that is known to break programs: control characters, separators, right-to-left text, joined and combining
# characters, and the names of special pieces as a user might type them.
CONTROLS = ["\0", "\x1b[31m", "\ufeff", "\r", "\r\n", "\x85", "\v", "\f", "\t"]
SPACES = ["\u2028", "\u2029", "\u200b", "\u3000", " "]
SCRIPTS = ["\u202eabc", "שלום", "مرحبا", "👩‍👩‍👧", "🇫🇷", "e\u0301", "▁", "⁇", "\ufffd", "\U0010ffff", "ﬁ", "one", "."]
NASTY = [*CONTROLS, *SPACES, *SCRIPTS, "</s>", "<s>", "<pad>", "<unk>", "<2fr>", "<0x0A>"]
CHARACTERS = st.characters(exclude_categories=["Cs"])  # UTF-8 cannot encode a lone surrogate
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(CHARACTERS, max_size=9)), max_size=12).map("".join)
LINES = TEXTS.map(lambda text: text.replace("\n", ""))


@functools.cache
def trained_tokenizer(kind):
    with_bytes = TokenizerConfig(vocab_size=320, kind="bpe", byte_fallback=True)
    config = with_bytes if kind == "bytes" else TokenizerConfig(vocab_size=60)
    return parse_tokenizers(train_tokenizer(PAIRS, config))


@pytest.fixture(scope="module", params=["unigram", "bytes"])
def tokenizer(request):
    return trained_tokenizer(request.param)


@given(TEXTS)
def test_no_text_is_encoded_as_special_ids(tokenizer, text):
    (ids,) = tokenizer.encode_source([text])
    assert ids[-1] == EOS_ID
    assert {PAD_ID, BOS_ID, EOS_ID}.isdisjoint(ids[:-1])
    assert all(0 <= number < tokenizer.source_vocab_size for number in ids)


@given(st.lists(st.integers(0, 59)), st.integers(0, 5))
def test_any_ids_decode_to_one_line(tokenizer, ids, part):
    """Including byte pieces such as 0x0A, which a network may produce."""
    last = tokenizer.target_vocab_size - 1
    (decoded,) = tokenizer.decode_target([[min(number + 60 * part, last) for number in ids]])
    assert "\n" not in decoded
    assert "\r" not in decoded


@given(LINES)
def test_byte_fallback_preserves_every_text(line):
    """Apart from SentencePiece's normalization."""
    tokenizer = trained_tokenizer("bytes")
    (decoded,) = tokenizer.decode_target(tokenizer.encode_target([line]))
    assert decoded == tokenizer.target.normalize(line).replace("▁", " ").strip(" ")


@given(st.lists(LINES, max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_written_lines_are_read_back(lines, with_mark, with_crlf, terminated):
    """With and without a byte-order mark, Windows line endings, and a line ending after the last line."""
    ending = "\r\n" if with_crlf else "\n"
    text = ending.join(lines) + (ending if terminated or lines[-1:] == [""] else "") if lines else ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_bytes(("\ufeff" if with_mark else "").encode() + text.encode())
        actual = list(read_lines(path))
    if lines and not with_mark:
        lines = [lines[0].removeprefix("\ufeff"), *lines[1:]]  # it is a byte-order mark
    # A "\r" before "\n" is part of the line ending.
    stripped = [
        line.removesuffix("\r") if number < len(lines) - 1 or terminated else line for number, line in enumerate(lines)
    ]
    assert actual == (lines if with_crlf else stripped)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 9))
def test_every_sentence_is_in_exactly_one_batch(lengths, rows):
    batches = list(length_batches(lengths, rows, 40))
    assert sorted(itertools.chain.from_iterable(group for group, _ in batches)) == list(range(len(lengths)))
    for group, length in batches:
        assert len(group) <= rows
        assert max(lengths[i] for i in group) <= length
        assert length in bucket_lengths(40)


@given(LINES, st.integers(1, 30))
def test_parts_of_a_line_add_up_to_the_line(line, longest):
    parts = [text for text, _, _ in split_text(line, "en", lambda text: len(text) <= longest)]
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) <= longest for part in parts)


@pytest.fixture(scope="module")
def translator():
    """A translator with random parameters, small enough to split most lines into parts."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=8, num_heads=2, mlp_dim=8, max_length=8)
    params = initial_params(config, 60, 60, jax.random.key(0))
    return Translator(structure(config, 60, 60).graphdef, params, trained_tokenizer("unigram"), config)


# At least two sentences, since a single one needs other programs, with one row; each program takes a second to compile.
@given(st.lists(LINES, max_size=18).map(lambda lines: [*lines, "a dog", "the cat"]))
@settings(max_examples=25)
def test_translations_match_the_lines_in_number_and_order(translator, lines):
    """A line has the same translation whatever other lines are translated with it."""
    options = DecodingOptions(beam_size=1, batch_size=4, max_decoding_length=6)
    translations = translator.translate(lines, options)
    assert [translation.source for translation in translations] == lines
    for line, translation in zip(lines, translations, strict=True):
        assert set(translation.text) & set("\n\r") <= set(line)  # white space between sentences stays as it is
    for line, translation in zip(lines[:2], translations, strict=False):
        first, second = translator.translate([line, line], options)
        assert first.text == second.text == translation.text
