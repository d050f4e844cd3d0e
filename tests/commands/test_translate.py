"""lingua-flax translate: lines of any kind, the three formats of its output, and an intact output in the end."""

import gzip
import json
import signal
import subprocess

import pytest

from tests.conftest import HUNG_AFTER
from tests.processes import finish, start_command, wait_for


def test_every_line_is_translated_and_all_formats_agree(trained, run, tmp_path):
    """One command reads and writes files; the others use pipes."""
    text = "one two.\n\n  \nthree.\r\n\ufeffnine.\nfour\u2028five\x0bsix.\n<pad> </s> one.\n日本 👍.\nseven."
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_bytes(text.encode())
    command = ["translate", "--workdir", trained[0], "--beam-size", 4]
    plain = run(*command, input=text)
    to_file = run(*command, "--num-hypotheses", 3, "--input", source, "--output", output, "--json-lines")
    n_best = run(*command, "--num-hypotheses", 3, input=text)
    for done in (plain, to_file, n_best):
        assert done.returncode == 0, done.stderr
    assert to_file.stdout == ""

    assert plain.stdout.count("\n") == 9
    lines = plain.stdout.removesuffix("\n").split("\n")
    assert lines[0] == "deux un !"
    assert lines[1] == lines[2] == ""
    assert lines[8] == "sept !"

    json_lines = [json.loads(line) for line in output.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    assert [line["hypotheses"][0]["text"] for line in json_lines] == lines
    assert json_lines[0]["source"] == "one two."

    rows = [line.split("\t") for line in n_best.stdout.removesuffix("\n").split("\n")]
    assert [row[0] for row in rows if row[0] in "129"] == ["1", "1", "1", "2", "9", "9", "9"]  # line 2 is empty
    expected = []
    for number, line in enumerate(json_lines, 1):
        scores = [hypothesis["score"] for hypothesis in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        expected += [[str(number), f"{each['score']:.4f}", each["text"]] for each in line["hypotheses"]]
    assert rows == expected


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
