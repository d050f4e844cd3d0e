"""The user's own corpus: for each split two aligned text files, or one TSV or JSON-lines file, plain or as .gz.

Each file is read twice, once for the SHA-256 that identifies the prepared copy and once to store its pairs.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.corpora.held_out_splits import SPLITS, write_splits
from lingua_flax.data.corpora.pair_files import format_of, read_pairs, sha256
from lingua_flax.data.corpora.prepared_corpus import open_prepared
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig


def open_text(config: DataConfig, *, train_only: bool = False) -> Corpus:
    """Opens the corpus in the files that the config names; raises UserError if a file is missing or malformed."""
    languages = (config.source_language, config.target_language)
    files = _files(config)

    def write(folder: Path) -> None:
        def describe(split: str, reason: str) -> str:
            return f"{files[split][0]}: {reason}; data.{split}_source must contain at least one pair"

        pairs = {split: read_pairs(paths, languages) for split, paths in files.items()}
        write_splits(folder, pairs, hold_out=not train_only, held_out_file=config.held_out, describe=describe)

    contents = [(split, [(format_of(path), sha256(path)) for path in paths]) for split, paths in files.items()]
    corpus = open_prepared(config, "text", [contents, train_only], write)
    return dataclasses.replace(corpus, is_of_user=True)


def _files(config: DataConfig) -> Mapping[str, tuple[Path, ...]]:
    """Returns the files of train and of each other split that is given: source and target, or one with both sides."""
    files: dict[str, tuple[Path, ...]] = {}
    given = config.files
    for split in SPLITS:
        source, target = given.get(f"{split}_source"), given.get(f"{split}_target")
        if source is None and target is not None:
            raise UserError(f"data.{split}_target is given without its source; set data.{split}_source too")
        if source is None:
            continue
        both_sides = format_of(source) != "lines"
        if both_sides and target is not None:
            reason = f"data.{split}_source {source} holds both sides, judging by its extension"
            raise UserError(f"{reason}; leave out data.{split}_target")
        if not both_sides and target is None:
            remedy = f"set data.{split}_target too, or name a .tsv or .jsonl file that holds both sides"
            raise UserError(f"data.{split}_source {source} is given without its target; {remedy}")
        files[split] = tuple(path.expanduser() for path in (source, target) if path)
    if "train" not in files:
        raise UserError('data.name = "text" needs files to train on; set data.train_source and data.train_target')
    for path in (path for paths in files.values() for path in paths):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path}: not a regular file; it must be one because it is read more than once")
    return files
