"""Where a line that is too long is cut."""

import random

import pytest

from translation.line_splitting import split_line


def shorter_than(length):
    return lambda text: len(text) <= length


@pytest.mark.parametrize(
    ("line", "length", "parts"),
    [
        ("One two. Three.", 20, ["One two. Three."]),
        ("One two. Three four five six.", 20, ["One two.", "Three four five six."]),
        # at every sentence end, though some would fit together
        ("A b. Cd ef. Gh ij. Kl.", 12, ["A b.", "Cd ef.", "Gh ij.", "Kl."]),
        ('He said "no!" Then he left?! Yes.', 20, ['He said "no!"', "Then he left?!", "Yes."]),
        ("Costs 3.5 or 4.5 euros", 12, ["Costs 3.5", "or 4.5 euros"]),  # no sentence ends: at a space
        ("One. Two three four. Five.", 11, ["One.", "Two", "three four.", "Five."]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("unendingword x", 5, ["une", "ndi", "ngw", "ord", "x"]),  # in a word only where it is too long itself
        ("你好。我很好。谢谢。", 5, ["你好。", "我很好。", "谢谢。"]),
        ("  a b \u3000 c ", 3, ["a", "b", "c"]),
        ("x", 0, ["x"]),  # nothing to cut
    ],
)
def test_cuts_by_hand(line, length, parts):
    assert split_line(line, shorter_than(length)) == parts


def test_nothing_but_spaces_is_lost():
    draw = random.Random(1)
    for _ in range(300):
        line = "".join(draw.choice('ab.?!  é。"') for _ in range(draw.randint(1, 60)))
        parts = split_line(line, shorter_than(7))
        assert "".join("".join(parts).split()) == "".join(line.split())
        assert all(len(part) <= 7 and part == part.strip() for part in parts)


def test_a_very_long_line_is_cut_too():
    assert len(split_line("a. " * 20_000 + "x" * 100_000, shorter_than(40))) > 2500
