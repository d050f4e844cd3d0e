"""Wording of messages."""

from lingua_flax.host.wording import counted


def test_one_of_a_kind_is_in_the_singular():
    assert [counted(number, "step") for number in (0, 1, 2, 1500)] == ["0 steps", "1 step", "2 steps", "1,500 steps"]
