"""data/corpora/tfds_corpus.py: the real builders of TensorFlow Datasets on small archives with the published layout.

A fake archive is refused unless its checksum is registered with TFDS, as the fixture `registered` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import importlib.util
import itertools
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader, extractor
from tensorflow_datasets.core.download.checksums import compute_url_info
from tensorflow_datasets.core.download.resource import get_dl_fname

from lingua_flax.data.corpora import Corpus, Pair, downloads, open_corpus, tfds_build, tfds_corpus
from lingua_flax.data.mixture import open_training_corpora
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig, MixtureConfig
from tests.helpers.commands import succeed
from tests.helpers.pairs import sizes
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


def opened(cache: Path, name: str = "ted_hrlr_translate/pt_to_en", languages: str = "pt en", **options: Any) -> Corpus:
    source, target = languages.split()
    return open_corpus(
        DataConfig(name=name, source_language=source, target_language=target, cache_directory=cache, **options)
    )


def check_refused(message: str, cache: Path, **options: Any) -> None:
    with pytest.raises(UserError, match=message) as caught:
        opened(cache, **options)
    assert "\n" not in str(caught.value)


def prepared(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("tfds/*") if path.name != "downloads")


# Without a network, or with an unreliable one.

OPENING = """
import pathlib, sys
from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.schema import DataConfig
options = {"source_language": "pt", "target_language": "en", "cache_directory": pathlib.Path(sys.argv[1])}
open_corpus(DataConfig(name="ted_hrlr_translate", **options))
"""


@pytest.fixture
def train(tmp_path: Path, cache: Path):
    """Returns a command that trains on the corpus."""
    config = tmp_path / "ted.toml"
    config.write_text(CONFIG.format(cache=cache))
    return ["train", "--config", config, "--workdir", tmp_path / "w"]


def set_proxy(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    for name, value in (proxies | {"NO_PROXY": "", "no_proxy": ""}).items():
        monkeypatch.setenv(name, value)


def test_half_downloaded_archive_is_fetched_again(run, cache, ted, train, monkeypatch):
    """By a proxy that closes the connection after half of the archive, then keeps it open until the process is killed,
    then delivers all of it."""
    content, requests = ted.read_bytes(), []

    class Proxy(Silent):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if len(requests) == 3 else content[: len(content) // 2])
            self.wfile.flush()
            if len(requests) == 2:
                with contextlib.suppress(ConnectionResetError):
                    self.connection.recv(1)  # until the other side is killed

    with delivered(ted.parent, Proxy) as address:
        set_proxy(monkeypatch, address)
        check_refused(r"pt_to_en could not be downloaded \(the connection was lost\); try again when", cache)
        killed = start_command("-c", OPENING, cache)
        wait_for(killed, lambda: len(requests) == 2)
        killed.kill()
        killed.communicate()
        done = succeed(run, *train)
    assert requests == [TED] * 3
    for words in (ORDER_NOTE, "left out 1 training pair with an empty side", "kept 300 of 300 pairs", "step 5/5"):
        assert words in done.stderr


def test_command_without_network_or_archive_says_what_to_do(run, tmp_path, cache, train, monkeypatch):
    set_proxy(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    done = run(*train)
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
    assert other.fingerprint != corpus.fingerprint
    ted.unlink()
    for name in ("ted_hrlr_translate/en_to_pt", "ted_hrlr_translate"):
        again = opened(cache, name=name)
        assert (again.name, again.fingerprint, again.notes) == (corpus.name, corpus.fingerprint, corpus.notes)
    assert len(prepared(cache)) == 2
    left = [path for folder in prepared(cache) for path in (cache / "tfds" / folder).iterdir()]
    assert all(path.is_file() for path in left), "folders of TFDS"


def test_splits_are_held_out_of_a_corpus_that_has_only_train(tmp_path, cache, registered):
    """As for the user's own files."""
    url = "https://s3.amazonaws.com/web-language-models/paracrawl/release4/en-de.bicleaner07.txt.gz"
    path = tmp_path / url.rpartition("/")[2]
    path.write_bytes(gzip.compress("".join(f"line {i}\tZeile {i}\n" for i in range(400)).encode()))
    registered("para_crawl", url, path)
    corpus = opened(cache, name="para_crawl", languages="de en", directory=tmp_path)
    assert sizes(corpus) == {"train": 360, "validation": 20, "test": 20}
    held_out = "held out 20 of 400 pairs for validation and 20 for test, since none were given"
    assert corpus.notes == (ORDER_NOTE, held_out)
    everything = sorted(pair for split in corpus.splits.values() for pair in split)
    assert everything == sorted((f"Zeile {i}", f"line {i}") for i in range(400))
    reverse = MixtureConfig(name="para_crawl", source_language="en", target_language="de", directory=tmp_path)
    options = {"source_language": "de", "target_language": "en", "directory": tmp_path, "cache_directory": cache}
    with pytest.raises(UserError, match=r"data\.mixture\.0 .*held-out pairs it would train on; choose another corpus"):
        open_training_corpora(DataConfig(name="para_crawl", mixture=(reverse,), **options))


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


