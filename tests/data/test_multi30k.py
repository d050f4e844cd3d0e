"""Multi30k: the published files, in a folder or downloaded, and the errors for others."""

import gzip
import hashlib
import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lingua_flax.data.corpora import Corpus, multi30k, open_corpus
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DataConfig
from tests.helpers.web import Silent, delivered

REQUIRED = ("train", "val", "test_2016_flickr")


def opened(cache: Path, directory: Path | None, source: str = "en", target: str = "de") -> Corpus:
    config = DataConfig(name="multi30k", directory=directory, cache_directory=cache)
    return open_corpus(config.model_copy(update={"source_language": source, "target_language": target}))


def complete(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/*") if path.name != "downloads")


def publish(folder: Path, stems: Iterable[str], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes files in English and German, with so many lines, that count as the published ones."""
    folder.mkdir()
    for name in (f"{stem}.{code}" for stem in stems for code in ("en", "de")):
        lines = (f"{name} {number}\n" for number in range(count))
        (folder / f"{name}.gz").write_bytes(gzip.compress("".join(lines).encode()))
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(multi30k, "_DIGESTS", digests)


def test_pairs_are_as_published(multi30k, cache):
    """Prepared once for each direction."""
    corpus = opened(cache, multi30k)
    required = {"train": ("train", 29_000), "validation": ("val", 1014), "test": ("test_2016_flickr", 1000)}
    assert list(corpus.splits)[:3] == list(required)
    for split, (name, count) in required.items():
        texts = [gzip.decompress((multi30k / f"{name}.{code}.gz").read_bytes()).decode() for code in ("en", "de")]
        assert list(corpus.split(split)) == list(zip(*(text[:-1].split("\n") for text in texts), strict=True))
        assert len(corpus.split(split)) == count
    assert opened(cache, multi30k).digest == corpus.digest
    assert len(complete(cache)) == 1
    other = opened(cache, multi30k, "de", "en")
    assert other.digest != corpus.digest
    assert [tuple(reversed(pair)) for pair in other.split("test")] == list(corpus.split("test"))


def test_changed_and_missing_files_are_refused(tmp_path, cache, monkeypatch):
    folder = tmp_path / "changed"
    publish(folder, REQUIRED, 1, monkeypatch)
    (folder / "test_2016_flickr.en.gz").unlink()
    with pytest.raises(UserError, match=r"test_2016_flickr\.en\.gz: no such file; .*--data\.directory"):
        opened(cache, folder)
    (folder / "val.de.gz").write_bytes(gzip.compress(b"x\n"))
    with pytest.raises(UserError, match=r'val\.de\.gz: not the published val\.de\.gz.*data\.name = "text"'):
        opened(cache, folder)
    assert complete(cache) == []


def test_languages():
    for source, target, message in (
        ("en", "es", r'data\.target_language: multi30k has no language "es"; it has en, de, fr, cs'),
        ("English", "de", r'data\.source_language: multi30k has no language "English"'),
        ("de", "de", r'data\.target_language: "de" is the source language'),
    ):
        with pytest.raises(UserError, match=message):
            opened(Path("nowhere"), None, source, target)
    with_czech = ["train", "validation", "test", "test_2018_flickr"]
    everything = [*with_czech[:3], "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"]
    for first, second in itertools.product(("en", "de", "fr", "cs"), repeat=2):
        expected = with_czech if "cs" in (first, second) else everything
        assert list(multi30k._published((first, second))) == expected


def test_test_sets_that_exist_are_used(tmp_path, cache, monkeypatch):
    """Preparing a copy with fewer of them does not hide those of a fuller copy; the training corpus is the same."""
    few, everything = tmp_path / "few", tmp_path / "all"
    publish(everything, multi30k._FILES.values(), 1, monkeypatch)
    shutil.copytree(everything, few, ignore=shutil.ignore_patterns("test_2017_mscoco*", "test_2017_flickr.de.gz"))
    first, second = opened(cache, few), opened(cache, everything)
    assert list(first.splits) == ["train", "validation", "test", "test_2018_flickr"]
    for split, stem in multi30k._FILES.items():
        assert list(second.split(split)) == [(f"{stem}.en 0", f"{stem}.de 0")]
    assert first.digest == second.digest


# Downloads.


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder that a local web server delivers, whose files count as the published ones."""
    folder = tmp_path / "published"
    publish(folder, REQUIRED, 1000, monkeypatch)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with delivered(folder) as address:
        monkeypatch.setattr(multi30k, "_REPOSITORY", address)
        yield folder


def test_files_are_downloaded_once_and_verified(cache, server, capfd):
    downloaded, from_files = opened(cache, None), opened(cache.with_name("other"), server)
    assert list(downloaded.split("train")) == list(from_files.split("train"))
    assert downloaded.digest == from_files.digest
    shutil.rmtree(server)
    assert opened(cache, None).split("test")[0] == from_files.split("test")[0]  # from the cache
    assert capfd.readouterr() == ("", "")

    (prepared,) = complete(cache)
    shutil.rmtree(cache / "multi30k" / prepared)
    (kept,) = (cache / "multi30k" / "downloads").rglob("*val.de*.gz")
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"downloads/.*: not the published val\.de\.gz.*delete it"):
        opened(cache, None)


def test_failed_downloads_are_reported_and_removed(cache, server, monkeypatch):
    downloads = cache / "multi30k" / "downloads"
    with monkeypatch.context() as patch:
        patch.setattr(Silent, "copyfile", lambda handler, source, output: output.write(source.read(1000)))
        with pytest.raises(UserError, match=r"from http://127.*/train\.en\.gz \(the connection was lost\)"):
            opened(cache, None)
    assert list(downloads.iterdir()) == []
    (server / "val.de.gz").write_bytes(gzip.compress(b"Bitte melden Sie sich an\n"))
    with pytest.raises(UserError, match=r"does not deliver the published files.*--data\.directory"):
        opened(cache, None)
    assert complete(cache) == []
    assert not list(downloads.glob("val.de*"))
