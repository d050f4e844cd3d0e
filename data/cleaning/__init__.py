"""Cleaning parallel text: reading what people have, mending it, and finding the pairs that do not match."""

import importlib.util

PACKAGES = ("ftfy", "py3langid")  # of the extra clean


def is_installed() -> bool:
    """Returns whether the packages of the extra clean are there; corpus_filters.py and report.py need none."""
    return all(map(importlib.util.find_spec, PACKAGES))
