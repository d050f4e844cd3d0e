"""data/corpora/tfds_corpus.py: the real builders of TensorFlow Datasets, fed with small archives of the same layout.

A fake archive needs a checksum in TFDS's registry, or it is refused: `registered` puts it there, for this process, and
through sitecustomize for the commands that a test starts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # registers wmt14_translate
from tensorflow_datasets.core.download import downloader, extractor
from tensorflow_datasets.core.download.checksums import compute_url_info
from tensorflow_datasets.core.download.resource import get_dl_fname

from configs.errors import UserError
from configs.schema import DataConfig
from data.corpora import Corpus, Pair, open_corpus, tfds_corpus, without_tensorflow

TED = "http://www.phontron.com/data/qi18naacl-dataset.tar.gz"
DIGITS = {
    "pt": ["zero", "um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove"],
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
}
ORDER_NOTE = "pairs are in the order of TensorFlow Datasets, which is not that of the published files"


def spoken(code: str, numbers: range) -> list[str]:
    """Each number, digit by digit, in words."""
    return [" ".join(DIGITS[code][int(digit)] for digit in str(number)) for number in numbers]


TED_SPLITS = {"train": range(100, 400), "dev": range(400, 417), "test": range(500, 523)}


def pack(path: Path, files: Mapping[str, list[str]]) -> Path:
    """Write a .tar.gz or .tgz of text files, which end in a line break."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, lines in files.items():
            content = "".join(f"{line}\n" for line in lines).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def pack_ted(path: Path) -> Path:
    """The layout of the real archive, of which the builder reads three splits of pt_to_en."""
    names = {(code, split): f"datasets/pt_to_en/{code}.{split}" for code in DIGITS for split in TED_SPLITS}
    return pack(path, {name: spoken(code, TED_SPLITS[split]) for (code, split), name in names.items()})


def ted_pairs(split: str, source: str = "pt", target: str = "en") -> list[Pair]:
    return [
        Pair(*pair) for pair in zip(spoken(source, TED_SPLITS[split]), spoken(target, TED_SPLITS[split]), strict=True)
    ]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch):
    """Registers what lies at the path as that which is published at the URL."""

    def register(dataset: str, url: str, path: Path) -> None:
        infos = tfds.builder_cls(dataset).url_infos
        published = dataclasses.replace(compute_url_info(path), filename=infos[url].filename)
        monkeypatch.setitem(infos, url, published)

    return register


@pytest.fixture
def ted(tmp_path: Path, registered) -> Path:
    """A folder with the archive of ted_hrlr_translate."""
    path = pack_ted(tmp_path / "archives" / "qi18naacl-dataset.tar.gz")
    registered("ted_hrlr_translate", TED, path)
    return path.parent


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(cache: Path, name: str = "ted_hrlr_translate/pt_to_en", languages: str = "pt en", **options: Any) -> Corpus:
    source, target = languages.split()
    return open_corpus(
        DataConfig(name=name, source_language=source, target_language=target, cache_directory=cache, **options)
    )


def prepared(cache: Path) -> list[str]:
    """What is in the cache beside downloads."""
    return sorted(path.name for path in cache.glob("tfds/*") if path.name != "downloads")


# Through the real commands, without a network.

CONFIG = """
[data]
name = "ted_hrlr_translate/pt_to_en"
source_language = "pt"
target_language = "en"
cache_directory = "{cache}"
row_length = 32

[tokenizer]
vocab_size = 45

[model]
num_encoder_layers = 1
num_decoder_layers = 1
embed_dim = 16
num_heads = 2
mlp_dim = 32
max_length = 32

[training]
num_steps = 20
tokens_per_batch = 256
eval_every = 0
"""
SITE = """
import atexit, dataclasses, sys
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import compute_url_info

infos = tfds.builder_cls("ted_hrlr_translate").url_infos
infos[{url!r}] = compute_url_info({archive!r})
atexit.register(lambda: open({report!r}, "a").write(f"{{sys.argv[0]}} {{'tensorflow' in sys.modules}}\\n"))
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_train_and_evaluate_from_an_archive_among_the_downloads(run, tmp_path: Path, cache: Path) -> None:
    """The archive lies where TFDS's download manager looks; the web is out of reach; there is no TensorFlow."""
    archive = pack_ted(tmp_path / "packed.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    place = cache / "tfds" / "downloads" / "ted_hrlr_translate" / get_dl_fname(TED, digest)
    place.parent.mkdir(parents=True)
    archive.rename(place)
    place.with_name(f"{place.name}.INFO").write_text("{}")
    report = tmp_path / "report"
    (tmp_path / "sitecustomize.py").write_text(SITE.format(url=TED, archive=str(place), report=str(report)))
    config = tmp_path / "ted.toml"
    config.write_text(CONFIG.format(cache=cache))
    offline = {"PYTHONPATH": str(tmp_path), "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    offline |= {name.lower(): value for name, value in offline.items() if name.endswith("PROXY")}

    done = run("train.py", "--config", config, "--workdir", tmp_path / "w", env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    assert ORDER_NOTE in done.stderr
    assert "kept 300 of 300 pairs" in done.stderr
    assert "step 20/20" in done.stderr
    scores = tmp_path / "scores.json"
    done = run("evaluate.py", "--workdir", tmp_path / "w", "--beam-size", 1, "--json", scores, env=os.environ | offline)
    assert done.returncode == 0, done.stderr
    assert "ted_hrlr_translate/pt_to_en, test" in done.stdout
    assert json.loads(scores.read_text())["sentences"] == len(TED_SPLITS["test"])
    assert report.read_text() == "train.py False\nevaluate.py False\n"
