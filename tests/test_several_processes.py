"""Several processes that make one run, on the loopback interface: they see the batches that one would see."""

import json
import os
import signal

import pytest

from devices import processes
from runs.checkpoint import saved_steps
from tests.processes import finish, free_port, metrics, start_command, start_together, wait_for

STEPS = ["--training.checkpoint-every", 6, "--training.eval-every", 12, "--training.log-every", 1]


def train(count, toy, workdir, *options, **popen):
    return start_together(count, "train.py", "--config", toy, "--workdir", workdir, *STEPS, *options, **popen)


def steps(workdir) -> list[dict]:
    return [line for line in metrics(workdir) if "loss" in line] if (workdir / "metrics.jsonl").exists() else []


def killed_after(step, count, toy, workdir, *options) -> list[tuple[int, str, str]]:
    """What becomes of the processes when the last of them is killed behind a step.

    Each has two devices, and the parameters are shared out over those of all.
    """
    mesh = ["--devices.mesh.fsdp", 2 * count, "--devices.mesh.data", 1]
    two_devices = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = train(count, toy, workdir, "--training.num-steps", 100000, *mesh, *options, env=two_devices)
    wait_for(running[0], lambda: len(steps(workdir)) > step)
    running[-1].kill()
    return finish(running)


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "finally_"), [([2], 1), ([2, 4], 3)])
def test_another_number_of_processes_goes_on_with_the_batches_of_one(toy, run, tmp_path, counts, finally_):
    """Killed with SIGKILL on the way, behind a checkpoint of each number of processes, and ended by another number.

    A batch has 24 rows, of which each process makes its share.
    """
    alone, together = tmp_path / "alone", tmp_path / "together"
    rows = ["--training.tokens-per-batch", 24 * 32]
    done = run("train.py", "--config", toy, "--workdir", alone, *STEPS, *rows, "--training.num-steps", 30)
    assert done.returncode == 0, done.stderr
    for count, step in zip(counts, (7, 19), strict=False):
        *others, last = killed_after(step, count, toy, together, *rows)
        assert last[0] == -signal.SIGKILL
        for number, (status, _, told) in enumerate(others):
            # In a computation, or at a checkpoint, where JAX ends the process.
            assert (status, f"process {number} lost another process of this run" in told) == (1, True) or (
                (status, "JAX distributed service detected fatal errors" in told) == (-signal.SIGABRT, True)
            ), told
    begun = saved_steps(together / "checkpoints")[-1]
    ended = finish(train(finally_, toy, together, *rows, "--training.num-steps", 30))
    assert [status for status, _, _ in ended] == [0] * finally_, ended[0][2]
    if finally_ > 1:
        made = (30 - begun) * 24 // finally_
        assert f"the first of {finally_} processes gathered {made} rows; each batch has 24" in ended[0][2]
    expected, found = steps(alone), steps(together)
    assert [line["step"] for line in found] == list(range(1, 31))
    assert [line["batch"] for line in found] == [line["batch"] for line in expected]
    assert len({line["batch"] for line in expected}) == 30
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-4)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_at_the_same_step(toy, tmp_path):
    """And only the first of them writes; two others that come to the same workdir meanwhile are refused."""
    workdir = tmp_path / "w"
    running = train(2, toy, workdir, "--training.num-steps", 100000, "--training.eval-every", 0)
    wait_for(running[0], lambda: len(steps(workdir)) > 3)
    (status, _, told), (other_status, _, _) = finish(train(2, toy, workdir))
    assert (status, other_status) == (2, 2)
    assert f"process {running[0].pid} on " in told
    running[1].send_signal(signal.SIGTERM)
    (status, _, told), (other_status, nothing, little) = finish(running)
    assert status == other_status == 143
    assert f"step {steps(workdir)[-1]['step']} is saved; run the same command again to continue" in told
    assert "loss" in told
    assert nothing == ""
    assert not [line for line in little.splitlines() if not line.startswith("[Gloo]")]
    assert [line["step"] for line in steps(workdir)] == list(range(1, len(steps(workdir)) + 1))
    length = ["--training.num-steps", len(steps(workdir)), "--training.eval-every", 0]
    first, second = finish(train(2, toy, workdir, *length))
    assert (first[0], second[0]) == (0, 0), first[2]
    assert f"finished: {len(steps(workdir))} of {len(steps(workdir))} steps" in first[1]
    assert second[1] == ""


