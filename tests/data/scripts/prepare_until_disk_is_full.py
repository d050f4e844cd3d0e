"""Prepares a corpus in the given cache while a limit on the size of files stands for a disk that fills up."""

import resource
import sys
from pathlib import Path

from lingua_flax.data.corpora import Pair, prepared_corpus
from lingua_flax.host.errors import RunError


def write(folder: Path) -> None:
    with prepared_corpus.SplitWriter(folder, "train") as writer:
        for _ in range(100):
            writer.write([Pair("x" * 100, "y")] * 100)


resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    prepared_corpus.prepare(Path(sys.argv[1]), "any", "0" * 64, write)
except RunError as error:
    print(error)
