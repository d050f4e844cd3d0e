"""Opens the corpus with the given options, as JSON; prints what was imported, its fingerprint and its sizes."""

import json
import sys

from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.schema import DataConfig

corpus = open_corpus(DataConfig(**json.loads(sys.argv[1])))
modules = [name for name in ("tensorflow", "tensorflow_datasets") if name in sys.modules]
print(json.dumps([modules, corpus.fingerprint, [len(split) for split in corpus.splits.values()]]))
