"""Signals and closed pipes end a translation at once and leave what is written intact."""

import gzip
import signal
import subprocess

import pytest

from tests.conftest import HUNG_AFTER
from tests.processes import finish, start_command, wait_for


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_leaves_the_translations_so_far_as_an_intact_file(trained, tmp_path, number):
    output = tmp_path / "out.gz"
    options = ["--workdir", trained[0], "--output", output, "--beam-size", 1]
    process = start_command("translate", *options, stdin=subprocess.PIPE)
    process.stdin.write("one two.\n" * 1024 + "three.\n")
    process.stdin.flush()
    wait_for(process, lambda: output.exists() and output.stat().st_size)
    process.send_signal(number)
    ((status, _, stderr),) = finish([process])
    assert status == 128 + number, stderr
    assert stderr.endswith(f"stopped by {signal.Signals(number).name}\n")
    assert gzip.decompress(output.read_bytes()).decode() == "deux un !\n" * 1024


def test_reader_that_closes_the_pipe_is_no_error(trained):
    process = start_command("translate", "--workdir", trained[0], "--beam-size", 1, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write("one.\n" * 5000)
    process.stdin.close()
    assert process.wait(timeout=HUNG_AFTER) == 141
    assert process.stderr.read() == ""
