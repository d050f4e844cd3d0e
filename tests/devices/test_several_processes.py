"""Runs of several processes on the loopback interface: they see the same batches as a single process."""

import json
import os
import re
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
from tests.processes import finish, free_port, metrics, simulated_devices, start_together, wait_for

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = ["--training.checkpoint-every", 6, "--training.log-every", 1]


def start_training(count, toy, workdir, *options, eval_every=12, **popen):
    options = (*STEPS, "--training.eval-every", eval_every, *options)
    return start_together(count, "train", "--config", toy, "--workdir", workdir, *options, **popen)


def run_together(run, count, program, *arguments, each=None):
    """Runs a command as several processes of one run; `each` holds further options of each process."""
    common = (*arguments, "--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", count)
    with ThreadPoolExecutor(count) as threads:
        return list(
            threads.map(
                lambda number: run(program, *common, "--process-id", number, *(each[number] if each else ())),
                range(count),
            )
        )


def steps(workdir) -> list[dict]:
    return [line for line in metrics(workdir) if "loss" in line] if (workdir / "metrics.jsonl").exists() else []


def killed_after(step, count, toy, workdir, *options) -> list[tuple[int, str, str]]:
    """Kills the last of several processes after a step; returns exit status, stdout and stderr of each.

    Each process has two devices, and the parameters are sharded across the devices of all processes.
    """
    mesh = ["--devices.mesh.fsdp", 2 * count, "--devices.mesh.data", 1]
    options = (*options, "--training.num-steps", 100000)
    running = start_training(count, toy, workdir, *mesh, *options, env=simulated_devices(2))
    wait_for(running[0], lambda: len(steps(workdir)) > step)
    running[-1].kill()
    return finish(running)


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "last_count"), [([2], 1), ([2, 4], 3)])
def test_run_resumes_with_another_number_of_processes(toy, run, tmp_path, counts, last_count):
    """The run is killed with SIGKILL after a checkpoint of each number of processes, and finished by another number.

    A batch has 24 rows, of which each process makes its share.
    """
    alone, together = tmp_path / "alone", tmp_path / "together"
    rows = ["--training.tokens-per-batch", 24 * 32]
    options = (*STEPS, "--training.eval-every", 12, *rows, "--training.num-steps", 30)
    done = run("train", "--config", toy, "--workdir", alone, *options)
    assert done.returncode == 0, done.stderr
    for count, step in zip(counts, (7, 19), strict=False):
        *others, killed = killed_after(step, count, toy, together, *rows)
        assert killed[0] == -signal.SIGKILL
        for status, _, errors in others:
            assert (status, f"process {count - 1} of this run has ended before the others" in errors) == (1, True), (
                errors
            )
    resumed_at = saved_steps(together / "checkpoints")[-1]
    ended = finish(start_training(last_count, toy, together, *rows, "--training.num-steps", 30))
    assert [status for status, _, _ in ended] == [0] * last_count, ended[0][2]
    if last_count > 1:
        gathered = (30 - resumed_at) * 24 // last_count
        assert f"the first of {last_count} processes gathered {gathered} rows; each batch has 24" in ended[0][2]
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
    (status, _, errors), (other_status, _, _) = finish(start_training(2, toy, workdir))
    assert (status, other_status) == (2, 2)
    assert f"process {running[0].pid} on " in errors
    running[1].send_signal(signal.SIGTERM)
    (status, _, errors), (other_status, other_output, other_errors) = finish(running)
    assert status == other_status == 143
    assert f"step {steps(workdir)[-1]['step']} is saved; run the same command again to continue" in errors
    assert "loss" in errors
    assert other_output == ""
    assert not [line for line in other_errors.splitlines() if not line.startswith("[Gloo]")]
    assert [line["step"] for line in steps(workdir)] == list(range(1, len(steps(workdir)) + 1))
    length = ["--training.num-steps", len(steps(workdir))]
    first, second = finish(start_training(2, toy, workdir, *length, eval_every=0))
    assert (first[0], second[0]) == (0, 0), first[2]
    assert f"finished: {len(steps(workdir))} of {len(steps(workdir))} steps" in first[1]
    assert second[1] == ""


