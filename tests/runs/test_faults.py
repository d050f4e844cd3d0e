"""Faults during a run: signals during a save, full disks, two trainings in one workdir, files changed in between."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import LOCK_NAME
from lingua_flax.translation.translator import Translator
from tests.conftest import PROMPTLY
from tests.processes import digests, metrics, start, wait_for
from tests.toy import write_corpus

STEPS = 240


@pytest.fixture(scope="module")
def config(toy) -> Path:
    """Returns a config without validations, and with a schedule that depends on the length of the run."""
    text = toy.read_text(encoding="utf-8").replace("eval_every = 80", "eval_every = 0")
    path = toy.with_name("faults.toml")
    path.write_text(text.replace("[optimizer]", '[optimizer]\nschedule = "cosine"'), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def reference(config, run, tmp_path_factory) -> Path:
    """Returns the workdir of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("reference") / "w"
    result = run("train", "--config", config, "--workdir", workdir)
    assert result.returncode == 0, result.stderr
    return workdir


class BackgroundTraining:
    """A process that trains, forked by `run` in a thread; has the methods of Popen that these tests need."""

    def __init__(self, run, config: Path, workdir: Path):
        self._lock = workdir / LOCK_NAME
        thread = ThreadPoolExecutor(1)
        self._result = thread.submit(run, "train", "--config", config, "--workdir", workdir)
        thread.shutdown(wait=False)

    @property
    def pid(self) -> int:
        """The number of the process, as named in the lock of its workdir."""
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


@contextlib.contextmanager
def paused_between_saves(training: BackgroundTraining, workdir: Path) -> Iterator[None]:
    """Stops a process while it is not saving: TensorStore prints tracebacks if a disk becomes full meanwhile."""
    os.kill(training.pid, signal.SIGSTOP)
    while is_saving(workdir):
        os.kill(training.pid, signal.SIGCONT)
        time.sleep(0.005)
        os.kill(training.pid, signal.SIGSTOP)
    yield
    os.kill(training.pid, signal.SIGCONT)


def same(workdir: Path, other: Path) -> bool:
    """Returns whether two runs are equal in every number in metrics.jsonl and every array of the last checkpoint."""
    return metrics(workdir) == metrics(other) and digests(workdir) == digests(other)


def stop_during_save(run, config: Path, workdir: Path, number: int) -> tuple[int, str]:
    """Sends a signal to a new run while it saves its first checkpoint. Returns its exit status and stderr."""
    training = BackgroundTraining(run, config, workdir)
    wait_for(training, lambda: is_saving(workdir))
    os.kill(training.pid, number)
    _, errors = training.communicate(timeout=PROMPTLY)
    return training.returncode, errors


def check_stopped_during_save(workdir: Path, status: int, errors: str, expected_status: int) -> None:
    assert status == expected_status, errors
    newest = saved_steps(workdir / "checkpoints")[-1]
    assert f"\nstep {newest} is saved; run the same command again to continue\n" in errors
    assert not is_saving(workdir)


@pytest.fixture(scope="module")
def stopped(config, run, tmp_path_factory) -> SimpleNamespace:
    """Returns workdir, exit status and stderr of a run that received SIGTERM during a save."""
    workdir = tmp_path_factory.mktemp("stopped") / "w"
    status, errors = stop_during_save(run, config, workdir, signal.SIGTERM)
    return SimpleNamespace(workdir=workdir, status=status, errors=errors)


def test_signal_during_save_waits_for_it(stopped):
    check_stopped_during_save(stopped.workdir, stopped.status, stopped.errors, 143)


@pytest.mark.slow
def test_ctrl_c_during_save_waits_for_it(reference, config, run, tmp_path):
    check_stopped_during_save(tmp_path / "w", *stop_during_save(run, config, tmp_path / "w", signal.SIGINT), 130)
    assert run("train", "--workdir", tmp_path / "w").returncode == 0
    assert same(tmp_path / "w", reference)


@pytest.fixture(scope="module")
def stopped_at_once(stopped, config, run, tmp_path_factory) -> SimpleNamespace:
    """Resumes the stopped run, tries to start a second training in its workdir, and sends two signals to the first.

    The process is suspended meanwhile, so both signals are pending before it can respond to either of them.
    """
    workdir = tmp_path_factory.mktemp("twice") / "w"
    shutil.copytree(stopped.workdir, workdir)
    training = BackgroundTraining(run, config, workdir)
    wait_for(training, lambda: 80 in saved_steps(workdir / "checkpoints"))
    pid = training.pid
    os.kill(pid, signal.SIGSTOP)
    second = run("train", "--workdir", workdir)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, number)
    _, errors = training.communicate(timeout=PROMPTLY)
    return SimpleNamespace(
        workdir=workdir,
        pid=pid,
        second=second,
        status=training.returncode,
        errors=errors,
        steps=saved_steps(workdir / "checkpoints"),
        was_locked=(workdir / LOCK_NAME).exists(),
        resumed=run("train", "--workdir", workdir),
    )


