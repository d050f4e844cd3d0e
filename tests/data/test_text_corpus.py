"""The user's own corpus: its formats, what is left out, and the errors for files that cannot be read."""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from lingua_flax.data.corpora import Pair
from lingua_flax.host.errors import UserError
from tests.helpers.pairs import TextFiles, numbered, sizes


def test_splits_by_name_and_pairs_by_index(files):
    corpus = files.open(train_source=numbered(9), train_target=numbered(9, "Zeile"))
    with pytest.raises(UserError, match=r'text has no split "valid"; it has train, validation, test'):
        corpus.split("valid")
    pairs = corpus.split("train")
    assert [pairs[index] for index in range(len(pairs))] == list(pairs) == list(pickle.loads(pickle.dumps(pairs)))
    assert all(pair.source.removeprefix("line") == pair.target.removeprefix("Zeile") for pair in pairs)
    for index in (-1, 7):
        with pytest.raises(IndexError):
            pairs[index]


def test_all_characters_survive_a_round_trip(files):
    sources = ["  à la 😀\u2028x ", "tab\there", "nul\0", "\x85", "e\u0301", "long " * 20_000]
    targets = [f"{line} = {line}" for line in sources]
    other = {"train_source": ["a"], "train_target": ["b"], "validation_source": ["c"], "validation_target": ["d"]}
    corpus = files.open(test_source=sources, test_target=targets, **other)
    assert list(corpus.split("test")) == list(zip(sources, targets, strict=True))
    assert list(corpus.split("train")) == [Pair("a", "b")]
    assert corpus.notes == ()


def test_all_formats_yield_the_same_pairs(files):
    pairs = [Pair(f"line {number}", f"Zeile „{number}“") for number in range(100)]
    sources, targets = zip(*pairs, strict=True)
    by_language = [json.dumps({"id": 1, "de": pair.target, "en": pair.source}) for pair in pairs]
    by_side = [json.dumps(pair._asdict()) for pair in pairs]
    for packed in ("", ".gz"):
        two = {
            "train_source": files.write(f"a.en{packed}", sources),
            "train_target": files.write(f"a.de{packed}", targets),
        }
        corpora = [files.open(**two, target_language="de")]
        for name, lines in (("a.tsv", map("\t".join, pairs)), ("a.jsonl", by_language), ("b.jsonl", by_side)):
            table = files.write(f"{name}{packed}", list(lines))
            corpora.append(files.open(train_source=table, target_language="de"))
        for corpus in corpora:
            assert sizes(corpus) == {"train": 90, "validation": 5, "test": 5}
            numbers = [[pairs.index(pair) for pair in split] for split in corpus.splits.values()]
            assert numbers == [sorted(split) for split in numbers]
            assert sorted(itertools.chain(*numbers)) == list(range(100))


def test_json_language_keys_take_precedence_if_the_languages_differ(files):
    pair = {"en": "a", "de": "b", "source": "colour", "target": "color"}
    for fields in (pair, {"id": "7", "translation": pair}):  # the second one as on the Hugging Face hub
        train = {"train_source": files.write("a.jsonl", [json.dumps(fields)])}
        assert files.open(**train, target_language="de").split("train")[0] == ("a", "b")
        assert files.open(**train, target_language="en").split("train")[0] == ("colour", "color")


def test_pairs_with_an_empty_side_are_dropped_from_train_only(files):
    sides = {"source": ["a", "", "c", " \t ", "e", ""], "target": ["A", "B", "  ", "D", "E", ""]}
    splits = ("train", "validation", "test")
    corpus = files.open(**{f"{split}_{side}": sides[side] for split in splits for side in sides})
    assert list(corpus.split("train")) == [("a", "A"), ("e", "E")]
    for split in splits[1:]:
        assert list(corpus.split(split)) == list(zip(*sides.values(), strict=True))
    assert corpus.notes == ("left out 4 training pairs with an empty side",)


# Invalid input, which must leave nothing in the cache folder.


def check_refused(files: TextFiles, message: str, **options: Any) -> None:
    with pytest.raises(UserError, match=message):
        files.open(**options)
    assert not list(files.cache.glob("*/*"))


def test_files_that_do_not_belong_together_are_refused(files):
    tsv, missing = files.write("both.tsv", ["a\tb"]), files.folder / "missing.en"
    trained = {"train_source": numbered(10), "train_target": numbered(10)}
    empty = {"validation_source": [], "validation_target": []}
    cases = [
        ("needs files to train on; set data.train_source", {}),
        ("needs files to train on", {"test_source": ["a"], "test_target": ["b"]}),
        ("data.train_target is given without its source", {"train_target": ["a"]}),
        (r"train_source\.txt is given without its target", {"train_source": ["a"]}),
        (r"both\.tsv holds both sides.*leave out data\.train_target", {"train_source": tsv, "train_target": ["a"]}),
        ("data.test_source .* is given without its target", {"train_source": tsv, "test_source": ["a"]}),
        (r"missing\.en: no such file", trained | {"test_source": ["a"], "test_target": missing}),
        ("a folder, not a file", trained | {"test_source": files.folder, "test_target": ["a"]}),
        ("null: not a regular file", {"train_source": Path("/dev/null"), "train_target": ["a"]}),
        (r"train_source\.txt: no pairs in it", {"train_source": [], "train_target": []}),
        ("every pair has an empty side", {"train_source": ["", "a"], "train_target": ["b", " "]}),
        (r"validation_source\.txt: no pairs in it; data\.validation_source", trained | empty),
    ]
    for source, target in ((1203, 1200), (1200, 1203), (3, 0), (0, 3)):
        message = rf"train_source\.txt has {source:,} lines and .*train_target\.txt has {target:,}; line i of one"
        cases.append((message, {"train_source": numbered(source), "train_target": numbered(target)}))
    for message, options in cases:
        check_refused(files, message, **options)


def test_lines_that_are_no_pairs_are_refused(files):
    for line, columns in (("a", "1 column;"), ("a\tb\tc", "3 columns;"), ("", "1 column;")):
        train = files.write("train.tsv", ["a\tb", "c\td", line, "e\tf"])
        check_refused(files, rf"train\.tsv, line 3: {columns} there must be two", train_source=train)
    for line, message in (
        ('{"en": "a", "de": "b"', "not valid JSON"),
        ("", "not valid JSON"),
        ('["a", "b"]', 'not an object with the keys "en" and "de" or "source" and "target"'),
        ('{"translation": {"en": "a", "fr": "b"}}', 'not an object with the keys .*"target", but with en, fr$'),
        ('{"en": "a", "de": 7}', '"de" is not a string'),
        ('{"en": "a\\nb", "de": "b"}', '"en" contains a line break'),
        ('{"en": "a", "de": "\\ud800"}', "surrogates not allowed"),
        ("[" * 100_000, "recursion"),
    ):
        train = files.write("train.jsonl", ['{"en": "a", "de": "b"}', line])
        check_refused(files, rf"train\.jsonl, line 2: .*{message}", train_source=train, target_language="de")
