"""data/corpora/tfds_corpus.py: the real builders of TensorFlow Datasets on small archives with the published layout.

A fake archive is refused unless its checksum is registered with TFDS, as the fixture `registered` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import compute_url_info
from tensorflow_datasets.core.download.resource import get_dl_fname

from lingua_flax.data.corpora import Corpus, Pair, downloads, open_corpus
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import DataConfig
from lingua_flax.training.preparation import prepare
from tests.helpers.pairs import TextFiles, sizes
from tests.helpers.web import Silent, delivered
from tests.processes import start_command, wait_for
from tests.ted import CONFIG, TED, TED_SPLITS, pack, pack_ted, spoken

ORDER_NOTE = "pairs are in the order of TensorFlow Datasets, which is not that of the published files"
ARCHIVE = "qi18naacl-dataset.tar.gz"


def ted_pairs(split: str) -> list[Pair]:
    return list(map(Pair, spoken("pt", TED_SPLITS[split]), spoken("en", TED_SPLITS[split])))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch):
    """Returns a function that registers a local file as the one published at a URL."""

    def register(dataset: str, url: str, path: Path) -> None:
        infos = tfds.builder_cls(dataset).url_infos
        published = dataclasses.replace(compute_url_info(path), filename=infos[url].filename)
        monkeypatch.setitem(infos, url, published)

    return register


@pytest.fixture
def ted(tmp_path: Path, registered) -> Path:
    """Returns the archive of ted_hrlr_translate, in a folder of its own."""
    path = pack_ted(tmp_path / "archives" / ARCHIVE)
    registered("ted_hrlr_translate", TED, path)
    return path


def data_config(cache: Path, name: str = "ted_hrlr_translate/pt_to_en", languages: str = "pt en", **options: Any):
    source, target = languages.split()
    return DataConfig(name=name, source_language=source, target_language=target, cache_directory=cache, **options)


def opened(cache: Path, **options: Any) -> Corpus:
    return open_corpus(data_config(cache, **options))


def check_refused(message: str, cache: Path, **options: Any) -> None:
    with pytest.raises(UserError, match=message) as caught:
        opened(cache, **options)
    assert "\n" not in str(caught.value)


def prepared(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("tfds/*") if path.name != "downloads")


# Without a network, or with an unreliable one.


class Proxy(Silent):
    """Delivers the file with the name at the end of a URL, whatever its host."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.rpartition("/")[2])


