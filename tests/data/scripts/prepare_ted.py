"""Registers an archive of TED talks as the one published at a URL and prepares its corpus in the given cache."""

import sys
from pathlib import Path

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import compute_url_info

from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.schema import DataConfig

url, folder, cache = sys.argv[1:]
tfds.builder_cls("ted_hrlr_translate").url_infos[url] = compute_url_info(f"{folder}/qi18naacl-dataset.tar.gz")
languages = {"source_language": "pt", "target_language": "en"}
open_corpus(DataConfig(name="ted_hrlr_translate", **languages, directory=Path(folder), cache_directory=Path(cache)))
