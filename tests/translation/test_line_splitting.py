"""Lines are split at sentence ends; sentences that are too long at spaces, else within words."""

import random

import pytest

from lingua_flax.translation.line_splitting import split_text


def shorter_than(length):
    return lambda text: len(text) <= length


def texts(parts):
    return [text for text, _, _ in parts]


@pytest.mark.parametrize(
    ("line", "length", "parts"),
    [
        ("One two. Three.", 20, ["One two.", "Three."]),
        ("We ran. You sat. He is.", 12, ["We ran.", "You sat.", "He is."]),
        ('He said "no!" Then he left?! Yes.', 20, ['He said "no!"', "Then he left?!", "Yes."]),
        ("Costs 3.5 or 4.5 euros", 12, ["Costs 3.5", "or 4.5 euros"]),  # without a sentence end: at a space
        ("One. Two three four. Five.", 11, ["One.", "Two", "three four.", "Five."]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("unendingword x", 5, ["une", "ndi", "ngw", "ord", "x"]),  # within a word only if the word is too long
        ("你好。我很好。谢谢。", 5, ["你好。", "我很好。", "谢谢。"]),
        ("  a b \u3000 c ", 3, ["a", "b", "c"]),
        ("x", 0, ["x"]),  # too short to split
    ],
)
def test_parts_by_hand(line, length, parts):
    assert texts(split_text(line, "en", shorter_than(length))) == parts


def test_only_spaces_are_lost():
    draw = random.Random(1)
    for _ in range(300):
        line = "".join(draw.choice('ab.?!  é。"') for _ in range(draw.randint(1, 60)))
        parts = texts(split_text(line, "en", shorter_than(7)))
        assert "".join("".join(parts).split()) == "".join(line.split())
        assert all(len(part) <= 7 and part == part.strip() for part in parts)


def test_a_very_long_line_is_split():
    assert len(split_text("a. " * 20_000 + "x" * 100_000, "en", shorter_than(40))) > 2500
