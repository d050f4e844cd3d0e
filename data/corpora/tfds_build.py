"""What corpora that TensorFlow Datasets (TFDS) prepares share: a build of checked archives, and reading its result.

TFDS waits for ever for a host that does not answer, retries for minutes, and takes an archive that lies among its
downloads without a look at its checksum; here it does none of these.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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

from configs.errors import RunError, UserError, is_disk_full
from data.corpora import without_tensorflow

_WAIT_SECONDS = (3, 60)  # for a connection, and for the next bytes
_RETRIES = 2  # TFDS's own 10 take minutes
_CHUNK = 1024


class DownloadFailedError(Exception):
    """A file could not be had, for a reason of a few words, from its URL, if that is known."""

    def __init__(self, reason: str, url: str | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.reason = reason
        self.url = url


def registered_files(builder: tfds.core.DatasetBuilder | type[tfds.core.DatasetBuilder]) -> Mapping[str, Any]:
    """Return size, SHA-256 (`checksum`) and name (`filename`), as published, by URL; of other configs too."""
    return builder.url_infos or {}


def build(builder: tfds.core.DatasetBuilder, folder: Path, downloads: Path, archives: Path | None) -> None:
    """Have TFDS write the builder's data, from files in `archives` where they lie there, else from the web.

    Args:
        builder: its data_dir is `folder`.
        folder: temporary; what is extracted lies there until the end.
        downloads: where TFDS keeps what it downloads.
        archives: folder with files under their published names, in which no other of that name is accepted.

    Raises:
        DownloadFailedError: there is no network, or it does not deliver the published file.
        UserError: a file that is there is not the published one or cannot be extracted.
        RunError: TFDS expects the disk to become full.
    """
    without_tensorflow.install()
    extracted = folder / "extracted"  # never reused: TFDS does not check it against the archive
    options = tfds.download.DownloadConfig(manual_dir=archives, extract_dir=extracted, try_download_gcs=False)
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        with (
            _sole_user(downloads / builder.name),
            _limited_waiting(),
            contextlib.redirect_stdout(io.StringIO()),  # stdout is for results
        ):
            _check_downloads(builder, downloads / builder.name)
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


def check_reachable(url: str) -> None:
    """Ask for a URL before anything is written.

    Raises:
        DownloadFailedError: it cannot be had.
    """
    with _Session() as session:
        session.head(url, allow_redirects=True)


def read_records(records: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a data source of TFDS, four times as fast as one by one."""
    for start in range(0, len(records), _CHUNK):
        yield from records.__getitems__(range(start, min(start + _CHUNK, len(records))))


class _Session(requests.Session):
    """Waits for a limited time, and says which URL it could not get."""

    def request(self, method: Any, url: Any, *arguments: Any, **options: Any) -> requests.Response:
        try:
            response = super().request(method, url, *arguments, **{"timeout": _WAIT_SECONDS, **options})
        except requests.RequestException as error:
            raise DownloadFailedError("no connection", url) from error
        if response.status_code != 200:
            raise DownloadFailedError(f"status {response.status_code}", url)
        return response


@contextlib.contextmanager
def _sole_user(folder: Path) -> Iterator[None]:
    """Wait for other processes that download into the folder, and let no part of a download stay there."""

    def clear() -> None:
        for unfinished in folder.glob("*.tmp.*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
    requests.Session, downloader.MAX_RETRIES = _Session, _RETRIES  # type: ignore[misc]
    try:
        yield
    finally:
        requests.Session, downloader.MAX_RETRIES = before  # type: ignore[misc]


def _check_downloads(builder: tfds.core.DatasetBuilder, folder: Path) -> None:
    """Refuse a file among TFDS's downloads that is not what its name says."""
    for url, info in registered_files(builder).items():
        path = folder / get_dl_fname(url, info.checksum)
        if path.is_file() and sha256(path) != info.checksum:
            raise wrong_file(path, info.filename or path.name)


def _mismatch(error: NonMatchingChecksumError, archives: Path | None) -> Exception:
    """The error for what TFDS refused: a file in the folder, or else what it downloaded."""
    found = re.search(r"Artifact (.+), downloaded to (.+), has wrong checksum", str(error))
    url, path = found.groups() if found else (None, "")
    if archives and Path(path).parent == archives:
        return wrong_file(Path(path), Path(path).name)
    return DownloadFailedError("it does not deliver the published files", url)


def wrong_file(path: Path, name: str) -> UserError:
    """The error for a file that is not the published one of that name."""
    remedy = 'delete it and fetch it again (data.name = "text" is for files of your own)'
    return UserError(f"{path}: not the published {name}, its SHA-256 differs; {remedy}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
