"""Files that change after a run was trained on them: nothing that depends on the old ones goes on unnoticed."""

import json
import random
import re
import shutil

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.runs.checkpoint import check_corpus
from tests.toy import ENGLISH, FRENCH, NETWORK


def write_pairs(folder, name, pairs):
    for language, words, ending in (("en", ENGLISH, "."), ("fr", FRENCH, " !")):
        lines = "".join(" ".join(words[n] for n in pair) + f"{ending}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")


@pytest.fixture
def filtered_run(run, tmp_path):
    """A run whose test split was held out of 400 pairs, of which the file has only 200 today."""
    draw = random.Random(1)
    pairs = [[draw.randrange(10) for _ in range(5)] for _ in range(400)]
    write_pairs(tmp_path, "train", pairs)
    config = tmp_path / "toy.toml"
    of_train = [f'train_source = "{tmp_path}/train.en"', f'train_target = "{tmp_path}/train.fr"', "row_length = 32"]
    config.write_text("\n".join(["[data]", 'name = "text"', *of_train, NETWORK]), encoding="utf-8")
    options = ("--training.num-steps", 2, "--optimizer.warmup-steps", 1, "--training.tokens-per-batch", 512)
    done = run("train", "--config", config, "--workdir", tmp_path / "w", *options, "--training.eval-every", 0)
    assert done.returncode == 0, done.stderr
    write_pairs(tmp_path, "train", pairs[:200])
    return tmp_path / "w"


def test_split_held_out_of_other_pairs_is_refused(filtered_run, run, tmp_path):
    said = "its corpus has changed since checkpoint 2, so the"
    for command in (
        ("evaluate", "--workdir", filtered_run, "--beam-size", 1),
        ("evaluate", "--workdir", filtered_run, "--split", "validation", "--score"),
        ("distill", "--workdir", filtered_run, "--output", tmp_path / "student.jsonl"),
    ):
        done = run(*command)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr.splitlines()[-1]
    done = run("train", "--workdir", filtered_run, "--inspect-data")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    checkpoint = shutil.copytree(filtered_run, tmp_path / "damaged") / "checkpoints" / "2"
    (checkpoint / "metadata" / "metadata").write_text("{")
    done = run("train", "--workdir", tmp_path / "damaged", "--inspect-data")
    assert done.returncode == 0, done.stderr
    assert "checkpoint 2: its metadata cannot be read" in done.stderr
    (checkpoint / "record").mkdir()  # of an earlier version
    with pytest.raises(UserError, match="in a format that this version"):
        check_corpus(tmp_path / "damaged", 2, "", "train")
    files = ("--source", tmp_path / "train.en", "--reference", tmp_path / "train.fr")
    done = run("evaluate", "--workdir", filtered_run, *files, "--beam-size", 1, "--max-decoding-length", 4)
    assert done.returncode == 0, done.stderr


def test_replaced_validation_set_is_not_compared_with_the_best_of_the_old_one(run, toy, tmp_path):
    """The first validation on sentences that are never right is the best one on them, and patience begins with it."""
    workdir = tmp_path / "w"
    options = ("--training.checkpoint-every", 40, "--training.eval-every", 40, "--training.patience", 3)
    done = run("train", "--config", toy, "--workdir", workdir, *options, "--training.num-steps", 120)
    assert done.returncode == 0, done.stderr
    best = re.search(r"best validation (?:BLEU|loss) .* at step (\d+)", done.stdout)[1]
    unvalidated = ("--training.eval-every", 0, "--training.patience", 0, "--training.keep-checkpoints", 1)
    done = run("train", "--workdir", workdir, *unvalidated, "--training.num-steps", 130)
    assert done.returncode == 0, done.stderr
    assert "the validation set or its scoring has changed" not in done.stderr
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {best, "130"}
    write_pairs(tmp_path, "other", [[n, n] for n in range(10)] * 2)
    other = ("--data.validation-source", tmp_path / "other.fr", "--data.validation-target", tmp_path / "other.en")
    done = run("train", "--workdir", workdir, *options, *other, "--training.num-steps", 160)
    assert done.returncode == 0, done.stderr
    assert "the validation set or its scoring has changed" in done.stderr
    assert "validation at step 160" in done.stderr
    assert "the best so far" in done.stderr
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    before, after = [line["validation_bleu"] for line in lines if "validation_bleu" in line][-2:]
    assert after < before
