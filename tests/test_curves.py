"""Curves: the points of the picture, and event files as TensorBoard reads them."""

import json
import math
import struct

import numpy as np
import pytest

from runtime.workdir import Workdir
from tests.processes import events, metrics
from training.curves import POINTS, Curves
from training.event_files import EventFiles


def lines_of(axes):
    return {line.get_label(): tuple(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}


def test_the_points_by_hand():
    curves = Curves()
    for step in range(1, 2 * POINTS + 1):
        curves.add({"step": step, "loss": None if step == 3 else float(step)})
    curves.add({"step": 7, "validation_loss": 2.0, "validation_loss_shuffled": 3.0, "validation_bleu": 1.5})
    curves.add({"step": 9, "validation_loss": 1.0, "validation_loss_shuffled": None, "validation_bleu": 8.0})
    losses, scores = curves.draw("a run").axes
    drawn = lines_of(losses)
    training = drawn["training, with dropout and label smoothing"]
    assert len(training) == POINTS
    assert training[0] == (1.5, 1.5)
    assert training[1] == (4.5, 4.5)  # 3 is not a number
    assert training[-1] == (2 * POINTS, 2 * POINTS)
    assert drawn["validation"] == ((7, 2.0), (9, 1.0))
    shuffled = drawn["validation, sources shuffled"]
    assert shuffled[0] == (7, 3.0)
    assert math.isnan(shuffled[1][1])
    assert list(lines_of(scores).values()) == [((7, 1.5), (9, 8.0))]


def test_a_run_without_anything_to_draw():
    assert len(Curves().draw("a run").axes) == 2


def test_events_beyond_the_checkpoint_are_dropped(tmp_path):
    """A process that died at step 5 with a checkpoint of step 3, whose validation was not in it."""
    workdir = Workdir(tmp_path)
    first = EventFiles(tmp_path / "tensorboard", [], 0)
    first.write([{"step": step, "loss": float(step), "seconds": 1.0} for step in range(1, 6)])
    first.write([{"step": 3, "validation_loss": 30.0, "validation_bleu": None}])  # flushed, and no close
    done = [{"step": step, "loss": float(step)} for step in range(1, 4)]
    second = EventFiles(workdir.path / "tensorboard", done, 3)
    second.write([{"step": 3, "validation_loss": 30.5}, {"step": 4, "loss": 40.0}, {"step": 5, "loss": 50.0}])
    second.close()
    assert events(tmp_path) == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)],
        "validation/loss": [(3, 30.5)],
    }


def test_a_run_begun_again_from_nothing_shows_once(tmp_path):
    for value in (1.0, 2.0):
        EventFiles(tmp_path / "tensorboard", [], 0).write([{"step": 1, "loss": value}])
    assert events(tmp_path) == {"train/loss": [(1, 2.0)]}


def test_a_run_writes_both(trained):
    """TensorBoard shows every number of metrics.jsonl that is a curve; the picture is one."""
    workdir, _ = trained
    found = events(workdir)
    for line in metrics(workdir):
        group = "validation" if "validation_loss" in line else "train"
        for name, value in line.items():
            if name != "step":
                assert dict(found[f"{group}/{name.removeprefix('validation_')}"])[line["step"]] == pytest.approx(
                    value, rel=1e-6
                )
    assert len(found["train/loss"]) == 240
    assert [step for step, _ in found["validation/bleu"]] == [80, 160, 240]
    header = (workdir / "curves.png").read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert np.prod(struct.unpack(">II", header[16:24])) > 500_000


def test_a_resumed_run_draws_everything_again_and_events_can_be_turned_off(toy, run, tmp_path):
    options = ["--training.eval-every", 0, "--training.tensorboard", "False"]
    sizes = []
    for steps in (20, 40):
        done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options, "--training.num-steps", steps)
        assert done.returncode == 0, done.stderr
        sizes.append((tmp_path / "w" / "curves.png").read_bytes())
    assert sizes[0] != sizes[1]
    assert not (tmp_path / "w" / "tensorboard").exists()
    assert json.loads((tmp_path / "w" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 40
