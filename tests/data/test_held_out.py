"""Held-out splits that stay: what one run holds out, a run started from it holds out of a corpus that has grown."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.held_out_splits import held_out_sources
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.schema import DataConfig
from tests.toy import NETWORK

OPTIONS = ("--training.num-steps", 2, "--optimizer.warmup-steps", 1, "--training.tokens-per-batch", 512)
OPTIONS += ("--training.eval-every", 0)


def write_pairs(folder: Path, pairs) -> None:
    for side, name in enumerate(("train.en", "train.fr")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def write_config(folder: Path) -> Path:
    config = folder / "toy.toml"
    files = [f'train_source = "{folder}/train.en"', f'train_target = "{folder}/train.fr"', "row_length = 32"]
    config.write_text("\n".join(["[data]", 'name = "text"', *files, NETWORK]), encoding="utf-8")
    return config


def splits_of(workdir: Path) -> dict[str, list]:
    corpus = open_corpus(read_workdir_config(workdir).data)
    return {name: list(corpus.split(name)) for name in corpus.splits}


def draw_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Some sources occur several times, with different targets."""
    draw = random.Random(seed)
    numbers = [[draw.randrange(10) for _ in range(draw.randint(3, 6))] for _ in range(count)]
    return [(" ".join(map(str, line)), f"{number} {seed}") for number, line in enumerate(numbers)]


@pytest.fixture(scope="module")
def grown(run, tmp_path_factory):
    """A run on 20,000 pairs, the splits that it had, and its folder, where the corpus has 40,000 pairs now."""
    folder = tmp_path_factory.mktemp("grown")
    first, more = draw_pairs(20_000, 1), draw_pairs(20_000, 2)
    write_pairs(folder, first)
    done = run("train", "--config", write_config(folder), "--workdir", folder / "first", *OPTIONS)
    assert done.returncode == 0, done.stderr
    splits = splits_of(folder / "first")
    write_pairs(folder, first + more)
    return folder, splits, first + more


def test_a_run_started_from_another_keeps_its_test_set_when_the_corpus_grows(grown, run):
    folder, before, pairs = grown
    first, second = folder / "first", folder / "second"
    train = ["train", "--config", folder / "toy.toml", *OPTIONS]
    refused = run(*train, "--workdir", first)
    assert refused.returncode == 2
    assert f"With --init-from {first}, that run goes on from this one" in refused.stderr
    done = run(*train, "--workdir", second, "--init-from", first)
    assert done.returncode == 0, done.stderr
    assert "it is not known" not in done.stderr
    assert "test scores will be too high" not in done.stderr
    after = splits_of(second)
    held_out = {source for split in ("validation", "test") for source, _ in before[split]}
    assert (after["validation"], after["test"]) == (before["validation"], before["test"])
    assert len(after["test"]) == 1000
    assert after["train"] == [pair for pair in pairs if pair[0] not in held_out]
    left_out = 40_000 - sum(map(len, after.values()))
    assert left_out > 10
    assert f"(1,000 and 1,000 pairs) are held out again; left out {left_out} pairs added to them" in done.stderr
    assert (second / "held_out.json").read_bytes() == (first / "held_out.json").read_bytes()
    assert sum(map(len, json.loads((first / "held_out.json").read_text()).values())) == 2000


def test_the_new_run_needs_nothing_of_the_old_one(grown, run, tmp_path):
    """Nor the path at which it was: it is resumed and evaluated as a copy."""
    folder, before, _ = grown
    shutil.copytree(folder / "first", tmp_path / "first")
    train = ["train", "--config", folder / "toy.toml", "--init-from", tmp_path / "first", *OPTIONS[2:]]
    done = run(*train, "--workdir", tmp_path / "w", "--training.num-steps", 2)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "first")
    moved = (tmp_path / "w").rename(tmp_path / "moved")
    assert splits_of(moved)["test"] == before["test"]
    resumed = run(*train, "--workdir", moved, "--training.num-steps", 3)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 2" in resumed.stderr
    scored = run("evaluate", "--workdir", moved, "--score")
    assert scored.returncode == 0, scored.stderr
    assert len(scored.stdout.splitlines()) == 1000


def test_a_run_with_all_splits_needs_nothing_of_the_old_one_either(grown, run, tmp_path):
    """It holds nothing out, so that it has no copy of held_out.json, whose path its config has."""
    origin, workdir = shutil.copytree(grown[0] / "first", tmp_path / "first"), tmp_path / "w"
    write_pairs(tmp_path, draw_pairs(100, 4))
    train = ["train", "--config", write_config(tmp_path), "--init-from", origin, "--workdir", workdir, *OPTIONS[2:]]
    for split in ("validation", "test"):
        train += [f"--data.{split}-source", tmp_path / "train.en", f"--data.{split}-target", tmp_path / "train.fr"]
    done = run(*train, "--training.num-steps", 2)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(origin)
    assert len(splits_of(workdir)["test"]) == 100
    resumed = run(*train, "--data.held-out", origin / "held_out.json", "--training.num-steps", 3)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 2" in resumed.stderr


