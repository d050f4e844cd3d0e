"""The built-in corpus as the rest of the program reads it: generated once, then read from the cache folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from data.corpora.corpus import Corpus, Pair
from data.corpora.held_out_splits import write_splits
from data.corpora.phrasebook import generate, source_digest
from data.corpora.phrasebook.readings import find_readings
from data.corpora.prepared_corpus import open_prepared
from host.errors import UserError
from options.schema import DataConfig

_SEED = 0


def open_phrasebook(config: DataConfig) -> Corpus:
    """Open the phrasebook: train, validation, test and contrast, where lines 2i and 2i + 1 are the contrast pair i.

    Raises:
        UserError: the languages are not en to fr, or the cache folder cannot be written.
        RunError: the disk is full.
    """
    if (config.source_language, config.target_language) != ("en", "fr"):
        asked = f"{config.source_language} to {config.target_language}"
        raise UserError(f"the corpus phrasebook goes from en to fr, not from {asked}")
    corpus = open_prepared(config, "phrasebook", [source_digest(), _SEED], _write)
    return dataclasses.replace(corpus, find_readings=find_readings)


def _write(folder: Path) -> None:
    book = generate(_SEED)
    contrast = [pair for contrast in book.contrasts for pair in (contrast.first, contrast.second)]
    splits = {"train": book.train, "validation": book.validation, "test": book.test, "contrast": contrast}
    write_splits(folder, {name: (Pair(*pair) for pair in pairs) for name, pairs in splits.items()})
