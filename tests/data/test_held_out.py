"""Held-out splits: which pairs they get, and that a run started from another keeps them when the corpus has grown."""

import hashlib
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from lingua_flax.commands.train import resolve_config
from lingua_flax.data.corpora import Corpus, held_out_splits, open_corpus
from lingua_flax.data.corpora.held_out_splits import held_out_sources
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.training.preparation import prepare
from tests.helpers.commands import succeed
from tests.helpers.pairs import TextFiles, numbered, sizes
from tests.toy import NETWORK

SPLITS = ("train", "validation", "test")


def test_held_out_splits_are_reported_and_the_same_on_every_machine(files):
    """If the choice of pairs ever changes, _FORMAT must change too."""
    train = {"train_source": numbered(100), "train_target": numbered(100)}
    both = files.open(**train)
    assert both.notes == ("held out 5 of 100 pairs for validation and 5 for test, since none were given",)
    numbers = [[int(pair.source.split()[1]) for pair in both.split(name)] for name in SPLITS[1:]]
    assert numbers == [[8, 46, 60, 72, 88], [4, 31, 52, 87, 91]]
    one = files.open(**train, validation_source=["v"], validation_target=["w"])
    assert sizes(one) == {"train": 95, "validation": 1, "test": 5}
    assert one.notes == ("held out 5 of 100 pairs for test, since it was not given",)


def test_at_most_a_thousand_pairs_with_the_smallest_hashes_are_held_out(files, monkeypatch):
    """Even if the hashes are sorted in several parts."""
    monkeypatch.setattr(held_out_splits, "_COUNTED", 999)
    lines = numbered(30_000)
    corpus = files.open(train_source=lines, train_target=lines)
    hashes = [hashlib.blake2b(line.encode(), digest_size=8).hexdigest() for line in lines]
    ranked = sorted(range(len(lines)), key=hashes.__getitem__)
    for name, expected in (("validation", ranked[:1000]), ("test", ranked[1000:2000])):
        assert [pair.source for pair in corpus.split(name)] == [lines[number] for number in sorted(expected)]


