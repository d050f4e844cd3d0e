"""Files that change after a run was trained on them: nothing that depends on the old ones goes on unnoticed."""

import random
import re
import shutil

import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.runs.checkpoint import check_corpus
from tests.processes import metrics
from tests.toy import ENGLISH, FRENCH, NETWORK


def write_pairs(folder, name, pairs):
    for language, words, ending in (("en", ENGLISH, "."), ("fr", FRENCH, " !")):
        lines = "".join(" ".join(words[n] for n in pair) + f"{ending}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")


def test_split_held_out_of_other_pairs_is_refused(run, succeed, tmp_path):
    """The test split was held out of 400 pairs, of which the file has only 200 today."""
    draw = random.Random(1)
    pairs = [[draw.randrange(10) for _ in range(5)] for _ in range(400)]
    write_pairs(tmp_path, "train", pairs)
    config, workdir = tmp_path / "toy.toml", tmp_path / "w"
    of_train = [f'train_source = "{tmp_path}/train.en"', f'train_target = "{tmp_path}/train.fr"', "row_length = 32"]
    config.write_text("\n".join(["[data]", 'name = "text"', *of_train, NETWORK]), encoding="utf-8")
    options = ("--training.num-steps", 2, "--optimizer.warmup-steps", 1, "--training.tokens-per-batch", 512)
    done = succeed("train", "--config", config, "--workdir", workdir, *options, "--training.eval-every", 0)
    write_pairs(tmp_path, "train", pairs[:200])

    said = "its corpus has changed since checkpoint 2, so the"
    for program, *command in (
        ("evaluate", "--beam-size", 1),
        ("evaluate", "--split", "validation", "--score"),
        ("distill", "--output", tmp_path / "student.jsonl"),
    ):
        done = run(program, "--workdir", workdir, *command)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr.splitlines()[-1]
    files = ("--source", tmp_path / "train.en", "--reference", tmp_path / "train.fr")
    done = succeed("evaluate", "--workdir", workdir, *files, "--beam-size", 1, "--max-decoding-length", 4)

    done = run("train", "--workdir", workdir, "--inspect-data")
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr
    checkpoint = shutil.copytree(workdir, tmp_path / "damaged") / "checkpoints" / "2"
    (checkpoint / "metadata" / "metadata").write_text("{")
    done = succeed("train", "--workdir", tmp_path / "damaged", "--inspect-data")
    assert "checkpoint 2: its metadata cannot be read" in done.stderr
    (checkpoint / "record").mkdir()  # of an earlier version
    with pytest.raises(UserError, match="in a format that this version"):
        check_corpus(tmp_path / "damaged", 2, "", "train")


def test_replaced_validation_set_is_not_compared_with_the_best_of_the_old_one(trained, succeed, tmp_path):
    """The first validation on sentences that are never right is the best one on them, and patience begins with it."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    options = ("--training.eval-every", 40, "--training.patience", 3)
    best = re.search(r"best validation (?:BLEU|loss) .* at step (\d+)", trained[1].stdout)[1]
    unvalidated = ("--training.eval-every", 0, "--training.patience", 0, "--training.keep-checkpoints", 1)
    done = succeed("train", "--workdir", workdir, *unvalidated, "--training.num-steps", 250)
    assert "the validation set or its scoring has changed" not in done.stderr
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {best, "250"}
    write_pairs(tmp_path, "other", [[n, n] for n in range(10)] * 2)
    other = ("--data.validation-source", tmp_path / "other.fr", "--data.validation-target", tmp_path / "other.en")
    done = succeed("train", "--workdir", workdir, *options, *other, "--training.num-steps", 260)
    assert "the validation set or its scoring has changed" in done.stderr
    assert "validation at step 260" in done.stderr
    assert "the best so far" in done.stderr
    before, after = [line["validation_bleu"] for line in metrics(workdir) if "validation_bleu" in line][-2:]
    assert after < before
