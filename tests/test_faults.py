"""What may happen to a run, made to happen: signals in a save, full disks, two trainings, files that were changed."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from runs.checkpoint import saved_steps
from runs.workdir import LOCK_NAME
from tests.conftest import PROMPTLY
from tests.processes import digests, metrics, start, wait_for
from tests.toy import write_corpus


def is_saving(workdir: Path) -> bool:
    """Whether Orbax is writing a checkpoint, which has another name until it is complete."""
    folder = workdir / "checkpoints"
    return folder.exists() and any("tmp" in path.name for path in folder.iterdir())


def same(workdir: Path, other: Path) -> bool:
    """Whether two runs are the same one: every number of metrics.jsonl, every array."""
    return metrics(workdir) == metrics(other) and digests(workdir) == digests(other)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_during_a_save_waits_for_it(trained, toy, run, tmp_path, number, status):
    process = start(toy, tmp_path / "w")
    wait_for(process, lambda: is_saving(tmp_path / "w"))
    process.send_signal(number)
    _, errors = process.communicate(timeout=PROMPTLY)
    assert process.returncode == status, errors
    newest = saved_steps(tmp_path / "w" / "checkpoints")[-1]
    assert f"\nstep {newest} is saved; run the same command again to continue\n" in errors
    assert not is_saving(tmp_path / "w")
    assert run("train.py", "--workdir", tmp_path / "w").returncode == 0
    assert same(tmp_path / "w", trained[0])


LATE = """
import shutil, sys
from commands.train import train
from runs.workdir import Workdir

create = Workdir.create

def create_after_another_run(workdir):
    shutil.copytree(sys.argv[1], workdir.path)
    create(workdir)

Workdir.create = create_after_another_run
train(sys.argv[2:])
"""


def test_a_run_that_came_and_went_during_the_preparation_of_another_is_gone_on_with(trained, toy, run, tmp_path):
    """Nothing is known of the folder before it is locked: what was measured in the meantime is kept."""
    done = run("-c", LATE, trained[0], "--config", toy, "--workdir", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert "finished: 240 of 240 steps" in done.stdout
    assert (tmp_path / "w" / "metrics.jsonl").read_bytes() == (trained[0] / "metrics.jsonl").read_bytes()


def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(trained, toy, run, tmp_path):
    """Both are there before the first one can be answered."""
    workdir = tmp_path / "w"
    process = start(toy, workdir)
    wait_for(process, lambda: 40 in saved_steps(workdir / "checkpoints"))
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(number)
    _, errors = process.communicate(timeout=PROMPTLY)
    # Which of two pending signals reaches Python first is up to the kernel and its choice of a thread.
    ends = [(130, "stopped by SIGINT"), (143, "stopped by SIGTERM")]
    assert (process.returncode, errors.splitlines()[-1]) in ends, errors
    assert "is saved" not in errors
    assert 40 in saved_steps(workdir / "checkpoints")
    assert run("train.py", "--workdir", workdir).returncode == 0
    assert same(workdir, trained[0])


def test_two_trainings_in_one_workdir(trained, toy, run, tmp_path):
    workdir = tmp_path / "w"
    first = start(toy, workdir)
    wait_for(first, (workdir / "metrics.jsonl").exists)
    second = run("train.py", "--workdir", workdir)
    assert second.returncode == 2, second.stderr
    assert f"error: {workdir}: process {first.pid} on " in second.stderr
    assert "is training in it" in second.stderr
    first.kill()
    first.communicate()
    assert (workdir / LOCK_NAME).exists()  # which blocks nobody
    done = run("train.py", "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert same(workdir, trained[0])
    assert not (workdir / LOCK_NAME).exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MB; a skip where this user may mount none."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path, left: int) -> Path:
    """Fills a file system up to so many bytes, also where others write at the same time; returns the file to remove."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while (free := os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize) > left:
            file.write(bytes(min(free - left, 1 << 20)))
    return filler


@pytest.mark.parametrize(
    "left", [pytest.param(0, marks=pytest.mark.slow, id="logging"), pytest.param(50_000, id="saving")]
)
def test_a_disk_that_fills_up(trained, toy, run, small_disk, left):
    """Not a byte is left for metrics.jsonl, or enough for that and not for a checkpoint of 90 kB."""
    workdir = small_disk / "w"
    process = start(toy, workdir)
    wait_for(process, lambda: 40 in saved_steps(workdir / "checkpoints"))
    filler = fill(small_disk, left)
    _, errors = process.communicate(timeout=PROMPTLY)
    assert process.returncode == 1, errors
    assert errors.count("the disk is full") == 1
    assert "what was saved before is intact: make space and run this again" in errors
    assert "Traceback" not in errors
    assert 40 in saved_steps(workdir / "checkpoints")
    again = run("train.py", "--workdir", workdir)
    assert again.returncode == 1, again.stderr
    filler.unlink()
    done = run("train.py", "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert same(workdir, trained[0])


@pytest.mark.slow
def test_a_disk_that_is_full_while_data_is_prepared(run, small_disk, tmp_path):
    cache = os.environ | {"XDG_CACHE_HOME": str(small_disk)}
    filler = fill(small_disk, 100_000)
    train = ["train.py", "--config", "configs/tiny.toml", "--workdir", tmp_path / "w", "--training.num-steps", 1,
             "--training.eval-every", 0, "--optimizer.warmup-steps", 0, "--model.num-encoder-layers", 1,
             "--model.num-decoder-layers", 1]  # fmt: skip
    done = run(*train, env=cache)
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "w").exists()
    filler.unlink()
    assert run(*train, env=cache).returncode == 0


