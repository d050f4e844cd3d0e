"""Held-out splits: which pairs they get, and that a run started from another keeps them when the corpus has grown."""

import hashlib
import json
import random
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import tomli_w

from lingua_flax.commands.train import resolve_config
from lingua_flax.data.corpora import Corpus, held_out_splits, open_corpus
from lingua_flax.data.corpora.held_out_splits import held_out_pairs
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.schema import Config
from lingua_flax.training.preparation import prepare
from tests.helpers.commands import succeed
from tests.helpers.pairs import TextFiles, numbered, sizes

SPLITS = ("train", "validation", "test")


def test_held_out_splits_are_reported_and_the_same_on_every_machine(files):
    """If the choice of pairs ever changes, _FORMAT must change too."""
    train = {"train_source": numbered(100), "train_target": numbered(100)}
    assert sizes(files.open(**train, train_only=True)) == {"train": 100}  # as in a mixture; then it is prepared anew
    both = files.open(**train)
    assert both.notes == ("held out 5 of 100 pairs for validation and 5 for test, since none were given",)
    numbers = [[int(pair.source.split()[1]) for pair in both.split(name)] for name in SPLITS[1:]]
    assert numbers == [[8, 46, 60, 72, 88], [4, 31, 52, 87, 91]]
    one = files.open(**train, validation_source=["v"], validation_target=["w"])
    assert sizes(one) == {"train": 95, "validation": 1, "test": 5}
    assert one.notes == ("held out 5 of 100 pairs for test, since it was not given",)


def test_at_most_a_thousand_pairs_with_the_smallest_hashes_are_held_out(files, monkeypatch):
    """Whatever their order and targets are, and even if the hashes are sorted in several parts."""
    monkeypatch.setattr(held_out_splits, "_COUNTED", 999)
    lines = numbered(15_000) * 2  # those of a source stay together
    corpus = files.open(train_source=lines, train_target=numbered(30_000, "other"))
    ranked = sorted(lines[:15_000], key=lambda line: hashlib.blake2b(line.encode(), digest_size=8).hexdigest())
    for name, expected in (("validation", ranked[:500]), ("test", ranked[500:1000]), ("train", ranked[1000:])):
        found = {pair.source for pair in corpus.split(name)}
        assert found == set(expected)
        assert len(corpus.split(name)) == 2 * len(expected)


def test_holding_out_leaves_no_split_empty(files):
    """With few distinct sentences, some very frequent, each split gets at least one, and train the most frequent."""
    for repeats in [(1, 1, 1), (300, 300, 300), (1, 60, 900), (60, 1, 900), (900, 60, 1), (1, 2, 3, 994)]:
        sources = [f"sentence {number}" for number, times in enumerate(repeats) for _ in range(times)]
        corpus = files.open(train_source=sources, train_target=sources)
        distinct = [{pair.source for pair in corpus.split(name)} for name in SPLITS]
        assert all(distinct)
        assert sum(map(len, distinct)) == len(repeats)
        assert max(repeats) < 900 or len(corpus.split("train")) >= max(repeats)
    corpus = files.open(train_source=numbered(2) * 5, train_target=numbered(10))
    assert sizes(corpus) == {"train": 10}
    assert corpus.notes == (
        "there is no validation or test split: too few different source sentences to hold some out",
    )


# The same splits again.


