"""Parallel corpora, opened by name: phrasebook (built in), multi30k, text (the user's own files), and those of TFDS."""

import difflib

from lingua_flax.data.corpora.corpus import Corpus, Pair, PairSource
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TEXT_FILES, DataConfig

__all__ = ["Corpus", "Pair", "PairSource", "open_corpus"]

_OPTIONS: dict[str, tuple[str, ...]] = {"phrasebook": (), "multi30k": ("directory",), "text": TEXT_FILES}


def open_corpus(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Opens the corpus config.name, prepared in the cache folder on first use; nothing is held out if `train_only`.

    Raises UserError if there is no such corpus, an option does not belong to it, or its input is wrong, and RunError if
    the disk is full.
    """
    if config.name not in _OPTIONS:
        _check_name(config.name)
    _check_options(config)
    # Imported only when needed: TensorFlow Datasets is slow to import.
    if config.name == "multi30k":
        from lingua_flax.data.corpora.multi30k import open_multi30k

        return open_multi30k(config)
    if config.name == "text":
        from lingua_flax.data.corpora.text_corpus import open_text

        return open_text(config, train_only=train_only)
    if config.name == "phrasebook":
        from lingua_flax.data.corpora.phrasebook import open_phrasebook

        return open_phrasebook(config)
    from lingua_flax.data.corpora.tfds_corpus import open_tfds

    return open_tfds(config, train_only=train_only)


def _check_name(name: str) -> None:
    from lingua_flax.data.corpora.tfds_corpus import TRANSLATION_CORPORA, find_builder

    if name.partition("/")[0] in _OPTIONS or find_builder(name) is None:
        nearest = difflib.get_close_matches(name.partition("/")[0], [*_OPTIONS, *TRANSLATION_CORPORA], n=1)
        hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
        raise UserError(
            f'data.name: unknown corpus "{name}"{hint}; the corpora are {", ".join(_OPTIONS)} '
            f"and, from TensorFlow Datasets, {', '.join(TRANSLATION_CORPORA)}"
        )


def _check_options(config: DataConfig) -> None:
    """Raises a UserError for an option that would otherwise have no effect."""
    accepted = _OPTIONS.get(config.name, ("directory",))
    for option in ("directory", *TEXT_FILES):
        if option not in accepted and getattr(config, option) is not None:
            owners = [f'"{name}"' for name, options in _OPTIONS.items() if option in options]
            owners += ["a corpus of TensorFlow Datasets"] * (option == "directory")
            raise UserError(
                f'data.{option} has no effect with data.name = "{config.name}", only with {" or ".join(owners)}'
            )
