"""The command serve: a process, from its first checkpoint to SIGTERM, and with what a server starts.

What it answers is what commands and Python compute.
"""

import functools
import os
import shutil
import socket
import time
import tomllib
from unittest.mock import Mock

import pytest
import tomli_w

from lingua_flax.commands.serve import ServeCommand, load, serve
from lingua_flax.data.text_files import read_lines
from lingua_flax.export import ctranslate2_model
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.interventions import Head, Intervention, inspect
from lingua_flax.inspection.run_report import RunReport
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.serving.ctranslate2_search import load_ctranslate2
from lingua_flax.translation.line_splitting import divide_text
from lingua_flax.translation.translator import Translator
from tests.conftest import PROMPTLY
from tests.helpers.inspections import HEADS, assert_same
from tests.helpers.servers import request, serving, translate, until
from tests.processes import start_command

LINE = "one two three."
OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.4)
SEARCH = ("--beam-size", 3, "--length-penalty", 0.4)


@pytest.fixture(scope="module")
def server(trained, tmp_path_factory):
    """A server that is started before its first checkpoint: the process, its log, its URL, and its workdir."""
    folder = tmp_path_factory.mktemp("served")
    workdir = folder / "workdir"
    shutil.copytree(trained[0], workdir, ignore=shutil.ignore_patterns("checkpoints"))
    host = "[::1]" if socket.has_dualstack_ipv6() else "127.0.0.1"
    address = ("--host", host, "--port", 0, "--root-path", "/mt")
    process = start_command("serve", "--workdir", workdir, *SEARCH, *address, "--batch-size", 2)
    log = iter(process.stderr.readline, "")
    listening = next(log)  # without a warning that other machines can connect
    assert listening.startswith(f"listening on http://{host}:")
    url = f"{listening.split()[-1]}/mt"
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


def test_translates_and_aligns_as_the_command(url, trained, run, tmp_path):
    lines = [LINE, "four " * 40, "", "two nine. three zero.   five six."]
    links = tmp_path / "links.txt"
    text = "".join(f"{line}\n" for line in lines)
    done = run("translate", "--workdir", trained[0], *SEARCH, "--alignments", links, input=text)
    answer = translate(url, lines, alignments=True)[1]
    assert answer == {"translatedText": done.stdout.splitlines(), "alignments": links.read_text().splitlines()}
    given = translate(url, LINE, alternatives=2)[1]
    found = [each["text"] for each in request(url, "/inspect", {"q": LINE})[1]["hypotheses"]]
    assert found == [given["translatedText"], *given["alternatives"]]


def test_inspects_as_python_does(url, trained):
    earlier, *_ = saved_steps(trained[0] / "checkpoints")
    served, other = (Translator.load(trained[0], checkpoint) for checkpoint in ("best", str(earlier)))
    assert earlier != served.step
    changed = Intervention((9,), (0, 2), tuple(Head(**head) for head in HEADS))
    asked = {"prefix": [9], "masked": [0, 2], "heads_off": HEADS, "beam": "true", "checkpoint": earlier, "target": ""}
    for own, question, intervention in (
        (served, {"target": "fr"}, Intervention()),
        (other, asked, changed),
        (other, asked, changed),  # from memory
        (served, {}, Intervention()),
    ):
        inspection = inspect(own, LINE, OPTIONS, intervention, record_beam="beam" in question)
        status, answer, _ = request(url, "/inspect", {"q": LINE} | question)
        assert status == 200
        expected = inspection.as_json(own.tokenizer) | {"checkpoint": own.step, "sentences": []}
        assert_same(answer, expected, tolerance=4e-5)


def test_questions_that_do_not_fit_the_network_are_refused(url):
    for question, message in (
        ({"sentence": 1}, "there is no sentence 1: the text has 1"),
        ({"prefix": [10**30]}, "a prescribed token must be an id from 1 to 44"),
        ({"checkpoint": 7}, "Invalid request: checkpoints: no checkpoint 7; saved: "),
    ):
        status, answer, _ = request(url, "/inspect", {"q": LINE} | question)
        assert (status, message in answer["error"]) == (400, True), answer


