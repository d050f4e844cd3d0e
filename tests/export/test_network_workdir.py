"""lingua-flax export --format workdir: the network alone, which everything but resuming can use."""

import shutil

import jax
import numpy as np
import pytest
from ml_dtypes import bfloat16

from lingua_flax.runs.checkpoint import holds_only_a_network
from lingua_flax.translation.translator import Translator

LINES = "one two three.\nnine.\nfour four five.\n"


@pytest.fixture(scope="module")
def exported(trained, run, tmp_path_factory):
    """Returns the folder into which the toy run is exported."""
    folder = tmp_path_factory.mktemp("exported") / "network"
    done = run("export", "--workdir", trained[0], "--format", "workdir", "--output", folder)
    assert done.returncode == 0, done.stderr
    assert "workdir, bfloat16" in done.stdout
    return folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parameters_are_those_of_the_run_in_half_the_space(trained, exported):
    run, network = (Translator.load(folder) for folder in (trained[0], exported))
    for own, theirs in zip(*(jax.tree.leaves(each.params) for each in (run, network)), strict=True):
        assert theirs.dtype == np.float32
        np.testing.assert_array_equal(theirs, np.asarray(own).astype(bfloat16).astype(np.float32))
    (step,) = (exported / "checkpoints").iterdir()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
    assert sum(path.stat().st_size for path in (step / "params" / "d").iterdir()) < 0.6 * size


def test_names_no_folder_of_the_machine(exported):
    own = {path: text for path, text in contents(exported).items() if path.name != "config.toml"}  # a config has paths
    assert [path for path, text in own.items() if str(exported.parent).encode() in text] == []


def test_translates_and_evaluates_as_the_run(trained, exported, run):
    theirs, own = (run("translate", "--workdir", folder, input=LINES) for folder in (exported, trained[0]))
    assert theirs.returncode == 0, theirs.stderr
    assert theirs.stdout == own.stdout
    done = run("evaluate", "--workdir", exported, "--beam-size", 1)
    assert done.returncode == 0, done.stderr


def test_training_says_that_it_is_finished_and_changes_nothing(exported, run):
    before = contents(exported)
    done = run("train", "--workdir", exported)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout
    assert f"--init-from {exported}" in done.stdout
    assert contents(exported) == before


def test_run_whose_newest_step_is_damaged_is_no_network_alone(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest / "training")
    assert not holds_only_a_network(newest.parent)


def test_another_run_can_begin_with_it(toy, exported, run, tmp_path):
    options = ["--training.num-steps", 40, "--training.eval-every", 0, "--optimizer.peak-lr", 1e-9]
    options += ["--tokenizer.model-file", exported / "tokenizer.model"]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", "--init-from", exported, *options)
    assert done.returncode == 0, done.stderr
    own, theirs = (jax.tree.leaves(Translator.load(folder).params) for folder in (tmp_path / "w", exported))
    for new, old in zip(own, theirs, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)


def test_damage_is_noticed(exported, run, tmp_path):
    for path in exported.rglob("*"):
        target = tmp_path / "damaged" / path.relative_to(exported)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.write_bytes(path.read_bytes())
    largest = max((tmp_path / "damaged").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    done = run("translate", "--workdir", tmp_path / "damaged", input=LINES)
    assert done.returncode == 2
    assert "damaged" in done.stderr
