"""Builds a dataset with TensorFlow Datasets (TFDS) from verified archives, with time limits and without TensorFlow.

By default TFDS waits forever for a host that does not answer, retries for minutes, and uses an archive in its download
folder without verifying its checksum. This module prevents all three.
"""

import contextlib
import importlib.util
import io
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader, extractor
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
from tensorflow_datasets.core.download.resource import get_dl_fname

from lingua_flax.data.corpora.downloads import DownloadFailedError, Session, check_published, wrong_file
from lingua_flax.data.corpora.prepared_corpus import exclusive_lock
from lingua_flax.host.errors import RunError, UserError, is_disk_full

_RETRIES = 2  # the 10 of TFDS take minutes


class UnimplementedError(Exception):
    """Replaces tf.errors.UnimplementedError: the copy function does not support the file system of a URL."""


def _copy(source: str, target: Path) -> None:
    if "://" in str(source):  # FTP: TFDS falls back on urllib after this error
        raise UnimplementedError(source)
    shutil.copyfile(source, target)


# The TensorFlow functions with which two modules of TFDS 4.9.10 download and extract archives.
STAND_IN = SimpleNamespace(
    compat=SimpleNamespace(as_text=lambda text: text.decode() if isinstance(text, bytes) else text),
    errors=SimpleNamespace(UnimplementedError=UnimplementedError),
    io=SimpleNamespace(gfile=SimpleNamespace(GFile=open, copy=_copy)),
)


def do_without_tensorflow() -> None:
    """Makes TFDS's extractor and downloader use STAND_IN, unless TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        extractor.tf = downloader.tf = STAND_IN


def registered_files(builder: tfds.core.DatasetBuilder) -> Mapping[str, Any]:
    """Returns the size, SHA-256 (`checksum`) and name (`filename`) of the published files of all configs, by URL."""
    return builder.url_infos or {}


def build(builder: tfds.core.DatasetBuilder, name: str, folder: Path, downloads: Path, archives: Path) -> None:
    """Writes the builder's data into a temporary folder, from published files in `archives` or else from downloads.

    Raises UserError if array-record is not installed, or an archive cannot be downloaded, is not the published one or
    cannot be read, and RunError if TFDS expects the disk to become full.
    """
    if not importlib.util.find_spec("array_record"):
        raise UserError(
            f"{name} needs the Python package array-record, which cannot be installed on Windows; prepare the corpus "
            'on Linux, macOS or WSL, or use text files (data.name = "text")'
        )
    try:
        _build(builder, folder, downloads, archives)
    except DownloadFailedError as error:
        where = f" from {error.url}" if error.url else ""
        info = registered_files(builder).get(error.url or "")
        remedy = "try again when there is a network"
        if info is not None and info.filename:
            remedy = f"put the file there yourself, as {archives / info.filename}, or name its folder"
            remedy += " with --data.directory"
        raise UserError(f"{name} could not be downloaded{where} ({error.reason}); {remedy}") from error
    except ImportError as error:
        raise UserError(f"{name} needs the Python package {error.name}; install it and try again") from error
    except AssertionError as error:  # how builders report unexpected data
        if is_disk_full(error):
            raise
        raise UserError(f"{name} could not be prepared: {' '.join(str(error).split())}") from error


def _build(builder: tfds.core.DatasetBuilder, folder: Path, downloads: Path, archives: Path) -> None:
    do_without_tensorflow()
    extracted = folder / "extracted"  # not kept: TFDS does not compare it with the archive
    options = tfds.download.DownloadConfig(manual_dir=archives, extract_dir=extracted, try_download_gcs=False)
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        with (
            _no_partial_downloads(downloads / builder.name),
            _limited_waiting(),
            contextlib.redirect_stdout(io.StringIO()),  # stdout is for results
        ):
            for url, info in registered_files(builder).items():
                path = downloads / builder.name / get_dl_fname(url, info.checksum)
                if path.is_file():
                    check_published(path, info.filename or path.name, info.checksum)
            builder.download_and_prepare(download_dir=downloads, download_config=options, file_format="array_record")
    except NonMatchingChecksumError as error:
        raise _mismatch(error, archives) from error
    except extractor.ExtractError as error:
        if is_disk_full(error):
            raise
        raise UserError(f"{error}; delete the damaged archive and fetch it again") from error
    except (requests.RequestException, URLError) as error:
        raise DownloadFailedError("the connection was lost") from error
    except OSError as error:
        if error.errno is None and "disk space" in str(error):
            raise RunError(f"{folder}: {error}; choose another folder with --data.cache-directory") from error
        raise
    finally:
        shutil.rmtree(extracted, ignore_errors=True)


@contextlib.contextmanager
def _no_partial_downloads(folder: Path) -> Iterator[None]:
    """Waits for other processes that download into the folder, and removes partial downloads on entry and exit."""

    def clear() -> None:
        for unfinished in folder.glob("*.tmp.*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    with exclusive_lock(folder / ".lock"):
        clear()
        try:
            yield
        finally:
            clear()


@contextlib.contextmanager
def _limited_waiting() -> Iterator[None]:
    """Replaces the session class that TFDS looks up in requests, since TFDS has no option for time limits."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns about every retry
    original = requests.Session, downloader.MAX_RETRIES
    requests.Session, downloader.MAX_RETRIES = Session, _RETRIES  # type: ignore[misc, unused-ignore]
    try:
        yield
    finally:
        requests.Session, downloader.MAX_RETRIES = original  # type: ignore[misc, unused-ignore]


def _mismatch(error: NonMatchingChecksumError, archives: Path) -> Exception:
    """Returns the error for a file that TFDS refused, which is in the folder `archives` or was downloaded."""
    match = re.search(r"Artifact (.+), downloaded to (.+), has wrong checksum", str(error))
    url, path = match.groups() if match else (None, "")
    if Path(path).parent == archives:
        return wrong_file(Path(path), Path(path).name)
    return DownloadFailedError("the server does not deliver the published files", url)
