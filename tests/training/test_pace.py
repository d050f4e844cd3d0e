"""What a run reports about its pace: programs compiled, and how long the device was idle."""

import re
from pathlib import Path

import pytest

from tests.processes import read_lines

SHORT = ["--training.num-steps", "12", "--training.log-every", "6", "--training.eval-every", "0"]


@pytest.fixture(scope="module")
def late_run(toy, run, tmp_path_factory):
    """A workdir trained with late batches, and the result of the command."""
    folder = tmp_path_factory.mktemp("late")
    program = Path(__file__).parent / "scripts" / "late_and_guarded.py"
    return folder / "w", run(program, "train", "--config", toy, "--workdir", folder / "w", *SHORT)


def test_steps_make_no_implicit_transfers(late_run):
    workdir, result = late_run
    assert result.returncode == 0, result.stderr
    assert read_lines(workdir)[-1]["step"] == 12


def test_the_device_is_idle_while_batches_are_late(late_run):
    assert all(0.9 < line["idle"] <= 1.0 for line in read_lines(late_run[0]))


def test_second_run_loads_its_two_programs_from_the_cache(late_run, toy, run, tmp_path):
    """The programs of the initialization and the step."""
    second = tmp_path, run("train", "--config", toy, "--workdir", tmp_path, *SHORT)
    for (workdir, result), from_cache in ((late_run, r"\d"), (second, "2")):
        assert result.returncode == 0, result.stderr
        assert re.search(rf"^compiled 2 programs, {from_cache} from the cache, [\d.]+ s$", result.stderr, re.MULTILINE)
        lines = read_lines(workdir)
        assert [line["programs_compiled"] for line in lines] == [2] * 12
        assert all(line["compile_seconds"] > 0 for line in lines)
        assert all(0.0 <= line["idle"] <= 1.0 for line in lines)


def test_idle_time_is_a_share_of_time_in_a_run_with_validations(trained):
    shares = [line["idle"] for line in read_lines(trained[0]) if "idle" in line]
    assert 0.0 <= min(shares) <= max(shares) <= 1.0