def test_a_warning_tells_that_the_first_run_was_trained_on_test_sentences(grown, run, tmp_path):
    """First that run's corpus has grown, then it is where it was."""
    folder, before, pairs = grown
    shutil.copytree(folder / "first", tmp_path / "first")
    test = [*before["train"][:30], *before["validation"][:10]]
    for side, name in enumerate(("test.en", "test.fr")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in test), encoding="utf-8")
    train = ["train", "--config", folder / "toy.toml", "--init-from", tmp_path / "first", *OPTIONS]
    train += ["--data.test-source", tmp_path / "test.en", "--data.test-target", tmp_path / "test.fr"]
    unknown = run(*train, "--workdir", tmp_path / "w1")
    assert unknown.returncode == 0, unknown.stderr
    assert "it is not known whether" in unknown.stderr
    config = (tmp_path / "first" / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "first" / "config.toml").write_text(config.replace(f"{folder}/train", f"{tmp_path}/train"))
    write_pairs(tmp_path, pairs[:20_000])
    warned = run(*train, "--workdir", tmp_path / "w2")
    sources, trained_on = ({source for source, _ in pairs} for pairs in (test, test[:30]))
    assert f"was trained on {len(trained_on)} of the {len(sources)} test sentences of this run" in warned.stderr


def open_text(folder: Path, pairs, held_out: Path | None = None, **options):
    write_pairs(folder, pairs)
    files = {"train_source": folder / "train.en", "train_target": folder / "train.fr"}
    return open_corpus(DataConfig(name="text", cache_directory=folder / "cache", held_out=held_out, **files, **options))


def written(folder: Path, corpus) -> Path:
    (folder / "held_out.json").write_text(json.dumps(held_out_sources(corpus)))
    return folder / "held_out.json"


def test_the_same_pairs_are_held_out_in_another_order_of_more_and_of_fewer(tmp_path):
    pairs = draw_pairs(600, 3)
    before = open_text(tmp_path, pairs)
    held_out = written(tmp_path, before)
    shuffled = open_text(tmp_path, pairs[::-1], held_out)
    for split in ("train", "validation", "test"):
        assert Counter(shuffled.split(split)) == Counter(before.split(split))
    test = list(before.split("test"))
    grown = open_text(tmp_path, [*pairs, *((source, "added") for source, _ in test), ("new", "added")], held_out)
    assert list(grown.split("test")) == test
    assert list(grown.split("train")) == [*before.split("train"), ("new", "added")]
    fewer = open_text(tmp_path, [pair for pair in pairs if pair not in test[:10]], held_out)
    assert list(fewer.split("test")) == test[10:]
    assert f"({len(before.split('validation'))} and {len(test)} pairs) are held out again" in fewer.notes[0]
    given = {"validation_source": tmp_path / "train.en", "validation_target": tmp_path / "train.fr"}
    one = open_text(tmp_path, pairs, held_out, **given)
    assert list(one.split("test")) == test
    assert held_out_sources(one) == {"test": held_out_sources(before)["test"]}


def test_a_run_in_the_other_direction_holds_out_the_same_pairs(tmp_path):
    """Also if a held-out target is that of other pairs, and if the run reads its own copy of the file later."""
    pairs = [(source, f"{len(source)} {number % 200}") for number, (source, _) in enumerate(draw_pairs(600, 3))]
    before = open_text(tmp_path, pairs)
    held_out = written(tmp_path, before)
    reversed_pairs = [(target, source) for source, target in pairs]
    reverse = open_text(tmp_path, reversed_pairs, held_out, source_language="fr", target_language="en")
    for split in ("train", "validation", "test"):
        assert list(reverse.split(split)) == [(target, source) for source, target in before.split(split)]
    assert "pairs, here the targets) are held out again; left out 0 pairs" in reverse.notes[0]
    assert held_out_sources(reverse) == held_out_sources(before)
    shared = {target for target, _ in reverse.split("test")} & {target for target, _ in reverse.split("train")}
    assert len(shared) > 10


def test_other_sentences_are_held_out_of_another_corpus(tmp_path):
    pairs = draw_pairs(600, 3)
    before = open_text(tmp_path, pairs)
    held_out, test = written(tmp_path, before), list(before.split("test"))
    other = [pair for pair in pairs if pair not in test[5:]]
    without, with_file = open_text(tmp_path, other), open_text(tmp_path, other, held_out)
    assert list(with_file.split("test")) == list(without.split("test"))
    assert with_file.notes == without.notes


@pytest.mark.parametrize("content", ["", "[]", '{"test": [1], "validation": [1]}', '{"test": ["x"], "validation": []}'])
def test_a_file_without_held_out_sources_is_refused(tmp_path, content):
    (tmp_path / "held_out.json").write_text(content)
    with pytest.raises(UserError, match="not a file with held-out sources"):
        open_text(tmp_path, draw_pairs(100, 1), tmp_path / "held_out.json")
    with pytest.raises(UserError, match="no such file"):
        open_text(tmp_path, draw_pairs(100, 1), tmp_path / "missing.json")