def test_choice_of_held_out_pairs_depends_on_sources_only(files):
    """Order, duplicates and targets do not move a sentence to another split, and duplicates stay together."""
    sources = [f"line {number}" for number in range(800) for _ in range(1 + number % 3)]
    first = files.open(train_source=sources, train_target=numbered(len(sources)))
    again = files.open(train_source=sources[::-1], train_target=numbered(len(sources), "other"))
    split_of = {pair.source: name for name, split in first.splits.items() for pair in split}
    for corpus in (first, again):
        assert Counter((pair.source, name) for name, split in corpus.splits.items() for pair in split) == Counter(
            (source, split_of[source]) for source in sources
        )
        assert all(60 <= size <= len(sources) // 20 for name, size in sizes(corpus).items() if name != "train")


def test_holding_out_leaves_no_split_empty(files):
    """With few distinct sentences, some very frequent, each split gets at least one, and train the most frequent."""
    cases = [(1, 1, 1), (998, 1, 1), (300, 300, 300), (1, 60, 900), (60, 1, 900), (900, 60, 1), (1, 2, 3, 994)]
    for repeats in cases:
        sources = [f"sentence {number}" for number, times in enumerate(repeats) for _ in range(times)]
        corpus = files.open(train_source=sources, train_target=sources)
        distinct = [{pair.source for pair in corpus.split(name)} for name in SPLITS]
        assert all(distinct)
        assert sum(map(len, distinct)) == len(repeats)
        assert max(repeats) < 900 or len(corpus.split("train")) >= max(repeats)
    for count in (1, 2):
        lines = numbered(count) * 5
        corpus = files.open(train_source=lines, train_target=lines)
        assert sizes(corpus) == {"train": 5 * count}
        note = "there is no validation or test split: too few different source sentences to hold some out"
        assert corpus.notes == (note,)


# The same splits again.


def draw_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Some sources occur several times, with different targets."""
    draw = random.Random(seed)
    numbers = [[draw.randrange(10) for _ in range(draw.randint(3, 5))] for _ in range(count)]
    return [(" ".join(map(str, line)), f"{number} {seed}") for number, line in enumerate(numbers)]


def write_pairs(folder: Path, pairs, stem: str = "train") -> None:
    for side, language in enumerate(("en", "fr")):
        (folder / f"{stem}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def open_text(files: TextFiles, pairs, held_out: Path | None = None, **options) -> Corpus:
    write_pairs(files.folder, pairs)
    train = {"train_source": files.folder / "train.en", "train_target": files.folder / "train.fr"}
    return files.open(**train, held_out=held_out, **options)


def written(files: TextFiles, corpus: Corpus) -> Path:
    return files.write("held_out.json", json.dumps(held_out_sources(corpus)))


def test_the_same_pairs_are_held_out_in_another_order_of_more_and_of_fewer(files, monkeypatch):
    monkeypatch.setattr(held_out_splits, "_COUNTED", 100)
    pairs = draw_pairs(600, 3)
    before = open_text(files, pairs)
    held_out = written(files, before)
    shuffled = open_text(files, pairs[::-1], held_out)
    for split in SPLITS:
        assert Counter(shuffled.split(split)) == Counter(before.split(split))
    test = list(before.split("test"))
    grown = open_text(files, [*pairs, *((source, "added") for source, _ in test), ("new", "added")], held_out)
    assert list(grown.split("test")) == test
    assert list(grown.split("train")) == [*before.split("train"), ("new", "added")]
    fewer = open_text(files, [pair for pair in pairs if pair not in test[:10]], held_out)
    assert list(fewer.split("test")) == test[10:]
    assert f"({len(before.split('validation'))} and {len(test)} pairs) are held out again" in fewer.notes[0]
    given = {f"validation_{side}": files.folder / f"train.{end}" for side, end in (("source", "en"), ("target", "fr"))}
    one = open_text(files, pairs, held_out, **given)
    assert list(one.split("test")) == test
    assert held_out_sources(one) == {"test": held_out_sources(before)["test"]}


def test_a_run_in_the_other_direction_holds_out_the_same_pairs(files):
    """Also if a held-out target is that of other pairs, and if the run reads its own copy of the file later."""
    pairs = [(source, f"{len(source)} {number % 200}") for number, (source, _) in enumerate(draw_pairs(600, 3))]
    before = open_text(files, pairs)
    reversed_pairs = [(target, source) for source, target in pairs]
    reverse = open_text(files, reversed_pairs, written(files, before), source_language="fr", target_language="en")
    for split in SPLITS:
        assert list(reverse.split(split)) == [(target, source) for source, target in before.split(split)]
    assert "pairs, here the targets) are held out again; left out 0 pairs" in reverse.notes[0]
    assert held_out_sources(reverse) == held_out_sources(before)
    shared = {target for target, _ in reverse.split("test")} & {target for target, _ in reverse.split("train")}
    assert len(shared) > 10


def test_other_sentences_are_held_out_of_another_corpus(files):
    pairs = draw_pairs(600, 3)
    before = open_text(files, pairs)
    held_out, test = written(files, before), list(before.split("test"))
    other = [pair for pair in pairs if pair not in test[5:]]
    without, with_file = open_text(files, other), open_text(files, other, held_out)
    assert list(with_file.split("test")) == list(without.split("test"))
    assert with_file.notes == without.notes


def test_a_file_without_held_out_sources_is_refused(files):
    for content in ("", "[]", '{"test": [1], "validation": [1]}', '{"test": ["x"], "validation": []}'):
        with pytest.raises(UserError, match="not a file with held-out sources"):
            open_text(files, draw_pairs(100, 1), files.write("held_out.json", content))
    with pytest.raises(UserError, match="no such file"):
        open_text(files, draw_pairs(100, 1), files.folder / "missing.json")


# Runs.

OPTIONS = ["--optimizer.warmup-steps", 1, "--training.tokens-per-batch", 512, "--training.eval-every", 0]
TWO_STEPS = ["--training.num-steps", 2]


def write_config(folder: Path) -> Path:
    config = folder / "toy.toml"
    files = [f'train_source = "{folder}/train.en"', f'train_target = "{folder}/train.fr"', "row_length = 32"]
    config.write_text("\n".join(["[data]", 'name = "text"', *files, NETWORK]), encoding="utf-8")
    return config


def splits_of(workdir: Path) -> dict[str, list]:
    corpus = open_corpus(read_workdir_config(workdir).data)
    return {name: list(corpus.split(name)) for name in corpus.splits}


@pytest.fixture(scope="module")
def grown(run, tmp_path_factory):
    """A run on 4,000 pairs, the splits that it had, and its folder, where the corpus has 8,000 pairs now."""
    folder = tmp_path_factory.mktemp("grown")
    first, more = draw_pairs(4000, 1), draw_pairs(4000, 2)
    write_pairs(folder, first)
    succeed(run, "train", "--config", write_config(folder), "--workdir", folder / "first", *OPTIONS, *TWO_STEPS)
    splits = splits_of(folder / "first")
    write_pairs(folder, first + more)
    return folder, splits, first + more


def test_a_run_started_from_another_keeps_its_test_set_when_the_corpus_grows(grown, run):
    folder, before, pairs = grown
    first, second = folder / "first", folder / "second"
    train = ["train", "--config", folder / "toy.toml", *OPTIONS, *TWO_STEPS]
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
    assert sum(map(len, json.loads((first / "held_out.json").read_text()).values())) == 400


@pytest.mark.parametrize("has_all_splits", [False, True])
def test_the_new_run_needs_nothing_of_the_old_one(grown, run, tmp_path, has_all_splits):
    """Nor the path at which it was: it is resumed and evaluated as a copy.

    With all splits, it holds nothing out, and has no copy of held_out.json, whose path its config has.
    """
    folder, before, _ = grown
    origin, moved = shutil.copytree(folder / "first", tmp_path / "first"), tmp_path / "moved"
    train = ["train", "--config", folder / "toy.toml", "--init-from", origin, *OPTIONS]
    if has_all_splits:
        write_pairs(tmp_path, before["test"])
        for split in SPLITS[1:]:
            train += [f"--data.{split}-source", tmp_path / "train.en", f"--data.{split}-target", tmp_path / "train.fr"]
    succeed(run, *train, *TWO_STEPS, "--workdir", tmp_path / "w")
    shutil.rmtree(origin)
    (tmp_path / "w").rename(moved)
    assert splits_of(moved)["test"] == before["test"]
    if has_all_splits:
        train += ["--data.held-out", origin / "held_out.json"]
    resumed = succeed(run, *train, "--workdir", moved, "--training.num-steps", 3)
    assert "resuming from step 2" in resumed.stderr
    if not has_all_splits:
        scored = succeed(run, "evaluate", "--workdir", moved, "--score")
        assert len(scored.stdout.splitlines()) == 200


def test_a_warning_tells_that_the_first_run_was_trained_on_test_sentences(grown, tmp_path, caplog):
    """First that run's corpus has grown, then it is where it was."""
    folder, before, pairs = grown
    origin = shutil.copytree(folder / "first", tmp_path / "first")
    test = [*before["train"][:30], *before["validation"][:10]]
    write_pairs(tmp_path, test, "test")
    train = ["--config", folder / "toy.toml", "--init-from", origin, "--workdir", tmp_path / "w"]
    train += ["--data.test-source", tmp_path / "test.en", "--data.test-target", tmp_path / "test.fr"]
    config, command = resolve_config(list(map(str, train)))
    prepare(config, command.workdir)
    assert "it is not known whether" in caplog.text
    text = (origin / "config.toml").read_text(encoding="utf-8")
    (origin / "config.toml").write_text(text.replace(f"{folder}/train", f"{tmp_path}/train"))
    write_pairs(tmp_path, pairs[:4000])
    prepare(config, command.workdir)
    sources, trained_on = ({source for source, _ in pairs} for pairs in (test, test[:30]))
    assert f"was trained on {len(trained_on)} of the {len(sources)} test sentences of this run" in caplog.text
