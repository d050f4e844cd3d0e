"""The phrasebook: a built-in English-French corpus, generated from a bilingual lexicon and sentence templates.

Code outside the package imports from here, and only tests from the inner modules. README.md describes the splits, the
translation conventions, the modules, and how to extend the corpus.
"""

import dataclasses
import hashlib
from pathlib import Path

from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.corpora.corpus import Pair as CorpusPair
from lingua_flax.data.corpora.held_out_splits import write_splits
from lingua_flax.data.corpora.phrasebook.generator import begin, generate
from lingua_flax.data.corpora.phrasebook.readings import find_readings
from lingua_flax.data.corpora.prepared_corpus import open_prepared
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig

__all__ = ["begin", "find_readings", "generate", "open_phrasebook", "source_digest"]

_SEED = 0


def open_phrasebook(config: DataConfig) -> Corpus:
    """Opens the phrasebook, generated on first use: train, validation, test and contrast.

    Lines 2i and 2i + 1 of contrast are a contrast pair. Raises UserError if the languages are not en to fr.
    """
    if (config.source_language, config.target_language) != ("en", "fr"):
        requested = f"{config.source_language} to {config.target_language}"
        raise UserError(f"the corpus phrasebook goes from en to fr, not from {requested}")
    corpus = open_prepared(config, "phrasebook", [source_digest(), _SEED], _write)
    return dataclasses.replace(corpus, find_readings=find_readings)


def source_digest() -> str:
    """Returns the SHA-256 of the package's code and words, in hex; it is part of the key of the cached corpus."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted((*folder.glob("*.py"), *folder.glob("words/*.txt"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _write(folder: Path) -> None:
    book = generate(_SEED)
    contrast = [pair for contrast in book.contrasts for pair in (contrast.first, contrast.second)]
    splits = {"train": book.train, "validation": book.validation, "test": book.test, "contrast": contrast}
    write_splits(folder, {name: (CorpusPair(*pair) for pair in pairs) for name, pairs in splits.items()})
