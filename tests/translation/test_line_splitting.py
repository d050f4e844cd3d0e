"""Lines that are too long are split at sentence ends, else at spaces, else within words."""

import random

import pytest

from lingua_flax.translation.line_splitting import split_line


def shorter_than(length):
    return lambda text: len(text) <= length


@pytest.mark.parametrize(
    ("line", "length", "parts"),
    [
        ("One two. Three.", 20, ["One two. Three."]),
        ("One two. Three four five six.", 20, ["One two.", "Three four five six."]),
        # at every sentence end, although some parts would fit together
        ("A b. Cd ef. Gh ij. Kl.", 12, ["A b.", "Cd ef.", "Gh ij.", "Kl."]),
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
    assert split_line(line, shorter_than(length)) == parts


def test_only_spaces_are_lost():
    draw = random.Random(1)
    for _ in range(300):
        line = "".join(draw.choice('ab.?!  é。"') for _ in range(draw.randint(1, 60)))
        parts = split_line(line, shorter_than(7))
        assert "".join("".join(parts).split()) == "".join(line.split())
        assert all(len(part) <= 7 and part == part.strip() for part in parts)


def test_a_very_long_line_is_split():
    assert len(split_line("a. " * 20_000 + "x" * 100_000, shorter_than(40))) > 2500
