"""Prepares the corpus in the given file in the given cache and reads it; prints the peak of memory in bytes."""

import sys
import tracemalloc
from collections import deque
from pathlib import Path

# Without text_corpus, its import would be measured too.
from lingua_flax.data.corpora import open_corpus, text_corpus  # noqa: F401
from lingua_flax.options.schema import DataConfig

tracemalloc.start()
corpus = open_corpus(DataConfig(name="text", train_source=Path(sys.argv[1]), cache_directory=Path(sys.argv[2])))
deque(corpus.split("train"), 0)
print(tracemalloc.get_traced_memory()[1])