@pytest.mark.slow
def test_two_processes_evaluate_and_translate_like_one(trained, toy, run, tmp_path):
    """Each process is given files of its own, but only the first one writes."""
    workdir, source = trained[0], toy.parent / "test.en"
    expected = run("translate", "--workdir", workdir, "--input", source).stdout
    each = [["--output", tmp_path / f"hyps.{number}"] for number in range(2)]
    (status, out, errors), (other_status, other_out, _) = finish(
        start_together(2, "translate", "--workdir", workdir, "--input", source, "--batch-size", 7, each=each)
    )
    assert (status, other_status) == (0, 0), errors
    assert out == other_out == ""
    assert (tmp_path / "hyps.0").read_text(encoding="utf-8") == expected
    (tmp_path / "hyps.0").unlink()
    each = [[*options, "--json", tmp_path / f"scores.{number}"] for number, options in enumerate(each)]
    (status, out, errors), (other_status, other_out, _) = finish(
        start_together(2, "evaluate", "--workdir", workdir, each=each)
    )
    assert (status, other_status) == (0, 0), errors
    assert (tmp_path / "hyps.0").read_text(encoding="utf-8") == expected
    assert f"{json.loads((tmp_path / 'scores.0').read_text())['bleu']:.2f}" in out
    assert other_out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"hyps.0", "hyps.source.0", "hyps.reference.0", "scores.0"}


