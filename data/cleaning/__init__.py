"""Cleaning parallel text: reading what people have, mending it, and finding the pairs that do not match."""

import sys

from lingua_flax.host.installation import has_package

PACKAGES: tuple[str, ...] = ("ftfy", "lxml", "openpyxl", "polib", "py3langid")  # of the extra clean
if sys.version_info < (3, 14):  # from then on it is in the standard library
    PACKAGES = (*PACKAGES, "backports.zstd")


def is_installed() -> bool:
    """Returns whether the packages of the extra clean are there; corpus_filters.py and report.py need none."""
    return all(map(has_package, PACKAGES))
