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
from lingua_flax.training.state import checkpoint_items, initial_state


@pytest.mark.slow
def test_killed_run_passes(succeed, refused, toy, tmp_path):
    """Kills the run three times with real signals: in a validation, in a save, and during the compilation."""
    options = ["--kills", 3, "--kill-seed", 1, "--workdir", tmp_path / "both", "--training.num-steps", 160]
    result = succeed("verify-resume", "--config", toy, *options)
    assert "160 steps, SIGKILL 3 times: the same run, bit for bit (--kill-seed 1)" in result.stdout
    rows = re.findall(r"^│ (\d) +│ ([a-z ]+?) +│", result.stdout, re.MULTILINE)
    assert [number for number, _ in rows] == ["1", "2", "3"]
    kinds = {during for _, during in rows}
    assert {"the compilation"} <= kinds <= {"the compilation", "a save", "a validation", "training"}
    for what in ("160 batches", "numbers", "arrays"):
        assert re.search(rf"│ [\d, ]*{what} +│ ([0-9a-f]{{16}}) +│ \1 +│ the same │", result.stdout)
    refused("already exists", "verify-resume", "--config", toy, *options)


def test_failed_run_is_reported_in_its_own_sentence_and_leaves_no_folder(run, toy, tmp_path):
    options = ["--config", toy, "--tokenizer.vocab-size", 60000]
    done = run("verify-resume", *options, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: tokenizer.vocab_size 60000 is larger than the corpus")
    assert "training the tokenizer" not in done.stderr
    assert not list(tmp_path.glob("verify-resume-*"))


def differences(*runs):
    """Returns the difference in each part of the runs that is not equal in both."""
    return {each.what: each.difference for each in compare(*runs) if not each.same}


def test_every_different_number_in_metrics_is_named(trained, tmp_path):
    copy = shutil.copytree(trained[0], tmp_path / "copy")
    assert differences(trained[0], copy) == {}
    text = (copy / "metrics.jsonl").read_text()
    for number, name, value, expected in (
        (37, "loss", 1.0, {"metrics.jsonl": "line 37, step 37, loss: "}),
        (41, "batch", "beef", {"batches": "step 41: "}),
        (41, "tokens_per_second", 1.0, {}),
        (81, "samples", [], {"metrics.jsonl": "line 81, validation 80, samples: "}),
    ):
        lines = [json.loads(line) for line in text.splitlines()]
        lines[number - 1][name] = value
        (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = differences(trained[0], copy)
        assert found.keys() == expected.keys()
        assert all(found[what].startswith(expected[what]) for what in expected)
    (copy / "metrics.jsonl").write_text(text + text.splitlines()[9] + "\n")
    assert set(differences(trained[0], copy)) == {"metrics.jsonl"}


def check_changed_array_is_named(workdir, folder, item, pick, what):
    """Adds one to a number in a checkpoint, whose metadata, with the digests, stays the same."""
    changed = shutil.copytree(workdir, folder / what) / "checkpoints" / "240" / item
    handler = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    tree = handler.restore(changed)
    norm = pick(tree)["decoder"]["0"]["self_attention_residual"]["norm"]
    norm["bias"] = np.array(norm["bias"]) + np.eye(1, len(norm["bias"]), dtype=np.float32)[0]
    shutil.rmtree(changed)
    handler.save(changed, args=ocp.args.StandardSave(tree))
    ((part, difference),) = differences(workdir, folder / what).items()
    assert part == what
    assert "['self_attention_residual']['norm']['bias']" in difference


def test_every_different_array_is_named(trained, tmp_path):
    """A checkpoint stores an average as its params; the trained parameters then follow the optimizer in `training`."""
    check_changed_array_is_named(trained[0], tmp_path, "params", lambda params: params, "parameters")
    check_changed_array_is_named(trained[0], tmp_path, "training", lambda training: training[0][1]["mu"], "optimizer")
    config = read_config(trained[0] / "config.toml")
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": 0.9})})
    params = read_item(trained[0] / "checkpoints", 240, "params")
    items = jax.jit(lambda params: checkpoint_items(initial_state(params, config)))(params)
    averaged, folder = tmp_path / "averaged", tmp_path / "changed"
    checkpoints = Checkpoints(averaged / "checkpoints", 1)
    checkpoints.save(240, *items, {}, None)
    checkpoints.close()
    check_changed_array_is_named(averaged, folder, "params", lambda params: params, "average")
    check_changed_array_is_named(averaged, folder, "training", lambda training: training[4], "parameters")
