"""lingua-flax export: folders that translate without this repository, or no folder at all."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import lingua_flax.commands.export
from lingua_flax.commands.export import ExportCommand, check_parity, lines_to_verify, write_format
from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.downloads import offline
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.export import numpy_translator
from lingua_flax.export.parity import Parity, lines_to_compare
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.files import new_folder
from lingua_flax.options.config_files import read_config, read_workdir_config
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator
from tests.export.test_export_formats import random_translator
from tests.processes import start_command, wait_for

LINES = ["one two three.", "", "nine.", "four four five."]
WITH_CTRANSLATE2 = Path(__file__).parent / "scripts" / "translate_with_ctranslate2.py"


@pytest.fixture(scope="module")
def scores(trained, run, tmp_path_factory):
    """Returns the scores of the run as lingua-flax evaluate writes them."""
    path = tmp_path_factory.mktemp("scores") / "scores.json"
    result = run("evaluate", "--workdir", trained[0], "--beam-size", 1, "--json", path)
    assert result.returncode == 0, result.stderr
    return path


def test_export_that_cannot_be_compared_is_reported(trained, tmp_path, caplog):
    options = ExportCommand(workdir=trained[0], format="safetensors", output=tmp_path / "x")
    translator = Translator.load(trained[0])
    translator = dataclasses.replace(translator, config=translator.config.model_copy(update={"max_length": 1}))
    assert lines_to_verify(translator, read_workdir_config(trained[0]).data, options) == []
    assert "not compared with the run: the validation split has no lines of at most 1 tokens" in caplog.text
    caplog.clear()

    def parity(*_):
        return Parity(beam_size=1, lines=0, cut=3, equal=0, tied=0, score_difference=0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lingua_flax.export.parity.compare", parity)
        check_parity(translator, options, lambda: None, ["one."] * 3)
    assert "not compared with the run: all translations reach the length limit" in caplog.text


@pytest.mark.parametrize("export_format", ["ctranslate2", "safetensors"])
def test_exported_folder_translates_without_this_repository(export_format, trained, scores, run, tmp_path):
    folder = tmp_path / "exported"
    options = ["--format", export_format, "--output", folder, "--beam-size", 1, "--scores", scores]
    result = run("export", "--workdir", trained[0], *options)
    assert result.returncode == 0, result.stderr
    assert f"{export_format}, float32" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    if export_format == "ctranslate2":
        assert "beam_size=5, patience=2, max_decoding_length=31)" in (folder / "README.md").read_text(encoding="utf-8")
    program = [WITH_CTRANSLATE2] if export_format == "ctranslate2" else ["translate.py", "--beam-size", "1"]
    text = "".join(f"{line}\n" for line in LINES)
    alone = subprocess.run(
        [sys.executable, "-I", *program], cwd=folder, input=text, capture_output=True, text=True, check=True
    )
    expected = run("translate", "--workdir", trained[0], "--beam-size", 1, input=text)
    assert alone.stdout == expected.stdout
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    assert manifest["files"] == digests
    assert (manifest["format_version"], manifest["made_with"]["jax"]) == (1, jax.__version__)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    example = next(pair.source for pair in open_corpus(read_workdir_config(trained[0]).data).split("validation"))
    assert example in readme.split("## How to use it")[1]
    code = readme.split('python -c "')[1].split('"\n')[0].replace("\\\n", "")
    check = [sys.executable, "-c", code]
    assert subprocess.run(check, cwd=folder, capture_output=True, text=True, check=True).stdout == ""
    damaged = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert subprocess.run(check, cwd=folder, capture_output=True, text=True, check=True).stdout == f"{damaged.name}\n"
    if export_format != "ctranslate2":
        refused = subprocess.run(
            [sys.executable, "-I", "translate.py"], cwd=folder, input="", capture_output=True, text=True
        )
        error = f"error: {damaged.name} is not the file that was exported; copy the folder again\n"
        assert (refused.returncode, refused.stderr) == (1, error)
    bleu = json.loads(scores.read_text(encoding="utf-8"))["bleu"]
    assert f"| BLEU | {bleu:.2f} | nrefs:1\\|case:mixed" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_quantized_export_is_compared_but_not_judged(trained, run, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("one two.\nnine.\n", encoding="utf-8")
    options = ["--format", "ctranslate2", "--quantization", "int8", "--verify", lines, "--output", tmp_path / "int8"]
    result = run("export", "--workdir", trained[0], *options)
    assert result.returncode == 0, result.stderr
    assert "ctranslate2, int8" in result.stdout
    assert (tmp_path / "int8" / "model.bin").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "ctranslate2"], "--output is required"),
        (["--output", "{tmp}/new"], "format"),
        (["--format", "onnx", "--output", "{tmp}/new"], "onnx"),
        (["--format", "safetensors", "--output", "{tmp}"], "exists already; delete it or choose another name"),
        (["--format", "safetensors", "--output", "{tmp}/no/new"], "there is no folder {tmp}/no"),
        (
            ["--format", "safetensors", "--output", "{tmp}/new", "--quantization", "int8"],
            "--quantization has no effect with --format safetensors, only with ctranslate2",
        ),
        (["--format", "safetensors", "--output", "{tmp}/new", "--scores", "{tmp}/scores"], "No such file"),
        (["--format", "html", "--output", "{tmp}/new", "--scores", "x"], "--scores has no effect with --format html"),
        (["--format", "safetensors", "--output", "{tmp}/new", "--verify", "{tmp}/lines"], "{tmp}/lines"),
        (["--format", "safetensors", "--output", "{tmp}/new", "--checkpoint", "7"], "checkpoint"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(trained, run, tmp_path, options, message):
    result = run("export", "--workdir", trained[0], *(option.format(tmp=tmp_path) for option in options))
    assert result.returncode == 2
    assert message.format(tmp=tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_other_json_is_not_taken_for_scores(trained, run, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("[1]", encoding="utf-8")
    options = ["--format", "safetensors", "--output", tmp_path / "new", "--scores", other]
    result = run("export", "--workdir", trained[0], *options)
    assert result.returncode == 2
    assert f"--scores {other}: not a file that lingua-flax evaluate --json has written" in result.stderr


def test_missing_corpus_is_reported_and_the_export_written(trained, run, tmp_path):
    workdir = tmp_path / "workdir"
    shutil.copytree(trained[0], workdir)
    config = (workdir / "config.toml").read_text(encoding="utf-8")
    (workdir / "config.toml").write_text(config.replace("validation.en", "gone.en"), encoding="utf-8")
    result = run("export", "--workdir", workdir, "--format", "safetensors", "--output", tmp_path / "new")
    assert result.returncode == 0, result.stderr
    assert "the export is not compared with the run: " in result.stderr
    assert "gone.en" in result.stderr
    assert "or give lines with --verify FILE" in result.stderr
    assert (tmp_path / "new" / "model.safetensors").exists()


def test_direction_of_an_export_is_one_of_the_run():
    """A network for both directions translates into its source language from its target language."""
    mixture = ({"target_language": "fr"}, {"source_language": "de", "target_language": "en"})
    data = DataConfig(name="multi30k", source_language="en", target_language="de", tag_target=True, mixture=mixture)
    directions = [data.direction_into(language) for language in ("de", "fr", "en", "cs")]
    assert directions == [("en", "de"), ("en", "fr"), ("de", "en"), ("en", "cs")]


def test_an_export_into_the_source_language_is_compared_on_sources_of_its_own(toy, tmp_path):
    """A text corpus is the same two files in either direction."""
    data = read_config(toy).data
    options = ExportCommand(workdir=tmp_path, format="safetensors", output=tmp_path / "new")
    pairs = open_corpus(data).split("validation")
    for languages, side in ((("en", "fr"), 0), (("fr", "en"), 1)):
        translator = dataclasses.replace(random_translator(), languages=languages)
        assert lines_to_verify(translator, data, options)[0] == next(iter(pairs))[side]
    assert lines_to_verify(dataclasses.replace(translator, languages=("de", "en")), data, options) == []


def test_lines_with_what_placeholders_stand_for_are_not_compared():
    """The run keeps a URL, which the exported network has to translate."""
    tokenizer = dataclasses.replace(random_translator().tokenizer, placeholders=PLACEHOLDERS[:3])
    lines = ["the cat eats", "https://example.org/a", "20,500", "milk at https://example.org/a", "milk"]
    assert lines_to_compare(lines, tokenizer, 64) == ["the cat eats", "milk"]


def test_an_exported_program_refuses_to_search_without_a_beam(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["translate.py", "--beam-size", "0"])
    with pytest.raises(SystemExit, match="2"):
        numpy_translator.main()
    assert "--beam-size must be at least 1" in capsys.readouterr().err


def test_a_corpus_is_not_downloaded_for_the_comparison(tmp_path):
    config = DataConfig(name="multi30k", target_language="de", cache_directory=tmp_path)
    with (
        offline(),
        pytest.raises(UserError, match=r"multi30k could not be downloaded .*not on this machine"),
    ):
        open_corpus(config)


def test_export_that_translates_otherwise_leaves_no_folder(trained, tmp_path, monkeypatch):
    def write_wrong_format(*arguments):
        usage, load_engine = write_format(*arguments)
        right = load_engine()
        return (
            usage,
            lambda: lambda source, beam_size: (right(source, beam_size)[0][:-1], right(source, beam_size)[1] - 1),
        )

    monkeypatch.setattr(lingua_flax.commands.export, "write_format", write_wrong_format)
    argv = ["--workdir", str(trained[0]), "--format", "safetensors", "--output", str(tmp_path / "new")]
    with pytest.raises(RunError, match=r"does not translate as .* does, so nothing was written"):
        lingua_flax.commands.export.export(argv)
    assert not list(tmp_path.iterdir())


def test_wrong_scores_are_not_accepted():
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


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    context = new_folder(tmp_path / "new")
    context.__enter__()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(FileExistsError, match="File exists"):
        context.__exit__(None, None, None)
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "file"]