def test_run_is_that_of_the_files(server):
    _, url, workdir = server
    report, (status, answer, _) = RunReport(workdir).read(), request(url, "/run")
    assert status == 200
    age = time.time() - os.path.getmtime(workdir / "metrics.jsonl")
    assert age - PROMPTLY <= answer["seconds_since_change"] <= age
    assert answer == report | {"seconds_since_change": answer["seconds_since_change"]}
    assert request(url, "/examples")[:2] == (200, {"sentences": [], "ambiguous": []})
    body = request(url, "/openapi.json")[1]["paths"]["/inspect"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["q"]["examples"] == [report["samples"][0]["source"]]


def test_says_without_folders_what_is_missing_and_ends_when_it_is_told(server, tmp_path):
    process, url, workdir = server
    workdir.rename(tmp_path / "moved")
    status, answer, headers = request(url, "/run")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert answer["error"].startswith("workdir: not a workdir (there is no such folder)")
    assert str(workdir.parent) not in str(answer)
    assert any(line.startswith("all programs are compiled, after ") for line in iter(process.stderr.readline, ""))
    process.terminate()
    assert process.communicate()[1].endswith("stopped by SIGTERM\n")
    assert process.returncode == 143


def test_ctranslate2_translates_too(trained, run):
    lines = ["one two three.", "", "nine.", "two nine. Привет.   five six."]
    search = ("--beam-size", 2, "--length-penalty", 0)
    expected = run("translate", "--workdir", trained[0], *search, input="".join(f"{line}\n" for line in lines))
    options = ServeCommand(workdir=trained[0], engine="ctranslate2", beam_size=2, length_penalty=0)
    with serving(functools.partial(load, options), max_waiting=10_000) as (server, url):
        until(lambda: server.status == "ok")
        assert translate(url, lines)[:2] == (200, {"translatedText": expected.stdout.splitlines()})
        assert len(translate(url, alternatives=1)[1]["alternatives"]) == 1
        status, answer, _ = translate(url, ["nine."], alignments=True)
        assert (status, len(answer["alignments"])) == (200, 1)


def test_ctranslate2_does_not_end_a_search_too_soon(trained, toy, monkeypatch):
    """It finds what it finds if many more hypotheses have to finish first, but for 1 of 100 lines at most."""
    options = DecodingOptions(beam_size=5, length_penalty=1.0)
    translator = Translator.load(trained[0])
    lines = list(read_lines(toy.parent / "train.en"))[:200]
    parts = translator.request(options).parts(divide_text(translator, lines))
    searcher = load_ctranslate2(translator, options, "float32", workers=1)
    found = list(searcher.search(parts, lambda part: True, None))
    some = list(searcher.search(parts[:9], lambda part: part not in (0, 2), None))  # whose clients have left
    assert [{key: own.text for key, (own,) in each.items()} for each in some] == [
        {key: own.text for key, (own,) in each.items()} for each in found[:9] if not set(each) & {0, 2}
    ]
    monkeypatch.setattr(ctranslate2_model, "PATIENCE", 10)
    patient = list(searcher.search(parts, lambda part: True, None))
    assert sum(one != other for one, other in zip(patient, found, strict=True)) <= len(found) / 100


def test_server_computes_in_the_precision_of_the_run(trained, tmp_path, monkeypatch):
    config = tomllib.loads((trained[0] / "config.toml").read_text(encoding="utf-8"))
    config["devices"]["precision"] = "bfloat16"
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    (tmp_path / "checkpoints").symlink_to(trained[0] / "checkpoints")
    loading = Mock(side_effect=UserError("enough"))
    monkeypatch.setattr(Translator, "load", loading)
    with pytest.raises(UserError, match="enough"):
        load(ServeCommand(workdir=tmp_path), Mock())
    *_, devices = loading.call_args.args
    assert (devices.platform, devices.precision) == ("cpu", "bfloat16")


def test_mistakes_are_refused(trained):
    for options, message in (
        ("--engine ctranslate2 --device gpu", "computes on the CPU"),
        ("--length-penalty 5", "length_penalty: input should be less than or equal to 4, got 5"),
        ("--quantization int8", "--quantization has no effect with --engine jax"),
        ("--host 192.0.2.1", r"cannot listen on 192.0.2.1, port 8000 \(Cannot assign requested address\)$"),
        ("--host nosuch.invalid", r"cannot listen on nosuch.invalid, port 8000 \((?!Unknown error)"),
        ("--device gpu", "gpu"),
    ):
        with pytest.raises(UserError, match=message):
            serve(["--workdir", str(trained[0]), *options.split()])


def test_network_that_cannot_be_loaded_ends_the_process(trained, run):
    result = run("serve", "--workdir", trained[0], "--checkpoint", "7", "--port", 0)
    assert result.returncode == 2
    assert "no checkpoint 7; saved: " in result.stderr