def set_proxy(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    for name, value in (proxies | {"NO_PROXY": "", "no_proxy": ""}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def config(files: TextFiles) -> Path:
    """Returns a config that trains on the corpus."""
    return files.write("ted.toml", CONFIG.format(cache=files.cache))


PREPARING = """
import pathlib, sys
from lingua_flax.data.mixture import open_training_corpora
from lingua_flax.options.config_files import read_config
open_training_corpora(read_config(pathlib.Path(sys.argv[1])).data)
"""


def test_half_downloaded_archive_is_fetched_again_and_a_whole_one_is_not(
    cache, ted, config, tmp_path, monkeypatch, caplog, capfd
):
    """The connection is closed after a half, then kept open until the process is killed."""
    requests = []

    class Unreliable(Proxy):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            requests.append(self.path)
            if len(requests) == 3:
                return super().copyfile(source, outputfile)
            outputfile.write(source.read(ted.stat().st_size // 2))
            outputfile.flush()
            if len(requests) == 2:
                with contextlib.suppress(ConnectionResetError):
                    self.connection.recv(1)  # until the other side is killed
            return None

    with delivered(ted.parent, Unreliable) as address:
        set_proxy(monkeypatch, address)
        check_refused(rf"pt_to_en could not be downloaded from {TED} \(the connection was lost\); put the file", cache)
        killed = start_command("-c", PREPARING, config)
        wait_for(killed, lambda: len(requests) == 2)
        killed.kill()
        killed.communicate()
        caplog.set_level("INFO")
        prepare(read_config(config), tmp_path / "w")
        assert len(opened(cache, languages="en pt").split("train")) == 300
    assert requests == [TED] * 3
    assert capfd.readouterr() == ("", "")  # no progress bars either, since this is no terminal
    for words in (ORDER_NOTE, "left out 1 training pair with an empty side", "kept 300 of 300 pairs"):
        assert words in caplog.text


def test_command_without_network_or_archive_says_what_to_do(run, tmp_path, cache, config, monkeypatch):
    set_proxy(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    done = run("train", "--config", config, "--workdir", tmp_path / "w")
    assert done.returncode == 2
    assert not (tmp_path / "w").exists()
    *_, last = done.stderr.splitlines()
    place = cache / "tfds" / "archives" / ARCHIVE
    assert last.startswith(f"error: ted_hrlr_translate/pt_to_en could not be downloaded from {TED} (no connection); ")
    assert f"put the file there yourself, as {place}, or name its folder with --data.directory" in last
    assert "Traceback" not in done.stderr
    assert prepared(cache) == []
    assert [path.name for path in (cache / "tfds" / "downloads").rglob("*") if path.is_file()] == []

    pack_ted(place)  # where the message says, but not the published file
    check_refused(rf"^{place}: not the published .* \(its SHA-256 differs\); delete it", cache)


def test_failed_download_is_reported(cache, ted, monkeypatch):
    with delivered(ted.parent, Proxy) as address:
        set_proxy(monkeypatch, address)
        ted.write_bytes(b"Please log in")
        check_refused(rf"from {TED} \(the server does not deliver the published files\); put the file", cache)
        ted.unlink()
        check_refused(rf"from {TED} \(status 404\); put the file there yourself, as .*qi18naacl", cache)
    assert prepared(cache) == []
    assert not list((cache / "tfds" / "downloads").rglob("*qi18naacl*"))
    monkeypatch.setattr(downloads, "_WAIT_SECONDS", (0.1, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        set_proxy(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        check_refused(rf"from {TED} \(no connection\)", cache)


# Contents of the corpora.


def test_splits_in_either_direction_and_under_all_names(cache, ted):
    corpus = opened(cache, directory=ted.parent)
    assert (corpus.name, corpus.source_language, corpus.target_language) == ("ted_hrlr_translate/pt_to_en", "pt", "en")
    assert list(corpus.splits) == ["train", "validation", "test"]
    for split, published in zip(corpus.splits, TED_SPLITS, strict=True):
        assert sorted(corpus.split(split)) == sorted(ted_pairs(published))
    assert corpus.notes == (ORDER_NOTE, "left out 1 training pair with an empty side")

    other = opened(cache, languages="en pt", directory=ted.parent)
    assert [tuple(reversed(pair)) for pair in other.split("test")] == list(corpus.split("test"))
    assert other.digest != corpus.digest
    ted.unlink()
    assert dataclasses.replace(opened(cache, name="ted_hrlr_translate"), splits=corpus.splits) == corpus
    assert len(prepared(cache)) == 2
    assert not [path for path in cache.glob("tfds/*/*") if path.is_dir() and path.parent.name != "downloads"]


def test_splits_are_held_out_of_a_corpus_that_has_only_train(tmp_path, cache, registered):
    """As for the user's own files."""
    url = "https://s3.amazonaws.com/web-language-models/paracrawl/release4/en-de.bicleaner07.txt.gz"
    path = tmp_path / url.rpartition("/")[2]
    path.write_bytes(gzip.compress("".join(f"line {i}\tZeile {i}\n" for i in range(400)).encode()))
    registered("para_crawl", url, path)
    options = {"name": "para_crawl", "directory": tmp_path}
    corpus = opened(cache, languages="de en", **options)
    assert sizes(corpus) == {"train": 360, "validation": 20, "test": 20}
    held_out = "held out 20 of 400 pairs for validation and 20 for test, since none were given"
    assert corpus.notes == (ORDER_NOTE, held_out)
    everything = sorted(pair for split in corpus.splits.values() for pair in split)
    assert everything == sorted((f"Zeile {i}", f"line {i}") for i in range(400))


def test_multilingual_corpus_yields_pairs_of_both_languages(tmp_path, cache, registered):
    """Each record has some of the languages; records with both become pairs."""
    url = "http://phontron.com/data/ted_talks.tar.gz"
    table = {"de": ["eins", "__NULL__", "drei", "vier"], "en": ["one", "two", "three", "_ _ NULL _ _"]}
    table |= {"fr": ["un", "deux", "__NULL__", "quatre"], "talk_name": ["t1", "t1", "t2", "t2"]}
    lines = ["\t".join(row) for row in [tuple(table), *zip(*table.values(), strict=True)]]
    path = pack(tmp_path / "ted_talks.tar.gz", {f"all_talks_{split}.tsv": lines for split in ("train", "dev", "test")})
    registered("ted_multi_translate", url, path)
    corpus = opened(cache, name="ted_multi_translate", languages="en de", directory=tmp_path)
    assert [sorted(pairs) for pairs in corpus.splits.values()] == [[("one", "eins"), ("three", "drei")]] * 3
    check_refused("has no de-xx; it has ar, az, be", cache, name="ted_multi_translate", languages="de xx")


# Invalid names and options.


def test_invalid_names_languages_and_options_are_refused(tmp_path, cache):
    for name, languages, message in (
        ("ted_hrlr_translat", "pt en", r'"ted_hrlr_translat" \(did you mean "ted_hrlr_translate"\?\); the corpora are'),
        ("https://x.org/ted:1", "pt en", r'corpus "https://x.org/ted:1"; the corpora are phrasebook, multi30k, text'),
        ("mnist", "pt en", "mnist of TensorFlow Datasets is not a corpus of sentence pairs.*those are flores"),
        ("ted_hrlr_translate/pt_to_eng", "pt en", r'no config "pt_to_eng" \(did you mean "pt_to_en"\?\); it has az'),
        ("ted_hrlr_translate/pt_to_en", "en fr", r'data\.target_language: .* no language "fr"; it has pt and en'),
        ("wmt14_translate", "de fr", "wmt14_translate has no de-fr; it has cs-en, de-en, fr-en, hi-en, ru-en"),
        ("opus", "en de", r"several corpora; name one: opus/medical, opus/law, opus/koran, opus/IT, opus/subtitles"),
    ):
        check_refused(message, cache, name=name, languages=languages)
    for options, message in (
        ({"name": "para_crawl", "train_source": tmp_path}, r'data\.train_source has no effect.*only with "text"'),
        ({"name": "phrasebook", "directory": tmp_path}, 'only with "multi30k" or a corpus of TensorFlow Datasets'),
        ({"directory": tmp_path / "nowhere"}, "directory .*nowhere: no such folder"),
    ):
        check_refused(message, cache, **options)
    assert not cache.exists()


# Archives.


def test_unusable_archives_are_refused(cache, ted, registered):
    """And leave nothing: a sound one is used afterwards."""
    sound = ted.read_bytes()
    digest = hashlib.sha256(sound).hexdigest()
    wrong = sound[:700] + bytes([sound[700] ^ 1]) + sound[701:]
    place = cache / "tfds" / "downloads" / "ted_hrlr_translate" / get_dl_fname(TED, digest)
    place.parent.mkdir(parents=True)
    for path, options in ((ted, {"directory": ted.parent}), (place, {})):
        path.write_bytes(wrong)
        check_refused(rf"{path}: not the published qi18naacl.*delete it and fetch it again", cache, **options)
    place.write_bytes(sound)
    used = opened(cache)
    place.unlink()
    shutil.rmtree(cache / "tfds" / prepared(cache)[0])
    ted.write_bytes(sound[:900])
    registered("ted_hrlr_translate", TED, ted)
    check_refused(rf"{ted}.*delete the damaged archive and fetch it again", cache, directory=ted.parent)
    ted.write_bytes(sound)
    registered("ted_hrlr_translate", TED, ted)
    assert prepared(cache) == []
    corpus = opened(cache, directory=ted.parent)
    assert sizes(corpus) == {"train": 300, "validation": 17, "test": 23}
    assert corpus.digest == used.digest
