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

OPTIONS = ["--optimizer.name", "adafactor", "--optimizer.peak-lr", 1e-3]
OPTIONS += ["--training.num-steps", 30, "--training.eval-every", 0, "--training.checkpoint-every", 10]


@pytest.fixture(scope="module")
def tuned(trained, toy, run, tmp_path_factory):
    """Fine-tunes a copy of the trained run, which is deleted then. Returns the workdir, and the completed command."""
    folder = tmp_path_factory.mktemp("tuned")
    shutil.copytree(trained[0], folder / "origin")
    result = run("train", "--config", toy, "--workdir", folder / "w", "--init-from", folder / "origin", *OPTIONS)
    assert result.returncode == 0, result.stderr
    shutil.rmtree(folder / "origin")
    return folder / "w", result


def test_first_step_has_the_loss_of_the_original_run(trained, tuned):
    """The loss of a new network is log(45) = 3.8."""
    workdir, result = tuned
    first = metrics(workdir)[0]["loss"]
    last = np.mean([line["loss"] for line in metrics(trained[0]) if "loss" in line][-20:])
    assert first == pytest.approx(last, abs=0.25)
    assert metrics(trained[0])[0]["loss"] > first + 2
    origin = workdir.with_name("origin")
    assert re.search(
        rf"(\d+) of \1 arrays \(([\d,]+) of \2 parameters\) are taken from {origin}, step \d+; optimizer", result.stderr
    )
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert read_config(workdir / "config.toml").training.init_from == origin


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 10])
def test_killed_run_resumes_bit_for_bit_without_the_original_run(trained, tuned, toy, run, tmp_path, step):
    workdir, origin = tmp_path / "w", tmp_path / "origin"
    shutil.copytree(trained[0], origin)
    process = start(toy, workdir, "--init-from", origin, *OPTIONS)
    wait_for(process, lambda: step in saved_steps(workdir / "checkpoints"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(origin)
    result = run("train", "--config", toy, "--workdir", workdir, "--init-from", origin, *OPTIONS)
    assert result.returncode == 0, result.stderr
    assert "resuming from step" in result.stderr
    assert "are taken from" not in result.stderr
    assert metrics(workdir) == metrics(tuned[0])
    assert digests(workdir) == digests(tuned[0])


def test_started_run_no_longer_needs_the_original_run(tuned, toy, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(tuned[0], workdir)
    init_from = ["--init-from", tuned[0].with_name("origin")]
    longer = [31 if option == 30 else option for option in OPTIONS]
    result = run("train", "--config", toy, "--workdir", workdir, *init_from, *longer)
    assert result.returncode == 0, result.stderr
    assert "are taken from" not in result.stderr
    assert "training.init_from is not read again" in result.stderr
    assert metrics(workdir)[-1]["step"] == 31


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
    other_file = shutil.copy(trained[0] / "tokenizer.model", tmp_path / "other.model")
    same = prepared(toy, tmp_path, "--init-from", trained[0], "--tokenizer.model-file", other_file)
    assert len(same.inherited) == len(jax.tree.leaves(original))
    other = prepared(toy, tmp_path / "bpe", "--tokenizer.kind", "bpe")
    taken = matching_params(trained[0], other.config, other.tokenizer)
    assert set(same.inherited) - set(taken) == {"target_embedding"}
    assert "newly initialized (different vocabulary): target_embedding" in caplog.text


@pytest.mark.parametrize("option", ["--training.init-from", "--tokenizer.model-file"])
def test_options_of_a_tokenizer_that_is_not_trained_are_reported(trained, toy, tmp_path, caplog, option):
    """They are read from its model. One that the rest of the run depends on is refused."""
    model = trained[0] / "tokenizer.model"
    given = [option, trained[0] if option == "--training.init-from" else model]
    prepared(toy, tmp_path / "same", *given, "--tokenizer.character-coverage", 1)
    special = ["--tokenizer.lowercase", "True", "--tokenizer.character-coverage", 0.9995, "--tokenizer.placeholders", 2]
    special += ["--tokenizer.normalization", "nfkc", "--tokenizer.kind", "bpe"]
    first = prepared(toy, tmp_path, *special)
    (tmp_path / "a.model").write_bytes(first.tokenizer_models[0])
    again = prepared(toy, tmp_path, *special, "--tokenizer.model-file", tmp_path / "a.model")
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert "has no effect" not in caplog.text
    others = ["--tokenizer.kind", "bpe", "--tokenizer.vocab-size", 99, "--tokenizer.normalization", "nfkc"]
    assert prepared(toy, tmp_path / "other", *given, *others).tokenizer.source_vocab_size == 45
    unused = "tokenizer.kind, vocab_size, normalization"
    assert f"the tokenizer is {model}, so this run's {unused} has no effect" in caplog.text
    with pytest.raises(UserError, match=r"tokenizer\.lowercase must be False with it, not True"):
        prepared(toy, tmp_path / "lower", *given, "--tokenizer.lowercase", "True")


def test_unusable_original_runs_are_refused(trained, toy, tmp_path):
    for origin, options, words in (
        (tmp_path / "none", [], "none: not a workdir"),
        (trained[0], ["--tokenizer.joint", "False", "--model.tied-embeddings", "decoder"], "joint must be True with"),
        (trained[0], ["--model.embed-dim", 34], "none of its matrices fits into this network"),
    ):
        with pytest.raises(UserError, match=words):
            prepared(toy, tmp_path, "--init-from", origin, *options)
        assert not (tmp_path / "w").exists()