def test_second_training_in_workdir_is_refused(stopped_at_once):
    workdir, second = stopped_at_once.workdir, stopped_at_once.second
    assert second.returncode == 2, second.stderr
    assert f"error: {workdir}: process {stopped_at_once.pid} on " in second.stderr
    assert "is training in it" in second.stderr


def test_lock_of_dead_process_blocks_nobody(stopped_at_once):
    assert stopped_at_once.was_locked
    assert stopped_at_once.resumed.returncode == 0, stopped_at_once.resumed.stderr
    assert not (stopped_at_once.workdir / LOCK_NAME).exists()


def test_second_signal_ends_run_at_once_and_keeps_last_checkpoint(stopped_at_once):
    # The kernel, which chooses the thread that handles a signal, decides which of the two Python sees first.
    ends = [(130, "stopped by SIGINT"), (143, "stopped by SIGTERM")]
    errors = stopped_at_once.errors
    assert (stopped_at_once.status, errors.splitlines()[-1]) in ends, errors
    assert "is saved" not in errors
    assert 80 in stopped_at_once.steps


def test_run_stopped_by_signals_matches_uninterrupted_run_bit_for_bit(stopped_at_once, reference):
    """It was stopped during a save, and then at once by a second signal."""
    assert stopped_at_once.resumed.returncode == 0, stopped_at_once.resumed.stderr
    assert same(stopped_at_once.workdir, reference)


def test_run_that_finishes_while_another_prepares_is_resumed(reference, config, run, tmp_path):
    """Nothing is known about the workdir before it is locked; metrics written in the meantime are kept."""
    script = Path(__file__).parent / "scripts" / "train_after_another_run.py"
    result = run(script, reference, "--config", config, "--workdir", tmp_path / "w")
    assert result.returncode == 0, result.stderr
    assert f"finished: {STEPS} of {STEPS} steps" in result.stdout
    assert (tmp_path / "w" / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of 40 MB, or skips the test if this user may not mount one."""
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
    """Fills a file system until `left` bytes are free, even if others write to it too. Returns the file to remove."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while (free := os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize) > left:
            file.write(bytes(min(free - left, 1 << 20)))
    return filler


@pytest.mark.parametrize(
    "left", [pytest.param(0, marks=pytest.mark.slow, id="logging"), pytest.param(50_000, id="saving")]
)
def test_full_disk_ends_run_in_one_sentence_and_run_resumes(reference, config, run, small_disk, left):
    """No space is left for metrics.jsonl, or enough for it but not for a checkpoint of 90 kB."""
    workdir = small_disk / "w"
    training = BackgroundTraining(run, config, workdir)
    wait_for(training, lambda: 40 in saved_steps(workdir / "checkpoints"))
    with paused_between_saves(training, workdir):
        fill(small_disk, left)
    _, errors = training.communicate(timeout=PROMPTLY)
    assert training.returncode == 1, errors
    assert errors.count("the disk is full") == 1
    assert "what was saved before is intact: make space and run this again" in errors
    assert "Traceback" not in errors
    assert 40 in saved_steps(workdir / "checkpoints")
    filler = fill(small_disk, 0)
    again = run("train", "--workdir", workdir)
    assert again.returncode == 1, again.stderr
    assert again.stderr.count("the disk is full") == 1
    assert "Traceback" not in again.stderr
    filler.unlink()
    resumed = run("train", "--workdir", workdir)
    assert resumed.returncode == 0, resumed.stderr
    assert same(workdir, reference)


@pytest.mark.slow
def test_full_disk_during_preparation_ends_run_in_one_sentence(run, small_disk, tmp_path):
    cache = os.environ | {"XDG_CACHE_HOME": str(small_disk)}
    filler = fill(small_disk, 100_000)
    train = ["train", "--config", "configs/tiny.toml", "--workdir", tmp_path / "w", "--training.num-steps", 1]
    train += ["--training.eval-every", 0, "--optimizer.warmup-steps", 0]
    train += ["--model.num-encoder-layers", 1, "--model.num-decoder-layers", 1]
    result = run(*train, env=cache)
    assert result.returncode == 1, result.stderr
    assert "the disk is full" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "w").exists()
    filler.unlink()
    assert run(*train, env=cache).returncode == 0


