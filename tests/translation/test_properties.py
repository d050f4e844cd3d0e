"""Properties of translation that hold for every text: N lines in, N lines out, in order, nothing lost."""

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.schema import DecodingOptions, ModelConfig, TokenizerConfig
from lingua_flax.translation.line_splitting import split_text
from lingua_flax.translation.translator import Translator
from tests.helpers.pairs import PAIRS
from tests.helpers.texts import LINES


@given(LINES, st.integers(1, 30))
def test_parts_of_a_line_add_up_to_the_line(line, longest):
    parts = [text for text, _, _ in split_text(line, "en", lambda text: len(text) <= longest)]
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) <= longest for part in parts)


@pytest.fixture(scope="module")
def translator():
    """A translator with random parameters, small enough to split most lines into parts."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=8, num_heads=2, mlp_dim=8, max_length=8)
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    params = initial_params(config, 60, 60, jax.random.key(0))
    return Translator(structure(config, 60, 60).graphdef, params, tokenizer, config)


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
