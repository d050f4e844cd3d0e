"""Runs that are killed and stopped by signals, and second trainings in their workdirs, change nothing about them."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import LOCK_NAME
from tests.conftest import PROMPTLY
from tests.processes import TIMES, digests, events, metrics, wait_for


class BackgroundTraining:
    """A process that trains, forked by the fixture `run` in a thread; has what tests need of Popen."""

    def __init__(self, run, config: Path, workdir: Path):
        self._lock = workdir / LOCK_NAME
        thread = ThreadPoolExecutor(1)
        self._result = thread.submit(run, "train", "--config", config, "--workdir", workdir, process=True)
        thread.shutdown(wait=False)

    @property
    def pid(self) -> int:
        """The number of the process, as named in the lock of its workdir once it trains."""
        return int(re.match(r"process (\d+) on ", self._lock.read_text(encoding="utf-8"))[1])

    @property
    def returncode(self) -> int:
        return self._result.result().returncode

    def poll(self) -> int | None:
        return self.returncode if self._result.done() else None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        result = self._result.result(timeout)
        return result.stdout, result.stderr


def is_saving(workdir: Path) -> bool:
    """Returns whether Orbax is writing a checkpoint, which has a temporary name until it is complete."""
    folder = workdir / "checkpoints"
    return folder.exists() and any("tmp" in path.name for path in folder.iterdir())


def newest(workdir) -> int:
    return max(saved_steps(workdir / "checkpoints"), default=0)


def logged(workdir) -> int:
    """Returns the last step in metrics.jsonl, whose last line may be incomplete."""
    file = workdir / "metrics.jsonl"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return max(map(int, re.findall(r'"step": (\d+),', text)), default=0)


def kill(run, toy, workdir, step) -> None:
    """Trains, and kills the process as soon as a checkpoint is saved or, before the first one, training begins."""
    training = BackgroundTraining(run, toy, workdir)
    wait_for(training, (lambda: newest(workdir) >= step) if step else (workdir / "tokenizer.model").exists)
    os.kill(training.pid, signal.SIGKILL)
    training.communicate()
    assert training.returncode == -signal.SIGKILL


def stop(run, toy, workdir, number, moment) -> None:
    """Resumes the run, and sends it a signal at a moment in training, at which it is saved."""
    killed_at, lines = newest(workdir), logged(workdir)
    training = BackgroundTraining(run, toy, workdir)
    wait_for(training, lambda: logged(workdir) > lines and moment(workdir))
    signaled_at = logged(workdir)
    os.kill(training.pid, number)
    _, errors = training.communicate(timeout=PROMPTLY)
    assert training.returncode == 128 + number, errors
    assert f"resuming from step {killed_at}\n" in errors
    assert errors.endswith(f"\nstep {newest(workdir)} is saved; run the same command again to continue\n")
    assert "Traceback" not in errors
    assert not is_saving(workdir)
    assert signaled_at <= newest(workdir)
    assert (newest(workdir) < 240) == (signaled_at < 240)  # it does not run to its end first


def stop_at_once(run, toy, workdir) -> None:
    """Resumes the run, tries to start a second training in its workdir, and sends two signals to the first.

    The process is suspended meanwhile, so both signals are pending before it can respond to either of them.
    """
    before = newest(workdir)
    training = BackgroundTraining(run, toy, workdir)
    wait_for(training, lambda: newest(workdir) > before)
    pid, saved = training.pid, newest(workdir)
    os.kill(pid, signal.SIGSTOP)
    second = run("train", "--workdir", workdir)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, number)
    _, errors = training.communicate(timeout=PROMPTLY)
    assert second.returncode == 2, second.stderr
    assert f"error: {workdir}: process {pid} on " in second.stderr
    assert "is training in it" in second.stderr
    # The kernel, which chooses the thread that handles a signal, decides which of the two Python sees first.
    ends = [(130, "stopped by SIGINT"), (143, "stopped by SIGTERM")]
    assert (training.returncode, errors.splitlines()[-1]) in ends, errors
    assert "is saved" not in errors
    assert saved in saved_steps(workdir / "checkpoints")
    assert (workdir / LOCK_NAME).exists()


@pytest.mark.parametrize(
    ("kills", "number", "moment"),
    [
        pytest.param([40], signal.SIGTERM, is_saving, id="SIGTERM-while-saving"),
        pytest.param([40], signal.SIGINT, is_saving, id="SIGINT-while-saving", marks=pytest.mark.slow),
        pytest.param([40], signal.SIGTERM, lambda _: True, id="in-training", marks=pytest.mark.slow),
        pytest.param(
            [0, 120], signal.SIGINT, lambda workdir: logged(workdir) == 160, id="validation", marks=pytest.mark.slow
        ),
        pytest.param(
            [40], signal.SIGTERM, lambda workdir: logged(workdir) == 240, id="last-validation", marks=pytest.mark.slow
        ),
    ],
)
def test_interrupted_run_is_the_uninterrupted_one_bit_for_bit(trained, toy, run, tmp_path, kills, number, moment):
    """In the end, its newest checkpoint is damaged, too."""
    workdir = tmp_path / "interrupted run"
    for step in kills:
        kill(run, toy, workdir, step)
    stop(run, toy, workdir, number, moment)
    if newest(workdir) < 200:
        stop_at_once(run, toy, workdir)
    damaged = newest(workdir)
    for path in (workdir / "checkpoints" / str(damaged) / "params").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size - 20)
    done = run("train", "--config", toy, "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {damaged} is damaged" in done.stderr
    assert not (workdir / LOCK_NAME).exists()
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])
    actual, expected = events(workdir), events(trained[0])
    assert actual.keys() == expected.keys()
    assert all(actual[name] == expected[name] for name in actual if name.removeprefix("train/") not in TIMES)
