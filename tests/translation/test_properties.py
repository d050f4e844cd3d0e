"""Properties of translation that hold for every text: N lines in, N lines out, in order, nothing lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.placeholders import Protected
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.line_splitting import split_text
from tests.helpers.texts import LINES
from tests.helpers.translation import decisive_translator


@given(LINES, st.integers(1, 30))
def test_parts_of_a_line_add_up_to_the_line(line, longest):
    pieces = split_text(Protected(line), "en", lambda part: len(part.source) <= longest)
    parts = [part.source for part, _, _ in pieces]
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) <= longest for part in parts)


@given(st.lists(LINES, max_size=18).map(lambda lines: [*lines, "a dog", "the cat"]))
@settings(max_examples=25)
def test_translations_match_the_lines_in_number_and_order(lines):
    """By a network that takes few tokens, so that most lines are split into parts.

    A line has the same translation whatever other lines are translated with it. There are at least two sentences, since
    a single one needs other programs, with one row.
    """
    translator = decisive_translator(embed_dim=8, mlp_dim=8, max_length=8)
    options = DecodingOptions(beam_size=1, batch_size=4, max_decoding_length=6)
    translations = translator.translate(lines, options)
    assert [translation.source for translation in translations] == lines
    for line, translation in zip(lines, translations, strict=True):
        assert set(translation.text) & set("\n\r") <= set(line)  # white space between sentences stays as it is
    for line, translation in zip(lines[:2], translations, strict=False):
        first, second = translator.translate([line, line], options)
        assert first.text == second.text == translation.text
