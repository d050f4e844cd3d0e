"""The phrasebook: a built-in English-French corpus, in the files of this folder, which README.md describes."""

import dataclasses
from pathlib import Path

from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.corpora.held_out_splits import write_splits
from lingua_flax.data.corpora.pair_files import read_tsv, sha256
from lingua_flax.data.corpora.phrasebook.readings import READINGS, find_readings
from lingua_flax.data.corpora.prepared_corpus import open_prepared
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig

__all__ = ["READINGS", "ambiguous_sentences", "find_readings", "open_phrasebook"]

_NAMES = {"train": "train.tsv.gz", "validation": "validation.tsv", "test": "test.tsv", "contrast": "contrast.tsv"}
_FILES = {split: Path(__file__).parent / name for split, name in _NAMES.items()}


def open_phrasebook(config: DataConfig) -> Corpus:
    """Opens the phrasebook: train, validation, test and contrast.

    Lines 2i and 2i + 1 of contrast are a contrast pair. Raises UserError if the languages are not en to fr.
    """
    if (config.source_language, config.target_language) != ("en", "fr"):
        requested = f"{config.source_language} to {config.target_language}"
        raise UserError(f"the corpus phrasebook goes from en to fr, not from {requested}")

    def write(folder: Path) -> None:
        write_splits(folder, {split: read_tsv(path) for split, path in _FILES.items()})

    corpus = open_prepared(config, "phrasebook", [sha256(path) for path in _FILES.values()], write)
    return dataclasses.replace(corpus, find_readings=find_readings)


def ambiguous_sentences() -> dict[str, tuple[str, str]]:
    """Returns the sources of the first contrast pair of each ambiguous word."""
    lines, sentences = list(read_tsv(_FILES["contrast"])), dict[str, tuple[str, str]]()
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        sources, references = zip(first, second, strict=True)
        if found := find_readings(sources, references):
            sentences.setdefault(found[0].name, sources)
    return sentences
