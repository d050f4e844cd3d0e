"""Runs of several processes on the loopback interface: the same batches as a single process, and one end for all."""

import errno
import os
import re
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingua_flax.devices import processes
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import ProcessOptions
from lingua_flax.runs.checkpoint import saved_steps
from tests.command_server import run_forked
from tests.conftest import HUNG_AFTER
from tests.helpers.commands import succeed
from tests.helpers.several import run_together, start_together
from tests.processes import finish, free_port, metrics, simulated_devices, wait_for

FAULTY = Path(__file__).parent / "scripts" / "faulty_process.py"
STEPS = ["--training.checkpoint-every", 6, "--training.log-every", 1]


def start_training(count, toy, workdir, *options, eval_every=12, **popen):
    options = (*STEPS, "--training.eval-every", eval_every, *options)
    return start_together(count, "train", "--config", toy, "--workdir", workdir, *options, **popen)


def steps(workdir) -> list[dict]:
    return [line for line in metrics(workdir) if "loss" in line] if (workdir / "metrics.jsonl").exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "last_count"), [([2], 1), ([2, 4], 3)])
def test_run_resumes_with_another_number_of_processes(toy, run, tmp_path, counts, last_count):
    """It is killed after a checkpoint of each number of processes, and finished by another number. Each process has two
    devices, and the parameters are sharded across those of all processes until the last one."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    rows = ["--training.tokens-per-batch", 24 * 32]
    length = ["--training.num-steps", 30]
    succeed(run, "train", "--config", toy, "--workdir", alone, *STEPS, "--training.eval-every", 12, *rows, *length)
    for count, step in zip(counts, (7, 19), strict=False):
        options = [*rows, "--devices.mesh.fsdp", 2 * count, "--devices.mesh.data", 1, "--training.num-steps", 100000]
        running = start_training(count, toy, together, *options, env=simulated_devices(2))
        wait_for(running[0], lambda step=step: len(steps(together)) > step)
        running[-1].kill()
        *others, killed = finish(running)
        assert killed[0] == -signal.SIGKILL
        for status, _, errors in others:
            check_names_another(status, errors)
    ended = finish(start_training(last_count, toy, together, *rows, *length))
    assert [status for status, _, _ in ended] == [0] * last_count, ended[0][2]
    expected, actual = steps(alone), steps(together)
    assert [line["step"] for line in actual] == list(range(1, 31))
    assert [line["batch"] for line in actual] == [line["batch"] for line in expected]
    assert len({line["batch"] for line in expected}) == 30
    assert [line["loss"] for line in actual] == pytest.approx([line["loss"] for line in expected], rel=1e-4)


@pytest.mark.slow
def test_signal_to_one_process_stops_all_at_the_same_step(toy, tmp_path):
    """Only the first process writes; two more processes that meanwhile use the same workdir are refused."""
    workdir = tmp_path / "w"
    running = start_training(2, toy, workdir, "--training.num-steps", 100000, eval_every=0)
    wait_for(running[0], lambda: len(steps(workdir)) > 3)
    refused = finish(start_training(2, toy, workdir))
    assert [status for status, _, _ in refused] == [2, 2]
    assert f"process {running[0].pid} on " in refused[0][2]
    running[1].send_signal(signal.SIGTERM)
    (status, _, errors), (other_status, *other_output) = finish(running)
    last = len(steps(workdir))
    assert (status, other_status) == (143, 143)
    assert f"step {last} is saved; run the same command again to continue" in errors
    assert not [line for line in "".join(other_output).splitlines() if not line.startswith("[Gloo]")]
    assert [line["step"] for line in steps(workdir)] == list(range(1, last + 1))


def test_slurm_needs_no_options(trained, tmp_path):
    """The environment has the variables that srun sets for each task; they are not read before the processes fork."""
    (tmp_path / "in.en").write_text("one two.\nthree.\n")
    common = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "JAX_COORDINATOR_PORT": str(free_port())}
    common |= {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}

    def run_task(number: str):
        env = os.environ | common | {"SLURM_PROCID": number, "SLURM_LOCALID": number}
        options = ("--workdir", trained[0], "--input", tmp_path / "in.en", "--beam-size", 1)
        return run_forked("translate", *options, env=env, timeout=HUNG_AFTER)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(run_task, "01")
    assert (first.returncode, first.stdout) == (0, "deux un !\ntrois !\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "")


def test_environment_shows_whether_a_tpu_host_may_be_part_of_a_pod(monkeypatch):
    """A Colab TPU names only itself."""
    for libtpu, variables, expected in (
        (False, {"TPU_WORKER_HOSTNAMES": "a,b"}, False),
        (True, {"TPU_PROCESS_ADDRESSES": "a:1,b:1", "TPU_WORKER_HOSTNAMES": "a"}, True),
        (True, {"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        (True, {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
        (True, {}, True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", variables)
            patch.setattr(processes.importlib.util, "find_spec", lambda name, found=libtpu: found or None)
            assert processes._may_be_a_pod() == expected


def check_both_refuse(ended, said) -> None:
    """Checks that both processes end with an error and the first one says this."""
    assert [done.returncode for done in ended] == [2, 2], ended[0].stderr
    assert ended[0].stderr.splitlines()[-1].startswith(f"error: {said}")


def test_several_processes_cannot_read_standard_input(trained, run):
    ended = run_together(run, 2, "translate", "--workdir", trained[0])
    check_both_refuse(ended, "there are 2 processes, and standard input reaches only one of them: give the text with")


@pytest.mark.parametrize("difference", ["corpus", "config", "folder"])
def test_processes_that_differ_are_refused(toy, run, tmp_path, difference):
    """Different paths of the same corpus alone are allowed."""
    source, other, workdir = toy.parent / "train.en", tmp_path / "other.en", tmp_path / "w"
    text = source.read_text(encoding="utf-8")
    other.write_text(text.replace("one", "two", 1) if difference == "corpus" else text, encoding="utf-8")
    own = ["--workdir", tmp_path / "other" if difference == "folder" else workdir, "--data.train-source", other]
    own += ["--training.seed", 2] if difference == "config" else []
    ended = run_together(run, 2, "train", "--config", toy, each=[["--workdir", workdir], own])
    what = f"folder {workdir} (all processes must share one)" if difference == "folder" else difference
    check_both_refuse(ended, f"process 1 has a different {what} from process 0")
    assert difference == "folder" or not workdir.exists()


def test_mistake_on_one_host_is_told_by_all(toy, trained, run, tmp_path):
    train = ("train", "--config", toy, "--workdir", tmp_path / "w")
    translate = ("translate", "--workdir", trained[0], "--input", toy.parent / "test.en")
    for command, mistake, words in (
        (train, ["--data.train-source", "none"], "no such file"),
        (("evaluate", "--workdir", trained[0]), ["--split", "missing"], 'no split "missing"'),
        (translate, ["--checkpoint", 7], "no checkpoint 7"),
    ):
        ended = run_together(run, 2, *command, each=[[], mistake])
        own = ended[1].stderr.splitlines()[-1]
        assert words in own
        check_both_refuse(ended, f"process 1: {own.removeprefix('error: ')}")
    assert not (tmp_path / "w").exists()


def test_processes_do_not_resume_from_different_checkpoints(trained, run, tmp_path):
    """Process 1 falls back to an earlier checkpoint, since it cannot read the newest one."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    options = ("--workdir", workdir, "--training.num-steps", 260, "--training.eval-every", 0)
    ended = run_together(run, 2, FAULTY, "train", *options)
    check_both_refuse(ended, "process 1 has a different newest intact checkpoint from process 0")
    assert saved_steps(workdir / "checkpoints") == saved_steps(trained[0] / "checkpoints")


