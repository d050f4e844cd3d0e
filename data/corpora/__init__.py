"""Parallel corpora, opened by name: phrasebook (built in), multi30k, text (the user's own files), those of TFDS."""

from __future__ import annotations

import difflib
import itertools

from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora.corpus import Corpus, Pair, PairSource

__all__ = ["Corpus", "Pair", "PairSource", "open_corpus"]

_TEXT_FILES = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))
_TFDS = "a corpus of TensorFlow Datasets"
_OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "phrasebook": (),
    "multi30k": ("directory",),
    "text": _TEXT_FILES,
    _TFDS: ("directory",),
}
_NAMES = tuple(name for name in _OWN_OPTIONS if name != _TFDS)


def open_corpus(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Open the corpus config.name, prepared in the cache folder on first use.

    Args:
        train_only: its other splits are not wanted, so none is held out of train.

    Raises:
        UserError: there is no such corpus, an option does not belong to it, or its input is wrong.
        RunError: the disk is full.
    """
    _check_options(config)
    # Imported where needed: TensorFlow Datasets takes most of a second.
    if config.name == "multi30k":
        from data.corpora.multi30k import open_multi30k

        return open_multi30k(config)
    if config.name == "text":
        from data.corpora.text import open_text

        return open_text(config, train_only=train_only)
    if config.name == "phrasebook":
        from data.corpora.phrasebook_corpus import open_phrasebook

        return open_phrasebook(config)
    from data.corpora.tfds_corpus import open_tfds

    return open_tfds(config, train_only=train_only)


def _check_options(config: DataConfig) -> None:
    """Refuse an unknown name, and an option that would be silently without effect."""
    if config.name not in _NAMES:
        _check_name(config.name)
    own = _OWN_OPTIONS[config.name if config.name in _NAMES else _TFDS]
    for option in dict.fromkeys(itertools.chain.from_iterable(_OWN_OPTIONS.values())):
        if option not in own and getattr(config, option) is not None:
            owners = [
                f'"{owner}"' if owner in _NAMES else owner for owner in _OWN_OPTIONS if option in _OWN_OPTIONS[owner]
            ]
            raise UserError(
                f'data.{option} has no effect with data.name = "{config.name}", only with {" or ".join(owners)}'
            )


def _check_name(name: str) -> None:
    from data.corpora.tfds_corpus import TRANSLATION_CORPORA, find_builder

    if name.partition("/")[0] in _NAMES or find_builder(name) is None:
        nearest = difflib.get_close_matches(name.partition("/")[0], [*_NAMES, *TRANSLATION_CORPORA], n=1)
        hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
        raise UserError(
            f'data.name: unknown corpus "{name}"{hint}; there are {", ".join(_NAMES)} '
            f"and, from TensorFlow Datasets, {', '.join(TRANSLATION_CORPORA)}"
        )
