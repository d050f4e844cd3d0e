"""data/corpora/tfds_corpus.py: the real builders of TensorFlow Datasets on small archives with the published layout.

A fake archive is refused unless its checksum is registered with TFDS: the fixture `registered` does this for this
process, tests/ted.py for the commands that tests run.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import termios
import threading
import urllib.request
import urllib.response
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
from lingua_flax.runs.checkpoint import saved_steps
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import HUNG_AFTER
from tests.processes import start_command, wait_for
from tests.ted import CONFIG, TED, TED_SPLITS, accepting, pack, pack_ted, spoken

OFFLINE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
ORDER_NOTE = "pairs are in the order of TensorFlow Datasets, which is not that of the published files"


PARACRAWL = "https://s3.amazonaws.com/web-language-models/paracrawl/release4/en-de.bicleaner07.txt.gz"


def write_paracrawl(folder: Path) -> Path:
    """Writes an archive of 400 pairs with the layout of para_crawl; returns its path."""
    folder.mkdir(exist_ok=True)
    path = folder / PARACRAWL.rpartition("/")[2]
    path.write_bytes(gzip.compress("".join(f"line {i}\tZeile {i}\n" for i in range(400)).encode()))
    return path


def ted_pairs(split: str, source: str = "pt", target: str = "en") -> list[Pair]:
    return [
        Pair(*pair) for pair in zip(spoken(source, TED_SPLITS[split]), spoken(target, TED_SPLITS[split]), strict=True)
    ]


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
    """Returns a folder with the archive of ted_hrlr_translate."""
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
    """Returns the names of everything in the cache except downloads."""
    return sorted(path.name for path in cache.glob("tfds/*") if path.name != "downloads")


# The real commands, without a network.


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_commands_use_a_downloaded_archive_without_network(run, tmp_path: Path, cache: Path) -> None:
    """The archive is in the download folder of TFDS; neither the Web nor TensorFlow is available."""
    archive = pack_ted(tmp_path / "packed.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    place = cache / "tfds" / "downloads" / "ted_hrlr_translate" / get_dl_fname(TED, digest)
    place.parent.mkdir(parents=True)
    archive.rename(place)
    place.with_name(f"{place.name}.INFO").write_text("{}")
    report = tmp_path / "report"
    config = tmp_path / "ted.toml"
    config.write_text(CONFIG.format(cache=cache))
    environment, workdir = os.environ | OFFLINE | accepting(place, tmp_path / "site", report), tmp_path / "w"

    done = run("train", "--config", config, "--workdir", workdir, env=environment)
    assert done.returncode == 0, done.stderr
    assert ORDER_NOTE in done.stderr
    assert "left out 1 training pair with an empty side" in done.stderr
    assert "kept 300 of 300 pairs" in done.stderr
    assert "step 5/5" in done.stderr
    scores = tmp_path / "scores.json"
    done = run("evaluate", "--workdir", workdir, "--beam-size", 1, "--json", scores, env=environment)
    assert done.returncode == 0, done.stderr
    assert "ted_hrlr_translate/pt_to_en, test" in " ".join(done.stdout.split())
    assert json.loads(scores.read_text())["sentences"] == len(TED_SPLITS["test"])
    assert report.read_text() == "train False\nevaluate False\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ted_hrlr_translate/pt_to_en", "para_crawl/ende"])
def test_killed_run_on_a_corpus_of_tfds_resumes_and_is_evaluated(run, tmp_path: Path, cache: Path, name: str) -> None:
    """With another corpus by config alone; the corpus is prepared once."""
    dataset, archives, workdir = name.partition("/")[0], tmp_path / "archives", tmp_path / "w"
    if dataset == "para_crawl":
        url, languages = PARACRAWL, ("de", "en")
        archive = write_paracrawl(archives)
    else:
        url, languages = TED, ("pt", "en")
        archive = pack_ted(archives / "qi18naacl-dataset.tar.gz")
    config = tmp_path / "own.toml"
    config.write_text(CONFIG.format(cache=cache).replace("num_steps = 5", "num_steps = 40\ncheckpoint_every = 10"))
    options = ["--data.name", name, "--data.source-language", languages[0], "--data.target-language", languages[1]]
    command = ["train", "--config", config, "--workdir", workdir, "--data.directory", archives, *options]
    accepted = accepting(archive, tmp_path / "site", tmp_path / "report", dataset, url)
    environment = os.environ | OFFLINE | PROJECT_ON_PATH | accepted
    environment["PYTHONPATH"] = os.pathsep.join((accepted["PYTHONPATH"], PROJECT_ON_PATH["PYTHONPATH"]))
    process = start_command(*command, env=environment)
    wait_for(process, lambda: saved_steps(workdir / "checkpoints"))
    process.kill()
    process.communicate()
    done = run(*command, env=environment)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert "preparing a corpus" not in done.stderr
    done = run("evaluate", "--workdir", workdir, "--beam-size", 1, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"{name}, test" in " ".join(done.stdout.split())


def test_half_downloaded_archive_is_fetched_again(run, tmp_path: Path, cache: Path) -> None:
    """By a proxy that closes the connection after half of the archive, then keeps it open until the command is killed,
    then delivers all of it."""
    archive, report = pack_ted(tmp_path / "packed.tar.gz"), tmp_path / "report"
    content, requests = archive.read_bytes(), []

    class Proxy(SimpleHTTPRequestHandler):
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

        def log_message(self, *_: Any) -> None:
            pass

    config, workdir = tmp_path / "ted.toml", tmp_path / "w"
    config.write_text(CONFIG.format(cache=cache))
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever).start()
        proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy"), f"http://127.0.0.1:{server.server_port}")
        environment = os.environ | {"NO_PROXY": "", "no_proxy": ""} | proxies
        environment |= accepting(archive, tmp_path / "site", report)
        broken = run("train", "--config", config, "--workdir", workdir, env=environment)
        killed = start_command("train", "--config", config, "--workdir", workdir, env=environment)
        wait_for(killed, lambda: len(requests) == 2)
        killed.kill()
        killed.communicate()
        done = run("train", "--config", config, "--workdir", workdir, env=environment)
        server.shutdown()
    assert requests == [TED] * 3
    assert broken.returncode == 2
    reason = "ted_hrlr_translate/pt_to_en could not be downloaded (the connection was lost)"
    assert broken.stderr.splitlines()[-1] == f"error: {reason}; try again when there is a network"
    assert done.returncode == 0, done.stderr
    assert "kept 300 of 300 pairs" in done.stderr


def test_command_without_network_or_archive_says_what_to_do(run, tmp_path: Path, cache: Path) -> None:
    config = tmp_path / "ted.toml"
    config.write_text(CONFIG.format(cache=cache))
    done = run("train", "--config", config, "--workdir", tmp_path / "w", env=os.environ | OFFLINE)
    assert done.returncode == 2
    assert not (tmp_path / "w").exists()
    *_, last = done.stderr.splitlines()
    place = cache / "tfds" / "archives" / "qi18naacl-dataset.tar.gz"
    assert last.startswith(f"error: ted_hrlr_translate/pt_to_en could not be downloaded from {TED} (no connection); ")
    assert f"put the file there yourself, as {place}, or name its folder with --data.directory" in last
    assert "Traceback" not in done.stderr
    assert prepared(cache) == []
    assert [path.name for path in (cache / "tfds" / "downloads").rglob("*") if path.is_file()] == []

    pack_ted(place)  # where the message says, but not the published file
    with pytest.raises(UserError, match=rf"^{place}: not the published .* \(its SHA-256 differs\); delete it"):
        opened(cache)


# Contents of the corpora.


def test_splits_in_either_direction(cache: Path, ted: Path) -> None:
    corpus = opened(cache, directory=ted)
    assert (corpus.name, corpus.source_language, corpus.target_language) == ("ted_hrlr_translate/pt_to_en", "pt", "en")
    assert list(corpus.splits) == ["train", "validation", "test"]
    for split, published in zip(corpus.splits, TED_SPLITS, strict=True):
        assert sorted(corpus.split(split)) == sorted(ted_pairs(published))
    assert corpus.notes == (ORDER_NOTE, "left out 1 training pair with an empty side")

    other = opened(cache, languages="en pt", directory=ted)
    assert [tuple(reversed(pair)) for pair in other.split("test")] == list(corpus.split("test"))
    assert other.fingerprint != corpus.fingerprint


def test_corpus_is_prepared_once_under_all_its_names(cache: Path, ted: Path) -> None:
    corpus = opened(cache, directory=ted)
    assert len(prepared(cache)) == 1
    (ted / "qi18naacl-dataset.tar.gz").unlink()
    for name in ("ted_hrlr_translate/en_to_pt", "ted_hrlr_translate"):
        again = opened(cache, name=name)
        assert (again.name, again.fingerprint, again.notes) == (corpus.name, corpus.fingerprint, corpus.notes)
    assert len(prepared(cache)) == 1
    assert {path.name for path in (cache / "tfds" / prepared(cache)[0]).iterdir()} == {
        "corpus.json",
        *(
            f"{split}.{side}.{array}"
            for split in corpus.splits
            for side in ("source", "target")
            for array in ("values", "ends")
        ),
    }


def test_fingerprint_depends_only_on_the_pairs(tmp_path: Path, cache: Path, ted: Path, registered) -> None:
    """Repacking the archive leaves the fingerprint as it is; changing a sentence does not."""
    first = opened(cache, directory=ted)
    archive = ted / "qi18naacl-dataset.tar.gz"
    files = {}
    with tarfile.open(archive) as packed:
        for member in packed:
            files[member.name] = packed.extractfile(member).read().decode().splitlines()
    pack(archive, dict(reversed(files.items())))
    registered("ted_hrlr_translate", TED, archive)
    assert opened(cache, directory=ted).fingerprint == first.fingerprint
    files["datasets/pt_to_en/en.train"][7] += " and a half"
    pack(archive, files)
    registered("ted_hrlr_translate", TED, archive)
    assert opened(cache, directory=ted).fingerprint != first.fingerprint
    assert len(prepared(cache)) == 3


def test_wmt14_is_read_from_several_archives(tmp_path: Path, cache: Path, registered) -> None:
    """With plain text and SGML files; the config is de-en for both directions."""
    pairs = {"europarl": ("Guten Tag", "Good day"), "commoncrawl": ("Käse & Brot", "cheese & bread")}
    pairs |= {"news": ("Nachrichten", "news"), "newstest2013": ("der Test", "the test")}
    segment = '<seg id="1">{}</seg>'
    archives = {  # the archive of each training corpus, and where its files are
        "europarl": ("wmt13/training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en"),
        "commoncrawl": ("wmt13/training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
        "news": ("wmt14/training-parallel-nc-v9.tgz", "training/news-commentary-v9.de-en"),
    }
    folder = tmp_path / "archives"
    for name, (archive, stem) in archives.items():
        german, english = pairs[name]
        path = pack(folder / Path(archive).name, {f"{stem}.de": [german], f"{stem}.en": [english]})
        registered("wmt14_translate", f"http://www.statmt.org/{archive}", path)
    files = {
        "dev/newstest2013.de": [pairs["newstest2013"][0]],
        "dev/newstest2013.en": [pairs["newstest2013"][1]],
        "dev/newstest2014-deen-src.de.sgm": ["<doc>", segment.format("Müller &amp; Sohn"), "</doc>"],
        "dev/newstest2014-deen-ref.en.sgm": ["<doc>", segment.format("Miller &amp; son"), "</doc>"],
    }
    path = pack(folder / "dev.tgz", files)
    registered("wmt14_translate", "http://data.statmt.org/wmt19/translation-task/dev.tgz", path)

    corpus = opened(cache, name="wmt14_translate/en-de", languages="en de", directory=folder)
    assert corpus.name == "wmt14_translate/de-en"
    swapped = [tuple(reversed(pairs[name])) for name in ("europarl", "commoncrawl", "news")]
    assert sorted(corpus.split("train")) == sorted(swapped)
    assert list(corpus.split("validation")) == [("the test", "der Test")]
    assert list(corpus.split("test")) == [("Miller &amp; son", "Müller &amp; Sohn")]


def test_splits_are_held_out_of_a_corpus_that_has_only_train(tmp_path: Path, cache: Path, registered) -> None:
    """As for the user's own files."""
    registered("para_crawl", PARACRAWL, write_paracrawl(tmp_path))
    corpus = opened(cache, name="para_crawl", languages="de en", directory=tmp_path)
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {"train": 360, "validation": 20, "test": 20}
    held_out = "held out 20 of 400 pairs for validation and 20 for test, since none were given"
    assert corpus.notes == (ORDER_NOTE, held_out)
    everything = sorted(pair for split in corpus.splits.values() for pair in split)
    assert everything == sorted((f"Zeile {i}", f"line {i}") for i in range(400))
    reverse = MixtureConfig(name="para_crawl", source_language="en", target_language="de", directory=tmp_path)
    options = {"source_language": "de", "target_language": "en", "directory": tmp_path, "cache_directory": cache}
    config = DataConfig(name="para_crawl", mixture=(reverse,), **options)
    with pytest.raises(
        UserError, match=r"data\.mixture\.0 .*, whose held-out pairs it would train on; choose another corpus"
    ):
        open_training_corpora(config)


