"""What a run reports about its pace: programs compiled, and how long the device was idle."""

import os
import re
import time
from types import SimpleNamespace

import jax

from lingua_flax.training import in_flight
from lingua_flax.training.trainer import Trainer
from tests.command_server import run_here
from tests.helpers.commands import succeed
from tests.processes import read_lines

SHORT = ["--training.num-steps", "12", "--training.log-every", "6", "--training.eval-every", "0"]


def test_device_is_idle_while_batches_are_late(toy, trained, tmp_path, monkeypatch):
    """Each arrives 1,000 s after the last step, by the clock that measures idle time; steps make no implicit transfers.
    In the default run, which compiles all runs in the same way, the programs are those of `trained`, from the cache."""
    late, take_step = 0, Trainer._take_step

    def guarded(self, batch):
        nonlocal late
        jax.block_until_ready(self.learner.state)
        late += 1000
        with jax.transfer_guard("disallow"):
            take_step(self, batch)

    monkeypatch.setattr(Trainer, "_take_step", guarded)
    monkeypatch.setattr(in_flight, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    said = succeed(run_here, "train", "--config", toy, "--workdir", tmp_path, *SHORT).stderr
    from_cache = "2" if "JAX_DISABLE_MOST_OPTIMIZATIONS" in os.environ else r"\d"
    assert re.search(rf"^compiled 2 programs, {from_cache} from the cache, [\d.]+ s$", said, re.MULTILINE)
    lines = read_lines(tmp_path)
    assert [line["programs_compiled"] for line in lines] == [2] * 12
    assert all(line["compile_seconds"] > 0 for line in lines)
    assert all(0.9 < line["idle"] <= 1.0 for line in lines)
    with_validations = [line["idle"] for line in read_lines(trained[0]) if "idle" in line]
    assert 0.0 <= min(with_validations) <= max(with_validations) <= 1.0
