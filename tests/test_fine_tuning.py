"""Beginning with another run's parameters, by the command as users run it."""

import re
import shutil
import signal

import jax
import numpy as np
import pytest

from commands.train import resolve_config
from host.errors import UserError
from options.config_files import read_config
from runs.checkpoint import saved_steps
from tests.processes import digests, metrics, start, wait_for
from training.fine_tuning import matching_params
from training.preparation import prepare
from translation.translator import Translator

QUICK = ["--training.num-steps", 60, "--training.eval-every", 60, "--training.checkpoint-every", 20]


@pytest.fixture(scope="module")
def tuned(trained, toy, run, tmp_path_factory):
    """A run that began with the trained one's parameters, with another optimizer; and what it printed."""
    origin = tmp_path_factory.mktemp("origin") / "w"
    shutil.copytree(trained[0], origin)
    workdir = tmp_path_factory.mktemp("tuned") / "w"
    options = ["--init-from", origin, "--optimizer.name", "adafactor", "--optimizer.peak-lr", 1e-3, *QUICK]
    done = run("train.py", "--config", toy, "--workdir", workdir, *options)
    assert done.returncode == 0, done.stderr
    return workdir, done, origin, options


def test_it_begins_where_the_other_run_was(trained, tuned):
    """The loss of its first step is that of the other run's last ones; a fresh network's is log(45) = 3.8."""
    workdir, done, origin, _ = tuned
    first = metrics(workdir)[0]["loss"]
    last = np.mean([line["loss"] for line in metrics(trained[0]) if "loss" in line][-20:])
    assert first == pytest.approx(last, abs=0.25)
    assert metrics(trained[0])[0]["loss"] > first + 2
    assert re.search(
        rf"(\d+) of \1 arrays \(([\d,]+) of \2 parameters\) are taken from {origin}, step \d+; optimizer", done.stderr
    )
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert read_config(workdir / "config.toml").training.init_from == origin


@pytest.mark.slow
def test_killed_it_goes_on_bit_for_bit_without_the_other_run(tuned, toy, run, tmp_path):
    workdir, _, origin, options = tuned
    process = start(toy, tmp_path / "w", *options)
    wait_for(process, lambda: 20 in saved_steps(tmp_path / "w" / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    moved = origin.rename(origin.with_name("moved"))
    try:
        done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options)
    finally:
        moved.rename(origin)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stderr
    assert "are taken from" not in done.stderr
    assert metrics(tmp_path / "w") == metrics(workdir)
    assert digests(tmp_path / "w") == digests(workdir)


def test_once_begun_the_other_run_may_move(trained, toy, run, tmp_path):
    origin, moved, workdir = tmp_path / "origin", tmp_path / "moved", tmp_path / "w"
    shutil.copytree(trained[0], origin)
    train = ["train.py", "--config", toy, "--workdir", workdir, "--training.eval-every", 0, "--training.num-steps"]
    assert run(*train, 1, "--init-from", origin).returncode == 0
    origin.rename(moved)
    for steps, options in ((2, ["--init-from", origin]), (3, ["--init-from", moved]), (4, [])):
        done = run(*train, steps, *options)
        assert done.returncode == 0, done.stderr
        assert "are taken from" not in done.stderr
        assert ("training.init_from is not read again" in done.stderr) == bool(options)


def prepared(toy, tmp_path, *options):
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), *map(str, options)])
    return prepare(config, command.workdir)


def test_what_fits_is_taken_and_the_rest_accounted_for(trained, toy, tmp_path, caplog):
    """A wider feed-forward layer, one more encoder layer, learned positions, another vocabulary: by hand."""
    caplog.set_level("INFO")
    there = Translator.load(trained[0]).params
    wider = ["--model.mlp-dim", 96, "--model.num-encoder-layers", 2, "--model.positions", "learned"]
    taken = prepared(toy, tmp_path, "--init-from", trained[0], *wider).taken
    np.testing.assert_array_equal(taken["target_embedding"], there["target_embedding"])
    assert not [name for name in taken if name.startswith(("encoder.1", "position_embedding"))]
    assert not [name for name in taken if "mlp" in name and name.endswith("kernel")]
    assert f"{len(taken)} of " in caplog.text
    assert re.search(r"newly initialized \(not in that run\): .*encoder\.1 \(\d+ arrays\)", caplog.text)
    assert re.search(r"newly initialized \(different shape\): .*decoder\.0 \(\d+ arrays\)", caplog.text)
    caplog.clear()
    other = ["--tokenizer.model-file", tmp_path / "other.model"]
    shutil.copy(trained[0] / "tokenizer.model", tmp_path / "other.model")
    same = prepared(toy, tmp_path, "--init-from", trained[0], *other)
    assert len(same.taken) == len(jax.tree.leaves(there))
    config, _ = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), "--tokenizer.kind", "bpe"])
    caplog.clear()
    taken = matching_params(trained[0], config, prepare(config, tmp_path / "bpe").tokenizer)
    assert "target_embedding" not in taken
    assert len(taken) == len(jax.tree.leaves(there)) - 1
    assert "newly initialized (different vocabulary): target_embedding" in caplog.text


def test_origins_that_cannot_be(trained, toy, run, tmp_path):
    for options, words in (
        (["--init-from", tmp_path / "none"], "none: not a workdir"),
        (["--init-from", trained[0], "--tokenizer.joint", "False", "--model.tied-embeddings", "decoder"], "must agree"),
    ):
        done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert not (tmp_path / "w").exists()
    with pytest.raises(UserError, match="none of its matrices fits into this network"):
        prepared(toy, tmp_path, "--init-from", trained[0], "--model.embed-dim", 34)
