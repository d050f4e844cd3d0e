"""Builds a dataset with TensorFlow Datasets (TFDS) from verified archives, with time limits and without TensorFlow."""

import contextlib
import importlib.util
import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow_datasets as tfds
from promise import Promise
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download.resource import Resource

from lingua_flax.data.corpora.downloads import DownloadFailedError, check_published, download
from lingua_flax.data.corpora.prepared_corpus import exclusive_lock
from lingua_flax.host.errors import RunError, UserError, is_disk_full

_MIB = 1 << 20
# The TensorFlow functions with which TFDS 4.9.10 extracts archives.
_STAND_IN = SimpleNamespace(
    compat=SimpleNamespace(as_text=lambda text: text.decode() if isinstance(text, bytes) else text),
    io=SimpleNamespace(gfile=SimpleNamespace(GFile=open)),
)


class _VerifiedDownloads(tfds.download.DownloadManager):
    """Downloads with time limits, and verifies what is there already; TFDS would wait forever, and trust it."""

    def _download_or_get_cache(self, resource: str | Resource) -> Promise:
        url = resource if isinstance(resource, str) else resource.url
        info = self._url_infos[url]
        archive = self._manual_dir / (info.filename or "")
        if archive.is_file():
            check_published(archive, archive.name, info.checksum)
        else:
            archive = self._get_dl_path(Resource(url=url), info.checksum)
            bar = self._downloader._pbar_dl_size
            bar.update_total(info.size / _MIB)
            with exclusive_lock(archive.parent / ".lock"):
                download(url, archive, info.checksum, lambda size: bar.update(size / _MIB))
        return Promise.resolve(archive)


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
    if not importlib.util.find_spec("tensorflow"):
        extractor.tf = _STAND_IN
    extracted = folder / "extracted"  # not kept: TFDS does not compare it with the archive
    options = tfds.download.DownloadConfig(try_download_gcs=False)
    builder._make_download_manager = lambda **_: _VerifiedDownloads(
        download_dir=downloads,
        extract_dir=extracted,
        manual_dir=archives,
        url_infos=builder.url_infos,
        dataset_name=builder.name,
    )
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            builder.download_and_prepare(download_config=options, file_format="array_record")
    except DownloadFailedError as error:
        info = registered_files(builder)[error.url]
        remedy = "try again when there is a network"
        if info.filename:
            remedy = f"put the file there yourself, as {archives / info.filename}, or name its folder"
            remedy += " with --data.directory"
        raise UserError(f"{name} could not be downloaded from {error.url} ({error.reason}); {remedy}") from error
    except ImportError as error:
        raise UserError(f"{name} needs the Python package {error.name}; install it and try again") from error
    except (AssertionError, extractor.ExtractError, OSError) as error:
        if is_disk_full(error):
            raise
        if isinstance(error, AssertionError):  # how builders report unexpected data
            raise UserError(f"{name} could not be prepared: {' '.join(str(error).split())}") from error
        if isinstance(error, extractor.ExtractError):
            raise UserError(f"{error}; delete the damaged archive and fetch it again") from error
        if error.errno is None and "disk space" in str(error):
            raise RunError(f"{folder}: {error}; choose another folder with --data.cache-directory") from error
        raise
    finally:
        shutil.rmtree(extracted, ignore_errors=True)
