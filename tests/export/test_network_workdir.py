"""lingua-flax export --format workdir: the network alone, which everything but resuming can use."""

import json
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
    done = run("export", "--workdir", trained[0], "--format", "workdir", "--output", folder, "--beam-size", 1)
    assert done.returncode == 0, done.stderr
    assert "workdir, bfloat16" in done.stdout
    return folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_holds_the_parameters_in_half_the_space_and_names_no_folder(trained, exported):
    run, network = (Translator.load(folder) for folder in (trained[0], exported))
    for own, theirs in zip(*(jax.tree.leaves(each.params) for each in (run, network)), strict=True):
        assert theirs.dtype == np.float32
        np.testing.assert_array_equal(theirs, np.asarray(own).astype(bfloat16).astype(np.float32))
    (step,) = (exported / "checkpoints").iterdir()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
    assert sum(path.stat().st_size for path in (step / "params" / "d").iterdir()) < 0.6 * size
    files = contents(exported)
    assert files.keys() == {"manifest.json", *json.loads(files["manifest.json"])["files"]}
    del files["config.toml"]  # where paths belong
    assert [path for path, text in files.items() if str(exported.parent).encode() in text] == []


def test_can_be_used_as_the_run_and_stays_as_it_is(trained, exported, run):
    before = contents(exported)
    theirs, own = (run("translate", "--workdir", folder, input=LINES) for folder in (exported, trained[0]))
    assert (theirs.returncode, theirs.stdout) == (0, own.stdout), theirs.stderr
    assert run("evaluate", "--workdir", exported, "--beam-size", 1).returncode == 0
    done = run("train", "--workdir", exported)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout
    assert f"--init-from {exported}" in done.stdout
    assert contents(exported) == before


def test_another_run_can_begin_with_it(toy, exported, run, tmp_path):
    options = ["--training.num-steps", 40, "--training.eval-every", 0, "--optimizer.peak-lr", 1e-9]
    options += ["--tokenizer.model-file", exported / "tokenizer.model"]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", "--init-from", exported, *options)
    assert done.returncode == 0, done.stderr
    own, theirs = (jax.tree.leaves(Translator.load(folder).params) for folder in (tmp_path / "w", exported))
    for new, old in zip(own, theirs, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)


def test_damage_is_noticed(trained, exported, run, tmp_path):
    damaged = shutil.copytree(exported, tmp_path / "damaged")
    largest = max(damaged.rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    done = run("translate", "--workdir", damaged, input=LINES)
    assert done.returncode == 2
    assert "damaged" in done.stderr
    shutil.copytree(trained[0], tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest / "training")
    assert not holds_only_a_network(newest.parent)  # whose newest step is damaged
