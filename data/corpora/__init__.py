"""Parallel corpora, opened by name: phrasebook (built in), multi30k, text (the user's own files)."""

from __future__ import annotations

import difflib

from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora.corpus import Corpus, Pair, PairSource

__all__ = ["Corpus", "Pair", "PairSource", "open_corpus"]

_TEXT_FILES = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))
_OWN_OPTIONS: dict[str, tuple[str, ...]] = {"phrasebook": (), "multi30k": ("directory",), "text": _TEXT_FILES}


def open_corpus(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Open the corpus config.name, prepared in the cache folder on first use.

    Args:
        train_only: its other splits are not wanted, so none is held out of the user's own files.

    Raises:
        UserError: there is no such corpus, an option does not belong to it, or its input is wrong.
        RunError: the disk is full.
    """
    _check_options(config)
    # Imported where needed: multi30k brings TensorFlow Datasets, which takes most of a second.
    if config.name == "multi30k":
        from data.corpora.multi30k import open_multi30k

        return open_multi30k(config)
    if config.name == "text":
        from data.corpora.text import open_text

        return open_text(config, train_only=train_only)
    from data.corpora.phrasebook_corpus import open_phrasebook

    return open_phrasebook(config)


def _check_options(config: DataConfig) -> None:
    """Refuse an unknown name, and an option that would be silently without effect."""
    if config.name not in _OWN_OPTIONS:
        nearest = difflib.get_close_matches(config.name, _OWN_OPTIONS, n=1)
        hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
        raise UserError(f'data.name: unknown corpus "{config.name}"{hint}; there are {", ".join(_OWN_OPTIONS)}')
    for owner, options in _OWN_OPTIONS.items():
        for option in options:
            if owner != config.name and getattr(config, option) is not None:
                raise UserError(f'data.{option} has no effect with data.name = "{config.name}", only with "{owner}"')
