"""The built-in corpus as the rest of the program reads it: generated once, then read from the cache folder."""

from __future__ import annotations

from pathlib import Path

from configs.cache import cache_directory
from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora import storage
from data.corpora.corpus import Corpus, Pair
from data.corpora.phrasebook import generate, source_digest

_FORMAT = 1  # raise it when what is written here changes
_SEED = 0


def open_phrasebook(config: DataConfig) -> Corpus:
    """Open the phrasebook: train, validation, test and contrast, where lines 2i and 2i + 1 are the contrast pair i.

    Raises:
        UserError: the languages are not en to fr, or the cache folder cannot be written.
        RunError: the disk is full.
    """
    languages = (config.source_language, config.target_language)
    if languages != ("en", "fr"):
        raise UserError(f"the corpus phrasebook goes from en to fr, not from {languages[0]} to {languages[1]}")
    key = storage.fingerprint("phrasebook", _FORMAT, source_digest(), _SEED)
    folder = storage.prepare(cache_directory(config.cache_directory), "phrasebook", key, _write)
    splits, notes = storage.read_corpus(folder)
    return Corpus("phrasebook", *languages, key, splits, notes)


def _write(folder: Path) -> None:
    phrasebook = generate(_SEED)
    contrast = [pair for contrast in phrasebook.contrasts for pair in (contrast.first, contrast.second)]
    splits = {
        "train": phrasebook.train,
        "validation": phrasebook.validation,
        "test": phrasebook.test,
        "contrast": contrast,
    }
    writer = storage.CorpusWriter(folder, list(splits))
    for split, pairs in splits.items():
        for source, target in pairs:
            writer.write(split, Pair(source, target))
    writer.close()
