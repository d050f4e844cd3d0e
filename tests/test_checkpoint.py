"""Checkpoints on disk: retention, damage of every kind, processes killed while they save."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from host.errors import UserError
from runs.checkpoint import COMMIT_MARK, Checkpoints, digests, load_params, read_record, restore_item, saved_steps
from tests.conftest import ROOT


def params(step):
    return {"layers": [{"w": jax.random.normal(jax.random.key(step), (61, 53))}], "b": jnp.arange(7.0) + step}


def training(step):
    return ({"mu": jax.random.normal(jax.random.key(-step), (61, 53))}, jnp.int32(step))


def template(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def save(directory, steps, best=None, keep=2):
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        checkpoints.save(step, params(step), training(step), {"clock": {"step": step}, "position": 1234}, best)
    checkpoints.close()


def restore(directory):
    checkpoints = Checkpoints(directory, 2)
    found = checkpoints.restore_newest(template(params(0)), template(training(0)))
    checkpoints.close()
    return found


def test_what_is_saved_comes_back(tmp_path):
    save(tmp_path, [5])
    found, (optimizer, step), record = restore(tmp_path)
    assert digests("", found) == digests("", params(5)) != digests("", params(6))
    np.testing.assert_array_equal(optimizer["mu"], training(5)[0]["mu"])
    assert step == record["clock"]["step"] == 5


def test_arrays_that_are_donated_while_they_are_saved_are_saved_as_they_were(tmp_path):
    """As the next training step does with the state."""
    checkpoints = Checkpoints(tmp_path, 2)
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    state = step({"numbers": jnp.arange(2**24)})  # takes longer to hash than to change
    expected = digests("", state)
    checkpoints.save(5, state, training(5), {}, None)
    for _ in range(3):
        state = step(state)
    checkpoints.close()
    record = read_record(tmp_path, 5)
    assert digests("", restore_item(tmp_path, 5, "params", template(state), record)) == expected


def test_a_save_that_fails_in_the_background_is_told_of(tmp_path):
    """By whatever is asked next: whether all is well, for the next save, for the end."""
    asked = {
        "check": lambda checkpoints: checkpoints.check(),
        "save": lambda checkpoints: checkpoints.save(7, params(7), training(7), {}, None),
        "close": lambda checkpoints: checkpoints.close(),
    }
    for name, ask in asked.items():
        checkpoints = Checkpoints(tmp_path / name, 2)
        checkpoints.save(6, params(6), training(6), {"not JSON": object()}, None)
        while not checkpoints._saving.done():
            time.sleep(0.01)
        with pytest.raises(TypeError, match="not JSON serializable"):
            ask(checkpoints)
        with contextlib.suppress(TypeError):
            checkpoints.close()
        assert saved_steps(tmp_path / name) == []


def test_nothing_saved_is_none(tmp_path):
    assert restore(tmp_path / "new") is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    save(tmp_path, [10, 20, 30, 40, 50], best=20)
    assert saved_steps(tmp_path) == [20, 40, 50]
    save(tmp_path, [60], best=50)
    assert saved_steps(tmp_path) == [50, 60]


def test_a_step_saved_again_is_replaced(tmp_path):
    save(tmp_path, [5])
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(5, params(7), training(5), {}, 5)
    checkpoints.close()
    assert digests("", restore(tmp_path)[0]) == digests("", params(7))


def test_a_process_killed_while_it_saves_a_step_again_loses_nothing(tmp_path):
    save(tmp_path, [5, 6])
    (tmp_path / "6").rename(tmp_path / "replaced-6")
    assert restore(tmp_path)[2]["step"] == 6
    shutil.copytree(tmp_path / "6", tmp_path / "replaced-6")
    assert restore(tmp_path)[2]["step"] == 6
    assert not (tmp_path / "replaced-6").exists()


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def other_number(path):
    path.write_text(path.read_text().replace('"position": 1234', '"position": 1235'))


DAMAGES = {
    "truncated": lambda step: largest_file(step / "params").write_bytes(
        largest_file(step / "params").read_bytes()[:40]
    ),
    "emptied": lambda step: largest_file(step / "params").write_bytes(b""),
    "flipped byte in params": lambda step: flip(largest_file(step / "params")),
    "flipped byte in optimizer": lambda step: flip(largest_file(step / "training")),
    "missing file": lambda step: largest_file(step / "params").unlink(),
    "missing item": lambda step: shutil.rmtree(step / "training"),
    "damaged record": lambda step: flip(largest_file(step / "record")),
    "other position in the data": lambda step: other_number(largest_file(step / "record")),
    "half deleted": lambda step: (step / COMMIT_MARK).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_step_is_named_and_the_one_before_is_used(tmp_path, damage, caplog):
    save(tmp_path, [10, 20])
    DAMAGES[damage](tmp_path / "20")
    found, _, record = restore(tmp_path)
    assert record["clock"]["step"] == 10
    assert digests("", found) == digests("", params(10))
    assert (tmp_path / "damaged-20").is_dir()
    if damage != "half deleted":  # that was being deleted anyway
        assert "checkpoint 20 is damaged" in caplog.text
    save(tmp_path, [20])
    assert restore(tmp_path)[2]["clock"]["step"] == 20


def test_a_step_damaged_again_is_set_aside_beside_the_first(tmp_path):
    save(tmp_path, [10])
    for _ in range(3):
        save(tmp_path, [20])
        flip(largest_file(tmp_path / "20" / "params"))
        assert restore(tmp_path)[2]["step"] == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "damaged-20", "damaged-20-2", "damaged-20-3"]


def test_no_sound_step_is_an_error_and_deletes_nothing(tmp_path):
    save(tmp_path, [10, 20])
    for step in ("10", "20"):
        flip(largest_file(tmp_path / step / "params"))
    with pytest.raises(UserError, match="none of its checkpoints is intact; nothing was deleted"):
        restore(tmp_path)
    assert saved_steps(tmp_path) == [10, 20]


def test_parameters_by_best_last_and_number(tmp_path):
    save(tmp_path, [10, 20, 30], best=10)
    shape = template(params(0))
    assert saved_steps(tmp_path) == [10, 20, 30]
    for which, step in (("best", 10), ("last", 30), ("20", 20)):
        found, tree, record = load_params(tmp_path, which, shape)
        assert found == record["step"] == step
        assert digests("", tree) == digests("", params(step))


def test_the_newest_are_averaged(tmp_path, caplog):
    caplog.set_level("INFO")
    save(tmp_path, [10, 20, 30], best=10)
    step, tree, record = load_params(tmp_path, "average:2", template(params(0)))
    assert step == record["step"] == 30
    for leaf, older, newer in zip(*map(jax.tree.leaves, (tree, params(20), params(30))), strict=True):
        np.testing.assert_allclose(leaf, (np.asarray(older, float) + np.asarray(newer, float)) / 2)
        assert leaf.dtype == older.dtype
    assert "averaged over the checkpoints 20, 30" in caplog.text
    assert digests("", load_params(tmp_path, "average:1", template(params(0)))[1]) == digests("", params(30))


def test_too_few_to_average_is_refused_and_a_damaged_one_is_passed_over(tmp_path, caplog):
    save(tmp_path, [10, 20, 30], best=10)
    flip(largest_file(tmp_path / "20" / "params"))
    _, tree, _ = load_params(tmp_path, "average:2", template(params(0)))
    for leaf, older, newer in zip(*map(jax.tree.leaves, (tree, params(10), params(30))), strict=True):
        np.testing.assert_allclose(leaf, (np.asarray(older, float) + np.asarray(newer, float)) / 2)
    assert "checkpoint 20 is damaged" in caplog.text
    with pytest.raises(UserError, match=r"3 checkpoints to average, but only 2 can be used .*keep_checkpoints"):
        load_params(tmp_path, "average:3", template(params(0)))
    with pytest.raises(UserError, match="average:N"):
        load_params(tmp_path, "average:0", template(params(0)))


def test_a_missing_step_names_those_there(tmp_path):
    save(tmp_path, [10, 20])
    shape = template(params(0))
    with pytest.raises(UserError, match="no checkpoint 15; saved: 10, 20"):
        load_params(tmp_path, "15", shape)
    with pytest.raises(UserError, match='the number of a step or average:N, got "newest"'):
        load_params(tmp_path, "newest", shape)
    with pytest.raises(UserError, match="no checkpoint; saved: none"):
        load_params(tmp_path / "other", "best", shape)


def test_a_damaged_best_gives_way_to_the_newest_sound_but_a_named_step_does_not(tmp_path, caplog):
    save(tmp_path, [10, 20, 30], best=10)
    flip(largest_file(tmp_path / "10" / "params"))
    shape = template(params(0))
    assert load_params(tmp_path, "best", shape)[0] == 30
    assert "checkpoint 10 is damaged" in caplog.text
    with pytest.raises(UserError, match="checkpoint 10 is damaged"):
        load_params(tmp_path, "10", shape)


def test_another_shape_is_refused(tmp_path):
    save(tmp_path, [10])
    with pytest.raises(UserError):
        load_params(tmp_path, "last", template(params(0) | {"b": jnp.arange(8.0)}))


SAVER = """
import sys, jax.numpy as jnp
from pathlib import Path
from runs.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]), 2)
for step in range(1, 1000):
    params = {"w": jnp.full((300, 1000), float(step))}
    checkpoints.save(step, params, (jnp.int32(step),), {}, None)
    print(step, flush=True)
"""


def test_a_killed_save_never_leaves_a_half_checkpoint_that_loads(tmp_path):
    shape = {"w": jnp.zeros((300, 1000))}
    for wait in (0.02, 0.11, 0.23):
        process = subprocess.Popen([sys.executable, "-c", SAVER, tmp_path], stdout=subprocess.PIPE, cwd=ROOT)
        for _ in range(3):
            process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        step, tree, _ = load_params(tmp_path, "last", template(shape))
        assert (tree["w"] == step).all()
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
