"""A real server process, from its first checkpoint to SIGTERM: it answers what commands and Python compute."""

import os
import shutil
import time

import pytest

from lingua_flax.inspection.interventions import Head, Intervention, inspect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.translation.translator import Translator
from tests.conftest import PROMPTLY
from tests.helpers.inspections import HEADS, assert_same
from tests.helpers.servers import request, translate
from tests.processes import read_lines, start_command

LINE = "one two three."
OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.4)
TOLERANCE = 4e-5
SEARCH = ("--beam-size", 3, "--length-penalty", 0.4)


@pytest.fixture(scope="module")
def server(trained, tmp_path_factory):
    """A server that is started before its first checkpoint: the process, its log, its URL, and its workdir."""
    folder = tmp_path_factory.mktemp("served")
    workdir = folder / "workdir"
    shutil.copytree(trained[0], workdir, ignore=shutil.ignore_patterns("checkpoints"))
    options = (*SEARCH, "--port", 0, "--batch-size", 2, "--max-characters", 400)
    process = start_command("serve", "--workdir", workdir, *options)
    log = iter(process.stderr.readline, "")
    url = next(line.split()[-1] for line in log if line.startswith("listening on "))
    assert next(log) == f"waiting for the first checkpoint in {workdir}/checkpoints\n"
    status, answer, _ = request(url, "/health")
    assert (status, answer) == (503, {"status": "waiting for the first checkpoint in checkpoints"})  # not where that is
    shutil.copytree(trained[0] / "checkpoints", folder / "copied")
    (folder / "copied").rename(workdir / "checkpoints")
    assert [next(log) for _ in range(3)] == ["loading the network\n", "compiling the first program\n", "ready\n"]
    yield process, url, workdir
    process.kill()
    process.communicate()


@pytest.fixture
def url(server):
    return server[1]


@pytest.fixture(scope="module")
def translator(trained):
    return Translator.load(trained[0])


def ask(url, **question):
    """Returns the status and the JSON of an answer of POST /inspect."""
    return request(url, "/inspect", {"q": LINE} | question)[:2]


def test_translates_and_aligns_as_the_command(url, trained, run, tmp_path):
    lines = ["one two three.", "four " * 40, "", "two nine. three zero.   five six."]
    links = tmp_path / "links.txt"
    text = "".join(f"{line}\n" for line in lines)
    done = run("translate", "--workdir", trained[0], *SEARCH, "--alignments", links, input=text)
    answer = translate(url, lines, alignments=True)[1]
    assert answer == {"translatedText": done.stdout.splitlines(), "alignments": links.read_text().splitlines()}
    given = translate(url, LINE, alternatives=2)[1]
    answer = ask(url)[1]
    texts = [given["translatedText"], *given["alternatives"]]
    assert [answer["translation"], *(each["text"] for each in answer["hypotheses"][1:])] == texts


def test_inspects_as_python_does(url, translator, trained):
    heads = tuple(Head(**head) for head in HEADS)
    changed = Intervention((9,), (0, 2), heads)
    asked = {"prefix": [9], "masked": [0, 2], "heads_off": HEADS, "beam": "true", "target": ""}
    earlier, *_ = saved_steps(trained[0] / "checkpoints")
    assert earlier != translator.step
    other = Translator.load(trained[0], str(earlier))
    for own, question, intervention in (
        (translator, {"target": "fr"}, Intervention()),
        (translator, asked, changed),
        (other, asked | {"checkpoint": earlier}, changed),
        (other, asked | {"checkpoint": earlier}, changed),  # from memory
        (translator, {}, Intervention()),
    ):
        inspection = inspect(own, LINE, OPTIONS, intervention, record_beam="beam" in question)
        status, answer = ask(url, **question)
        assert status == 200
        expected = inspection.as_json(own.tokenizer) | {"checkpoint": own.step, "sentences": []}
        assert_same(answer, expected, TOLERANCE)


def test_invalid_questions_are_refused(url):
    for question, status, message in (
        ({"q": " \n"}, 400, r"q: string should match pattern '\S', got"),
        ({"q": "a" * 401}, 413, "401 characters exceed the limit of 400"),
        ({"sentence": 1}, 400, "there is no sentence 1: the text has 1"),
        ({"prefix": [9.5]}, 400, "prefix.0: input should be a valid integer, got 9.5"),
        ({"prefix": [10**30]}, 400, "a prescribed token must be an id from 1 to 44"),
        ({"masked": [True]}, 400, "masked.0: input should be a valid integer, got True"),
        ({"heads_off": [{"attention": "encoder", "layer": 0}]}, 400, "missing heads_off.0.head parameter"),
        ({"heads_off": [HEADS[0] | {"attention": "self"}]}, 400, "input should be 'encoder', 'decoder' or 'cross'"),
        ({"target": "de"}, 400, "de is not available as a target language"),
        ({"checkpoint": 7}, 400, "Invalid request: checkpoints: no checkpoint 7; saved: "),
        ({"checkpoint": 0}, 400, "checkpoint: input should be greater than 0, got 0"),
    ):
        answer = ask(url, **question)
        assert answer[0] == status, answer
        assert message in answer[1]["error"]


def test_run_is_that_of_the_files(server):
    _, url, workdir = server
    status, answer, _ = request(url, "/run")
    assert status == 200
    age = time.time() - os.path.getmtime(workdir / "metrics.jsonl")
    assert age - PROMPTLY <= answer.pop("seconds_since_change") <= age
    lines = read_lines(workdir)
    losses = [[line["step"], pytest.approx(line["loss"], abs=1e-4)] for line in lines if "loss" in line]
    validations = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in validations] == [80, 160, 240]
    names = {"loss": "validation_loss", "loss_shuffled": "validation_loss_shuffled", "bleu": "validation_bleu"}
    assert answer == {
        "name": workdir.name,
        "step": 240,
        "num_steps": 240,
        "checkpoints": saved_steps(workdir / "checkpoints"),
        "best_checkpoint": read_metadata(workdir / "checkpoints", 240)["best_step"],
        "training_loss": losses,
        "validations": [{"step": line["step"]} | {own: line[names[own]] for own in names} for line in validations],
        "samples": validations[-1]["samples"],
        "label_smoothing": 0.1,
    }
    assert len(answer["samples"]) == 3
    assert request(url, "/examples")[:2] == (200, {"sentences": [], "ambiguous": []})
    assert [request(url, path)[0] for path in ("/inspect", "/main.js")] == [405, 404]
    body = request(url, "/openapi.json")[1]["paths"]["/inspect"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["q"]["examples"] == [answer["samples"][0]["source"]]


def test_says_without_folders_what_is_missing_and_ends_when_it_is_told(server, tmp_path):
    process, url, workdir = server
    workdir.rename(tmp_path / "moved")
    status, answer, headers = request(url, "/run")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert answer["error"].startswith("workdir: not a workdir (there is no such folder)")
    assert str(workdir.parent) not in str(answer)
    process.terminate()
    log = process.communicate()[1]
    assert "all programs are compiled, after " in log
    assert log.endswith("stopped by SIGTERM\n")
    assert process.returncode == 143
