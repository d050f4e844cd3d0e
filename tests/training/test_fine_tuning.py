"""Fine-tuning: lingua-flax train with the initial parameters of another run."""

import re
import shutil
import signal

import jax
import numpy as np
import pytest

from lingua_flax.commands.train import resolve_config
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.training.fine_tuning import matching_params
from lingua_flax.training.preparation import prepare
from lingua_flax.translation.translator import Translator
from tests.processes import digests, metrics, start, wait_for

QUICK = ["--training.num-steps", 60, "--training.eval-every", 0, "--training.checkpoint-every", 20]


@pytest.fixture(scope="module")
def tuned(trained, toy, run, tmp_path_factory):
    """Fine-tunes a copy of the trained run with another optimizer.

    Returns the workdir, the completed command, the workdir of the copy, and the options.
    """
    origin = tmp_path_factory.mktemp("origin") / "w"
    shutil.copytree(trained[0], origin)
    workdir = tmp_path_factory.mktemp("tuned") / "w"
    options = ["--init-from", origin, "--optimizer.name", "adafactor", "--optimizer.peak-lr", 1e-3, *QUICK]
    result = run("train", "--config", toy, "--workdir", workdir, *options)
    assert result.returncode == 0, result.stderr
    return workdir, result, origin, options


@pytest.fixture
def moved_origin(tuned):
    """Moves the run that the fine-tuned run started from, for one test. Returns its new path."""
    origin = tuned[2]
    moved = origin.rename(origin.with_name("moved"))
    yield moved
    moved.rename(origin)


def test_first_step_has_the_loss_of_the_original_run(trained, tuned):
    """The loss of a new network is log(45) = 3.8."""
    workdir, result, origin, _ = tuned
    first = metrics(workdir)[0]["loss"]
    last = np.mean([line["loss"] for line in metrics(trained[0]) if "loss" in line][-20:])
    assert first == pytest.approx(last, abs=0.25)
    assert metrics(trained[0])[0]["loss"] > first + 2
    assert re.search(
        rf"(\d+) of \1 arrays \(([\d,]+) of \2 parameters\) are taken from {origin}, step \d+; optimizer", result.stderr
    )
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert read_config(workdir / "config.toml").training.init_from == origin


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 20])
def test_killed_run_resumes_bit_for_bit_without_the_original_run(tuned, toy, run, tmp_path, request, step):
    workdir, _, _, options = tuned
    process = start(toy, tmp_path / "w", *options)
    wait_for(process, lambda: step in saved_steps(tmp_path / "w" / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    request.getfixturevalue("moved_origin")
    result = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert result.returncode == 0, result.stderr
    assert "resuming from step" in result.stderr
    assert "are taken from" not in result.stderr
    assert metrics(tmp_path / "w") == metrics(workdir)
    assert digests(tmp_path / "w") == digests(workdir)


def test_started_run_no_longer_needs_the_original_run(tuned, moved_origin, toy, run, tmp_path, caplog):
    workdir, _, _, options = tuned
    shutil.copytree(workdir, tmp_path / "w")
    longer = [61 if option == QUICK[1] else option for option in options]
    result = run("train", "--config", toy, "--workdir", tmp_path / "w", *longer)
    assert result.returncode == 0, result.stderr
    assert "are taken from" not in result.stderr
    assert "training.init_from is not read again" in result.stderr
    assert metrics(tmp_path / "w")[-1]["step"] == 61
    caplog.set_level("INFO")
    for init in (["--init-from", moved_origin], []):
        caplog.clear()
        assert not prepared(toy, tmp_path, *init, *options[2:]).inherited
        assert ("training.init_from is not read again" in caplog.text) == bool(init)


def prepared(toy, tmp_path, *options):
    """Returns the preparation of a run in tmp_path / "w"."""
    config, command = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), *map(str, options)])
    return prepare(config, command.workdir)


def test_fitting_arrays_are_taken_and_all_others_are_reported(trained, toy, tmp_path, caplog):
    """The new network has wider feed-forward layers, one more encoder layer, learned positions or a new vocabulary."""
    caplog.set_level("INFO")
    original = Translator.load(trained[0]).params
    wider = ["--model.mlp-dim", 96, "--model.num-encoder-layers", 2, "--model.positions", "learned"]
    taken = prepared(toy, tmp_path, "--init-from", trained[0], *wider).inherited
    np.testing.assert_array_equal(taken["target_embedding"], original["target_embedding"])
    assert not [name for name in taken if name.startswith(("encoder.1", "position_embedding"))]
    assert not [name for name in taken if "feed_forward" in name and name.endswith("kernel")]
    assert f"{len(taken)} of " in caplog.text
    assert re.search(r"newly initialized \(not in that run\): .*encoder\.1 \(\d+ arrays\)", caplog.text)
    assert re.search(r"newly initialized \(different shape\): .*decoder\.0 \(\d+ arrays\)", caplog.text)
    caplog.clear()
    other = ["--tokenizer.model-file", tmp_path / "other.model"]
    shutil.copy(trained[0] / "tokenizer.model", tmp_path / "other.model")
    same = prepared(toy, tmp_path, "--init-from", trained[0], *other)
    assert len(same.inherited) == len(jax.tree.leaves(original))
    config, _ = resolve_config(["--config", str(toy), "--workdir", str(tmp_path / "w"), "--tokenizer.kind", "bpe"])
    caplog.clear()
    taken = matching_params(trained[0], config, prepare(config, tmp_path / "bpe").tokenizer)
    assert "target_embedding" not in taken
    assert len(taken) == len(jax.tree.leaves(original)) - 1
    assert "newly initialized (different vocabulary): target_embedding" in caplog.text


@pytest.mark.parametrize("option", ["--training.init-from", "--tokenizer.model-file"])
def test_options_of_a_tokenizer_that_is_not_trained_are_reported(trained, toy, tmp_path, caplog, option):
    """One that the rest of the run depends on is refused."""
    model = trained[0] / "tokenizer.model"
    given = [option, trained[0] if option == "--training.init-from" else model]
    prepared(toy, tmp_path / "same", *given, "--tokenizer.character-coverage", 1)
    assert "has no effect" not in caplog.text
    others = ["--tokenizer.kind", "bpe", "--tokenizer.vocab-size", 99, "--tokenizer.normalization", "nfkc"]
    same = prepared(toy, tmp_path / "other", *given, *others)
    unused = "tokenizer.kind, vocab_size, normalization"
    assert f"the tokenizer is {model}, so this run's {unused} has no effect" in caplog.text
    assert same.tokenizer.source_vocab_size == 45
    message = f"{model}: tokenizer.lowercase must be False with it, not True"
    with pytest.raises(UserError, match=re.escape(message)):
        prepared(toy, tmp_path / "lower", *given, "--tokenizer.lowercase", "True")


def test_options_of_sentencepiece_are_read_from_its_models(toy, tmp_path, caplog):
    """Of a model for each side, with options that are not the default."""
    options = ["--tokenizer.lowercase", "True", "--tokenizer.character-coverage", 0.9995, "--tokenizer.placeholders", 2]
    options += ["--tokenizer.normalization", "nfkc", "--tokenizer.kind", "bpe"]
    first = prepared(toy, tmp_path, *options)
    (tmp_path / "a.model").write_bytes(first.tokenizer_models[0])
    again = prepared(toy, tmp_path, *options, "--tokenizer.model-file", tmp_path / "a.model")
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert "has no effect" not in caplog.text


def test_unusable_original_runs_are_refused(trained, toy, run, tmp_path):
    for options, words in (
        (["--init-from", tmp_path / "none"], "none: not a workdir"),
        (
            ["--init-from", trained[0], "--tokenizer.joint", "False", "--model.tied-embeddings", "decoder"],
            "joint must be True with",
        ),
    ):
        result = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
        assert result.returncode == 2, result.stderr
        assert words in result.stderr
        assert not (tmp_path / "w").exists()
    with pytest.raises(UserError, match="none of its matrices fits into this network"):
        prepared(toy, tmp_path, "--init-from", trained[0], "--model.embed-dim", 34)