def test_corpus_without_train_split_is_refused(tmp_path, cache, registered):
    (url,) = tfds.builder_cls("flores").url_infos
    stem = "wikipedia_en_ne_si_test_sets/wikipedia."
    files = {f"{stem}{split}.ne-en.{code}": ["x"] for split in ("dev", "devtest") for code in ("ne", "en")}
    registered("flores", url, pack(tmp_path / url.rpartition("/")[2], files))
    check_refused("flores/neen has nothing to train on", cache, name="flores", languages="ne en", directory=tmp_path)
    assert prepared(cache) == []


# Invalid names and options.


def test_invalid_names_and_languages_are_refused(cache):
    for name, languages, message in (
        ("ted_hrlr_translat", "pt en", r'"ted_hrlr_translat" \(did you mean "ted_hrlr_translate"\?\); the corpora are'),
        ("multi30k/en-de", "en de", r'unknown corpus "multi30k/en-de" \(did you mean "multi30k"\?\)'),
        ("https://x.org/ted:1", "pt en", r'corpus "https://x.org/ted:1"; the corpora are phrasebook, multi30k, text'),
        ("", "pt en", r'unknown corpus ""'),
        ("mnist", "pt en", "mnist of TensorFlow Datasets is not a corpus of sentence pairs.*those are flores"),
        ("wmt_translate", "de en", "wmt_translate of TensorFlow Datasets is not a corpus"),
        ("tatoeba/tatoeba_de", "de en", "tatoeba of TensorFlow Datasets is not a corpus"),
        ("ted_hrlr_translate/pt_to_eng", "pt en", r'no config "pt_to_eng" \(did you mean "pt_to_en"\?\); it has az'),
        ("ted_hrlr_translate/pt_to_en", "en fr", r'data\.target_language: .* no language "fr"; it has pt and en'),
        ("wmt14_translate", "de fr", "wmt14_translate has no de-fr; it has cs-en, de-en, fr-en, hi-en, ru-en"),
        ("opus", "en de", r"several corpora; name one: opus/medical, opus/law, opus/koran, opus/IT, opus/subtitles"),
        ("para_crawl", "en en", r'data\.target_language: "en" is the source language'),
    ):
        check_refused(message, cache, name=name, languages=languages)
        assert not cache.exists()


def test_invalid_options_are_refused(tmp_path, cache):
    for options, message in (
        ({"name": "para_crawl", "train_source": tmp_path}, r'data\.train_source has no effect.*only with "text"'),
        ({"name": "phrasebook", "directory": tmp_path}, 'only with "multi30k" or a corpus of TensorFlow Datasets'),
        ({"directory": tmp_path / "nowhere"}, "directory .*nowhere: no such folder"),
    ):
        check_refused(message, cache, **options)


def test_corpora_listed_in_messages_exist():
    for name in tfds_corpus.TRANSLATION_CORPORA:
        builder_class = tfds_corpus.find_builder(name)
        assert builder_class is not None, name
        assert all(len(codes) >= 2 for codes in tfds_corpus._languages_of_configs(builder_class).values()), name


# Archives.


