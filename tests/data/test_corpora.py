"""Opening corpora: the phrasebook, Multi30k and text files; the cache of prepared corpora; errors in the input."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingua_flax.data.corpora import Corpus, Pair, held_out_splits, open_corpus, prepared_corpus
from lingua_flax.data.corpora import phrasebook as phrasebook_corpus
from lingua_flax.data.corpora.phrasebook.contrast_templates import Contrast
from lingua_flax.data.corpora.phrasebook.generator import Phrasebook
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.options.schema import DataConfig
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import start_command

SCRIPTS = Path(__file__).parent / "scripts"
MULTI30K = Path(os.environ.get("LINGUA_MULTI30K", ROOT.parent / "shared" / "data" / "multi30k"))
needs_multi30k = pytest.mark.skipif(
    not (MULTI30K / "train.en.gz").is_file(), reason=f"no Multi30k in {MULTI30K}; set LINGUA_MULTI30K"
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Files:
    """Writes the files of a text corpus and opens it."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache

    def write(self, name: str, content: str | list[str]) -> Path:
        text = content if isinstance(content, str) else "".join(f"{line}\n" for line in content)
        path = self.folder / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    def open(self, **options: Any) -> Corpus:
        """Opens the corpus with options of DataConfig; a list of lines is written to a file first."""
        for name, value in options.items():
            if isinstance(value, list):
                options[name] = self.write(f"{name}.txt", value)
        return open_corpus(DataConfig(**{"name": "text", "cache_directory": self.cache, **options}))


@pytest.fixture
def files(tmp_path: Path, cache: Path) -> Files:
    return Files(tmp_path, cache)


def numbered(count: int, word: str = "line") -> list[str]:
    return [f"{word} {number}" for number in range(count)]


def prepared(cache: Path) -> list[Path]:
    """Returns everything in the cache folder: complete corpora, and anything that should not be there."""
    return sorted(cache.glob("*/*"))


# The interface.


def test_error_for_unknown_corpus_suggests_the_nearest_and_lists_all(cache: Path) -> None:
    with pytest.raises(UserError, match=r'"multi30".*did you mean "multi30k".*phrasebook, multi30k, text'):
        open_corpus(DataConfig(name="multi30", cache_directory=cache))
    with pytest.raises(UserError, match=r'"xyz"; the corpora are phrasebook, multi30k, text'):
        open_corpus(DataConfig(name="xyz", cache_directory=cache))


def test_option_without_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r'data\.train_source has no effect with data\.name = "phrasebook", only.*"text"'
    ):
        open_corpus(DataConfig(train_source=tmp_path / "train.en"))
    with pytest.raises(
        UserError, match=r'data\.directory has no effect with data\.name = "text", only with "multi30k"'
    ):
        open_corpus(DataConfig(name="text", directory=tmp_path))


def test_splits_by_name_and_pairs_by_index(files: Files) -> None:
    corpus = files.open(train_source=numbered(3), train_target=numbered(3, "Zeile"))
    assert list(corpus.splits) == ["train", "validation", "test"]
    with pytest.raises(UserError, match=r'text has no split "valid"; it has train, validation, test'):
        corpus.split("valid")
    pairs = corpus.split("train")
    assert (len(pairs), pairs[0]) == (1, next(iter(pairs)))
    assert pairs[0].source.removeprefix("line") == pairs[0].target.removeprefix("Zeile")
    for index in (-1, 1):
        with pytest.raises(IndexError):
            pairs[index]


def test_all_characters_survive_a_round_trip(files: Files) -> None:
    sources = ["  à la 😀\u2028x ", "tab\there", "nul\0", "\x85", "e\u0301", "long " * 20_000]
    targets = [f"{line} = {line}" for line in sources]
    other = {"train_source": ["a"], "train_target": ["b"], "validation_source": ["c"], "validation_target": ["d"]}
    corpus = files.open(test_source=sources, test_target=targets, **other)
    assert list(corpus.split("test")) == list(zip(sources, targets, strict=True))
    assert list(corpus.split("train")) == [Pair("a", "b")]
    assert corpus.notes == ()


