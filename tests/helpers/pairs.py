"""Small parallel corpora: of real sentences, of made-up languages, and in the files of a user."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingua_flax.data.cleaning.readers import Row
from lingua_flax.data.corpora import Corpus, open_corpus
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.options.schema import DataConfig

PAIRS = [
    Pair("the cat eats fish .", "le chat mange du poisson ."),
    Pair("a dog sleeps", "un chien dort"),
    Pair("Ünï ça where is it?", "où est-ce ?"),
    Pair("the black cats were sleeping near the water", "les chats noirs dormaient près de l'eau"),
    Pair("every morning he drinks coffee with milk", "chaque matin il boit du café au lait"),
    Pair("nobody knows which bridge crosses the river", "personne ne sait quel pont traverse la rivière"),
    Pair("my grandmother keeps seven white geese", "ma grand-mère garde sept oies blanches"),
    Pair("yesterday we walked through the old village", "hier nous avons traversé le vieux village"),
] * 20
WORDS = [f"{a}{b}" for a in ("ban", "lor", "mit", "sul", "ten", "gor") for b in ("a", "ek", "im", "ost", "ur", "y")]


def made_up_rows(count: int, seed: int = 1) -> list[Row]:
    """Returns rows of made-up languages in which word i is translated by word i, in the reverse order."""
    draw, rows = random.Random(seed), []
    for number in range(1, count + 1):
        chosen = [draw.choice(WORDS) for _ in range(draw.randrange(4, 12))]
        rows.append(Row(number, " ".join(chosen), " ".join(f"{word[::-1]}en" for word in reversed(chosen))))
    return rows


def lengths_of(target_shift: Callable[[int], int], count: int = 6000, seed: int = 1) -> np.ndarray:
    """Returns lengths of pairs, [count, 2], of which target line i + target_shift(i) belongs to source line i."""
    draw = np.random.default_rng(seed)
    source = np.exp(draw.normal(4, 0.5, count))
    target = source * np.exp(draw.normal(0, 0.25, count))
    return np.stack([source, target[[np.clip(i - target_shift(i), 0, count - 1) for i in range(count)]]], axis=1)


def numbered(count: int, word: str = "line") -> list[str]:
    """Returns lines that differ in their numbers."""
    return [f"{word} {number}" for number in range(count)]


def sizes(corpus: Corpus) -> dict[str, int]:
    """Returns the number of pairs of each split."""
    return {name: len(split) for name, split in corpus.splits.items()}


class TextFiles:
    """Writes the files of a text corpus and opens it, in a cache folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"

    def write(self, name: str, content: str | Sequence[str]) -> Path:
        """Writes a text, or lines, to a file, which is compressed if its name ends in .gz; returns its path."""
        text = content if isinstance(content, str) else "".join(f"{line}\n" for line in content)
        path = self.folder / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    def open(self, *, train_only: bool = False, **options: Any) -> Corpus:
        """Opens the corpus with options of DataConfig; a list of lines is written to a file first."""
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = self.write(f"{name}.txt", value)
        config = DataConfig(**{"name": "text", "cache_directory": self.cache, **options})
        return open_corpus(config, train_only=train_only)
