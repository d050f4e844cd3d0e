"""lingua-flax verify-resume: a run that passes, and the detection of every kind of difference."""

import json
import os
import re
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from lingua_flax.options.config_files import read_config
from lingua_flax.runs.checkpoint import Checkpoints, read_item
from lingua_flax.runs.verification.comparison import compare
from lingua_flax.runs.verification.killed_run import Moment, PhaseDurations, TrainProcess, run_killed
from lingua_flax.training.state import checkpoint_items, initial_state
from tests.conftest import ROOT
from tests.processes import start_command


@pytest.mark.slow
def test_killed_run_passes(run, toy, tmp_path):
    """Kills the run three times with real signals: in a validation, in a save, and during the compilation."""
    folder = tmp_path / "both"
    options = ["--kills", 3, "--kill-seed", 1, "--workdir", folder, "--training.num-steps", 160]
    result = run("verify-resume", "--config", toy, *options)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "160 steps, SIGKILL 3 times: the same run, bit for bit (--kill-seed 1)" in result.stdout
    rows = re.findall(r"^│ (\d) +│ ([a-z ]+?) +│", result.stdout, re.MULTILINE)
    assert [number for number, _ in rows] == ["1", "2", "3"]
    kinds = {during for _, during in rows}
    assert {"the compilation"} <= kinds <= {"the compilation", "a save", "a validation", "training"}
    for what in ("160 batches", "numbers", "arrays"):
        assert re.search(rf"│ [\d, ]*{what} +│ ([0-9a-f]{{16}}) +│ \1 +│ the same │", result.stdout)
    again = run("verify-resume", "--config", toy, *options)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.slow
def test_start_that_takes_less_time_than_expected_is_killed_at_its_first_step(toy, tmp_path):
    """A start that finds its programs in the cache is much shorter than the one that compiled them."""

    def start() -> TrainProcess:
        return TrainProcess(toy, tmp_path / "run", tmp_path / "compiled", lambda: None)

    expected = PhaseDurations(start=3600.0, compilation=3600.0, step=0.0, validation=0.0)
    config = read_config(toy)
    kills, last = run_killed(start, [Moment("a start", 0, 1.0), Moment("the compilation", 0, 1.0)], config, expected)
    assert [kill.during for kill in kills] == ["training", "training"]
    assert all(kill.after < config.training.num_steps for kill in kills)
    assert last.workdir.last_step() == config.training.num_steps


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
def test_invalid_commands_are_refused(run, options, message):
    result = run("verify-resume", *options)
    assert result.returncode == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_failed_run_is_reported_in_its_own_sentence_and_leaves_no_folder(toy, tmp_path):
    options = ["--config", toy, "--tokenizer.vocab-size", 60000]
    process = start_command("verify-resume", *options, env=os.environ | {"TMPDIR": str(tmp_path)})
    _, stderr = process.communicate()
    assert process.returncode == 2, stderr
    assert stderr.splitlines()[-1].startswith("error: tokenizer.vocab_size 60000 is larger than the corpus")
    assert "training the tokenizer" not in stderr
    assert not list(tmp_path.glob("verify-resume-*"))


@pytest.fixture
def copies(trained, tmp_path):
    """Returns the workdir of a run, and a copy of it to change."""
    shutil.copytree(trained[0], tmp_path / "copy")
    return trained[0], tmp_path / "copy"


def differences(copies):
    """Returns the difference in each part of the runs that is not equal in both."""
    return {each.what: each.difference for each in compare(*copies) if not each.same}


def test_copy_is_the_same(copies):
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
def test_different_number_in_metrics_is_named(copies, step, name, value, what, difference):
    path = copies[1] / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[step - 1]["step"] == step
    lines[step - 1][name] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = differences(copies)
    assert set(result) == ({what} if what else set())
    assert all(text.startswith(difference) for text in result.values())


def test_different_sample_of_a_validation_is_named(copies):
    path = copies[1] / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[80]["samples"]
    lines[80]["samples"][-1]["translation"] += "x"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((part, difference),) = differences(copies).items()
    assert part == "metrics.jsonl"
    assert difference.startswith("line 81, validation 80, samples: ")


def test_additional_line_of_metrics_is_named(copies):
    path = copies[1] / "metrics.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[9] + "\n")
    assert set(differences(copies)) == {"metrics.jsonl"}


def change(folder, pick):
    """Adds one to the first number of an array in a saved item of a checkpoint."""
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
def test_different_array_is_named_although_the_records_are_equal(copies, item, pick, what):
    change(copies[1] / "checkpoints" / "240" / item, pick)
    result = differences(copies)
    assert set(result) == {what}
    assert "['self_attention_residual']['norm']['bias']" in result[what]


def test_moving_average_and_trained_params_are_compared_separately(trained, tmp_path):
    """A checkpoint stores the average as its params; the trained parameters follow the optimizer in its training."""
    config = read_config(trained[0] / "config.toml")
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": 0.9})})
    params = read_item(trained[0] / "checkpoints", 240, "params")
    items = jax.jit(lambda params: checkpoint_items(initial_state(params, config)))(params)
    checkpoints = Checkpoints(tmp_path / "one" / "checkpoints", 1)
    checkpoints.save(240, *items, {}, None)
    checkpoints.close()
    for item, pick, what in (
        ("params", lambda params: params, "average"),
        ("training", lambda training: training[4], "parameters"),
    ):
        shutil.copytree(tmp_path / "one", tmp_path / what)
        change(tmp_path / what / "checkpoints" / "240" / item, pick)
        assert set(differences((tmp_path / "one", tmp_path / what))) == {what}
