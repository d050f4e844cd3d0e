"""Multi30k (Elliott et al. 2016 to 2018): image captions in English, German, French and Czech, in every direction.

The published files lie at https://github.com/multi30k/dataset; checksums.tsv registers their sizes and SHA-256. They
are downloaded, or read from a folder that has them already, and must in both cases be the published ones, byte for
byte. Lines keep the published order.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from configs.cache import cache_directory
from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora import storage, tfds_build
from data.corpora.corpus import Corpus, Pair
from data.lines import decode_lines

_FORMAT = 1  # raise it when the same files would be prepared differently
_LANGUAGES = ("en", "de", "fr", "cs")
_REPOSITORY = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_FILES = {  # what each split is called in the names of its files
    "train": "train",
    "validation": "val",
    "test": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
    "test_2017_mscoco": "test_2017_mscoco",
    "test_2018_flickr": "test_2018_flickr",
}
_REQUIRED = ("train", "validation", "test")
_REMEDY = "name a folder that has the published files with --data.directory"


class Multi30k(tfds.core.GeneratorBasedBuilder):
    """Prepares some splits, or all, of one direction of Multi30k, from the web or from TFDS's manual_dir."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
        tfds.core.BuilderConfig(name="_".join(pair)) for pair in itertools.permutations(_LANGUAGES, 2)
    ]

    def __init__(self, *, splits: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        names = _published_names(self.languages)
        self._names = {split: names[split] for split in splits or names}

    @property
    def languages(self) -> tuple[str, ...]:
        """Source and target."""
        return tuple(self.builder_config.name.split("_"))

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.Translation(self.languages),
            disable_shuffling=True,  # the published order
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[Any]]:
        paths = dl_manager.download({split: [_url(name) for name in pair] for split, pair in self._names.items()})
        return {split: self._generate_examples(pair, paths[split]) for split, pair in self._names.items()}

    def _generate_examples(self, names: Sequence[str], paths: Sequence[Any]) -> Iterator[tuple[int, dict[str, str]]]:
        for name, path in zip(names, paths, strict=True):
            _check(Path(path), name)  # TFDS takes a file that was downloaded before as it is
        with gzip.open(paths[0]) as first, gzip.open(paths[1]) as second:
            sides = [decode_lines(side, name) for side, name in zip((first, second), names, strict=True)]
            for number, pair in enumerate(zip(*sides, strict=True)):
                yield number, dict(zip(self.languages, pair, strict=True))


def open_multi30k(config: DataConfig) -> Corpus:
    """Open one direction of Multi30k: train, validation, test (test_2016_flickr) and the further test sets it has.

    Raises:
        UserError: a language that it does not have, no network, a file that is missing or not as published, or a
            cache folder that cannot be written.
        RunError: the disk is full.
    """
    languages = (config.source_language, config.target_language)
    for option, code in zip(("source_language", "target_language"), languages, strict=True):
        if code not in _LANGUAGES:
            raise UserError(f'data.{option}: multi30k has no language "{code}"; it has {", ".join(_LANGUAGES)}')
    if languages[0] == languages[1]:
        raise UserError(f'data.target_language: it is the source language, "{languages[0]}"; choose another')
    directory = config.directory and config.directory.expanduser()
    names = _published_names(languages)
    if directory:
        names = _names_in(directory, names)

    def builder_in(folder: Path) -> Multi30k:
        return Multi30k(data_dir=folder, config="_".join(languages), splits=list(names))

    cache = cache_directory(config.cache_directory)
    folder = storage.prepare(
        cache,
        "multi30k",
        _fingerprint(languages, names),
        lambda partial: _prepare(builder_in(partial), partial, cache / "multi30k" / "downloads", directory),
    )
    builder = builder_in(folder)
    splits = {split: DataSourcePairs(builder.as_data_source(split), languages) for split in names}
    # A copy without the further test sets is still the same corpus to train on.
    fingerprint = _fingerprint(languages, {split: names[split] for split in _REQUIRED})
    return Corpus("multi30k", *languages, fingerprint, splits)


class DataSourcePairs:
    """Pairs in a data source of TFDS."""

    def __init__(self, records: Any, languages: tuple[str, str]) -> None:
        self._records = records
        self._languages = languages

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Pair:
        """Return the pair at the index, which counts from 0 and never from the end."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return self._pair(self._records[index])

    def __iter__(self) -> Iterator[Pair]:
        return map(self._pair, tfds_build.read_records(self._records))

    def _pair(self, record: dict[str, bytes]) -> Pair:
        source, target = self._languages
        return Pair(record[source].decode(), record[target].decode())


# The published files.


def _url(name: str) -> str:
    return f"{_REPOSITORY}/{name}"


def _published() -> Mapping[str, Any]:
    """Return size and checksum, as checksums.tsv registers them, by URL."""
    return tfds_build.registered_files(Multi30k)


def _published_names(languages: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of both files of each split that the direction has."""
    names = {split: [f"{stem}.{code}.gz" for code in languages] for split, stem in _FILES.items()}
    return {split: pair for split, pair in names.items() if all(_url(name) in _published() for name in pair)}


def _names_in(directory: Path, names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the splits whose files lie in the folder.

    Raises:
        UserError: a file that has to be there is not, or one that is there is not as published.
    """
    found = {}
    for split, pair in names.items():
        missing = [name for name in pair if not (directory / name).is_file()]
        if missing and split in _REQUIRED:
            raise UserError(f"{directory / missing[0]}: no such file; {_REMEDY}")
        if not missing:
            for name in pair:
                _check(directory / name, name)
            found[split] = pair
    return found


def _check(path: Path, name: str) -> None:
    if tfds_build.sha256(path) != _published()[_url(name)].checksum:
        raise tfds_build.wrong_file(path, name)


def _fingerprint(languages: tuple[str, str], names: Mapping[str, list[str]]) -> str:
    digests = [(split, [_published()[_url(name)].checksum for name in pair]) for split, pair in names.items()]
    return storage.fingerprint("multi30k", _FORMAT, languages, digests)


def _prepare(builder: Multi30k, folder: Path, downloads: Path, directory: Path | None) -> None:
    """Have TFDS download what directory does not have, and write the builder's data.

    Raises:
        UserError: there is no network, or it delivers something else.
    """
    try:
        if directory is None:
            tfds_build.check_reachable(_url("val.en.gz"))
        tfds_build.build(builder, folder, downloads, directory)
    except tfds_build.DownloadFailedError as error:
        where = error.url or _REPOSITORY
        raise UserError(f"multi30k could not be downloaded from {where} ({error.reason}); {_REMEDY}") from error
