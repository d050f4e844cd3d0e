"""lingua-flax distill: a training split translated into a corpus for a student, through kills."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lingua_flax.data.corpora.pair_files import read_json

GREEDY = ["--beam-size", 1]
SENTENCES = 4 * 700


@pytest.fixture(scope="module")
def long_source(toy, tmp_path_factory):
    """Returns options that replace the training split by one that is written in several parts."""
    folder = tmp_path_factory.mktemp("long")
    for side in ("en", "fr"):
        text = (toy.parent / f"train.{side}").read_text(encoding="utf-8")
        (folder / f"train.{side}").write_text(text * 4, encoding="utf-8")
    return ["--data.train-source", folder / "train.en", "--data.train-target", folder / "train.fr"]


@pytest.fixture(scope="module")
def distilled(trained, succeed, long_source, tmp_path_factory):
    """Returns the output of an uninterrupted command."""
    output = tmp_path_factory.mktemp("distilled") / "pairs.jsonl.gz"
    succeed("distill", "--workdir", trained[0], "--output", output, *GREEDY, *long_source)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return output


def test_output_has_the_translations_of_the_training_sources(distilled, trained, run, long_source):
    targets, sources = zip(*read_json(distilled, ("fr", "en")), strict=True)
    text = long_source[1].read_text(encoding="utf-8")
    assert list(sources) == text.splitlines()
    translated = run("translate", "--workdir", trained[0], *GREEDY, input=text)
    assert list(targets) == translated.stdout.splitlines()


def test_killed_command_continues_alone_and_writes_the_same_file(
    distilled, trained, run, succeed, refused, long_source, tmp_path
):
    output, part, record = (tmp_path / f"pairs.jsonl.gz{ending}" for ending in ("", ".part", ".part.json"))
    command = ["distill", "--workdir", trained[0], "--output", output, *GREEDY, *long_source]
    with ThreadPoolExecutor() as thread:
        killed = thread.submit(run, *command, process=True)
        while not record.exists():
            assert not killed.done(), killed.result()
            time.sleep(0.005)
        pid = int((tmp_path / "pairs.jsonl.gz.lock").read_text().split()[1])
        os.kill(pid, signal.SIGSTOP)
        refused(f"--output {output}: process {pid} on ", *command)
        os.kill(pid, signal.SIGKILL)
    assert killed.result().returncode == -signal.SIGKILL
    assert not output.exists()
    done = json.loads(record.read_text(encoding="utf-8"))["pairs"]
    written = part.read_bytes()
    part.write_bytes(written[:12])  # as in an incomplete copy
    refused(f"{part} is missing or shorter than pairs.jsonl.gz.part.json says; delete both to start again", *command)
    part.write_bytes(written + written[:12])  # as if killed while it wrote
    for other in (["--length-penalty", 1], ["--devices.precision", "bfloat16"], ["--ensemble", trained[0]]):
        refused("was begun with other networks, data, precision or decoding options", *command, *other)
    result = succeed(*command)
    assert f"continuing after {done:,} of {SENTENCES:,} sentences" in result.stderr
    assert output.read_bytes() == distilled.read_bytes()
    assert not record.exists()
    refused("exists already", *command)