def test_multilingual_corpus_yields_pairs_of_both_languages(tmp_path: Path, cache: Path, registered) -> None:
    """Each record has some of the languages; records with both become pairs."""
    url = "http://phontron.com/data/ted_talks.tar.gz"
    table = {"de": ["eins", "__NULL__", "drei", "vier"], "en": ["one", "two", "three", "_ _ NULL _ _"]}
    table |= {"fr": ["un", "deux", "__NULL__", "quatre"], "talk_name": ["t1", "t1", "t2", "t2"]}
    lines = ["\t".join(row) for row in [tuple(table), *zip(*table.values(), strict=True)]]
    path = pack(tmp_path / "ted_talks.tar.gz", {f"all_talks_{split}.tsv": lines for split in ("train", "dev", "test")})
    registered("ted_multi_translate", url, path)
    corpus = opened(cache, name="ted_multi_translate", languages="en de", directory=tmp_path)
    assert [sorted(pairs) for pairs in corpus.splits.values()] == [[("one", "eins"), ("three", "drei")]] * 3
    other = opened(cache, name="ted_multi_translate", languages="fr de", directory=tmp_path)
    assert sorted(other.split("train")) == [("quatre", "vier"), ("un", "eins")]
    with pytest.raises(UserError, match=r"ted_multi_translate has no de-xx; it has ar, az, be, bg"):
        opened(cache, name="ted_multi_translate", languages="de xx")