def test_slurm_needs_no_options(trained, tmp_path, run):
    """The environment has the variables that srun sets for each task."""
    source = tmp_path / "in.en"
    source.write_text("one two.\nthree.\n")
    command = ["translate", "--workdir", trained[0], "--input", source, "--beam-size", 1]
    common = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "JAX_COORDINATOR_PORT": str(free_port())}
    common |= {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    tasks = [common | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda task: run_forked(*command, env=os.environ | task, timeout=HUNG_AFTER), tasks
        )  # these variables are not read before the processes are connected
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout == run(*command).stdout == "deux un !\ntrois !\n"
    assert second.stdout == ""


@pytest.mark.parametrize(
    ("libtpu", "variables", "expected"),
    [
        (False, {"TPU_WORKER_HOSTNAMES": "a,b"}, False),
        (True, {"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        (True, {"TPU_PROCESS_ADDRESSES": "a:1,b:1", "TPU_WORKER_HOSTNAMES": "a"}, True),
        (True, {"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        (True, {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
        (True, {}, True),
    ],
)
def test_environment_shows_whether_a_tpu_host_may_be_part_of_a_pod(monkeypatch, libtpu, variables, expected):
    """If the environment has no such variable, JAX asks the host; a Colab TPU names only itself."""
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "MEGASCALE_NUM_SLICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: libtpu or None)
    assert processes._may_be_a_pod() == expected


def test_several_processes_cannot_read_standard_input(trained, run):
    for done in run_together(run, 2, "translate", "--workdir", trained[0]):
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            "error: there are 2 processes, and standard input reaches only one of them: give the text with --input, "
            "a file that all of them can read"
        )


@pytest.mark.parametrize("difference", ["corpus", "config"])
def test_processes_that_differ_are_refused(toy, run, tmp_path, difference):
    source, other = toy.parent / "train.en", tmp_path / "other.en"
    text = source.read_text(encoding="utf-8")
    other.write_text(text.replace("one", "two", 1) if difference == "corpus" else text, encoding="utf-8")
    each = [["--data.train-source", source], ["--data.train-source", other]]  # different paths alone are allowed
    if difference == "config":
        each[1] += ["--training.seed", 2]
    first, second = run_together(run, 2, "train", "--config", toy, "--workdir", tmp_path / "w", each=each)
    assert (first.returncode, second.returncode) == (2, 2)
    assert first.stderr.splitlines()[-1] == f"error: process 1 has a different {difference} from process 0"
    assert not (tmp_path / "w").exists()


def test_mistake_on_one_host_is_told_by_all(toy, trained, run, tmp_path):
    missing = tmp_path / "missing.en"
    train = ("train", "--config", toy, "--workdir", tmp_path / "w")
    translate = ("translate", "--workdir", trained[0], "--input", toy.parent / "test.en")
    for command, mistake, words in (
        (train, ["--data.train-source", missing], "no such file"),
        (train, ["--devices.mesh.fsdp", 7], "mesh"),
        (train, ["--evaluation.tokenize", "ja-mecab"], "evaluation.tokenize"),
        (("evaluate", "--workdir", trained[0]), ["--split", "missing"], 'no split "missing"'),
        (("evaluate", "--workdir", trained[0]), ["--max-decoding-length", 1000], "max_decoding_length"),
        (translate, ["--checkpoint", 7], "no checkpoint 7"),
    ):
        first, second = run_together(run, 2, *command, each=[[], mistake])
        assert (first.returncode, second.returncode) == (2, 2), first.stderr
        own = second.stderr.splitlines()[-1]
        assert own.startswith("error: ")
        assert words in own
        assert first.stderr.splitlines()[-1] == f"error: process 1: {own.removeprefix('error: ')}"
    assert not (tmp_path / "w").exists()


def test_folders_that_are_not_shared_are_refused(toy, run, tmp_path):
    each = [["--workdir", tmp_path / name] for name in ("first", "second")]
    first, second = run_together(run, 2, "train", "--config", toy, each=each)
    assert (first.returncode, second.returncode) == (2, 2)
    said = f"error: process 1 has a different folder {tmp_path}/first (all processes must share one) from process 0"
    assert first.stderr.splitlines()[-1] == said


def test_processes_do_not_resume_from_different_checkpoints(toy, run, tmp_path):
    """Process 1 falls back to an earlier checkpoint, since it cannot read the newest one."""
    options = ("--workdir", tmp_path / "w", "--training.checkpoint-every", 20, "--training.eval-every", 0)
    done = run("train", "--config", toy, *options, "--training.num-steps", 40)
    assert done.returncode == 0, done.stderr
    before = saved_steps(tmp_path / "w/checkpoints")
    script = SCRIPTS / "unreadable_checkpoint.py"
    first, second = run_together(run, 2, script, "train", *options, "--training.num-steps", 60)
    assert (first.returncode, second.returncode) == (2, 2), first.stderr
    assert "error: process 1 has a different newest intact checkpoint from process 0" in first.stderr
    assert saved_steps(tmp_path / "w/checkpoints") == before


def test_numbers_of_steps_are_compared(toy, run, tmp_path):
    """The rows of an epoch, which are cached, differ between two hosts."""
    options = ("--training.num-epochs", 1, "--training.eval-every", 0)
    caches = [["--data.cache-directory", tmp_path / name] for name in ("first", "second")]
    for cache in caches:
        done = run("train", "--config", toy, "--workdir", tmp_path / f"alone{len(str(cache))}", *options, *cache)
        assert done.returncode == 0, done.stderr
    (counted,) = (tmp_path / "second/epochs").glob("*/rows.json")
    counted.write_text("250.0")
    first, second = run_together(run, 2, "train", "--config", toy, "--workdir", tmp_path / "w", *options, each=caches)
    assert (first.returncode, second.returncode) == (2, 2), first.stderr
    assert "error: process 1 has a different number of steps from process 0" in first.stderr


@pytest.mark.parametrize(
    ("coordinator", "process", "words"),
    [
        ("nosuch.invalid:1234", 1, "nosuch.invalid:1234: "),
        ("127.0.0.1:{used}", 0, "Address already in use"),
        ("127.0.0.1:70000", 0, "choose another"),
        ("127.0.0.1:{free}", 0, "2 of 3 processes have not started within 1 seconds (number 1, 2)"),
        ("127.0.0.1:{free}", 2, "process 0 has not answered at 127.0.0.1:{free} within 1 seconds"),
    ],
)
def test_processes_that_cannot_be_connected(monkeypatch, coordinator, process, words):
    """JAX would abort after five minutes, or crash."""
    monkeypatch.setattr(processes, "START_TIMEOUT", 1)
    with socket.create_server(("", 0)) as server:
        ports = {"used": server.getsockname()[1], "free": free_port()}
        address = coordinator.format(**ports)
        options = ProcessOptions(coordinator=address, num_processes=3, process_id=process)
        with pytest.raises(UserError, match=re.escape(words.format(**ports))):
            processes.join_processes(options, "cpu")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --coordinator here:1", "coordinator, num_processes and process_id go together: all three, or none"),
        ("evaluate --num-processes 2 --process-id 0", "go together"),
        (
            "translate --coordinator here --num-processes 2 --process-id 0",
            'coordinator must be an address and a port, such as 10.0.0.1:1234, got "here"',
        ),
        (
            "train --coordinator here:1 --num-processes 2 --process-id 2",
            "process_id must be below num_processes, got 2 of 2",
        ),
    ],
)
def test_invalid_process_options_are_refused(trained, run, command, message):
    done = run(*command.split(), "--workdir", trained[0])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
