"""Replaces the TensorFlow functions that TensorFlow Datasets (TFDS) uses to download and extract archives.

TFDS reads and writes ArrayRecord files without TensorFlow, but two modules of TFDS 4.9.10 need it before that: the
extractor, which decodes names and writes files with it, and the downloader, for downloads that do not use HTTP.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

from tensorflow_datasets.core.download import downloader, extractor


class UnimplementedError(Exception):
    """Replaces tf.errors.UnimplementedError: the copy function does not support the file system of a URL."""


def _as_text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _copy(source: str, target: Path) -> None:
    if "://" in str(source):  # FTP: TFDS falls back on urllib after this error
        raise UnimplementedError(source)
    shutil.copyfile(source, target)


STAND_IN = SimpleNamespace(
    compat=SimpleNamespace(as_text=_as_text),
    errors=SimpleNamespace(UnimplementedError=UnimplementedError),
    io=SimpleNamespace(gfile=SimpleNamespace(GFile=open, copy=_copy)),
)


def install() -> None:
    """Makes TFDS's extractor and downloader use STAND_IN, unless TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        extractor.tf = downloader.tf = STAND_IN