def test_chunk_size_does_not_change_the_corpus(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs, their order, notes and fingerprint are the same for any chunk size in writing, dividing and reading."""
    lines = numbered(100, "Zeile „")
    expected = files.open(train_source=lines, train_target=lines[::-1])
    for size in (1, 7, 100, 101):
        for module, name in ((prepared_corpus, "CHUNK"), (held_out_splits, "CHUNK"), (held_out_splits, "_COUNTED")):
            monkeypatch.setattr(module, name, size)
        files.cache = files.folder / f"cache {size}"
        corpus = files.open(train_source=lines, train_target=lines[::-1])
        assert (corpus.fingerprint, corpus.notes) == (expected.fingerprint, expected.notes)
        for name, split in expected.splits.items():
            assert list(corpus.split(name)) == list(split) == [split[index] for index in range(len(split))]


def test_fingerprint_depends_on_sentence_boundaries(files: Files) -> None:
    pairs = [("ab", "c"), ("d", "e")], [("a", "bc"), ("d", "e")], [("abd", "c"), (" ", "e")], [("a", "c"), ("bd", "e")]
    tables = [files.write(f"{i}.tsv", [f"{a}\t{b}" for a, b in each]) for i, each in enumerate(pairs)]
    assert len({files.open(train_source=table).fingerprint for table in tables}) == len(pairs)


def test_splits_are_pickled_as_paths_not_contents(files: Files) -> None:
    lines = numbered(5000)
    train = files.open(train_source=lines, train_target=lines).split("train")
    pickled = pickle.dumps(train)
    assert len(pickled) < 1000
    assert list(pickle.loads(pickled)) == list(train)


def test_threads_can_read_the_same_split(files: Files) -> None:
    lines = numbered(200)
    train = files.open(train_source=lines, train_target=lines).split("train")
    expected = list(train)
    wrong: list[int] = []

    def read(step: int) -> None:
        order = range(len(train))[::step]
        wrong.extend(index for index in order if train[index] != expected[index])

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, -1, 2, -2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Text: formats.


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", ["lines", "tsv", "jsonl", "jsonl by language"])
def test_all_formats_yield_the_same_pairs(files: Files, kind: str, packed: str) -> None:
    pairs = [Pair(f"line {number}", f"Zeile „{number}“") for number in range(100)]
    options: dict[str, Any] = {"source_language": "en", "target_language": "de"}
    if kind == "lines":
        options["train_source"] = files.write(f"train.en{packed}", [pair.source for pair in pairs])
        options["train_target"] = files.write(f"train.de{packed}", [pair.target for pair in pairs])
    elif kind == "tsv":
        options["train_source"] = files.write(f"train.tsv{packed}", [f"{pair.source}\t{pair.target}" for pair in pairs])
    else:
        source, target = ("en", "de") if kind.endswith("language") else ("source", "target")
        objects = [{"id": 1, target: pair.target, source: pair.source} for pair in pairs]
        options["train_source"] = files.write(f"train.jsonl{packed}", [json.dumps(fields) for fields in objects])
    corpus = files.open(**options)
    assert [len(pairs) for pairs in corpus.splits.values()] == [90, 5, 5]
    order = {pair: number for number, pair in enumerate(pairs)}
    for split in corpus.splits.values():
        numbers = [order[pair] for pair in split]
        assert numbers == sorted(numbers)
    assert sorted(order[pair] for split in corpus.splits.values() for pair in split) == list(range(100))
    assert (corpus.source_language, corpus.target_language, len(corpus.fingerprint)) == ("en", "de", 64)


def test_carriage_returns_before_line_ends_are_dropped(files: Files) -> None:
    source = files.write("train.en", "a\r\nb\r\nc\r\n")
    target = files.write("train.de", "A\nB\nC\n")
    corpus = files.open(train_source=source, train_target=target)
    assert sorted(pair for split in corpus.splits.values() for pair in split) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_json_language_keys_take_precedence_if_the_languages_differ(files: Files) -> None:
    line = json.dumps({"en": "language", "de": "Sprache", "source": "wrong", "target": "falsch"})
    train = files.write("a.jsonl", [line])
    assert files.open(train_source=train, target_language="de").split("train")[0] == ("language", "Sprache")
    train = files.write("b.jsonl", [json.dumps({"en": "neither", "source": "colour", "target": "color"})])
    assert files.open(train_source=train, target_language="en").split("train")[0] == ("colour", "color")


# Text: empty sides and held-out splits.


def test_pairs_with_an_empty_side_are_dropped_from_train_only(files: Files) -> None:
    source = ["a", "", "c", " \t ", "e", ""]
    target = ["A", "B", "  ", "D", "E", ""]
    sides = {"source": source, "target": target}
    corpus = files.open(
        **{f"{split}_{side}": sides[side] for split in ("train", "validation", "test") for side in sides}
    )
    assert list(corpus.split("train")) == [("a", "A"), ("e", "E")]
    for split in ("validation", "test"):
        assert list(corpus.split(split)) == list(zip(source, target, strict=True))
    assert corpus.notes == ("left out 4 training pairs with an empty side",)


def test_held_out_splits_are_reported(files: Files) -> None:
    lines = numbered(3000)
    both = files.open(train_source=lines, train_target=lines)
    assert {name: len(split) for name, split in both.splits.items()} == {"train": 2700, "validation": 150, "test": 150}
    assert both.notes == ("held out 150 of 3,000 pairs for validation and 150 for test, since none were given",)
    one = files.open(train_source=lines, train_target=lines, validation_source=["v"], validation_target=["w"])
    assert {name: len(split) for name, split in one.splits.items()} == {"train": 2850, "validation": 1, "test": 150}
    assert one.notes == ("held out 150 of 3,000 pairs for test, since it was not given",)


def test_at_most_a_thousand_pairs_are_held_out(files: Files) -> None:
    lines = numbered(25_000)
    corpus = files.open(train_source=lines, train_target=lines)
    assert [len(split) for split in corpus.splits.values()] == [23_000, 1000, 1000]


def test_held_out_pairs_are_the_same_on_every_machine(files: Files) -> None:
    """If the choice of pairs ever changes, _FORMAT must change too."""
    lines = numbered(100)
    corpus = files.open(train_source=lines, train_target=lines)
    numbers = [[int(pair.source.split()[1]) for pair in corpus.split(name)] for name in ("validation", "test")]
    assert numbers == [[8, 46, 60, 72, 88], [4, 31, 52, 87, 91]]


def test_pairs_with_the_smallest_hashes_are_held_out(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the hashes are sorted in several parts."""
    monkeypatch.setattr(held_out_splits, "_COUNTED", 999)
    lines = numbered(30_000)
    corpus = files.open(train_source=lines, train_target=lines)
    hashes = [hashlib.blake2b(line.encode(), digest_size=8).hexdigest() for line in lines]
    ranked = sorted(range(len(lines)), key=hashes.__getitem__)
    for name, expected in (("validation", ranked[:1000]), ("test", ranked[1000:2000])):
        assert [pair.source for pair in corpus.split(name)] == [lines[number] for number in sorted(expected)]


def test_choice_of_held_out_pairs_depends_on_sources_only(files: Files) -> None:
    """Order, duplicates and targets do not move a sentence to another split, and duplicates stay together."""
    sources = [f"line {number}" for number in range(800) for _ in range(1 + number % 3)]
    first = files.open(train_source=sources, train_target=numbered(len(sources)))
    again = files.open(train_source=sources[::-1], train_target=numbered(len(sources), "other"))
    split_of = {pair.source: name for name, split in first.splits.items() for pair in split}
    assert len(split_of) == 800
    for corpus in (first, again):
        assert {pair.source: name for name, split in corpus.splits.items() for pair in split} == split_of
        assert sum(len(split) for split in corpus.splits.values()) == len(sources)
        assert [len({pair.source for pair in split}) for split in corpus.splits.values()] == [
            list(split_of.values()).count(name) for name in corpus.splits
        ]
        assert all(60 <= len(corpus.split(name)) <= len(sources) // 20 for name in ("validation", "test"))


@pytest.mark.parametrize(
    "repeats",
    [
        (1, 1, 1),
        (1, 1, 998),
        (998, 1, 1),
        (300, 300, 300),
        (1, 60, 900),
        (1, 900, 60),
        (60, 1, 900),
        (900, 60, 1),
        (1, 2, 3, 994),
    ],
)
def test_holding_out_leaves_no_split_empty(files: Files, repeats: tuple[int, ...]) -> None:
    """With few distinct sentences, some very frequent, each split gets at least one, and train the most frequent."""
    sources = [f"sentence {number}" for number, times in enumerate(repeats) for _ in range(times)]
    corpus = files.open(train_source=sources, train_target=sources)
    distinct = {name: {pair.source for pair in split} for name, split in corpus.splits.items()}
    assert all(distinct.values())
    assert len(distinct) == 3
    assert sum(len(sentences) for sentences in distinct.values()) == len(repeats)
    if max(repeats) >= 900:
        assert len(corpus.split("train")) >= max(repeats)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_held_out_of_too_few_sentences(files: Files, count: int) -> None:
    lines = numbered(count) * 5
    corpus = files.open(train_source=lines, train_target=lines)
    assert {name: len(split) for name, split in corpus.splits.items()} == {"train": 5 * count}
    assert corpus.notes == (
        "there is no validation or test split: too few different source sentences to hold some out",
    )
    with pytest.raises(UserError, match='no split "test"; it has train'):
        corpus.split("test")


# Text: invalid input, which must leave nothing in the cache folder.


def check_refused(files: Files, message: str, **options: Any) -> None:
    with pytest.raises(UserError, match=message):
        files.open(**options)
    assert prepared(files.cache) == []


def test_inconsistent_file_options_are_refused(files: Files) -> None:
    tsv = files.write("both.tsv", ["a\tb"])
    check_refused(files, r"needs files to train on; set data\.train_source")
    check_refused(files, r"needs files to train on", test_source=["a"], test_target=["b"])
    check_refused(files, r"data\.train_target is given without its source; set data\.train_source", train_target=["a"])
    check_refused(files, r"train_source\.txt is given without its target; set data\.train_target", train_source=["a"])
    check_refused(
        files, r"both\.tsv holds both sides.*leave out data\.train_target", train_source=tsv, train_target=["a"]
    )
    check_refused(files, r"data\.test_source .* is given without its target", train_source=tsv, test_source=["a"])


def test_unreadable_files_are_refused(files: Files) -> None:
    missing = files.folder / "missing.en"
    check_refused(files, r"missing\.en: no such file", train_source=missing, train_target=["a"])
    check_refused(files, r"missing\.en: no such file", train_source=["a"], train_target=missing)
    both = {"train_source": numbered(10), "train_target": numbered(10)}
    check_refused(files, r"missing\.en: no such file", **both, test_source=missing, test_target=["a"])
    check_refused(files, "a folder, not a file", **both, test_source=files.folder, test_target=["a"])
    check_refused(files, r"null: not a regular file", train_source=Path("/dev/null"), train_target=["a"])


def test_invalid_utf8_and_truncated_gzip_are_refused(files: Files) -> None:
    latin = files.folder / "latin.de"
    latin.write_bytes(b"a\nb\n\xe4\n")
    check_refused(files, r"latin\.de, line 3: not valid UTF-8", train_source=numbered(3), train_target=latin)
    packed = files.write("train.de.gz", numbered(1000))
    packed.write_bytes(packed.read_bytes()[:-9])
    message = r"train\.de\.gz: truncated or damaged"
    check_refused(files, message, train_source=numbered(1000), train_target=packed)


@pytest.mark.parametrize(("source", "target"), [(1203, 1200), (1200, 1203), (3, 0), (0, 3)])
def test_different_numbers_of_lines_are_refused(files: Files, source: int, target: int) -> None:
    message = rf"train_source\.txt has {source:,} lines and .*train_target\.txt has {target:,}; line i of one"
    check_refused(files, message, train_source=numbered(source), train_target=numbered(target))


def test_test_set_with_different_numbers_of_lines_is_refused(files: Files) -> None:
    options = {"train_source": numbered(10), "train_target": numbered(10), "test_source": ["a"]}
    check_refused(
        files, r"test_source\.txt has 1 lines and .*test_target\.txt has 2;", **options, test_target=["a", "b"]
    )


@pytest.mark.parametrize(("line", "columns"), [("a", "1 column;"), ("a\tb\tc", "3 columns;"), ("", "1 column;")])
def test_wrong_number_of_columns_is_refused(files: Files, line: str, columns: str) -> None:
    train = files.write("train.tsv", ["a\tb", "c\td", line, "e\tf"])
    check_refused(files, rf"train\.tsv, line 3: {columns} there must be two", train_source=train)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"en": "a", "de": "b"', "not valid JSON"),
        ("", "not valid JSON"),
        ('["a", "b"]', 'not an object with the keys "en" and "de" or "source" and "target"'),
        ('{"en": "a", "fr": "b"}', 'not an object with the keys "en" and "de" or "source" and "target"'),
        ('{"en": "a", "target": "b"}', "not an object with the keys"),
        ('{"en": "a", "de": 7}', '"de" is not a string'),
        ('{"en": null, "de": "b"}', '"en" is not a string'),
        ('{"en": "a\\nb", "de": "b"}', '"en" contains a line break'),
        ('{"en": "a", "de": "\\ud800"}', "surrogates not allowed"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_invalid_json_lines_are_refused(files: Files, line: str, message: str) -> None:
    train = files.write("train.jsonl", ['{"en": "a", "de": "b"}', line])
    check_refused(files, rf"train\.jsonl, line 2: .*{message}", train_source=train, target_language="de")


def test_empty_corpora_are_refused(files: Files) -> None:
    check_refused(files, r"train_source\.txt: no pairs in it", train_source=[], train_target=[])
    check_refused(
        files, r"train_source\.txt: every pair has an empty side", train_source=["", "a"], train_target=["b", " "]
    )
    check_refused(files, r"empty\.tsv: no pairs in it", train_source=files.write("empty.tsv", ""))
    options = {"train_source": ["a"], "train_target": ["b"], "validation_source": [], "validation_target": []}
    check_refused(files, r"validation_source\.txt: no pairs in it; data\.validation_source", **options)


# The cache folder.


def stamps(cache: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in cache.rglob("*") if path.is_file()}


def test_corpus_is_prepared_once(files: Files) -> None:
    lines = numbered(100)
    first = files.open(train_source=lines, train_target=lines)
    before = stamps(files.cache)
    again = files.open(train_source=files.write("moved.en", lines), train_target=files.write("moved.de", lines))
    assert stamps(files.cache) == before
    assert again.fingerprint == first.fingerprint
    assert again.notes == first.notes
    assert list(again.split("train")) == list(first.split("train"))


def test_changed_input_is_prepared_again(files: Files) -> None:
    """The key covers contents, languages and the split that each file is for."""
    lines, other = numbered(100), [*numbered(99), "line 1OO"]
    one = files.write("one.tsv", ["a\tb"])
    variants: list[dict[str, Any]] = [
        {"train_source": lines, "train_target": lines},
        {"train_source": lines, "train_target": other},
        {"train_source": other, "train_target": lines},
        {"train_source": lines, "train_target": lines, "source_language": "de"},
        {"train_source": lines, "train_target": lines, "target_language": "de"},
        {"train_source": lines, "train_target": lines, "validation_source": one},
        {"train_source": lines, "train_target": lines, "test_source": one},
    ]
    corpora = [files.open(**options) for options in variants]
    assert len(prepared(files.cache)) == len(variants)
    fingerprints = [corpus.fingerprint for corpus in corpora]
    assert len(set(fingerprints[:-1])) == 6
    assert fingerprints[-1] == fingerprints[-2]  # the same sentences are held out, for test or for validation
    assert {pair for split in corpora[1].splits.values() for pair in split} == set(zip(lines, other, strict=True))


def test_default_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory(None) == tmp_path / "xdg" / "lingua-flax"
    assert cache_directory(Path("~/mine")) == tmp_path / "mine"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory(None) == tmp_path / ".cache" / "lingua-flax"


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/lingua-flax"])
def test_unwritable_cache_is_reported(files: Files, place: str) -> None:
    files.write("file", "")
    files.cache = files.folder / place
    with pytest.raises(UserError, match=rf"{place}.*cannot be written.*--data\.cache-directory"):
        files.open(train_source=["a"], train_target=["b"])


def test_fingerprint_covers_only_languages_and_training_pairs(files: Files) -> None:
    """Checkpoints and tokenized pairs therefore remain valid if another split changes."""
    given: dict[str, Any] = {"train_source": numbered(5), "train_target": numbered(5, "Zeile")}
    given |= {f"{split}_{side}": ["x", "y"] for split in ("validation", "test") for side in ("source", "target")}
    first = files.open(**given)
    for changed in ({"test_source": ["x", "z"]}, {"validation_target": ["x", "z"]}):
        corpus = files.open(**given | changed)
        assert corpus.fingerprint == first.fingerprint
        assert any("z" in pair for split in corpus.splits.values() for pair in split)
    others: list[dict[str, Any]] = [{"train_target": numbered(5)}, {"target_language": "x"}]
    others += [{"train_source": numbered(6), "train_target": numbered(6, "Zeile")}]
    others += [{"train_source": numbered(5)[::-1], "train_target": numbered(5, "Zeile")[::-1]}]
    assert len({first.fingerprint, *(files.open(**given | other).fingerprint for other in others)}) == 5
    assert len(prepared(files.cache)) == 7


def test_checkpoints_remain_valid_if_the_test_set_changes(trained, toy: Path, run, tmp_path: Path) -> None:
    _, *lines = (toy.parent / "test.en").read_text(encoding="utf-8").splitlines()
    changed = tmp_path / "test.en"
    changed.write_text("".join(f"{line}\n" for line in ["nine nine.", *lines]), encoding="utf-8")
    workdir = shutil.copytree(trained[0], tmp_path / "workdir")
    done = run("train", "--workdir", workdir, "--data.test-source", changed)
    assert done.returncode == 0, done.stderr
    assert "preparing a corpus" in done.stderr
    assert "training the tokenizer" not in done.stderr
    assert "finished: 240 of 240 steps" in done.stdout


def test_corpus_in_an_old_format_is_prepared_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"train_source": ["a"], "train_target": ["b"]}
    monkeypatch.setattr(prepared_corpus, "_FORMAT", 1)
    files.open(**options)
    (old,) = prepared(files.cache)
    for path in old.iterdir():
        path.write_text("{}")
    monkeypatch.undo()
    assert list(files.open(**options).split("train")) == [("a", "b")]


def test_error_for_damaged_cache_says_what_to_delete(files: Files) -> None:
    lines = numbered(1000)
    options = {"train_source": lines, "train_target": lines}
    files.open(**options)
    (folder,) = prepared(files.cache)
    text = folder / "train.source.values"
    sound = text.read_bytes()
    message = rf"{folder}: this prepared corpus is damaged .*delete the folder"

    text.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(UserError, match=message):
        files.open(**options)
    for byte in (b"L", b"\xff"):  # another letter, and a byte that is not UTF-8
        flipped = sound.index(b"line")
        text.write_bytes(sound[:flipped] + byte + sound[flipped + 1 :])
        with pytest.raises(UserError, match=message):
            list(files.open(**options).split("train"))
    with pytest.raises(UserError, match=message):
        files.open(**options).split("train")[0]
    text.write_bytes(sound)
    shutil.copyfile(folder / "test.target.ends", folder / "train.target.ends")
    shutil.copyfile(folder / "test.target.values", folder / "train.target.values")
    with pytest.raises(UserError, match=message):
        files.open(**options)
    text.unlink()
    with pytest.raises(UserError, match=message):
        files.open(**options)
    (folder / "corpus.json").write_text("{")
    with pytest.raises(UserError, match=message):
        files.open(**options)


def write_text(text: str, folder: Path) -> None:
    (folder / "file").write_text(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("count", [1, 100_000])
@pytest.mark.parametrize("file", ["train.source.values", "train.target.ends"])
def test_full_disk_is_reported(cache: Path, file: str, count: int) -> None:
    """Writing to /dev/full fails as on a full disk: at once, or when a buffer is written at the end."""

    def write(folder: Path) -> None:
        (folder / file).symlink_to("/dev/full")
        with prepared_corpus.SplitWriter(folder, "train") as writer:
            writer.write([Pair("x", "y")] * count)

    with pytest.raises(RunError, match=r"the disk is full.*--data\.cache-directory"):
        prepared_corpus.prepare(cache, "any", "0" * 64, write)
    assert prepared(cache) == []


def test_disk_that_fills_up_during_writing_is_reported(cache: Path, run) -> None:
    """A limit on the size of files stands in for the full disk; errors of NumPy's own writes would not say why."""
    done = run(SCRIPTS / "prepare_until_disk_is_full.py", cache)
    assert "the disk is full" in done.stdout, done.stderr
    assert prepared(cache) == []


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Returns a semaphore that is released whenever `prepare` misses a corpus and is about to lock it."""
    attempts = threading.Semaphore(0)
    exclusive_lock = prepared_corpus.exclusive_lock

    def counted(path: Path) -> AbstractContextManager[None]:
        attempts.release()
        return exclusive_lock(path)

    monkeypatch.setattr(prepared_corpus, "exclusive_lock", counted)
    return attempts


def test_waiting_threads_use_the_corpus_that_the_first_prepared(cache: Path, attempts: threading.Semaphore) -> None:
    written: list[str] = []
    started, release = threading.Event(), threading.Event()

    def write(name: str, folder: Path) -> None:
        written.append(name)
        started.set()
        assert release.wait(HUNG_AFTER)
        write_text(name, folder)

    def prepare(name: str) -> None:
        folder = prepared_corpus.prepare(cache, "any", "0" * 64, functools.partial(write, name))
        results.append((folder / "file").read_text())

    results: list[str] = []
    threads = [threading.Thread(target=prepare, args=(name,)) for name in ("first", "second", "third")]
    for thread in threads:
        thread.start()
        assert started.wait(HUNG_AFTER)
    for _ in threads:
        assert attempts.acquire(timeout=HUNG_AFTER)
    release.set()
    for thread in threads:
        thread.join(HUNG_AFTER)
    assert (written, results) == (["first"], ["first"] * 3)
    assert [path.name for path in prepared(cache)] == ["0" * 16]


def test_waiting_thread_takes_over_if_the_first_fails(cache: Path, attempts: threading.Semaphore) -> None:
    started, release = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def fail(folder: Path) -> None:
        write_text("half", folder)
        started.set()
        assert release.wait(HUNG_AFTER)
        raise ValueError("on purpose")

    def prepare() -> None:
        try:
            prepared_corpus.prepare(cache, "any", "0" * 64, fail)
        except ValueError as error:
            failures.append(error)

    first = threading.Thread(target=prepare)
    first.start()
    assert started.wait(HUNG_AFTER)

    def release_first() -> None:
        for _ in range(2):
            assert attempts.acquire(timeout=HUNG_AFTER)
        release.set()

    threading.Thread(target=release_first).start()
    folder = prepared_corpus.prepare(cache, "any", "0" * 64, lambda folder: (folder / "other").touch())
    first.join(HUNG_AFTER)
    assert len(failures) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["other"]
    assert prepared(cache) == [folder]


def start_opening(options: dict[str, Any]) -> subprocess.Popen[str]:
    """Starts a process that has imported nothing yet; it opens a corpus and reports on it."""
    environment = os.environ | PROJECT_ON_PATH
    return start_command(SCRIPTS / "open_and_report.py", json.dumps(options, default=str), env=environment)


def test_remains_of_a_killed_process_are_removed(cache: Path, run) -> None:
    assert run(SCRIPTS / "killed_while_preparing.py", cache).returncode == -signal.SIGKILL
    assert [path.name for path in prepared(cache)] == ["0" * 16 + ".incomplete", "0" * 16 + ".lock"]
    folder = prepared_corpus.prepare(cache, "any", "0" * 64, functools.partial(write_text, "whole"))
    assert sorted(path.name for path in folder.iterdir()) == ["file"]
    assert prepared(cache) == [folder]


def test_two_processes_can_prepare_the_same_corpus_at_once(files: Files) -> None:
    lines = numbered(30_000)
    source, target = files.write("train.en", lines), files.write("train.de", lines)
    options = {"name": "text", "train_source": source, "train_target": target, "cache_directory": files.cache}
    processes = [start_opening(options) for _ in range(2)]
    outputs = [process.communicate(timeout=HUNG_AFTER) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    modules, _, sizes = json.loads(outputs[0][0])
    assert (modules, sizes) == ([], [28_000, 1000, 1000])
    (folder,) = prepared(files.cache)
    assert not list(folder.glob("undivided*"))


def test_memory_use_does_not_grow_with_the_corpus(files: Files, run) -> None:
    """Preparing and reading 40,000 pairs takes no more memory than 17,000; held, they would take 7 MB more."""
    peaks = []
    for count in (17_000, 40_000):
        lines = (f"source {number} {'x' * 60}\ttarget {number} {'y' * 60}" for number in range(count))
        done = run(SCRIPTS / "measure_memory.py", files.write("train.tsv", list(lines)), files.cache)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 1e6, peaks


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl.gz"])
def test_files_are_read_twice_to_prepare_a_corpus_and_once_afterwards(files: Files, run, name: str) -> None:
    """Until the first step: once for the digest in the key, and once for the pairs unless they are in the cache."""
    words = [" ".join(np.base_repr(7**number % 10007, 3)) for number in range(300)]
    pairs = [(f"{word} {number}", word) for number, word in enumerate(words)]
    tsv, objects = ["\t".join(pair) for pair in pairs], [json.dumps({"en": a, "fr": b}) for a, b in pairs]
    path = files.write(name, tsv if name.endswith("tsv") else objects)
    for times in (2, 1):
        done = run(SCRIPTS / "count_openings.py", path, files.cache)
        assert (done.returncode, done.stdout) == (0, f"{times} 270\n"), done.stderr


# Phrasebook.


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the generator by one of tiny phrasebooks; returns the seeds that it is called with."""

    def generate(seed: int) -> Phrasebook:
        seeds.append(seed)
        pairs = [(f"Line {number}.", f"Ligne {number}.") for number in range(100 * seed, 100 * seed + 9)]
        contrasts = [Contrast("line", pairs[i], pairs[i + 1], (str(i), str(i + 1))) for i in (5, 7)]
        return Phrasebook(pairs[:3], pairs[3:4], pairs[4:5], contrasts, frozenset(), {}, {})

    seeds: list[int] = []
    monkeypatch.setattr(phrasebook_corpus, "generate", generate)
    return seeds


def test_phrasebook_is_generated_once(cache: Path, seeds: list[int]) -> None:
    corpus = open_corpus(DataConfig(cache_directory=cache))
    numbers = {"train": [0, 1, 2], "validation": [3], "test": [4], "contrast": [5, 6, 7, 8]}
    assert {name: list(split) for name, split in corpus.splits.items()} == {
        name: [Pair(f"Line {i}.", f"Ligne {i}.") for i in split] for name, split in numbers.items()
    }
    before = stamps(cache)
    assert open_corpus(DataConfig(cache_directory=cache)).fingerprint == corpus.fingerprint
    assert stamps(cache) == before
    assert seeds == [0]


def test_phrasebook_is_generated_again_if_its_source_changes(
    cache: Path, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sentences are the same, for example because only a comment changed, checkpoints remain valid."""
    first = open_corpus(DataConfig(cache_directory=cache))
    monkeypatch.setattr(phrasebook_corpus, "source_digest", lambda: "changed")
    again = open_corpus(DataConfig(cache_directory=cache))
    assert len(prepared(cache)) == 2
    assert again.fingerprint == first.fingerprint
    monkeypatch.setattr(phrasebook_corpus, "_SEED", 1)
    assert open_corpus(DataConfig(cache_directory=cache)).fingerprint != first.fingerprint
    assert seeds == [0, 0, 1]


def test_phrasebook_has_only_one_direction(cache: Path) -> None:
    for languages in ({"target_language": "de"}, {"source_language": "fr", "target_language": "en"}):
        with pytest.raises(UserError, match="phrasebook goes from en to fr, not from"):
            open_corpus(DataConfig(cache_directory=cache, **languages))


# Multi30k.


def multi30k(cache: Path, directory: Path | None, source: str = "en", target: str = "de") -> DataConfig:
    return DataConfig(
        name="multi30k", source_language=source, target_language=target, directory=directory, cache_directory=cache
    )


def published_lines(name: str) -> list[str]:
    return gzip.decompress((MULTI30K / name).read_bytes()).decode().removesuffix("\n").split("\n")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Returns a folder with copies of the English and German files."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for code in ("en", "de"):
            shutil.copyfile(MULTI30K / f"{name}.{code}.gz", folder / f"{name}.{code}.gz")
    return folder


@pytest.fixture(scope="module")
def multi30k_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a cache folder in which the first test that needs it prepares English to German."""
    return tmp_path_factory.mktemp("multi30k")


@needs_multi30k
@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("fr", "en")])
def test_multi30k_pairs_are_as_published(multi30k_cache: Path, source: str, target: str) -> None:
    corpus = open_corpus(multi30k(multi30k_cache, MULTI30K, source, target))
    required = {"train": ("train", 29_000), "validation": ("val", 1014), "test": ("test_2016_flickr", 1000)}
    assert list(corpus.splits)[:3] == list(required)
    for split, (name, count) in required.items():
        expected = [published_lines(f"{name}.{code}.gz") for code in (source, target)]
        pairs = corpus.split(split)
        assert len(pairs) == count
        assert list(pairs) == list(zip(*expected, strict=True))
        for index in (count - 1, 0, 777):
            assert pairs[index] == (expected[0][index], expected[1][index])
    with pytest.raises(IndexError):
        corpus.split("test")[1000]


@needs_multi30k
def test_multi30k_is_prepared_once_per_direction(multi30k_cache: Path) -> None:
    first = open_corpus(multi30k(multi30k_cache, MULTI30K))
    before = stamps(multi30k_cache)
    again = open_corpus(multi30k(multi30k_cache, MULTI30K))
    assert stamps(multi30k_cache) == before
    assert again.fingerprint == first.fingerprint
    other = open_corpus(multi30k(multi30k_cache, MULTI30K, "de", "en"))
    assert other.fingerprint != first.fingerprint
    assert [tuple(reversed(pair)) for pair in other.split("test")] == list(first.split("test"))


@needs_multi30k
@pytest.mark.parametrize("damage", ["truncated", "flipped", "other text"])
def test_multi30k_refuses_changed_files(cache: Path, copy: Path, damage: str) -> None:
    path = copy / "val.de.gz"
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-100])
    elif damage == "flipped":
        path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    else:
        path.write_bytes(gzip.compress(b"nur eine Zeile\n" * 1014))
    with pytest.raises(UserError, match=r'val\.de\.gz: not the published val\.de\.gz.*data\.name = "text"'):
        open_corpus(multi30k(cache, copy))
    assert prepared(cache) == []