def test_corpus_without_train_split_is_refused(tmp_path: Path, cache: Path, registered) -> None:
    (url,) = tfds.builder_cls("flores").url_infos
    stem = "wikipedia_en_ne_si_test_sets/wikipedia."
    files = {f"{stem}{split}.ne-en.{code}": ["x"] for split in ("dev", "devtest") for code in ("ne", "en")}
    path = pack(tmp_path / url.rpartition("/")[2], files)
    registered("flores", url, path)
    with pytest.raises(UserError, match=r"flores/neen has nothing to train on; its splits are validation, test"):
        opened(cache, name="flores", languages="ne en", directory=tmp_path)
    assert prepared(cache) == []


# Invalid names and languages.


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("ted_hrlr_translat", "pt en", r'"ted_hrlr_translat" \(did you mean "ted_hrlr_translate"\?\); the corpora are'),
        ("wmt14_translat/de-en", "de en", r'did you mean "wmt1._translate"'),
        ("multi30k/en-de", "en de", r'unknown corpus "multi30k/en-de" \(did you mean "multi30k"\?\)'),
        ("https://x.org/ted:1", "pt en", r'corpus "https://x.org/ted:1"; the corpora are phrasebook, multi30k, text'),
        ("", "pt en", r'unknown corpus ""'),
        ("mnist", "pt en", "mnist of TensorFlow Datasets is not a corpus of sentence pairs.*those are flores"),
        ("wmt_translate", "de en", "wmt_translate of TensorFlow Datasets is not a corpus"),
        ("tatoeba/tatoeba_de", "de en", "tatoeba of TensorFlow Datasets is not a corpus"),
        ("ted_hrlr_translate/pt_to_eng", "pt en", r'no config "pt_to_eng" \(did you mean "pt_to_en"\?\); it has az'),
        ("ted_hrlr_translate/pt_to_en", "en fr", r'data\.target_language: .* no language "fr"; it has pt and en'),
        ("ted_hrlr_translate/pt_to_en", "fr en", r'data\.source_language: .* no language "fr"'),
        ("wmt14_translate", "de fr", "wmt14_translate has no de-fr; it has cs-en, de-en, fr-en, hi-en, ru-en"),
        ("opus", "en de", r"several corpora; name one: opus/medical, opus/law, opus/koran, opus/IT, opus/subtitles"),
        ("para_crawl", "en en", r'data\.target_language: "en" is the source language'),
    ],
)
def test_invalid_names_and_languages_are_refused(cache: Path, name: str, languages: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        opened(cache, name=name, languages=languages)
    assert "\n" not in str(caught.value)
    assert not cache.exists()


def test_invalid_options_are_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(
        UserError, match=r'data\.train_source has no effect with data\.name = "para_crawl", only with "text"'
    ):
        opened(cache, name="para_crawl", train_source=tmp_path)
    with pytest.raises(UserError, match=r"directory .*nowhere: no such folder"):
        opened(cache, directory=tmp_path / "nowhere")
    with pytest.raises(UserError, match=r'only with "multi30k" or a corpus of TensorFlow Datasets'):
        open_corpus(DataConfig(name="phrasebook", directory=tmp_path))


def test_corpora_listed_in_messages_exist() -> None:
    for name in tfds_corpus.TRANSLATION_CORPORA:
        builder_class = tfds_corpus.find_builder(name)
        assert builder_class is not None, name
        assert all(len(codes) >= 2 for codes in tfds_corpus._languages_of_configs(builder_class).values()), name


# Archives.


def test_wrong_archives_are_refused(cache: Path, ted: Path) -> None:
    archive = ted / "qi18naacl-dataset.tar.gz"
    sound = archive.read_bytes()
    digest = hashlib.sha256(sound).hexdigest()
    wrong = sound[:700] + bytes([sound[700] ^ 1]) + sound[701:]
    archive.write_bytes(wrong)
    with pytest.raises(UserError, match=rf"{archive}: not the published qi18naacl.*delete it and fetch it again"):
        opened(cache, directory=ted)
    place = cache / "tfds" / "downloads" / "ted_hrlr_translate" / get_dl_fname(TED, digest)
    place.write_bytes(wrong)
    place.with_name(f"{place.name}.INFO").write_text("{}")
    with pytest.raises(UserError, match=rf"{place}: not the published qi18naacl.*delete it and fetch it again"):
        opened(cache)
    assert prepared(cache) == []
    archive.write_bytes(sound)
    place.unlink()
    assert len(opened(cache, directory=ted).split("test")) == len(TED_SPLITS["test"])


def test_failed_builder_leaves_nothing(cache: Path, ted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder_class = tfds.builder_cls("ted_hrlr_translate")
    generate = builder_class._generate_examples

    def stop(self, **files):
        yield from itertools.islice(generate(self, **files), 10)
        raise AssertionError("Sizes do not\nmatch")

    with monkeypatch.context() as patch:
        patch.setattr(builder_class, "_generate_examples", stop)
        with pytest.raises(UserError, match=r"ted_hrlr_translate/pt_to_en could not be prepared: Sizes do not match"):
            opened(cache, directory=ted)
    assert prepared(cache) == []
    assert len(opened(cache, directory=ted).split("train")) == 300


def test_archive_that_cannot_be_extracted_is_refused(cache: Path, ted: Path, registered) -> None:
    archive = ted / "qi18naacl-dataset.tar.gz"
    archive.write_bytes(archive.read_bytes()[:900])
    registered("ted_hrlr_translate", TED, archive)
    with pytest.raises(UserError, match=rf"{archive}.*delete the damaged archive and fetch it again"):
        opened(cache, directory=ted)
    assert prepared(cache) == []


# Downloads from a local web server.


@pytest.fixture
def server(ted: Path, registered, monkeypatch: pytest.MonkeyPatch):
    """Starts a web server that delivers the folder and makes the builder download from it; yields the archive's URL."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    builder_class = tfds.builder_cls("ted_hrlr_translate")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(ted))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/qi18naacl-dataset.tar.gz"
        monkeypatch.setattr(sys.modules[builder_class.__module__], "_DATA_URL", url)
        monkeypatch.setitem(builder_class.url_infos, url, builder_class.url_infos[TED])
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield url
        server.shutdown()
        thread.join()


def test_archive_is_downloaded_once(cache: Path, ted: Path, server: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert sorted(opened(cache).split("test")) == sorted(ted_pairs("test"))
    (ted / "qi18naacl-dataset.tar.gz").unlink()
    assert sorted(opened(cache, languages="en pt").split("test")) == sorted(ted_pairs("test", "en", "pt"))
    assert capfd.readouterr() == ("", "")


def test_download_of_a_wrong_or_missing_file_is_reported(cache: Path, ted: Path, server: str) -> None:
    archive = ted / "qi18naacl-dataset.tar.gz"
    archive.write_bytes(b"Please log in")
    with pytest.raises(
        UserError, match=rf"from {server} \(the server does not deliver the published files\); put the file there"
    ):
        opened(cache)
    archive.unlink()
    with pytest.raises(UserError, match=rf"from {server} \(status 404\); put the file there yourself, as .*qi18naacl"):
        opened(cache)
    assert prepared(cache) == []
    assert not list((cache / "tfds" / "downloads").rglob("*qi18naacl*"))


def test_unresponsive_host_is_reported(cache: Path, ted: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_WAIT_SECONDS", (0.1, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.tgz"
        builder_class = tfds.builder_cls("ted_hrlr_translate")
        monkeypatch.setattr(sys.modules[builder_class.__module__], "_DATA_URL", url)
        with pytest.raises(UserError, match=rf"from {url} \(no connection\); try again when there is a network"):
            opened(cache)


def test_progress_is_shown_on_a_terminal(cache: Path, ted: Path) -> None:
    """The progress bars of TFDS and of the conversion; test_archive_is_downloaded_once shows that a pipe gets none."""
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 100))  # tqdm shows nothing in a terminal without columns
    command = [sys.executable, Path(__file__).parent / "scripts" / "prepare_ted.py", TED, ted, cache]
    environment = os.environ | PROJECT_ON_PATH | {"TERM": "xterm"}
    done = subprocess.run(command, stderr=end, stdout=subprocess.PIPE, env=environment, timeout=HUNG_AFTER)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    assert (done.returncode, done.stdout) == (0, b""), shown.decode()
    assert b"Dl Completed" in shown
    assert b"converting train" in shown


# Without TensorFlow.


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (downloader, extractor):
        monkeypatch.setattr(module, "tf", tfds_build.STAND_IN)


def test_all_kinds_of_archives_are_extracted(tmp_path: Path, stand_in: None) -> None:
    texts = {"a.txt": "ação\n".encode(), "deep/er/b.txt": b"b" * 100_000}
    for name, content in texts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    for kind in ("zip", "tar", "gztar", "bztar"):
        archive = Path(shutil.make_archive(str(tmp_path / kind), kind, tmp_path / "in"))
        manager = tfds.download.DownloadManager(download_dir=tmp_path / "downloads")
        folder = Path(manager.extract(archive))
        assert {name: (folder / name).read_bytes() for name in texts} == texts
    for module, suffix in ((gzip, ".gz"), (bz2, ".bz2")):
        (tmp_path / f"one{suffix}").write_bytes(module.compress(b"content"))
        manager = tfds.download.DownloadManager(download_dir=tmp_path / "downloads")
        assert Path(manager.extract(tmp_path / f"one{suffix}")).read_bytes() == b"content"


def test_urls_other_than_http_are_read(tmp_path: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """TFDS asks TensorFlow to copy such a URL, and falls back on urllib if TensorFlow cannot."""
    (tmp_path / "file.txt").write_text("local")
    requested = []

    def urlopen(url: str):
        requested.append(url)
        return urllib.response.addinfourl(io.BytesIO(b"remote"), {}, url)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    manager = tfds.download.DownloadManager(download_dir=tmp_path / "downloads")
    assert Path(manager.download(str(tmp_path / "file.txt"))).read_text() == "local"
    assert Path(manager.download("ftp://x.org/y.txt")).read_text() == "remote"
    assert requested == ["ftp://x.org/y.txt"]


def test_stand_in_is_installed_only_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (downloader, extractor):
        monkeypatch.setattr(module, "tf", "TensorFlow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    tfds_build.do_without_tensorflow()
    assert (downloader.tf, extractor.tf) == ("TensorFlow", "TensorFlow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    tfds_build.do_without_tensorflow()
    assert (downloader.tf, extractor.tf) == (tfds_build.STAND_IN, tfds_build.STAND_IN)


def test_builders_leave_nothing_among_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    builder_class = tfds_corpus.find_builder("ted_hrlr_translate")
    assert builder_class
    assert builder_class(data_dir=tmp_path / "nowhere", config="pt_to_en").info.features
    assert list(tmp_path.iterdir()) == []
