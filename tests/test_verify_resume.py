"""verify_resume.py: a run that passes, and that every kind of difference is found and named."""

import json
import re
import shutil

import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.conftest import ROOT
from verification.comparison import compare


@pytest.mark.slow
def test_a_killed_run_passes(run, toy, tmp_path):
    """Three kills by real signals: in a validation, in a save, while it compiles."""
    folder = tmp_path / "both"
    options = ["--kills", 3, "--kill-seed", 1, "--workdir", folder, "--training.num-steps", 160]
    done = run("verify_resume.py", "--config", toy, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "160 steps, SIGKILL 3 times: the same run, bit for bit (--kill-seed 1)" in done.stdout
    rows = re.findall(r"^│ (\d) +│ ([a-z ]+?) +│", done.stdout, re.MULTILINE)
    assert [number for number, _ in rows] == ["1", "2", "3"]
    assert {"the compilation"} <= {during for _, during in rows} <= {
        "the compilation", "a save", "a validation", "training"
    }  # fmt: skip
    for what in ("160 batches", "numbers", "arrays"):
        assert re.search(rf"│ [\d, ]*{what} +│ ([0-9a-f]{{16}}) +│ \1 +│ the same │", done.stdout)
    again = run("verify_resume.py", "--config", toy, *options)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--config is required"),
        (["--config", "none.toml"], "none.toml: cannot read the config"),
        (["--config", "configs/tiny.toml", "--kills", -1], "kills: input should be greater than or equal to 0, got -1"),
        (["--config", "configs/tiny.toml", "--kill", 1], "unknown option --kill; did you mean --kills"),
        (["--config", "configs/multi30k_en_de.toml", "--data.directory", "none"], f"error: {ROOT}/none"),
    ],
)
def test_what_cannot_be_verified(run, options, message):
    done = run("verify_resume.py", *options)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def copies(trained, tmp_path):
    """The run, and a copy to change."""
    shutil.copytree(trained[0], tmp_path / "copy")
    return trained[0], tmp_path / "copy"


def differences(copies):
    return {each.what: each.difference for each in compare(*copies) if not each.same}


def test_a_copy_is_the_same(copies):
    assert differences(copies) == {}


@pytest.mark.parametrize(
    ("step", "name", "value", "what", "difference"),
    [
        (37, "loss", 1.0, "metrics.jsonl", "line 37, step 37, loss: "),
        (37, "epoch", 0.0, "metrics.jsonl", "line 37, step 37, epoch: "),
        (41, "batch", "beef", "batches", "step 41: "),
        (41, "tokens_per_second", 1.0, None, None),
    ],
)
def test_a_number_that_differs_is_named(copies, step, name, value, what, difference):
    path = copies[1] / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[step - 1]["step"] == step
    lines[step - 1][name] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = differences(copies)
    assert set(found) == ({what} if what else set())
    assert all(text.startswith(difference) for text in found.values())


def test_a_line_too_many_is_named(copies):
    path = copies[1] / "metrics.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[9] + "\n")
    assert set(differences(copies)) == {"metrics.jsonl"}


def change(folder, pick):
    """Adds one to the first number of an array of a checkpoint, in place of what was saved."""
    handler = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    tree = handler.restore(folder)
    norm = pick(tree)["decoder"]["0"]["self_attention_residual"]["norm"]
    norm["bias"] = np.array(norm["bias"]) + np.eye(1, len(norm["bias"]), dtype=np.float32)[0]
    shutil.rmtree(folder)
    handler.save(folder, args=ocp.args.StandardSave(tree))


@pytest.mark.parametrize(
    ("item", "pick", "what"),
    [
        ("params", lambda params: params, "parameters"),
        ("training", lambda training: training[0][1]["mu"], "optimizer"),
    ],
)
def test_an_array_that_differs_on_disk_is_named_though_the_record_is_the_same(copies, item, pick, what):
    change(copies[1] / "checkpoints" / "240" / item, pick)
    found = differences(copies)
    assert set(found) == {what}
    assert "['self_attention_residual']['norm']['bias']" in found[what]


def test_a_moving_average_is_compared_by_itself(toy, run, tmp_path):
    """What a checkpoint calls its parameters is the average; those that were trained lie behind the optimizer's."""
    options = ["--training.ema-decay", 0.9, "--training.num-steps", 2, "--training.eval-every", 0]
    assert run("train.py", "--config", toy, "--workdir", tmp_path / "one", *options).returncode == 0
    for item, pick, what in (
        ("params", lambda params: params, "average"),
        ("training", lambda training: training[4], "parameters"),
    ):
        shutil.copytree(tmp_path / "one", tmp_path / what)
        change(tmp_path / what / "checkpoints" / "2" / item, pick)
        assert set(differences((tmp_path / "one", tmp_path / what))) == {what}
