"""The guide's script, run by Slurm on two nodes; nothing is lost by a failure but the steps after a checkpoint.

The results of jobs with two tasks are those of one process with two devices, without interruption, bit for bit.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.command_server import ROOT
from tests.helpers.commands import succeed
from tests.helpers.slurm import BEGIN_SECONDS, RETRY_SECONDS, Cluster, missing_program, slurm_cluster
from tests.processes import digests, metrics, simulated_devices

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing_program()), reason=missing_program())]

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
GUIDE = ROOT / "docs" / "guides" / "cluster.md"
SCRIPT = ROOT / "cluster" / "slurm.sh"
STEPS, EVAL_EVERY = 120, 60
OPTIONS = ["--training.eval-every", EVAL_EVERY, "--training.checkpoint-every", 15]
OPTIONS += ["--training.log-every", 1, "--training.tokens-per-batch", 24 * 32]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 2, {"PATH": PATH, "JAX_PLATFORMS": "cpu"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(toy, run, tmp_path_factory):
    """Returns the workdirs of runs of one process with 2 and 4 devices."""
    workdirs = {}
    for devices in (2, 4):
        workdirs[devices] = tmp_path_factory.mktemp("alone") / "w"
        succeed(run, *train(toy, workdirs[devices]), env=simulated_devices(devices))
    return workdirs


def submit(cluster: Cluster, *command: object, **options: object) -> int:
    """Submits the guide's script, with less time."""
    assert f"```bash\n{SCRIPT.read_text()}```" in GUIDE.read_text()
    return cluster.submit(SCRIPT, *command, **({"nodes": 2, "ntasks_per_node": 1, "time": "01:00:00"} | options))


def train(toy: Path, workdir: Path, num_steps: int = STEPS) -> list[object]:
    return ["train", "--config", toy, "--workdir", workdir, "--training.num-steps", num_steps, *OPTIONS]


def steps(workdir: Path) -> list[dict]:
    return [line for line in metrics(workdir) if "loss" in line] if (workdir / "metrics.jsonl").exists() else []


def wait_for_step(cluster: Cluster, job: int, workdir: Path, step: int) -> None:
    cluster.wait(lambda: len(steps(workdir)) >= step, lambda: cluster.output(job), seconds=300)


def run_to_end(cluster: Cluster, job: int) -> None:
    """Waits until a job has ended well; queued again, it begins after some seconds instead of two minutes."""

    def has_ended() -> bool:
        state, _, restarts = cluster.state(job).split(" ")
        if state == "PENDING" and restarts not in begun:
            begun.add(restarts)
            time.sleep(BEGIN_SECONDS)
            cluster.begin_now(job)
        return state not in ("PENDING", "RUNNING", "COMPLETING")

    begun = {"0"}
    cluster.wait(has_ended, lambda: cluster.output(job), seconds=900)
    assert cluster.state(job).startswith("COMPLETED 0:0"), cluster.output(job)


def check_same(workdir: Path, alone: Path) -> None:
    """Checks the losses of all steps, the scores and the parameters."""
    assert metrics(workdir) == metrics(alone)
    assert digests(workdir) == digests(alone)


def test_two_nodes_compute_what_one_process_does(cluster, toy, alone, tmp_path):
    job = submit(cluster, *train(toy, tmp_path / "w"))
    run_to_end(cluster, job)
    check_same(tmp_path / "w", alone[2])


def test_two_nodes_with_two_tasks_each(cluster, toy, alone, tmp_path):
    """Four processes add up their gradients in another order than the four devices of one process."""
    job = submit(cluster, *train(toy, tmp_path / "w"), ntasks_per_node=2)
    run_to_end(cluster, job)
    expected, actual = steps(alone[4])[:40], steps(tmp_path / "w")[:40]  # later on, the differences have grown
    assert [line["batch"] for line in actual] == [line["batch"] for line in expected]
    assert [line["loss"] for line in actual] == pytest.approx([line["loss"] for line in expected], rel=1e-4)


def test_requeued_job_goes_on(cluster, toy, alone, tmp_path):
    workdir = tmp_path / "w"
    job = submit(cluster, *train(toy, workdir))
    wait_for_step(cluster, job, workdir, 20)
    cluster.run("scancel", "--signal=TERM", job)
    cluster.wait(lambda: cluster.state(job).startswith("PENDING"), lambda: cluster.output(job), seconds=120)
    assert re.search(r"step \d+ is saved", cluster.output(job))
    run_to_end(cluster, job)
    check_same(workdir, alone[2])


def task(cluster: Cluster, node: str) -> psutil.Process:
    """Returns the process of training on a node."""
    (found,) = (
        own for own in cluster.processes(node) if own.cmdline()[1:2] == [shutil.which("lingua-flax", path=PATH)]
    )
    return found


def fill(folder: Path) -> None:
    """Fills the disk on which a folder is, but for a few bytes."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb") as file:
        while True:
            file.write(bytes(1000))
            file.flush()


@pytest.fixture
def small_disk(tmp_path):
    """Returns a folder on a disk of its own, of 20 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


class Failure(NamedTuple):
    """What is done to a job when it has come so far, the state that it then has, and what it says."""

    comes: Callable[[Cluster, int, Path], object]  # whether the moment has come
    plant: Callable[[Cluster, int, Path], object]
    state: str
    sentence: str


def has_steps(cluster: Cluster, job: int, workdir: Path) -> bool:
    return len(steps(workdir)) >= 20


def requeue(cluster: Cluster, job: int, workdir: Path) -> None:
    cluster.run("scontrol", "requeue", job)


