"""Multi30k: the published files, in a folder or downloaded, and the errors for others."""

import gzip
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lingua_flax.data.corpora import Corpus, multi30k, open_corpus
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig
from tests.helpers.web import Silent, delivered

NAMES = [f"{name}.{code}.gz" for name in ("train", "val", "test_2016_flickr") for code in ("en", "de")]


def opened(cache: Path, directory: Path | None, source: str = "en", target: str = "de") -> Corpus:
    languages = {"source_language": source, "target_language": target}
    return open_corpus(DataConfig(name="multi30k", directory=directory, cache_directory=cache, **languages))


def complete(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/*") if path.name != "downloads")


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().removesuffix("\n").split("\n")


def test_pairs_are_as_published(multi30k, cache):
    """Prepared once for each direction."""
    corpus = opened(cache, multi30k)
    required = {"train": ("train", 29_000), "validation": ("val", 1014), "test": ("test_2016_flickr", 1000)}
    assert list(corpus.splits)[:3] == list(required)
    for split, (name, count) in required.items():
        expected = [lines_of(multi30k / f"{name}.{code}.gz") for code in ("en", "de")]
        assert list(corpus.split(split)) == list(zip(*expected, strict=True))
        assert len(corpus.split(split)) == count
    assert opened(cache, multi30k).fingerprint == corpus.fingerprint
    assert len(complete(cache)) == 1
    other = opened(cache, multi30k, "de", "en")
    assert other.fingerprint != corpus.fingerprint
    assert [tuple(reversed(pair)) for pair in other.split("test")] == list(corpus.split("test"))


def test_changed_and_missing_files_are_refused(multi30k, tmp_path, cache):
    for name in NAMES:
        shutil.copyfile(multi30k / name, tmp_path / name)
    content = (tmp_path / "val.de.gz").read_bytes()
    (tmp_path / "val.de.gz").write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(UserError, match=r'val\.de\.gz: not the published val\.de\.gz.*data\.name = "text"'):
        opened(cache, tmp_path)
    (tmp_path / "val.de.gz").write_bytes(content)
    (tmp_path / "test_2016_flickr.en.gz").unlink()
    with pytest.raises(UserError, match=r"test_2016_flickr\.en\.gz: no such file; .*--data\.directory"):
        opened(cache, tmp_path)
    assert complete(cache) == []


def test_unsupported_languages_are_refused(cache):
    for source, target, message in (
        ("en", "es", r'data\.target_language: multi30k has no language "es"; it has en, de, fr, cs'),
        ("English", "de", r'data\.source_language: multi30k has no language "English"'),
        ("de", "de", r'data\.target_language: "de" is the source language'),
    ):
        with pytest.raises(UserError, match=message):
            opened(cache, None, source, target)


def test_splits_for_each_direction():
    everything = ["train", "validation", "test", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"]
    for source in ("en", "de", "fr", "cs"):
        for target in ("en", "de", "fr", "cs"):
            expected = [*everything[:3], everything[5]] if "cs" in (source, target) else everything
            assert list(multi30k._published((source, target))) == expected


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes these files count as the published ones."""
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "_DIGESTS", digests)


def test_test_sets_that_exist_are_used(tmp_path, cache, monkeypatch):
    """Preparing a copy with fewer of them does not hide those of a fuller copy; the training corpus is the same."""
    few, everything = tmp_path / "few", tmp_path / "all"
    everything.mkdir()
    for stem in multi30k._FILES.values():
        for code in ("en", "de"):
            (everything / f"{stem}.{code}.gz").write_bytes(gzip.compress(f"{stem} {code}\n".encode()))
    publish(everything, monkeypatch)
    shutil.copytree(everything, few, ignore=shutil.ignore_patterns("test_2017*"))
    (few / "test_2017_flickr.en.gz").touch()  # its German file is missing

    first, second = opened(cache, few), opened(cache, everything)
    assert list(first.splits) == ["train", "validation", "test", "test_2018_flickr"]
    assert list(second.splits) == list(multi30k._FILES)
    for split, pairs in second.splits.items():
        assert list(pairs) == [(f"{multi30k._FILES[split]} en", f"{multi30k._FILES[split]} de")]
    assert first.fingerprint == second.fingerprint


# Downloads.


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder that a local web server delivers, whose files count as the published ones."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in NAMES:
        lines = (f"{name} {number}\n" for number in range(1000))
        (folder / name).write_bytes(gzip.compress("".join(lines).encode()))
    publish(folder, monkeypatch)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with delivered(folder) as address:
        monkeypatch.setattr(multi30k, "_REPOSITORY", address)
        yield folder


def test_files_are_downloaded_once_and_verified(cache, server, capfd):
    downloaded = opened(cache, None)
    from_files = opened(cache.with_name("other"), server)
    assert list(downloaded.split("train")) == list(from_files.split("train"))
    assert downloaded.fingerprint == from_files.fingerprint
    for path in server.iterdir():
        path.unlink()
    assert opened(cache, None).split("test")[0] == from_files.split("test")[0]  # from the cache
    assert capfd.readouterr() == ("", "")

    (prepared,) = complete(cache)
    shutil.rmtree(cache / "multi30k" / prepared)
    (kept,) = (cache / "multi30k" / "downloads").rglob("*val.de*.gz")
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"downloads/.*: not the published val\.de\.gz.*delete it"):
        opened(cache, None)


def test_failed_downloads_are_reported_and_removed(cache, server, monkeypatch):
    def half(handler: Silent, source: Any, output: Any) -> None:
        output.write(source.read(1000))

    downloads = cache / "multi30k" / "downloads"
    with monkeypatch.context() as patch:
        patch.setattr(Silent, "copyfile", half)
        with pytest.raises(UserError, match=r"from http://127.*/train\.en\.gz \(the connection was lost\)"):
            opened(cache, None)
    assert list(downloads.iterdir()) == []
    (server / "val.de.gz").write_bytes(gzip.compress(b"Bitte melden Sie sich an\n"))
    with pytest.raises(UserError, match=r"does not deliver the published files.*--data\.directory"):
        opened(cache, None)
    (server / "val.de.gz").unlink()
    with pytest.raises(UserError, match=r"could not be downloaded .*--data\.directory"):
        opened(cache, None)
    assert complete(cache) == []
    assert not list(downloads.glob("val.de*"))
    monkeypatch.setattr(multi30k, "_REPOSITORY", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(UserError, match=r"could not be downloaded from http.*no connection"):
        opened(cache, None)