CHANGED = [
    ("embed_dim = 32", "embed_dim = 64", "model.embed_dim: 32 in checkpoint 240, now 64", True),
    ("peak_lr = 0.01", "peak_lr = 0.02", "optimizer.peak_lr: 0.01 in checkpoint 240, now 0.02", False),
]


@pytest.mark.parametrize(("old", "new", "message", "of_the_model"), CHANGED)
def test_a_config_that_was_changed_since_the_checkpoint(trained, run, tmp_path, old, new, message, of_the_model):
    """By hand, in the workdir: there is nothing to compare the command line with."""
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    config = workdir / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    steps = saved_steps(workdir / "checkpoints")
    done = run("train.py", "--workdir", workdir, "--training.num-steps", 250)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert saved_steps(workdir / "checkpoints") == steps
    translated = run("translate.py", "--workdir", workdir, input="one.\n")
    assert translated.returncode == (2 if of_the_model else 0), translated.stderr
    assert (message in translated.stderr) == of_the_model


def test_a_tokenizer_that_was_changed_since_the_checkpoint(trained, toy, run, tmp_path):
    workdir, other = tmp_path / "w", tmp_path / "other"
    shutil.copytree(trained[0], workdir)
    options = ["--tokenizer.kind", "bpe", "--training.num-steps", 1, "--training.eval-every", 0]
    assert run("train.py", "--config", toy, "--workdir", other, *options).returncode == 0
    shutil.copy(other / "tokenizer.model", workdir)
    done = run("train.py", "--workdir", workdir, "--training.num-steps", 250)
    assert done.returncode == 2, done.stderr
    assert "its checkpoints were made with a different tokenizer" in done.stderr


def test_what_may_change_and_what_a_schedule_says_to_it(toy, run, tmp_path):
    """Paths, length, logging; the cosine's end is the length."""
    workdir, moved = tmp_path / "w", tmp_path / "moved ö"
    short = ["--training.eval-every", 0, "--training.num-steps"]
    cosine = ["--optimizer.schedule", "cosine"]
    assert run("train.py", "--config", toy, "--workdir", workdir, *cosine, *short, 40).returncode == 0
    shutil.move(workdir, moved)
    files = write_corpus(tmp_path / "files").parent
    paths = [
        option
        for split in ("train", "validation", "test")
        for side, ending in (("source", "en"), ("target", "fr"))
        for option in (f"--data.{split}-{side}", files / f"{split}.{ending}")
    ]
    done = run("train.py", "--workdir", moved, *short, 50, "--training.log-every", 5, *paths)
    assert done.returncode == 0, done.stderr
    assert "the cosine schedule depends on the number of steps, 40 when this checkpoint was saved and now 50" in (
        done.stderr
    )
    assert [line["step"] for line in metrics(moved)] == list(range(1, 51))


@pytest.mark.slow
def test_5000_steps_leave_memory_files_and_threads_as_they_are(toy, tmp_path):
    """Read from the kernel every tenth of a second; with validations, saves and everything else a run does."""
    every = ["--training.eval-every", 250, "--training.checkpoint-every", 100]
    with open(tmp_path / "log", "w") as log:
        process = start(toy, tmp_path / "w", "--training.num-steps", 5000, *every, stdout=log, stderr=log)
    seen: dict[int, tuple[int, int, int]] = {}
    lines = tmp_path / "w" / "metrics.jsonl"
    while process.poll() is None:
        time.sleep(0.1)
        last = lines.read_text().splitlines()[-1:] if lines.exists() else []
        step = re.search(r'"step": (\d+)', last[0]) if last else None
        if step and (found := usage(process.pid)):
            seen[int(step[1])] = found
    assert process.wait() == 0, (tmp_path / "log").read_text()[-500:]
    early, late = ([use for step, use in seen.items() if low <= step < low + 500] for low in (500, 4500))
    memory, files, threads = ([[use[what] for use in uses] for uses in (early, late)] for what in range(3))
    assert max(memory[1]) <= 1.05 * max(memory[0]), (memory, len(seen))
    assert min(files[1]) <= min(files[0])  # between two saves, that is
    assert min(threads[1]) <= min(threads[0]) + 2  # pools keep one more or less; what leaks would do so at each save


def usage(pid: int) -> tuple[int, int, int] | None:
    """Resident memory in kB, open files and threads of a process, None where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]), files, int(re.search(r"Threads:\s+(\d+)", status)[1])
    except (OSError, TypeError):
        return None