def test_unusable_archives_are_refused(cache, ted, registered, monkeypatch):
    """And leave nothing: a sound one is used afterwards."""
    sound = ted.read_bytes()
    digest = hashlib.sha256(sound).hexdigest()
    wrong = sound[:700] + bytes([sound[700] ^ 1]) + sound[701:]
    ted.write_bytes(wrong)
    check_refused(rf"{ted}: not the published qi18naacl.*delete it and fetch it again", cache, directory=ted.parent)
    place = cache / "tfds" / "downloads" / "ted_hrlr_translate" / get_dl_fname(TED, digest)
    place.write_bytes(wrong)
    place.with_name(f"{place.name}.INFO").write_text("{}")
    check_refused(rf"{place}: not the published qi18naacl.*delete it and fetch it again", cache)
    place.write_bytes(sound)
    used = opened(cache)
    place.unlink()
    shutil.rmtree(cache / "tfds" / prepared(cache)[0])
    ted.write_bytes(sound[:900])
    registered("ted_hrlr_translate", TED, ted)
    check_refused(rf"{ted}.*delete the damaged archive and fetch it again", cache, directory=ted.parent)
    ted.write_bytes(sound)
    registered("ted_hrlr_translate", TED, ted)
    builder_class = tfds.builder_cls("ted_hrlr_translate")
    generate = builder_class._generate_examples

    def stop(self, **files):
        yield from itertools.islice(generate(self, **files), 10)
        raise AssertionError("Sizes do not\nmatch")

    with monkeypatch.context() as patch:
        patch.setattr(builder_class, "_generate_examples", stop)
        check_refused("pt_to_en could not be prepared: Sizes do not match", cache, directory=ted.parent)
    assert prepared(cache) == []
    corpus = opened(cache, directory=ted.parent)
    assert sizes(corpus) == {"train": 300, "validation": 17, "test": 23}
    assert corpus.fingerprint == used.fingerprint


@pytest.fixture
def url(ted: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the builder download its archive from a local web server; yields its URL."""
    builder_class = tfds.builder_cls("ted_hrlr_translate")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with delivered(ted.parent) as address:
        url = f"{address}/{ARCHIVE}"
        monkeypatch.setattr(sys.modules[builder_class.__module__], "_DATA_URL", url)
        monkeypatch.setitem(builder_class.url_infos, url, builder_class.url_infos[TED])
        yield url


def test_archive_is_downloaded_once(cache, ted, url, capfd):
    assert sorted(opened(cache).split("test")) == sorted(ted_pairs("test"))
    ted.unlink()
    assert sorted(opened(cache, languages="en pt").split("test")) == sorted(pair[::-1] for pair in ted_pairs("test"))
    assert capfd.readouterr() == ("", "")  # no progress bars either, since this is no terminal


def test_failed_download_is_reported(cache, ted, url, monkeypatch):
    ted.write_bytes(b"Please log in")
    check_refused(rf"from {url} \(the server does not deliver the published files\); put the file", cache)
    ted.unlink()
    check_refused(rf"from {url} \(status 404\); put the file there yourself, as .*qi18naacl", cache)
    assert prepared(cache) == []
    assert not list((cache / "tfds" / "downloads").rglob("*qi18naacl*"))
    monkeypatch.setattr(downloads, "_WAIT_SECONDS", (0.1, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        unresponsive = f"http://127.0.0.1:{silent.getsockname()[1]}/x.tgz"
        module = sys.modules[tfds.builder_cls("ted_hrlr_translate").__module__]
        monkeypatch.setattr(module, "_DATA_URL", unresponsive)
        check_refused(rf"from {unresponsive} \(no connection\); try again when there is a network", cache)


# Without TensorFlow.


def test_stand_in_is_installed_only_without_tensorflow(monkeypatch):
    for module in (downloader, extractor):
        monkeypatch.setattr(module, "tf", "TensorFlow")
    for found, expected in (("a spec", "TensorFlow"), (None, tfds_build.STAND_IN)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        tfds_build.do_without_tensorflow()
        assert (downloader.tf, extractor.tf) == (expected, expected)


def test_builders_leave_nothing_among_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    builder_class = tfds_corpus.find_builder("ted_hrlr_translate")
    assert builder_class
    assert builder_class(data_dir=tmp_path / "nowhere", config="pt_to_en").info.features
    assert list(tmp_path.iterdir()) == []
