"""What TensorFlow Datasets asks of TensorFlow while it downloads and extracts, for where TensorFlow is not installed.

TFDS reads and writes ArrayRecord files without TensorFlow. Of what comes before that, two modules of TFDS 4.9.10 do
not: extraction turns names into text and writes files with TensorFlow, and so does a download that is not over HTTP.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

from tensorflow_datasets.core.download import downloader, extractor


class UnimplementedError(Exception):
    """In place of tf.errors.UnimplementedError: the copy function does not know the file system of a URL."""


def _as_text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _copy(source: str, target: Path) -> None:
    if "://" in str(source):  # ftp: TFDS turns to urllib after this error
        raise UnimplementedError(source)
    shutil.copyfile(source, target)


STAND_IN = SimpleNamespace(
    compat=SimpleNamespace(as_text=_as_text),
    errors=SimpleNamespace(UnimplementedError=UnimplementedError),
    io=SimpleNamespace(gfile=SimpleNamespace(GFile=open, copy=_copy)),
)


def install() -> None:
    """Have TFDS's extractor and downloader use STAND_IN, unless there is TensorFlow itself."""
    if importlib.util.find_spec("tensorflow") is None:
        extractor.tf = downloader.tf = STAND_IN