@needs_multi30k
def test_multi30k_error_names_the_missing_file(cache: Path, copy: Path) -> None:
    (copy / "test_2016_flickr.en.gz").unlink()
    with pytest.raises(UserError, match=r"copy/test_2016_flickr\.en\.gz: no such file; .*--data\.directory"):
        open_corpus(multi30k(cache, copy))
    with pytest.raises(UserError, match=r"nowhere/train\.en\.gz: no such file"):
        open_corpus(multi30k(cache, copy / "nowhere"))


@needs_multi30k
def test_multi30k_does_not_import_tensorflow(cache: Path) -> None:
    options = multi30k(cache, MULTI30K).model_dump(mode="json", exclude_none=True)
    process = start_opening(options)
    output, errors = process.communicate(timeout=HUNG_AFTER)
    assert process.returncode == 0, errors
    modules, _, sizes = json.loads(output)  # stdout contains nothing but the report
    assert modules == []
    assert sizes[:3] == [29_000, 1014, 1000]
    assert errors == ""


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("en", "es", r'data\.target_language: multi30k has no language "es"; it has en, de, fr, cs'),
        ("English", "de", r'data\.source_language: multi30k has no language "English"'),
        ("de", "de", r'data\.target_language: "de" is the source language'),
    ],
)
def test_multi30k_refuses_unsupported_languages(cache: Path, source: str, target: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_corpus(multi30k(cache, None, source, target))
    assert prepared(cache) == []


def test_multi30k_splits_for_each_direction() -> None:
    from lingua_flax.data.corpora.multi30k import _published

    without_coco = ["train", "validation", "test", "test_2018_flickr"]
    everything = [*without_coco[:3], "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr"]
    for source in ("en", "de", "fr", "cs"):
        for target in ("en", "de", "fr", "cs"):
            expected = without_coco if "cs" in (source, target) else everything
            assert list(_published((source, target))) == expected


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes these files count as the published ones."""
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr("lingua_flax.data.corpora.multi30k._DIGESTS", digests)


def test_multi30k_refuses_different_numbers_of_lines(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        (folder / f"{stem}.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
        (folder / f"{stem}.de.gz").write_bytes(gzip.compress(b"eins\n" if stem == "val" else b"eins\nzwei\n"))
    publish(folder, monkeypatch)
    with pytest.raises(UserError, match=r"val\.en\.gz has 2 lines and .*val\.de\.gz has 1;"):
        open_corpus(multi30k(cache, folder))
    assert prepared(cache) == []


def test_multi30k_uses_the_test_sets_that_exist(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing a copy with fewer of them does not hide those of a fuller copy; the training corpus is the same."""
    from lingua_flax.data.corpora import multi30k as module

    few, all_six = tmp_path / "few", tmp_path / "all"
    for split, stem in module._FILES.items():
        for code in ("en", "de"):
            for folder in (
                (few, all_six) if split in ("train", "validation", "test", "test_2018_flickr") else (all_six,)
            ):
                folder.mkdir(exist_ok=True)
                (folder / f"{stem}.{code}.gz").write_bytes(gzip.compress(f"{stem} {code}\n".encode()))
    (few / "test_2017_flickr.en.gz").touch()  # its German file is missing
    publish(all_six, monkeypatch)

    first = open_corpus(multi30k(cache, few))
    second = open_corpus(multi30k(cache, all_six))
    assert list(first.splits) == ["train", "validation", "test", "test_2018_flickr"]
    assert list(second.splits) == list(module._FILES)
    for split, pairs in second.splits.items():
        assert list(pairs) == [(f"{module._FILES[split]} en", f"{module._FILES[split]} de")]
    assert first.fingerprint == second.fingerprint


def test_missing_network_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(UserError, match=r"could not be downloaded from https://raw.*no connection.*--data\.directory"):
        open_corpus(multi30k(cache, None))
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder that a local web server delivers in place of the published repository.

    Its files, of English and German only, count as the published ones.
    """
    from lingua_flax.data.corpora import multi30k as module

    folder = tmp_path / "published"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for code in ("en", "de"):
            lines = (f"{name} {code} {number}\n" for number in range(1000))
            (folder / f"{name}.{code}.gz").write_bytes(gzip.compress("".join(lines).encode()))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(module, "_REPOSITORY", address)
        publish(folder, monkeypatch)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield folder
        server.shutdown()
        thread.join()


def test_multi30k_is_downloaded_once(cache: Path, server: Path, capfd: pytest.CaptureFixture[str]) -> None:
    downloaded = open_corpus(multi30k(cache, None))
    from_files = open_corpus(multi30k(cache.with_name("other"), server))
    assert list(downloaded.split("train")) == list(from_files.split("train"))
    assert downloaded.fingerprint == from_files.fingerprint
    for path in server.iterdir():
        path.unlink()
    assert open_corpus(multi30k(cache, None)).split("test")[0] == from_files.split("test")[0]  # from the cache
    assert capfd.readouterr() == ("", "")


def test_download_of_wrong_or_missing_files_is_reported(cache: Path, server: Path) -> None:
    (server / "val.de.gz").write_bytes(gzip.compress(b"Bitte melden Sie sich an\n"))
    with pytest.raises(UserError, match=r"does not deliver the published files.*--data\.directory"):
        open_corpus(multi30k(cache, None))
    (server / "val.de.gz").unlink()
    with pytest.raises(UserError, match=r"could not be downloaded .*--data\.directory"):
        open_corpus(multi30k(cache, None))
    assert [path.name for path in prepared(cache)] == ["downloads"]
    assert not list((cache / "multi30k" / "downloads").glob("val.de*"))


def test_interrupted_download_is_reported_and_removed(
    cache: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(handler: SimpleHTTPRequestHandler, source: Any, output: Any) -> None:
        output.write(source.read(1000))

    monkeypatch.setattr(SimpleHTTPRequestHandler, "copyfile", half)
    with pytest.raises(UserError, match=r"from http://127.*/train\.en\.gz \(the connection was lost\)"):
        open_corpus(multi30k(cache, None))
    assert list((cache / "multi30k" / "downloads").iterdir()) == []
    monkeypatch.undo()


def test_damaged_download_is_refused(cache: Path, server: Path) -> None:
    open_corpus(multi30k(cache, None))
    for path in prepared(cache):
        if path.name != "downloads":
            shutil.rmtree(path)
    (kept,) = (cache / "multi30k" / "downloads").rglob("*val.de*.gz")
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"downloads/.*: not the published val\.de\.gz.*delete it"):
        open_corpus(multi30k(cache, None))
