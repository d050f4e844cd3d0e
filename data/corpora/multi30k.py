"""Multi30k (Elliott et al. 2016 to 2018): image captions in English, German, French and Czech, in every direction.

The files of https://github.com/multi30k/dataset are downloaded or read from a folder, and must have the digests in
multi30k.sha256, which is in the format of sha256sum.
"""

from collections.abc import Mapping
from pathlib import Path

from lingua_flax.data.corpora.corpus import Corpus, different_languages
from lingua_flax.data.corpora.downloads import DownloadFailedError, check_published, download
from lingua_flax.data.corpora.held_out_splits import write_splits
from lingua_flax.data.corpora.pair_files import read_aligned
from lingua_flax.data.corpora.prepared_corpus import exclusive_lock, open_prepared
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig

_LANGUAGES = ("en", "de", "fr", "cs")
_REPOSITORY = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_FILES = {  # the stem of the file names of each split
    "train": "train",
    "validation": "val",
    "test": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
    "test_2017_mscoco": "test_2017_mscoco",
    "test_2018_flickr": "test_2018_flickr",
}
_REQUIRED = ("train", "validation", "test")
_DIGESTS = {
    name: digest for digest, name in map(str.split, Path(__file__).with_suffix(".sha256").read_text().splitlines())
}
_REMEDY = "name a folder that contains the published files with --data.directory"


def open_multi30k(config: DataConfig) -> Corpus:
    """Opens one direction of Multi30k: train, validation, test (test_2016_flickr) and further test sets if available.

    Raises UserError if a language is not in Multi30k, there is no network, or a file is missing or not as published.
    """
    languages = different_languages(config)
    for option, code in zip(("source_language", "target_language"), languages, strict=True):
        if code not in _LANGUAGES:
            raise UserError(f'data.{option}: multi30k has no language "{code}"; it has {", ".join(_LANGUAGES)}')
    files = _published(languages)
    directory = config.directory and config.directory.expanduser()
    if directory:
        files = _available(directory, files)
    downloads = cache_directory(config.cache_directory) / "multi30k" / "downloads"

    def write(folder: Path) -> None:
        if not directory:
            _download(files, downloads)
        source = directory or downloads
        pairs = {split: read_aligned(*(source / name for name in names)) for split, names in files.items()}
        write_splits(folder, pairs)

    contents = [(split, [_DIGESTS[name] for name in names]) for split, names in files.items()]
    return open_prepared(config, "multi30k", contents, write)


def _published(languages: tuple[str, str]) -> dict[str, list[str]]:
    """Returns the names of the two files of each split that is published in both languages."""
    names = {split: [f"{stem}.{code}.gz" for code in languages] for split, stem in _FILES.items()}
    return {split: pair for split, pair in names.items() if all(name in _DIGESTS for name in pair)}


def _available(directory: Path, files: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Returns the splits in the folder; raises UserError if one is missing or a file is not as published."""
    available = {}
    for split, names in files.items():
        missing = [name for name in names if not (directory / name).is_file()]
        if missing and split in _REQUIRED:
            raise UserError(f"{directory / missing[0]}: no such file; {_REMEDY}")
        if not missing:
            for name in names:
                check_published(directory / name, name, _DIGESTS[name])
            available[split] = names
    return available


def _download(files: Mapping[str, list[str]], folder: Path) -> None:
    """Downloads the files that are not in the folder; raises UserError if it fails or one is not as published."""
    try:
        with exclusive_lock(folder / ".lock"):
            for name in (name for names in files.values() for name in names):
                download(f"{_REPOSITORY}/{name}", folder / name, _DIGESTS[name])
    except DownloadFailedError as error:
        raise UserError(f"multi30k could not be downloaded from {error.url} ({error.reason}); {_REMEDY}") from error
