"""lingua-flax distill: a training split translated into a corpus for a student, through kills."""

import gzip
import json
import signal

import pytest

from lingua_flax.data.corpora.pair_files import read_json
from tests.processes import start_command, wait_for

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
    output = tmp_path_factory.mktemp("distilled") / "pairs.jsonl"
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
    distilled, trained, succeed, refused, long_source, tmp_path
):
    output, part, record = (tmp_path / f"pairs.jsonl{ending}" for ending in ("", ".part", ".part.json"))
    command = ["distill", "--workdir", trained[0], "--output", output, *GREEDY, *long_source]
    process = start_command(*command)
    wait_for(process, record.exists)
    process.send_signal(signal.SIGSTOP)
    refused(f"--output {output}: process {process.pid} on ", *command)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    done = json.loads(record.read_text(encoding="utf-8"))["pairs"]
    written = part.read_bytes()
    for remains in (None, written[:12]):  # the part was moved away, or its copy is incomplete
        part.unlink(missing_ok=True)
        if remains:
            part.write_bytes(remains)
        refused(f"{part} is missing or shorter than pairs.jsonl.part.json says; delete both to start again", *command)
    part.write_bytes(written + b'{"en": "one')  # as if killed while it wrote
    for other in (["--length-penalty", 1], ["--devices.precision", "bfloat16"]):
        refused("was begun with other networks, data, precision or decoding options", *command, *other)
    result = succeed(*command)
    assert f"continuing after {done:,} of {SENTENCES:,} sentences" in result.stderr
    assert output.read_bytes() == distilled.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.slow
def test_student_trains_on_compressed_translations_of_an_ensemble(trained, toy, succeed, refused, tmp_path):
    output = tmp_path / "pairs.jsonl.gz"
    command = ["distill", "--workdir", trained[0], "--ensemble", trained[0], "--output", output, *GREEDY]
    succeed(*command)
    assert len(gzip.decompress(output.read_bytes()).splitlines()) == 700
    refused(f"--output {output} exists already", *command)
    config = tmp_path / "student.toml"
    mixture = f'[[data.mixture]]\ntrain_source = "{output}"\nweight = 2.0\n'
    config.write_text(f"{toy.read_text(encoding='utf-8')}\n{mixture}", encoding="utf-8")
    length = ["--training.num-steps", 1, "--training.eval-every", 0]
    student = succeed("train", "--config", config, "--workdir", tmp_path / "student", *length)
    assert "kept 700 of 700 pairs" in student.stderr
