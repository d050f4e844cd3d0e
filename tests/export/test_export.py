"""lingua-flax export: folders that translate without this repository, or no folder at all."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys

import jax
import pytest

from lingua_flax.commands.export import ExportCommand, check_parity, lines_to_verify
from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.downloads import offline
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.export.parity import Parity, compare, engine_of, lines_to_compare
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.files import new_folder
from lingua_flax.options.config_files import read_config, read_workdir_config
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator
from tests.helpers.networks import random_translator
from tests.processes import start_command, wait_for

TEXT = "one two three.\n\nnine.\nfour four five.\n"


@pytest.fixture(scope="module")
def scores(trained, run, tmp_path_factory):
    """Returns the scores of the run as lingua-flax evaluate writes them."""
    path = tmp_path_factory.mktemp("scores") / "scores.json"
    result = run("evaluate", "--workdir", trained[0], "--beam-size", 1, "--json", path)
    assert result.returncode == 0, result.stderr
    return path


def program(folder, *command, text=""):
    """Runs a Python program in a folder, without this repository."""
    return subprocess.run([sys.executable, *command], cwd=folder, input=text, capture_output=True, text=True)


@pytest.mark.parametrize("export_format", ["ctranslate2", "safetensors"])
def test_exported_folder_translates_without_this_repository(export_format, trained, scores, run, tmp_path):
    folder = tmp_path / "exported"
    options = ["--format", export_format, "--output", folder, "--beam-size", 1, "--scores", scores]
    result = run("export", "--workdir", trained[0], *options)
    assert result.returncode == 0, result.stderr
    assert f"{export_format}, float32" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    assert manifest["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert (manifest["format_version"], manifest["made_with"]["jax"]) == (1, jax.__version__)
    readme = files["README.md"].decode()
    example = next(pair.source for pair in open_corpus(read_workdir_config(trained[0]).data).split("validation"))
    assert example in readme.split("## How to use it")[1]
    translate, search, text = ["-I", "translate.py", "--beam-size", "3"], ("--beam-size", 3), TEXT
    if export_format == "ctranslate2":
        translate = ["-I", "-c", readme.split("```python\n")[1].split("```")[0]]
        search, text = ("--beam-size", 5, "--length-penalty", 0), f"{example}\n"
        assert "patience=2, max_decoding_length=31)" in readme
    expected = run("translate", "--workdir", trained[0], *search, input=text).stdout
    assert program(folder, *translate, text=text).stdout == expected
    bleu = json.loads(scores.read_text(encoding="utf-8"))["bleu"]
    assert f"| BLEU | {bleu:.2f} | nrefs:1\\|case:mixed" in readme
    check = ["-c", readme.split('python -c "')[1].split('"\n')[0].replace("\\\n", "")]
    assert program(folder, *check).stdout == ""
    name = max(files, key=lambda name: len(files[name]))
    damaged = bytearray(files[name])
    damaged[len(damaged) // 2] ^= 1
    (folder / name).write_bytes(damaged)
    assert program(folder, *check).stdout == f"{name}\n"
    if export_format == "safetensors":
        refused = program(folder, *translate[:2], "--beam-size", "0")
        assert (refused.returncode, "--beam-size must be at least 1" in refused.stderr) == (2, True)
        refused = program(folder, *translate)
        error = f"error: {name} is not the file that was exported; copy the folder again\n"
        assert (refused.returncode, refused.stderr) == (1, error)


def test_mistakes_are_refused_in_one_sentence(trained, run, tmp_path):
    (tmp_path / "other.json").write_text("[1]", encoding="utf-8")
    safetensors = ["--format", "safetensors", "--output"]
    for options, message in (
        (["--format", "ctranslate2"], "--output is required"),
        (["--output", "new"], "format"),
        ([*safetensors, "."], "exists already; delete it or choose another name"),
        ([*safetensors, "no/new"], "there is no folder "),
        ([*safetensors, "new", "--quantization", "int8"], "no effect with --format safetensors, only with ctranslate2"),
        ([*safetensors, "new", "--scores", "scores"], "No such file"),
        ([*safetensors, "new", "--scores", "other.json"], "not a file that lingua-flax evaluate --json has written"),
        (["--format", "html", "--output", "new", "--scores", "x"], "--scores has no effect with --format html"),
        ([*safetensors, "new", "--verify", "lines"], "lines"),
        ([*safetensors, "new", "--checkpoint", "7"], "checkpoint"),
    ):
        result = run("export", "--workdir", trained[0], *options, cwd=tmp_path)
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_missing_corpus_is_reported_and_the_export_written(trained, run, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "workdir")
    config = (workdir / "config.toml").read_text(encoding="utf-8")
    (workdir / "config.toml").write_text(config.replace("validation.en", "gone.en"), encoding="utf-8")
    result = run("export", "--workdir", workdir, "--format", "safetensors", "--output", tmp_path / "new")
    assert (result.returncode, "gone.en: no such file; check" in result.stderr) == (0, True), result.stderr
    assert (tmp_path / "new" / "model.safetensors").exists()
    config = DataConfig(name="multi30k", target_language="de", cache_directory=tmp_path)
    with offline(), pytest.raises(UserError, match=r"multi30k could not be downloaded .*not on this machine"):
        open_corpus(config)


def test_export_that_cannot_be_compared_is_reported(toy, tmp_path, caplog, monkeypatch):
    options = ExportCommand(workdir=tmp_path, format="safetensors", output=tmp_path / "x")
    translator = random_translator()
    translator = dataclasses.replace(translator, config=translator.config.model_copy(update={"max_length": 1}))
    assert lines_to_verify(translator, read_config(toy).data, options) == []
    assert "not compared with the run: the validation split has no lines of at most 1 tokens" in caplog.text
    parity = Parity(beam_size=1, lines=0, cut=3, equal=0, tied=0, score_difference=0.0)
    monkeypatch.setattr("lingua_flax.export.parity.compare", lambda *_: parity)
    check_parity(translator, options, lambda: None, ["one."] * 3)
    assert "not compared with the run: all translations reach the length limit" in caplog.text


def test_lines_to_compare_are_of_the_source_of_the_export_and_plain(toy, tmp_path):
    """A network for both directions translates into its source language from its target language."""
    mixture = ({"target_language": "fr"}, {"source_language": "de", "target_language": "en"})
    data = DataConfig(name="multi30k", source_language="en", target_language="de", tag_target=True, mixture=mixture)
    directions = [data.direction_into(language) for language in ("de", "fr", "en", "cs")]
    assert directions == [("en", "de"), ("en", "fr"), ("de", "en"), ("en", "cs")]
    data = read_config(toy).data  # of a text corpus, which is the same two files in either direction
    options = ExportCommand(workdir=tmp_path, format="safetensors", output=tmp_path / "new")
    pair = next(iter(open_corpus(data).split("validation")))
    for languages, first in ((("en", "fr"), [pair.source]), (("fr", "en"), [pair.target]), (("de", "en"), [])):
        translator = dataclasses.replace(random_translator(), languages=languages)
        assert lines_to_verify(translator, data, options)[:1] == first
    # The run keeps a URL, which the exported network has to translate.
    tokenizer = dataclasses.replace(translator.tokenizer, placeholders=PLACEHOLDERS[:3])
    lines = ["the cat eats", "https://example.org/a", "20,500", "milk at https://example.org/a", "milk"]
    assert lines_to_compare(lines, tokenizer, 64) == ["the cat eats", "milk"]


def test_export_that_translates_otherwise_is_not_accepted(trained, tmp_path):
    translator = Translator.load(trained[0])
    lines = ["one two three.", "nine.", "four five."]
    right = engine_of(translator, lines)
    first = translator.tokenizer.encode_source(lines[:1])[0]

    def wrong(source, beam_size):
        ids, score = right(source, beam_size)
        return ids, score - 0.5 * (source == first)

    parity = compare(wrong, translator, lines, 1, lambda _: None)
    assert parity == Parity(beam_size=1, lines=3, cut=0, equal=3, tied=0, score_difference=pytest.approx(0.5))
    options = ExportCommand(workdir=trained[0], format="safetensors", output=tmp_path / "new", beam_size=1)
    with pytest.raises(RunError, match=r"does not translate as .* does, so nothing was written"):
        check_parity(translator, options, lambda: wrong, lines)
    assert Parity(beam_size=1, lines=100, cut=0, equal=98, tied=1, score_difference=1e-3).holds
    assert not Parity(beam_size=1, lines=100, cut=0, equal=98, tied=0, score_difference=0.0).holds
    assert not Parity(beam_size=1, lines=100, cut=0, equal=100, tied=0, score_difference=2e-3).holds


def test_terminated_export_leaves_no_folder(trained, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("five five five five five.\n" * 100, encoding="utf-8")
    options = ["--format", "safetensors", "--output", tmp_path / "new", "--verify", lines, "--beam-size", 9]
    process = start_command("export", "--workdir", trained[0], *options)
    wait_for(process, lambda: list(tmp_path.glob(".new.*/manifest.json")))
    process.terminate()
    _, log = process.communicate()
    assert (process.returncode, log) == (143, "stopped by SIGTERM\n")
    assert list(tmp_path.iterdir()) == [lines]


def test_folder_is_given_its_name_only_when_it_is_complete(tmp_path):
    """Nor is one replaced that appears meanwhile."""
    with pytest.raises(RunError), new_folder(tmp_path / "failed"):
        raise RunError("no parity")
    context = new_folder(tmp_path / "new")
    context.__enter__()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(FileExistsError, match="File exists"):
        context.__exit__(None, None, None)
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "file"]