CHANGED = [
    ("embed_dim = 32", "embed_dim = 64", f"model.embed_dim: 32 in checkpoint {STEPS}, now 64", True),
    ("peak_lr = 0.01", "peak_lr = 0.02", f"optimizer.peak_lr: 0.01 in checkpoint {STEPS}, now 0.02", False),
]


@pytest.mark.parametrize(("old", "new", "message", "concerns_model"), CHANGED)
def test_config_changed_since_checkpoint_is_refused(reference, run, tmp_path, old, new, message, concerns_model):
    """The config in the workdir is edited by hand, so the command line cannot be compared with it."""
    workdir = tmp_path / "w"
    shutil.copytree(reference, workdir)
    config = workdir / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    steps = saved_steps(workdir / "checkpoints")
    result = run("train", "--workdir", workdir, "--training.num-steps", STEPS + 10)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert saved_steps(workdir / "checkpoints") == steps
    if concerns_model:
        with pytest.raises(UserError, match=re.escape(message)):
            Translator.load(workdir)
    else:
        assert Translator.load(workdir).step == STEPS


def test_tokenizer_changed_since_checkpoint_is_refused(reference, toy, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(reference, workdir)
    sides = [(toy.parent / f"train.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "fr")]
    pairs = [Pair(*pair) for pair in zip(*sides, strict=True)]
    (model,) = train_tokenizer(pairs, TokenizerConfig(kind="bpe", vocab_size=45))
    (workdir / "tokenizer.model").write_bytes(model)
    result = run("train", "--workdir", workdir, "--training.num-steps", STEPS + 10)
    assert result.returncode == 2, result.stderr
    assert "its checkpoints were made with a different tokenizer" in result.stderr


def test_paths_length_and_logging_may_change_and_cosine_schedule_warns(reference, run, tmp_path):
    """The cosine schedule ends with the run, so it depends on the length."""
    copy = tmp_path / "copy ö"
    shutil.copytree(reference, copy)
    files = write_corpus(tmp_path / "files").parent
    paths = [
        option
        for split in ("train", "validation", "test")
        for side, ending in (("source", "en"), ("target", "fr"))
        for option in (f"--data.{split}-{side}", files / f"{split}.{ending}")
    ]
    length = ["--training.num-steps", STEPS + 10, "--training.log-every", 5]
    result = run("train", "--workdir", copy, *length, *paths)
    assert result.returncode == 0, result.stderr
    assert (
        f"the cosine schedule depends on the number of steps, {STEPS} when this checkpoint was saved and now "
        f"{STEPS + 10}"
    ) in result.stderr
    assert [line["step"] for line in metrics(copy)] == list(range(1, STEPS + 11))


@pytest.mark.slow
def test_memory_files_and_threads_do_not_grow_over_5000_steps(toy, tmp_path):
    """Reads them from the kernel every 0.1 s, during steps, validations, saves and everything else a run does.

    The first 1,500 steps do not count, since the heap still grows: in a run of 15,000 steps, the median memory of each
    500 steps rose by 6% until step 2,000 and then stayed within 4%.
    """
    every = ["--training.eval-every", 250, "--training.checkpoint-every", 100]
    with open(tmp_path / "log", "w") as log:
        process = start(toy, tmp_path / "w", "--training.num-steps", 6500, *every, stdout=log, stderr=log)
    usages: dict[int, tuple[int, int, int]] = {}
    lines = tmp_path / "w" / "metrics.jsonl"
    while process.poll() is None:
        time.sleep(0.1)
        last = lines.read_text().splitlines()[-1:] if lines.exists() else []
        step = re.search(r'"step": (\d+)', last[0]) if last else None
        if step and (usage := resource_usage(process.pid)):
            usages[int(step[1])] = usage
    assert process.wait() == 0, (tmp_path / "log").read_text()[-500:]
    early, late = ([usage for step, usage in usages.items() if low <= step < low + 1000] for low in (1500, 5500))
    memory, files, threads = ([[usage[kind] for usage in part] for part in (early, late)] for kind in range(3))
    assert median(memory[1]) <= 1.05 * median(memory[0]), (memory, len(usages))
    assert min(files[1]) <= min(files[0])  # the minimum, because files are open during saves
    assert min(threads[1]) <= min(threads[0]) + 2  # pools vary by one or two; a leak would add some with each save


def resource_usage(pid: int) -> tuple[int, int, int] | None:
    """Returns the resident memory in kB, open files and threads of a process, or None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]), files, int(re.search(r"Threads:\s+(\d+)", status)[1])
    except (OSError, TypeError):
        return None
