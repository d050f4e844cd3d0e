"""What the command serve starts with: networks for CTranslate2, precision, addresses, and mistakes."""

import socket
import tomllib
from unittest.mock import Mock

import ctranslate2
import pytest
import tomli_w

from lingua_flax.commands.serve import ServeCommand, load, serve
from lingua_flax.data.text_files import read_lines
from lingua_flax.export import ctranslate2_model
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.serving.ctranslate2_search import load_ctranslate2
from lingua_flax.translation import parallel
from lingua_flax.translation.translator import Translator
from tests.helpers.servers import request, translate
from tests.processes import start_command


def test_ctranslate2_translates_too(trained, run):
    lines = ["one two three.", "nine.", "", "four " * 40, "seven eight.", "two nine. Привет.   five six."]
    options = ("--workdir", trained[0], "--beam-size", 2, "--length-penalty", 0)
    expected = run("translate", *options, input="".join(f"{line}\n" for line in lines)).stdout.splitlines()
    host = "[::1]" if socket.has_dualstack_ipv6() else "127.0.0.1"
    process = start_command("serve", *options, "--host", host, "--port", 0, "--engine", "ctranslate2")
    url = process.stderr.readline().split()[-1]  # without a warning that other machines can connect
    assert url.startswith(f"http://{host}:")
    assert "ready\n" in iter(process.stderr.readline, "")
    assert request(url, "/health")[0] == 200
    assert translate(url, lines)[:2] == (200, {"translatedText": expected})
    assert len(translate(url, alternatives=1)[1]["alternatives"]) == 1
    status, answer, _ = translate(url, ["nine."], alignments=True)
    assert (status, len(answer["alignments"])) == (200, 1)
    process.terminate()
    process.communicate()
    assert process.returncode == 143


def test_ctranslate2_does_not_end_a_search_too_soon(trained, toy, monkeypatch):
    """It finds what it finds if many more hypotheses have to finish first, but for 1 of 100 lines at most."""
    options = DecodingOptions(beam_size=5, length_penalty=1.0)
    translator = Translator.load(trained[0])
    parts, count = next(translator.searches(list(read_lines(toy.parent / "train.en"))[:200], options, 1))
    searcher = load_ctranslate2(translator, options, "float32", workers=1)
    found = list(searcher.search(parts, count, lambda part: True))
    wanted = [{index: own[index] for index in own} for own in found if not set(own) & {0, 2}]
    some = list(searcher.search(parts[:9], count, lambda part: part not in (0, 2)))
    assert [{key: own.text for key, (own,) in each.items()} for each in some] == [
        {key: own.text for key, (own,) in each.items()} for each in wanted[:7]
    ]
    monkeypatch.setattr(ctranslate2_model, "PATIENCE", 10)
    patient = list(searcher.search(parts, count, lambda part: True))
    assert sum(one != other for one, other in zip(patient, found, strict=True)) <= len(found) / 100


def test_ctranslate2_computes_with_one_thread_a_worker(trained, monkeypatch):
    """Several threads of a product wait for each other on busy cores: 1 to 5 lines/s instead of 41 to 122."""
    given = []
    monkeypatch.setattr(ctranslate2, "Translator", lambda folder, **options: given.append(options))
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    engine = load(ServeCommand(workdir=trained[0], engine="ctranslate2"), Mock())
    assert engine.workers == 2
    assert [(own["inter_threads"], own["intra_threads"]) for own in given] == [(2, 1)]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ctranslate2", "--device", "gpu"], "computes on the CPU"),
        (["--quantization", "int8"], "--quantization has no effect with --engine jax"),
        (["--port", "70000"], "port"),
        (["--host", "192.0.2.1"], r"cannot listen on 192.0.2.1, port 8000 \(Cannot assign requested address\)$"),
        (["--host", "nosuch.invalid"], r"cannot listen on nosuch.invalid, port 8000 \((?!Unknown error)"),
        (["--device", "gpu"], "gpu"),
    ],
)
def test_mistakes_are_refused(trained, options, message):
    with pytest.raises(UserError, match=message):
        serve(["--workdir", str(trained[0]), *options])


def test_network_that_cannot_be_loaded_ends_the_process(trained, run):
    result = run("serve", "--workdir", trained[0], "--checkpoint", "7", "--port", 0)
    assert result.returncode == 2
    assert "no checkpoint 7; saved: " in result.stderr
