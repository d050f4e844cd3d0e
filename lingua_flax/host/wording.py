"""Wording of messages."""


def counted(number: int, noun: str) -> str:
    """Returns the number with the noun in the singular or the regular plural, such as "1 line" or "1,500 lines"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
