"""lingua-flax distill: a training split translated into a corpus for a student, through kills."""

import gzip
import json
import signal

import pytest

from lingua_flax.data.corpora.pair_files import read_json
from tests.processes import start_command, wait_for

GREEDY = ["--beam-size", 1]


def read_pairs(path) -> list[tuple[str, str]]:
    """Returns the (English, French) pairs of a JSON-lines file."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [(pair["en"], pair["fr"]) for pair in map(json.loads, content.decode().splitlines())]


@pytest.fixture(scope="module")
def long_source(toy, tmp_path_factory):
    """Returns options that replace the training split by one that is written in several parts."""
    folder = tmp_path_factory.mktemp("long")
    paths = []
    for side in ("en", "fr"):
        lines = (toy.parent / f"train.{side}").read_text(encoding="utf-8").splitlines()
        paths.append(folder / f"train.{side}")
        paths[-1].write_text("".join(f"{line}\n" for line in lines * 8), encoding="utf-8")
    return ["--data.train-source", paths[0], "--data.train-target", paths[1]]


@pytest.fixture(scope="module")
def distilled(trained, toy, run, long_source, tmp_path_factory):
    """Returns the output of an uninterrupted command."""
    output = tmp_path_factory.mktemp("distilled") / "pairs.jsonl"
    result = run("distill", "--workdir", trained[0], "--output", output, *GREEDY, *long_source)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return output


def test_output_has_the_translations_of_the_training_sources(distilled, trained, run, long_source):
    sources, targets = zip(*read_pairs(distilled), strict=True)
    text = long_source[1].read_text(encoding="utf-8")
    assert list(sources) == text.splitlines()
    translated = run("translate", "--workdir", trained[0], *GREEDY, input=text)
    assert list(targets) == translated.stdout.splitlines()
    assert list(read_json(distilled, ("fr", "en"))) == list(zip(targets, sources, strict=True))


def test_killed_command_continues_alone_and_writes_the_same_file(distilled, trained, run, long_source, tmp_path):
    output = tmp_path / "pairs.jsonl"
    arguments = ["--workdir", trained[0], "--output", output, *GREEDY, *long_source]
    process = start_command("distill", *arguments)
    wait_for(process, (tmp_path / "pairs.jsonl.part.json").exists)
    process.send_signal(signal.SIGSTOP)
    second = run("distill", *arguments)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert second.returncode == 2, second.stderr
    assert f"--output {output}: process {process.pid} on " in second.stderr
    assert not output.exists()
    done = json.loads((tmp_path / "pairs.jsonl.part.json").read_text(encoding="utf-8"))["pairs"]
    with open(tmp_path / "pairs.jsonl.part", "ab") as part:  # as if killed while it wrote
        part.write(b'{"en": "one')
    for other in (["--length-penalty", 1], ["--devices.precision", "bfloat16"]):
        refused = run("distill", *arguments, *other)
        assert refused.returncode == 2
        assert "was begun with other networks, data, precision or decoding options" in refused.stderr
    result = run("distill", *arguments)
    assert result.returncode == 0, result.stderr
    assert f"continuing after {done:,} of 5,600 sentences" in result.stderr
    assert output.read_bytes() == distilled.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize("content", [None, b'{"en": "one'])
def test_lost_part_is_reported(trained, run, long_source, tmp_path, content):
    """The part was moved away, or its copy is incomplete."""
    arguments = ["--workdir", trained[0], "--output", tmp_path / "pairs.jsonl", *GREEDY, *long_source]
    process = start_command("distill", *arguments)
    wait_for(process, (tmp_path / "pairs.jsonl.part.json").exists)
    process.kill()
    process.communicate()
    part = tmp_path / "pairs.jsonl.part"
    part.unlink()
    if content:
        part.write_bytes(content)
    refused = run("distill", *arguments)
    assert refused.returncode == 2
    assert f"{part} is missing or shorter than pairs.jsonl.part.json says; delete both to start again" in refused.stderr


@pytest.mark.slow
def test_student_trains_on_compressed_translations_of_an_ensemble(trained, toy, run, tmp_path):
    output = tmp_path / "pairs.jsonl.gz"
    command = ["distill", "--workdir", trained[0], "--ensemble", trained[0], "--output", output, *GREEDY]
    result = run(*command)
    assert result.returncode == 0, result.stderr
    assert len(read_pairs(output)) == 700
    config = tmp_path / "student.toml"
    mixture = f'[[data.mixture]]\ntrain_source = "{output}"\nweight = 2.0\n'
    config.write_text(f"{toy.read_text(encoding='utf-8')}\n{mixture}", encoding="utf-8")
    length = ["--training.num-steps", 1, "--training.eval-every", 0]
    student = run("train", "--config", config, "--workdir", tmp_path / "student", *length)
    assert student.returncode == 0, student.stderr
    assert "kept 700 of 700 pairs" in student.stderr
    refused = run(*command)
    assert refused.returncode == 2
    assert f"--output {output} exists already" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output is required"),
        (["--output", "pairs.txt"], "--output pairs.txt: the name must end in .jsonl or .jsonl.gz"),
        (["--output", "/nowhere/pairs.jsonl"], "/nowhere"),
        (["--output", "pairs.jsonl", "--data.target-language", "de"], "--data.target-language de: "),
        (["--output", "pairs.jsonl", "--data.tag-target", "True"], "--data.tag-target must remain False"),
    ],
)
def test_invalid_options_are_refused(trained, run, arguments, message):
    result = run("distill", "--workdir", trained[0], *arguments)
    assert result.returncode == 2
    assert message in result.stderr