def draw_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Some sources occur several times, with different targets."""
    draw = random.Random(seed)
    numbers = [[draw.randrange(10) for _ in range(draw.randint(3, 5))] for _ in range(count)]
    return [(" ".join(map(str, line)), f"{number} {seed}") for number, line in enumerate(numbers)]


def table(pairs) -> str:
    """Returns the content of a TSV file."""
    return "".join("\t".join(pair) + "\n" for pair in pairs)


def open_text(files: TextFiles, pairs, held_out: Path | None = None, **options) -> Corpus:
    return files.open(train_source=files.write("train.tsv", table(pairs)), held_out=held_out, **options)


def written(files: TextFiles, corpus: Corpus) -> Path:
    return files.write("held_out.json", json.dumps(held_out_pairs(corpus)))


def test_the_same_pairs_are_held_out_unless_most_are_gone(files, monkeypatch):
    monkeypatch.setattr(held_out_splits, "_COUNTED", 100)
    pairs = draw_pairs(600, 3)
    before = open_text(files, pairs)
    held_out = written(files, before)
    test = list(before.split("test"))
    fewer = open_text(files, [pair for pair in pairs if pair not in test[:10]], held_out)
    assert list(fewer.split("test")) == test[10:]
    assert f"({len(before.split('validation'))} and {len(test)} pairs) are held out again" in fewer.notes[0]
    another = [pair for pair in pairs if pair not in test[5:]]  # a corpus with less than half of them
    with_file, without = open_text(files, another, held_out), open_text(files, another)
    assert list(with_file.split("test")) == list(without.split("test"))
    assert with_file.notes == without.notes
    one = open_text(files, pairs, held_out, validation_source=files.write("given.tsv", "a\tb\n"))
    assert list(one.split("test")) == test
    assert held_out_pairs(one) == {"test": held_out_pairs(before)["test"]}


def test_held_out_pairs_are_the_same_wherever_others_of_their_sources_are_put(files):
    """Pairs are added anywhere, also equal ones, others leave or get another target, in both directions."""
    draw = random.Random(5)
    for _ in range(20):
        pairs = draw_pairs(draw.randint(100, 400), draw.random())
        before = open_text(files, pairs)
        held_out = {split: Counter(before.split(split)) for split in SPLITS[1:]}
        gone = set(draw.sample(pairs, len(pairs) // 5))
        changed = [pair if pair not in gone else (pair[0], "changed") for pair in pairs if draw.random() < 0.9]
        added = [(source, f"added {number}") for number, (source, _) in enumerate(draw.choices(pairs, k=50))]
        after = draw.choice([[*added, *changed], draw.sample(changed + added + pairs[:9], len(changed) + 59)])
        order = draw.choice([1, -1])
        given = [pair[::order] for pair in after]
        languages = {1: {}, -1: {"source_language": "fr", "target_language": "en"}}[order]
        corpus = open_text(files, given, written(files, before), **languages)
        replaced = 0
        for split, then in held_out.items():
            now = Counter(pair[::order] for pair in corpus.split(split))
            replaced += (now - then).total()
            assert now >= then & Counter(after)
            asked, found = (Counter(source for source, _ in each) for each in (then.elements(), after))
            assert now.total() == (asked & found).total()
        sources = {source for then in held_out.values() for source, _ in then}
        assert list(corpus.split("train")) == [pair[::order] for pair in after if pair[0] not in sources]
        assert (f"; {replaced} that are not here any more are replaced by others" in corpus.notes[0]) == (replaced > 0)


def test_a_run_in_the_other_direction_holds_out_the_same_pairs(files):
    """Also if a held-out target is that of other pairs, and if the run reads its own copy of the file later."""
    pairs = [(source, f"{len(source)} {number % 200}") for number, (source, _) in enumerate(draw_pairs(600, 3))]
    before = open_text(files, pairs)
    reversed_pairs = [(target, source) for source, target in pairs]
    reverse = open_text(files, reversed_pairs, written(files, before), source_language="fr", target_language="en")
    for split in SPLITS:
        assert list(reverse.split(split)) == [(target, source) for source, target in before.split(split)]
    assert "pairs, here the targets) are held out again; left out 0 pairs" in reverse.notes[0]
    assert held_out_pairs(reverse) == held_out_pairs(before)
    shared = {target for target, _ in reverse.split("test")} & {target for target, _ in reverse.split("train")}
    assert len(shared) > 10


def test_a_file_without_held_out_pairs_is_refused(files):
    for content in ("", "[]", '{"test": [1], "validation": [1]}', '{"test": ["x"], "validation": []}'):
        with pytest.raises(UserError, match="not a file with held-out sources"):
            open_text(files, draw_pairs(100, 1), files.write("held_out.json", content))
    with pytest.raises(UserError, match="no such file"):
        open_text(files, draw_pairs(100, 1), files.folder / "missing.json")


# Runs.


def splits_of(workdir: Path) -> dict[str, list]:
    corpus = open_corpus(read_workdir_config(workdir).data)
    return {name: list(corpus.split(name)) for name in corpus.splits}


@pytest.fixture(scope="module")
def grown(toy, run, tmp_path_factory):
    """A run on 4,000 pairs, the splits that it had, and its folder, where the corpus has 8,000 pairs now."""
    folder = tmp_path_factory.mktemp("grown")
    first, more = draw_pairs(4000, 1), draw_pairs(4000, 2)
    config = tomllib.loads(toy.read_text())
    config["data"] = {"name": "text", "train_source": f"{folder}/train.tsv", "row_length": 32}
    config["training"] |= {"num_steps": 2, "eval_every": 0}
    (folder / "toy.toml").write_text(tomli_w.dumps(config))
    (folder / "train.tsv").write_text(table(first))
    succeed(run, "train", "--config", folder / "toy.toml", "--workdir", folder / "first")
    splits = splits_of(folder / "first")
    (folder / "train.tsv").write_text(table(first + more))
    return folder, splits, first + more


def test_a_run_started_from_another_keeps_its_test_set_when_the_corpus_grows(grown, run, tmp_path):
    """It needs nothing of the other run, nor the path at which it was: it is resumed as a copy."""
    folder, before, pairs = grown
    first, second = shutil.copytree(folder / "first", tmp_path / "first"), tmp_path / "second"
    train = ["train", "--config", folder / "toy.toml"]
    refused = run(*train, "--workdir", first)
    assert refused.returncode == 2
    assert f"With --init-from {first}, that run goes on from this one" in refused.stderr
    done = succeed(run, *train, "--workdir", second, "--init-from", first)
    assert "it is not known" not in done.stderr
    assert "will be too high" not in done.stderr
    after = splits_of(second)
    held_out = {source for split in SPLITS[1:] for source, _ in before[split]}
    assert (after["validation"], after["test"]) == (before["validation"], before["test"])
    assert len(after["test"]) == 200
    assert after["train"] == [pair for pair in pairs if pair[0] not in held_out]
    left_out = 8000 - sum(map(len, after.values()))
    assert left_out > 10
    assert f"(200 and 200 pairs) are held out again; left out {left_out} pairs added to them" in done.stderr
    assert (second / "held_out.json").read_bytes() == (first / "held_out.json").read_bytes()

    shutil.rmtree(first)
    moved = second.rename(tmp_path / "moved")
    assert splits_of(moved) == after
    resumed = succeed(run, *train, "--workdir", moved, "--init-from", first, "--training.num-steps", 3)
    assert "resuming from step 2" in resumed.stderr


def resolved(folder: Path, workdir: Path, *options: object) -> Config:
    return resolve_config(list(map(str, ["--config", folder / "toy.toml", "--workdir", workdir, *options])))[0]


def test_a_warning_tells_that_the_first_run_was_trained_on_test_sentences(grown, tmp_path, caplog):
    """First that run's corpus has grown, then it is where it was."""
    folder, before, pairs = grown
    origin, test = shutil.copytree(folder / "first", tmp_path / "first"), tmp_path / "test.tsv"
    trained_on = {source for source, _ in before["train"][:30]}
    test.write_text(table([*before["train"][:30], *before["validation"][:10]]))
    config = resolved(folder, tmp_path / "w", "--init-from", origin, "--data.test-source", test)
    prepare(config, tmp_path / "w")
    assert "it is not known whether" in caplog.text
    text = (origin / "config.toml").read_text(encoding="utf-8")
    (origin / "config.toml").write_text(text.replace(f"{folder}/train", f"{tmp_path}/train"))
    (tmp_path / "train.tsv").write_text(table(pairs[:4000]))
    prepare(config, tmp_path / "w")
    asked = trained_on | {source for source, _ in before["validation"][:10]}
    assert f"was trained on {len(trained_on)} of the {len(asked)} test sentences of this run" in caplog.text
