"""Runs that are killed and stopped by signals, and second trainings in their workdirs, change nothing about them."""

import os
import re
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import LOCK_NAME
from tests.conftest import PROMPTLY
from tests.helpers.commands import succeed
from tests.processes import TIMES, digests, events, metrics


def train_until(moment, run, config, workdir) -> tuple[Future, int]:
    """Begins or resumes training in another process; at a moment, returns its result to come, and its number."""
    thread = ThreadPoolExecutor(1)
    training = thread.submit(run, "train", "--config", config, "--workdir", workdir, process=True)
    thread.shutdown(wait=False)
    while not moment():
        assert not training.done(), training.result().stderr
        time.sleep(0.005)
    return training, int(re.findall(r"^process (\d+) on ", (workdir / LOCK_NAME).read_text(encoding="utf-8"))[0])


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
    begun = workdir / "tokenizer.model"
    training, pid = train_until(lambda: newest(workdir) >= step and begun.exists(), run, toy, workdir)
    os.kill(pid, signal.SIGKILL)
    assert training.result().returncode == -signal.SIGKILL


def stop(run, toy, workdir, number, moment) -> None:
    """Resumes the run, and sends it a signal at a moment in training, at which it is saved.

    The process is suspended first, while a second training in its workdir is refused.
    """
    killed_at, lines = newest(workdir), logged(workdir)
    training, pid = train_until(lambda: logged(workdir) > lines and moment(workdir), run, toy, workdir)
    os.kill(pid, signal.SIGSTOP)
    signaled_at, second = logged(workdir), run("train", "--workdir", workdir)
    for each in (number, signal.SIGCONT):
        os.kill(pid, each)
    assert second.returncode == 2, second.stderr
    assert re.search(f"error: {workdir}: process {pid} on .* is training in it", second.stderr)
    done = training.result(PROMPTLY)
    assert done.returncode == 128 + number, done.stderr
    assert f"resuming from step {killed_at}\n" in done.stderr
    assert done.stderr.endswith(f"\nstep {newest(workdir)} is saved; run the same command again to continue\n")
    assert "Traceback" not in done.stderr
    assert not is_saving(workdir)
    assert signaled_at <= newest(workdir)
    assert (newest(workdir) < 240) == (signaled_at < 240)  # it does not run to its end first


def stop_at_once(run, toy, workdir) -> None:
    """Resumes the run, and sends two signals to its process, which can respond to neither before both are pending."""
    before = newest(workdir)
    training, pid = train_until(lambda: newest(workdir) > before, run, toy, workdir)
    saved = newest(workdir)
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, number)
    done = training.result(PROMPTLY)
    # The kernel, which chooses the thread that handles a signal, decides which of the two Python sees first.
    ends = [(130, "stopped by SIGINT"), (143, "stopped by SIGTERM")]
    assert (done.returncode, done.stderr.splitlines()[-1]) in ends, done.stderr
    assert "is saved" not in done.stderr
    assert saved in saved_steps(workdir / "checkpoints")


# The steps after which the run is killed, then a signal that stops it, its moment, and whether it is stopped again.
MOMENTS = {
    "saving": ([40], signal.SIGTERM, is_saving, False),
    "training": ([40], signal.SIGTERM, lambda _: True, True),
    "validation": ([0, 120], signal.SIGINT, lambda workdir: logged(workdir) == 160, True),
    "last validation": ([40], signal.SIGTERM, lambda workdir: logged(workdir) == 240, False),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("training", "validation", "last validation")]


@pytest.mark.parametrize("name", ["saving", *SLOW])
def test_interrupted_run_is_the_uninterrupted_one_bit_for_bit(trained, toy, run, tmp_path, name):
    """In the end, its newest checkpoint is damaged, too."""
    workdir, (kills, number, moment, is_stopped_again) = tmp_path / "interrupted run", MOMENTS[name]
    for step in kills:
        kill(run, toy, workdir, step)
    stop(run, toy, workdir, number, moment)
    if is_stopped_again:
        stop_at_once(run, toy, workdir)
    damaged = newest(workdir)
    for path in (workdir / "checkpoints" / str(damaged) / "params").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size - 20)
    said = succeed(run, "train", "--config", toy, "--workdir", workdir).stderr
    assert f"checkpoint {damaged} is damaged" in said
    assert not (workdir / LOCK_NAME).exists()
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])
    actual, expected = events(workdir), events(trained[0])
    assert actual.keys() == expected.keys()
    assert all(actual[name] == expected[name] for name in actual if name.removeprefix("train/") not in TIMES)
