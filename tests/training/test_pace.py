"""What a run reports about its pace: programs compiled, and how long the device was idle."""

import re
import time
from types import SimpleNamespace

import jax

from lingua_flax.training import step_meter
from lingua_flax.training.loop import Run
from tests.processes import read_lines

SHORT = ["--training.num-steps", "12", "--training.log-every", "6", "--training.eval-every", "0"]


def test_device_is_idle_while_batches_are_late(toy, run, tmp_path, monkeypatch):
    """Each arrives 1,000 s after the last step, by the clock that measures idle time; steps make no implicit transfers.

    The second run loads its two programs, of the initialization and the step, from the cache.
    """
    late, take_step = 0, Run._take_step

    def guarded(self, batch):
        nonlocal late
        jax.block_until_ready(self._state)
        late += 1000
        with jax.transfer_guard("disallow"):
            take_step(self, batch)

    monkeypatch.setattr(Run, "_take_step", guarded)
    monkeypatch.setattr(step_meter, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    for name, from_cache in (("first", r"\d"), ("second", "2")):
        done = run("train", "--config", toy, "--workdir", tmp_path / name, *SHORT)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^compiled 2 programs, {from_cache} from the cache, [\d.]+ s$", done.stderr, re.MULTILINE)
        lines = read_lines(tmp_path / name)
        assert [line["programs_compiled"] for line in lines] == [2] * 12
        assert all(line["compile_seconds"] > 0 for line in lines)
        assert all(0.9 < line["idle"] <= 1.0 for line in lines)


def test_idle_time_is_a_share_of_time_in_a_run_with_validations(trained):
    shares = [line["idle"] for line in read_lines(trained[0]) if "idle" in line]
    assert 0.0 <= min(shares) <= max(shares) <= 1.0
