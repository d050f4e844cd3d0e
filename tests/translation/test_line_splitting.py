"""Lines are split at sentence ends; sentences that are too long at spaces, else within words."""

import random

import pytest

from lingua_flax.translation.line_splitting import split_text


def parts_of(text, longest):
    return [part for part, _, _ in split_text(text, "en", lambda part: len(part) <= longest)]


@pytest.mark.parametrize(
    ("line", "length", "parts"),
    [
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
    assert parts_of(line, length) == parts


def test_only_spaces_are_lost():
    draw = random.Random(1)
    for _ in range(300):
        line = "".join(draw.choice('ab.?!  é。"') for _ in range(draw.randint(1, 60)))
        parts = parts_of(line, 7)
        assert "".join("".join(parts).split()) == "".join(line.split())
        assert all(len(part) <= 7 and part == part.strip() for part in parts)
    assert len(parts_of("a. " * 20_000 + "x" * 100_000, 40)) > 2500
