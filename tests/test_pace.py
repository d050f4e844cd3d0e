"""What a run tells of its speed: programs compiled, and how long the device has waited for batches."""

import re
import subprocess
import sys

from tests.conftest import ROOT
from tests.processes import read_lines

LATE = """
import runpy, sys, time
sys.path.insert(0, ".")
import data.training_batches
soon = data.training_batches.TrainingBatches.__next__
data.training_batches.TrainingBatches.__next__ = lambda self: (time.sleep(0.2), soon(self))[1]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SHORT = ["--training.num-steps", "12", "--training.log-every", "6", "--training.eval-every", "0"]


def test_initialization_and_step_are_compiled_once_and_found_by_the_second_start(toy, run, tmp_path):
    for number, from_cache in ((1, r"\d"), (2, "2")):
        done = run("train.py", "--config", toy, "--workdir", tmp_path / str(number), *SHORT)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^compiled 2 programs, {from_cache} from the cache, [\d.]+ s$", done.stderr, re.MULTILINE)
        lines = read_lines(tmp_path / str(number))
        assert [line["programs_compiled"] for line in lines] == [2] * 12
        assert all(line["compile_seconds"] > 0 for line in lines)
        assert all(0.0 <= line["waiting"] <= 1.0 for line in lines)


def test_waiting_is_a_share_also_where_batches_come_in_bursts(trained):
    shares = [line["waiting"] for line in read_lines(trained[0]) if "waiting" in line]
    assert 0.0 <= min(shares) <= max(shares) <= 1.0


def test_batches_that_are_late_make_the_device_wait(toy, tmp_path):
    command = [sys.executable, "-c", LATE, "train.py", "--config", str(toy), "--workdir", str(tmp_path), *SHORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert read_lines(tmp_path)[-1]["waiting"] > 0.5


# Makes every implicit transfer in the thread that takes the steps an error.
GUARDED = """
import runpy, sys
import jax
import training.loop
take_step = training.loop.Run._take_step

def guarded(self, batch):
    with jax.transfer_guard("disallow"):
        take_step(self, batch)

training.loop.Run._take_step = guarded
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_step_transfers_nothing_implicitly(toy, run, tmp_path):
    done = run("-c", GUARDED, "train.py", "--config", toy, "--workdir", tmp_path, *SHORT)
    assert done.returncode == 0, done.stderr
    assert read_lines(tmp_path)[-1]["step"] == 12
