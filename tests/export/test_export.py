"""lingua-flax export: folders that translate without this repository, or no folder at all."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest
from ml_dtypes import bfloat16

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.downloads import DownloadFailedError, download, offline
from lingua_flax.data.placeholders import PLACEHOLDERS
from lingua_flax.export.description import Export
from lingua_flax.export.parity import Parity, check_parity, compare, lines_to_verify, translated
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.interruption import interruption
from lingua_flax.options.config_files import read_config, read_workdir_config
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator
from tests.command_server import run_here
from tests.helpers.commands import succeed
from tests.helpers.folders import contents
from tests.helpers.networks import random_translator

TEXT = "one two three.\n\n1. (2) –\nnine.\nfour four five.\n"


def program(folder, *command, text=""):
    """Runs a Python program in a folder, without this repository."""
    return subprocess.run([sys.executable, *command], cwd=folder, input=text, capture_output=True, text=True)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("export_format", ["ctranslate2", "safetensors"])
def test_exported_folder_translates_without_this_repository(export_format, trained, run, tmp_path):
    scores = {"bleu": 98.75, "bleu_signature": "nrefs:1|case:mixed", "sentences": 37, "checkpoint_step": 240}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    folder = tmp_path / "exported"
    options = ["--format", export_format, "--output", folder, "--beam-size", 1, "--scores", tmp_path / "scores.json"]
    result = succeed(run, "export", "--workdir", trained[0], *options)
    assert f"{export_format}, float32" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"exported", "scores.json"}
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    assert manifest["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert (manifest["format_version"], manifest["made_with"]["jax"]) == (1, jax.__version__)
    readme = files["README.md"].decode()
    example = next(pair.source for pair in open_corpus(read_workdir_config(trained[0]).data).split("validation"))
    assert example in readme.split("## How to use it")[1]
    assert "| BLEU | 98.75 | nrefs:1\\|case:mixed" in readme
    translate, search, text = ["-I", "translate.py", "--beam-size", "3"], ("--beam-size", 3), TEXT
    if export_format == "ctranslate2":
        translate = ["-I", "-c", readme.split("```python\n")[1].split("```")[0]]
        search, text = ("--beam-size", 5, "--length-penalty", 0), f"{example}\n"
        assert "patience=2, max_decoding_length=31)" in readme
    expected = run("translate", "--workdir", trained[0], *search, input=text).stdout
    assert program(folder, *translate, text=text).stdout == expected
    check = ["-c", readme.split('python -c "')[1].split('"\n')[0].replace("\\\n", "")]
    assert program(folder, *check).stdout == ""
    name = max(files, key=lambda name: len(files[name]))
    flip_a_bit(folder / name)
    assert program(folder, *check).stdout == f"{name}\n"
    if export_format == "safetensors":
        refused = program(folder, *translate)
        error = f"error: {name} is not the file that was exported; copy the folder again\n"
        assert (refused.returncode, refused.stderr) == (1, error)


def test_mistakes_are_refused_in_one_sentence(trained, run, tmp_path):
    (tmp_path / "other.json").write_text("[1]", encoding="utf-8")
    for options, message in (
        ("--format ctranslate2", "--output is required"),
        ("--output new", "format"),
        ("--format safetensors --output .", "exists already; delete it or choose another name"),
        ("--format safetensors --output no/new", "there is no folder "),
        ("--format safetensors --output new --quantization int8", "--format safetensors has float32"),
        ("--format safetensors --output new --scores other.json", "not a file that lingua-flax evaluate --json"),
        ("--format html --output new --verify lines", "lines"),
        ("--format html --output new --checkpoint 7", "checkpoint"),
    ):
        result = run("export", "--workdir", trained[0], *options.split(), cwd=tmp_path)
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
    with offline(), pytest.raises(DownloadFailedError, match="http://localhost/: it is not on this machine"):
        download("http://localhost/", tmp_path / "file", "")


def test_lines_to_compare_are_of_the_source_of_the_export_and_plain(toy, tmp_path):
    data = read_config(toy).data  # of a text corpus, which is the same two files in either direction
    pair = next(iter(open_corpus(data).split("validation")))
    for languages, first in ((("en", "fr"), [pair.source]), (("fr", "en"), [pair.target]), (("de", "en"), [])):
        translator = dataclasses.replace(random_translator(), languages=languages)
        assert lines_to_verify(translator, data, None)[:1] == first
    # The run keeps a URL, which the exported network has to translate.
    tokenizer = dataclasses.replace(translator.tokenizer, placeholders=PLACEHOLDERS[:3])
    file = tmp_path / "lines"
    file.write_text("the cat eats\nhttps://example.org/a\n20,500\nmilk at https://example.org/a\nmilk\n")
    translator = dataclasses.replace(translator, tokenizer=tokenizer)
    assert lines_to_verify(translator, data, file) == ["the cat eats", "milk"]


def test_export_that_translates_otherwise_is_not_accepted(trained):
    translator = Translator.load(trained[0])
    lines = ["one two three.", "nine.", "four five."]

    def wrong(lines, beam_size):
        (ids, score), *others = translated(translator, lines, beam_size)
        return [(ids, score - 0.5), *others]

    parity = compare(wrong, translator, lines, 1, lambda _: None)
    assert parity == Parity(beam_size=1, lines=3, cut=0, equal=3, tied=0, score_difference=pytest.approx(0.5))
    export = Export(translator, "safetensors", beam_size=1)
    with pytest.raises(RunError, match=r"does not translate as .* does, so nothing was written"):
        check_parity(export, wrong, lines)
    assert Parity(beam_size=1, lines=100, cut=0, equal=98, tied=1, score_difference=1e-3).holds
    assert not Parity(beam_size=1, lines=100, cut=0, equal=98, tied=0, score_difference=0.0).holds
    assert not Parity(beam_size=1, lines=100, cut=0, equal=100, tied=0, score_difference=2e-3).holds


def test_terminated_export_leaves_no_folder(trained, tmp_path, monkeypatch):
    def terminated(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return compare(*arguments)

    monkeypatch.setattr("lingua_flax.export.parity.compare", terminated)
    monkeypatch.setattr("lingua_flax.host.interruption._stop", pytest.fail)  # which would end these tests
    monkeypatch.setattr(interruption, "signal_number", 0)
    before = signal.signal(signal.SIGTERM, interruption._receive)
    try:
        done = run_here("export", "--workdir", trained[0], "--format", "safetensors", "--output", tmp_path / "new")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.returncode, done.stderr) == (143, "stopped by SIGTERM\n")
    assert not list(tmp_path.iterdir())


def test_the_umask_decides_who_may_read_what_is_written(toy, tmp_path):
    network = ("--workdir", tmp_path / "w")
    outputs = ("--output", tmp_path / "hyps.txt.gz", "--json", tmp_path / "scores.json")
    formats = ("ctranslate2", "safetensors", "transformers", "html")
    before = os.umask(0o027)  # of the modes that libraries choose, neither 600 nor 644 agrees with that
    try:
        steps = ("--training.num-steps", 2, "--training.eval-every", 2)
        done = [run_here("train", "--config", toy, *network, *steps)]
        done.append(run_here("evaluate", *network, "--beam-size", 1, *outputs))
        for name in formats:
            options = ("--format", name, "--output", tmp_path / name, "--beam-size", 1)
            done.append(run_here("export", *network, *options))
    finally:
        os.umask(before)
    assert [own.returncode for own in done] == [0] * 6, done
    written = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert {*formats, "w", "hyps.txt.gz", "scores.json"} <= {path.name for path in written}
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


@pytest.fixture(scope="module")
def network(trained, run, tmp_path_factory):
    """Returns the folder into which the toy run is exported as a workdir."""
    folder = tmp_path_factory.mktemp("exported") / "network"
    done = succeed(run, "export", "--workdir", trained[0], "--format", "workdir", "--output", folder, "--beam-size", 1)
    assert "workdir, bfloat16" in done.stdout
    return folder


def test_network_alone_takes_half_the_space_and_names_no_folder(trained, network):
    own, theirs = (Translator.load(folder).params for folder in (trained[0], network))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype(bfloat16).astype(np.float32), b), own, theirs)
    (arrays,) = network.glob("checkpoints/*/params/d")
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(own))
    assert sum(path.stat().st_size for path in arrays.iterdir()) < 0.6 * size
    files = {path.relative_to(network).as_posix(): path.read_bytes() for path in network.rglob("*") if path.is_file()}
    assert files.keys() == {"manifest.json", *json.loads(files["manifest.json"])["files"]}
    del files["config.toml"]  # where paths belong
    assert [path for path, content in files.items() if str(network.parent).encode() in content] == []


def test_network_alone_can_be_used_as_the_run_and_stays_as_it_is(trained, network, run):
    before = contents(network)
    theirs, own = (succeed(run, "translate", "--workdir", folder, input=TEXT) for folder in (network, trained[0]))
    assert theirs.stdout == own.stdout
    succeed(run, "evaluate", "--workdir", network, "--beam-size", 1)
    done = succeed(run, "train", "--workdir", network)
    assert done.stderr == ""
    assert f"--init-from {network}" in done.stdout
    assert contents(network) == before


def test_another_run_can_begin_with_the_network_alone(toy, network, run, tmp_path):
    options = ["--training.num-steps", 1, "--training.eval-every", 0, "--optimizer.peak-lr", 1e-9]
    options += ["--tokenizer.model-file", network / "tokenizer.model"]
    succeed(run, "train", "--config", toy, "--workdir", tmp_path / "w", "--init-from", network, *options)
    own, theirs = (jax.tree.leaves(Translator.load(folder).params) for folder in (tmp_path / "w", network))
    for new, old in zip(own, theirs, strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)