def test_processes_that_cannot_be_connected(monkeypatch):
    monkeypatch.setattr(processes, "START_TIMEOUT", 0.5)
    with socket.create_server(("", 0)) as server:
        used, free = server.getsockname()[1], free_port()
        for address, process, words in (
            ("nosuch.invalid:1234", 1, "nosuch.invalid:1234: "),
            (f"127.0.0.1:{used}", 0, "Address already in use"),
            ("127.0.0.1:70000", 0, "choose another"),
            (f"127.0.0.1:{free}", 0, "2 of 3 processes have not started within 0.5 seconds (number 1, 2)"),
            (f"127.0.0.1:{free}", 2, f"process 0 has not answered at 127.0.0.1:{free} within 0.5 seconds"),
        ):
            options = ProcessOptions(coordinator=address, num_processes=3, process_id=process)
            with pytest.raises(UserError, match=re.escape(words)):
                processes.join_processes(options, "cpu")


def test_name_and_address_of_the_first_process_may_appear_later(monkeypatch):
    """As in Kubernetes: its name is not known at first, and then stands for the address that it had before."""
    failures = [socket.gaierror(socket.EAI_NONAME, "unknown"), OSError(errno.EHOSTUNREACH, "no route")]
    connect, port = socket.create_connection, free_port()

    def create_connection(*arguments, **options):
        if failures:
            raise failures.pop(0)
        return connect(*arguments, **options)

    monkeypatch.setattr(processes.socket, "create_connection", create_connection)
    address = {"coordinator": f"127.0.0.1:{port}", "num_processes": 2}
    both = [ProcessOptions(**address, process_id=number) for number in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(processes._await_all_processes, both))
    assert not failures


ENDLESS = ["--training.num-steps", 100000, "--training.log-every", 1, "--training.eval-every", 20]
ENDLESS += ["--training.checkpoint-every", 30, "--training.tokens-per-batch", 24 * 32]


def check_names_another(status, errors):
    """Checks how a process has ended after another one was lost: by itself, or by JAX if that was the first one."""
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    if status == 1:
        assert len(said) == 1, errors
        assert "lost another process of this run; see that process's error message, then start all of them" in said[0]
    else:
        assert (status, said) == (-signal.SIGABRT, []), errors
        assert "This most likely indicates that another task died; see the other task logs" in errors
    assert "Traceback" not in errors


def test_killed_process_ends_the_others(toy, run, tmp_path):
    first, second = run_together(run, 2, FAULTY, "train", "--config", toy, "--workdir", tmp_path / "w", *ENDLESS)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 1
    check_names_another(first.returncode, first.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_first_process_ends_the_others(toy, tmp_path, how):
    train = ("train", "--config", toy, "--workdir", tmp_path / "w", *ENDLESS)
    first, *others = start_together(3, *train)
    wait_for(first, lambda: len(steps(tmp_path / "w")) > 3)
    first.send_signal(how)
    for status, _, errors in finish(others):
        check_names_another(status, errors)
    first.kill()
    first.communicate()
