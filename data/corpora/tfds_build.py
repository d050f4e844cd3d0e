"""A build of TensorFlow Datasets (TFDS) from checked archives, with limited waiting and without TensorFlow.

TFDS waits for ever for a host that does not answer, retries for minutes, and takes an archive that lies among its
downloads without a look at its checksum; here it does none of these.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader, extractor
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
from tensorflow_datasets.core.download.resource import get_dl_fname

from data.corpora import without_tensorflow
from data.corpora.downloads import DownloadFailedError, Session, check_published, wrong_file
from data.corpora.prepared_corpus import exclusive_lock
from host.errors import RunError, UserError, is_disk_full

_RETRIES = 2  # TFDS's own 10 take minutes


def registered_files(builder: tfds.core.DatasetBuilder) -> Mapping[str, Any]:
    """Return size, SHA-256 (`checksum`) and name (`filename`), as published, by URL; of other configs too."""
    return builder.url_infos or {}


def build(builder: tfds.core.DatasetBuilder, name: str, folder: Path, downloads: Path, archives: Path) -> None:
    """Have TFDS write the builder's data, from files in `archives` where they lie there, else from the web.

    Args:
        builder: its data_dir is in `folder`.
        name: of the corpus in messages.
        folder: temporary; what is extracted lies there until the end.
        downloads: where TFDS keeps what it downloads.
        archives: folder with files under their published names, in which no other of that name is accepted.

    Raises:
        UserError: an archive is missing and cannot be downloaded, is not the published one or cannot be read.
        RunError: TFDS expects the disk to become full.
    """
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
    except AssertionError as error:  # how builders refuse what they find
        if is_disk_full(error):
            raise
        raise UserError(f"{name} could not be prepared: {' '.join(str(error).split())}") from error


def _build(builder: tfds.core.DatasetBuilder, folder: Path, downloads: Path, archives: Path) -> None:
    without_tensorflow.install()
    extracted = folder / "extracted"  # never reused: TFDS does not check it against the archive
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
        raise DownloadFailedError("the connection broke off") from error
    except OSError as error:
        if error.errno is None and "disk space" in str(error):
            raise RunError(f"{folder}: {error}; choose another folder with --data.cache-directory") from error
        raise
    finally:
        shutil.rmtree(extracted, ignore_errors=True)


@contextlib.contextmanager
def _no_partial_downloads(folder: Path) -> Iterator[None]:
    """Wait for other processes that download into the folder, and let no part of a download stay there."""

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
    """TFDS has no option for time limits: it makes its sessions by this name."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of every retry
    before = requests.Session, downloader.MAX_RETRIES
    requests.Session, downloader.MAX_RETRIES = Session, _RETRIES  # type: ignore[misc]
    try:
        yield
    finally:
        requests.Session, downloader.MAX_RETRIES = before  # type: ignore[misc]


def _mismatch(error: NonMatchingChecksumError, archives: Path) -> Exception:
    """The error for what TFDS refused: a file in the folder, or else what it downloaded."""
    found = re.search(r"Artifact (.+), downloaded to (.+), has wrong checksum", str(error))
    url, path = found.groups() if found else (None, "")
    if Path(path).parent == archives:
        return wrong_file(Path(path), Path(path).name)
    return DownloadFailedError("it does not deliver the published files", url)
