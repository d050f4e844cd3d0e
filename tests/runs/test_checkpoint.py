"""Checkpoints on disk: retention, every kind of damage, and processes killed during a save."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.host.errors import UserError
from lingua_flax.runs.checkpoint import (
    COMMIT_MARK,
    Checkpoints,
    digests,
    load_params,
    read_metadata,
    restore_item,
    saved_steps,
)


def params(step):
    return {"layers": [{"w": jax.random.normal(jax.random.key(step), (61, 53))}], "b": jnp.arange(7.0) + step}


def training(step):
    return ({"mu": jax.random.normal(jax.random.key(-step), (61, 53))}, jnp.int32(step))


def template(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def load(directory, which, tree=None):
    return load_params(directory, which, template(tree or params(0)), check=lambda metadata: None)


def save(directory, steps, *best):
    """Saves steps in one run; `best` is the step that is the best at all of them, or at each."""
    checkpoints = Checkpoints(directory, 2)
    for step, best_step in zip(steps, itertools.cycle(best or [None]), strict=False):
        checkpoints.save(step, params(step), training(step), {"progress": {"step": step}, "position": 1234}, best_step)
    checkpoints.close()


def restore(directory):
    checkpoints = Checkpoints(directory, 2)
    restored = checkpoints.restore_newest(template(params(0)), template(training(0)), lambda metadata: None)
    checkpoints.close()
    return restored


def is_of(tree, step) -> bool:
    return digests("", tree) == digests("", params(step))


def test_saved_state_is_restored(tmp_path):
    assert restore(tmp_path) is None
    save(tmp_path, [5])
    restored, (optimizer, step), record = restore(tmp_path)
    assert is_of(restored, 5)
    np.testing.assert_array_equal(optimizer["mu"], training(5)[0]["mu"])
    assert step == record["progress"]["step"] == 5


def test_arrays_donated_during_a_save_are_saved_unchanged(tmp_path):
    """The next training step donates the state that is being saved."""
    checkpoints = Checkpoints(tmp_path, 2)
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    state = step({"numbers": jnp.arange(2**24)})  # takes longer to hash than to change
    expected = digests("", state)
    checkpoints.save(5, state, training(5), {}, None)
    for _ in range(3):
        state = step(state)
    checkpoints.close()
    record = read_metadata(tmp_path, 5)
    assert digests("", restore_item(tmp_path, 5, "params", template(state), record)) == expected


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to tell its memory")
def test_saving_a_large_state_needs_a_fraction_of_its_memory(tmp_path):
    def memory(name):
        return int(re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) << 10

    numbers = [np.random.default_rng(i).random(2**21, np.float32) for i in range(40)]
    checkpoints = Checkpoints(tmp_path, 2)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = memory("VmRSS")
    checkpoints.save(5, numbers[:20], numbers[20:], {}, None)
    checkpoints.close()
    assert memory("VmHWM") - before < sum(array.nbytes for array in numbers) / 2


def test_failed_background_save_is_reported_by_the_next_call(tmp_path):
    for name, arguments in (("check", ()), ("save", (7, params(7), training(7), {}, None)), ("close", ())):
        checkpoints = Checkpoints(tmp_path / name, 2)
        checkpoints.save(6, params(6), training(6), {"not JSON": object()}, None)
        while not checkpoints._saving.done():
            time.sleep(0.01)
        with pytest.raises(TypeError, match="not JSON serializable"):
            getattr(checkpoints, name)(*arguments)
        with contextlib.suppress(TypeError):
            checkpoints.close()
        assert saved_steps(tmp_path / name) == []


def test_digests_depend_on_dtype_shape_and_bytes():
    zeros = [np.zeros((2, 3), np.int32), np.zeros((3, 2), np.int32), np.zeros((2, 3), np.float32), np.ones((2, 3))]
    assert len({digests("params", [array])["params[0]"] for array in zeros}) == len(zeros)


def test_newest_and_best_are_kept(tmp_path):
    save(tmp_path, [10, 20, 30, 40, 50], 10, 20, 20, 20, 20)
    assert saved_steps(tmp_path) == [20, 40, 50]
    save(tmp_path, [60], 50)
    assert saved_steps(tmp_path) == [50, 60]


def test_step_may_be_saved_again_and_a_kill_meanwhile_loses_nothing(tmp_path):
    """Again means after its validation: only the metadata changes, and its file is replaced at once."""
    save(tmp_path, [5, 6])
    (tmp_path / "6" / "metadata" / ".metadata.0123abcd.partial").write_text("{")  # of a process that was killed
    assert restore(tmp_path)[2]["best_step"] is None
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(6, params(6), training(6), {"validated": 6}, 6)
    checkpoints.close()
    restored, _, metadata = restore(tmp_path)
    assert is_of(restored, 6)
    assert (metadata["step"], metadata["best_step"], metadata["validated"]) == (6, 6, 6)
    assert saved_steps(tmp_path) == [5, 6]
    assert load(tmp_path, "best")[0] == 6


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(folder):
    path = largest_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def change_number(folder):
    path = largest_file(folder)
    path.write_text(path.read_text().replace('"position": 1234', '"position": 1235'))


DAMAGES = {
    "truncated": lambda step: os.truncate(largest_file(step / "params"), 40),
    "flipped byte in params": lambda step: flip(step / "params"),
    "flipped byte in optimizer": lambda step: flip(step / "training"),
    "missing item": lambda step: shutil.rmtree(step / "training"),
    "other position in the data": lambda step: change_number(step / "metadata"),
    "half deleted": lambda step: (step / COMMIT_MARK).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_step_is_reported_and_the_previous_one_is_used(tmp_path, damage, caplog):
    save(tmp_path, [10, 20])
    DAMAGES[damage](tmp_path / "20")
    restored, _, record = restore(tmp_path)
    assert record["progress"]["step"] == 10
    assert is_of(restored, 10)
    assert (tmp_path / "damaged-20").is_dir()
    if damage != "half deleted":  # not an error: it looks like an old step whose deletion was interrupted
        assert "checkpoint 20 is damaged" in caplog.text


def test_step_damaged_repeatedly_is_set_aside_under_new_names(tmp_path):
    save(tmp_path, [10])
    for _ in range(2):
        save(tmp_path, [20])
        flip(tmp_path / "20" / "params")
        assert restore(tmp_path)[2]["step"] == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "damaged-20", "damaged-20-2"]


def test_no_intact_step_is_an_error_and_deletes_nothing(tmp_path):
    save(tmp_path, [10, 20])
    for step in ("10", "20"):
        flip(tmp_path / step / "params")
    with pytest.raises(UserError, match="none of its checkpoints is intact"):
        restore(tmp_path)
    assert saved_steps(tmp_path) == [10, 20]


def check_is_mean(tree, older, newer) -> None:
    for leaf, *leaves in zip(*map(jax.tree.leaves, (tree, params(older), params(newer))), strict=True):
        np.testing.assert_allclose(leaf, np.mean(np.array(leaves, float), axis=0), rtol=1e-7)
        assert leaf.dtype == leaves[0].dtype


def test_params_are_those_of_the_best_the_last_or_a_numbered_step_or_a_mean(tmp_path, caplog):
    caplog.set_level("INFO")
    save(tmp_path, [10, 20, 30], 10)
    for which, step in (("best", 10), ("last", 30), ("20", 20), ("average:1", 30)):
        loaded, tree, record = load(tmp_path, which)
        assert loaded == record["step"] == step
        assert is_of(tree, step)
    step, tree, record = load(tmp_path, "average:2")
    assert step == record["step"] == 30
    check_is_mean(tree, 20, 30)
    assert "averaged over the checkpoints 20, 30" in caplog.text
    flip(tmp_path / "20" / "params")
    check_is_mean(load(tmp_path, "average:2")[1], 10, 30)
    with pytest.raises(UserError, match="3 checkpoints to average, but only 2 can be used"):
        load(tmp_path, "average:3")


def test_damaged_best_is_replaced_by_newest_but_a_numbered_step_is_not(tmp_path, caplog):
    save(tmp_path, [10, 20, 30], 10)
    flip(tmp_path / "10" / "params")
    assert load(tmp_path, "best")[0] == 30
    assert "checkpoint 10 is damaged" in caplog.text
    other_shape = params(0) | {"b": jnp.arange(8.0)}
    for folder, which, tree, error in (
        (tmp_path, "10", None, "checkpoint 10 is damaged"),
        (tmp_path, "15", None, "no checkpoint 15; saved: 10, 20, 30"),
        (tmp_path, "average:0", None, "the number of a step or average:N"),
        (tmp_path / "other", "best", None, "no checkpoint; saved: none"),
        (tmp_path, "last", other_shape, "is damaged"),
    ):
        with pytest.raises(UserError, match=error):
            load(folder, which, tree)


@pytest.mark.parametrize("moment", ["4.*tmp*", "4.*tmp*/params*/**/*", f"4/{COMMIT_MARK}"])
def test_killed_save_never_leaves_a_partial_checkpoint_that_loads(run, tmp_path, moment):
    """A process kills itself as soon as a path exists in the folder of the checkpoints."""
    folder = tmp_path / "checkpoints"
    result = run(Path(__file__).parent / "scripts" / "kill_during_save.py", folder, moment)
    assert result.returncode == -signal.SIGKILL, result.stderr
    step, tree, _ = load(folder, "last", {"w": jnp.zeros((300, 1000))})
    assert step in (3, 4)
    assert (tree["w"] == step).all()