ENDED = "error: process 0 lost another process of this run; see that process's error message, then start all"
DIED = "This most likely indicates that another task died; see the other task logs for more details"
SAVED = r"step \d+ is saved; run the same command again to continue"
FAILURES = {
    "a task is killed": Failure(has_steps, lambda c, job, w: task(c, c.nodes[1]).kill(), "FAILED", ENDED),
    "a task is stopped": Failure(has_steps, lambda c, job, w: task(c, c.nodes[1]).suspend(), "FAILED", DIED),
    "a node is lost": Failure(has_steps, lambda c, job, w: c.lose_node(c.nodes[1]), "PENDING", ""),
    "the disk is full": Failure(has_steps, lambda c, job, w: fill(w.parent), "FAILED", "the disk is full"),
    "scancel": Failure(has_steps, lambda c, job, w: c.run("scancel", job), "CANCELLED", SAVED),
    "requeued while a checkpoint is written": Failure(
        lambda c, job, w: any(w.glob("checkpoints/*tmp*")), requeue, "PENDING", ""
    ),
    "requeued while a program is compiled": Failure(
        lambda c, job, w: "computing on" in c.output(job), requeue, "PENDING", ""
    ),
    "requeued while it validates": Failure(lambda c, job, w: len(steps(w)) == EVAL_EVERY, requeue, "PENDING", ""),
}


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_is_lost_but_steps_after_a_checkpoint(cluster, toy, alone, small_disk, name, capsys):
    workdir, failure = small_disk / "w", FAILURES[name]
    job = submit(cluster, *train(toy, workdir))
    cluster.wait(lambda: failure.comes(cluster, job, workdir), lambda: cluster.output(job), seconds=300)
    started = time.monotonic()
    failure.plant(cluster, job, workdir)
    cluster.wait(lambda: cluster.state(job).startswith(failure.state), lambda: cluster.output(job), seconds=300)
    with capsys.disabled():
        print(f"\n{name}: {cluster.state(job)} after {time.monotonic() - started:.0f} s")
    cluster.wait(lambda: re.search(failure.sentence, cluster.output(job)), lambda: cluster.output(job))
    assert "Traceback" not in cluster.output(job)
    if name == "a node is lost":
        cluster.start_node(cluster.nodes[1])
        time.sleep(RETRY_SECONDS)
    (small_disk / "filler").unlink(missing_ok=True)
    if failure.state != "PENDING":
        cluster.wait(lambda: not cluster.run("squeue", "--noheader"), "the job does not end")
        job = submit(cluster, *train(toy, workdir))
    run_to_end(cluster, job)
    check_same(workdir, alone[2])


def test_job_is_queued_again_before_its_time_is_up(cluster, toy, alone, tmp_path):
    """It gets the signal within a minute, five before its time is up."""
    workdir = tmp_path / "w"
    job = submit(cluster, *train(toy, workdir, 100_000), time="00:06:00")
    cluster.wait(lambda: cluster.state(job).startswith("PENDING 0:0 1"), lambda: cluster.output(job), seconds=200)
    (saved,) = re.findall(r"step (\d+) is saved", cluster.output(job))
    run_on = lambda: len(steps(workdir)) > max(int(saved), STEPS) + 1  # noqa: E731
    time.sleep(BEGIN_SECONDS)
    cluster.begin_now(job)
    cluster.wait(run_on, lambda: cluster.output(job), seconds=300)
    cluster.run("scancel", job)
    expected = metrics(alone[2])
    assert metrics(workdir)[: len(expected)] == expected


def test_second_job_on_a_workdir_is_refused(cluster, toy, tmp_path):
    workdir = tmp_path / "w"
    first = submit(cluster, *train(toy, workdir, 100_000), cpus_per_task=1)
    wait_for_step(cluster, first, workdir, 3)
    second = submit(cluster, *train(toy, workdir))
    cluster.wait_for_state(second, "FAILED 2:0 0")
    assert f"process {task(cluster, cluster.nodes[0]).pid} on " in cluster.output(second)
    assert cluster.state(first).startswith("RUNNING")
    cluster.run("scancel", first)


def test_other_commands_give_what_one_process_gives(cluster, trained, run, tmp_path):
    workdir, text = trained[0], tmp_path / "in.en"
    text.write_text("one two.\nthree four five.\n")
    for command in (
        ["evaluate", "--workdir", workdir],
        ["distill", "--workdir", workdir],
        ["translate", "--workdir", workdir, "--input", text],
    ):
        alone, together = (tmp_path / f"{command[0]}_{where}.jsonl" for where in ("alone", "together"))
        succeed(run, *command, "--output", alone)
        cluster.wait_for_state(submit(cluster, *command, "--output", together), "COMPLETED 0:0 0")
        assert together.read_bytes() == alone.read_bytes()


def test_array_of_seeds_and_of_parts(cluster, toy, trained, run, tmp_path):
    """Each task of an array is a run of its own, which `compare` puts into one table; or a part of a large text."""
    command = [*train(toy, tmp_path / "seed_@", EVAL_EVERY), "--training.seed", "@"]
    array = submit(cluster, *command, nodes=1, array="1-2")
    cluster.wait(lambda: not cluster.run("squeue", "--noheader", "--job", array), "the array does not end", seconds=600)
    seeds = [tmp_path / f"seed_{number}" for number in (1, 2)]
    assert [steps(seed)[-1]["step"] for seed in seeds] == [EVAL_EVERY, EVAL_EVERY]
    assert len({steps(seed)[0]["loss"] for seed in seeds}) == 2
    table = succeed(run, "compare", *seeds, "--beam-size", 1)
    assert "| system | 2 |" in table.stdout