@pytest.mark.slow
def test_evaluation_and_translation_by_two_processes(trained, toy, run, tmp_path):
    """Only the first of them writes the files that each is given."""
    workdir, source = trained[0], toy.parent / "test.en"
    expected = run("translate.py", "--workdir", workdir, "--input", source).stdout
    own = [["--output", tmp_path / f"hyps.{number}"] for number in range(2)]
    (status, out, errors), (other_status, nothing, _) = finish(
        start_together(2, "translate.py", "--workdir", workdir, "--input", source, "--batch-size", 7, each=own)
    )
    assert (status, other_status) == (0, 0), errors
    assert out == nothing == ""
    assert (tmp_path / "hyps.0").read_text(encoding="utf-8") == expected
    (tmp_path / "hyps.0").unlink()
    own = [[*options, "--json", tmp_path / f"scores.{number}"] for number, options in enumerate(own)]
    (status, out, errors), (other_status, nothing, _) = finish(
        start_together(2, "evaluate.py", "--workdir", workdir, each=own)
    )
    assert (status, other_status) == (0, 0), errors
    assert (tmp_path / "hyps.0").read_text(encoding="utf-8") == expected
    assert f"{json.loads((tmp_path / 'scores.0').read_text())['bleu']:.2f}" in out
    assert nothing == ""
    assert {path.name for path in tmp_path.iterdir()} == {"hyps.0", "hyps.source.0", "hyps.reference.0", "scores.0"}


def test_slurm_needs_no_options(trained, toy, run):
    """The variables that srun sets for each task."""
    source = toy.parent / "test.en"
    common = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
              "JAX_COORDINATOR_PORT": str(free_port())}  # fmt: skip
    tasks = [common | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
    command = ["translate.py", "--workdir", trained[0], "--input", source]
    (status, out, errors), (other_status, nothing, _) = finish(
        [start_command(*command, env=os.environ | task) for task in tasks]
    )
    assert (status, other_status) == (0, 0), errors
    assert out == run("translate.py", "--workdir", trained[0], "--input", source).stdout
    assert nothing == ""


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
def test_where_a_tpu_may_have_others_beside_it(monkeypatch, libtpu, variables, expected):
    """Without a word in the environment JAX asks the host; a Colab TPU names itself alone."""
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "MEGASCALE_NUM_SLICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: libtpu or None)
    assert processes._may_be_a_pod() == expected


def test_standard_input_reaches_one_process_only(trained):
    for status, _, errors in finish(start_together(2, "translate.py", "--workdir", trained[0])):
        assert status == 2
        assert errors.splitlines()[-1] == (
            "error: there are 2 processes, and standard input reaches only one of them: give the text with --input, "
            "a file that all of them can read"
        )


@pytest.mark.parametrize("what", ["corpus", "config"])
def test_processes_that_do_not_agree_are_refused(toy, tmp_path, what):
    source, other = toy.parent / "train.en", tmp_path / "other.en"
    text = source.read_text(encoding="utf-8")
    other.write_text(text.replace("one", "two", 1) if what == "corpus" else text, encoding="utf-8")
    own = [["--data.train-source", source], ["--data.train-source", other]]  # another path alone is no difference
    if what == "config":
        own[1] += ["--training.seed", 2]
    ended = finish(start_together(2, "train.py", "--config", toy, "--workdir", tmp_path / "w", each=own))
    assert [status for status, _, _ in ended] == [2, 2]
    assert ended[0][2].splitlines()[-1] == f"error: process 1 has a different {what} from process 0"
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coordinator", "here:1"], "coordinator, num_processes and process_id go together: all three, or none"),
        (["--num-processes", 2, "--process-id", 0], "go together"),
        (["--coordinator", "here", "--num-processes", 2, "--process-id", 0],
         'coordinator must be an address and a port, such as 10.0.0.1:1234, got "here"'),
        (["--coordinator", "here:1", "--num-processes", 2, "--process-id", 2],
         "process_id must be below num_processes, got 2 of 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("program", ["train.py", "evaluate.py", "translate.py"])
def test_flags_that_cannot_be(trained, run, program, options, message):
    done = run(program, "--workdir", trained[0], *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
