"""Starts commands in the background, kills workers, and reads the files of a run without the timings in them."""

import json
import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from tests.command_server import python
from tests.conftest import HUNG_AFTER, ROOT

TIMES = {"seconds", "validation_seconds", "tokens_per_second", "idle", "programs_compiled", "compile_seconds"}


def start_command(program, *arguments, **options) -> subprocess.Popen:
    """Starts a command of the project with pipes for its output."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*python(program), *map(str, arguments)], cwd=ROOT, **(pipes | options))


def start(config, workdir, *arguments, **options) -> subprocess.Popen:
    """Starts training."""
    return start_command("train", "--config", config, "--workdir", workdir, *arguments, **options)


def kill_workers(earlier: Sequence[multiprocessing.Process]) -> None:
    """Kills the worker processes of this one, at least one, except for earlier ones, which may still be ending."""
    while not (workers := set(multiprocessing.active_children()) - set(earlier)):
        time.sleep(0.001)
    for process in workers:
        process.kill()


def simulated_devices(count: int) -> dict[str, str]:
    """Returns the environment for a command that finds so many devices, which share the cores of this machine."""
    flags = os.environ.get("XLA_FLAGS", "")
    return os.environ | {"XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}"}


def free_port() -> int:
    """Returns a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def finish(processes) -> list[tuple[int, str, str]]:
    """Waits for the processes to end. Returns the exit status, stdout and stderr of each."""
    outputs = [process.communicate(timeout=HUNG_AFTER) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def wait_for(process, condition, seconds=HUNG_AFTER) -> None:
    """Waits until the condition holds while the process runs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError(f"the condition does not hold after {seconds} s")


def metrics(workdir: Path) -> list[dict]:
    """Returns the lines of metrics.jsonl without times and rates."""
    return [{name: value for name, value in line.items() if name not in TIMES} for line in read_lines(workdir)]


def read_lines(workdir: Path) -> list[dict]:
    """Returns the lines of metrics.jsonl."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def digests(workdir: Path) -> tuple[int, dict]:
    """Returns the step of the newest checkpoint and the SHA-256 of each of its arrays."""
    newest = saved_steps(workdir / "checkpoints")[-1]
    return newest, read_metadata(workdir / "checkpoints", newest)["digests"]


def events(workdir: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the (step, value) pairs of each curve that TensorBoard shows for a workdir."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(workdir), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }
