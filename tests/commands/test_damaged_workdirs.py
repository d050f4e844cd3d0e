"""Workdirs that were damaged, changed by hand, or written by another version: refused in one sentence, or mended."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import TokenizerConfig
from lingua_flax.runs.checkpoint import saved_steps
from lingua_flax.runs.workdir import Workdir
from lingua_flax.translation.translator import Translator
from tests.processes import metrics


def damage(workdir: Path, pattern: str, change: Callable[[bytes], bytes | None]) -> None:
    """Changes the content of files; None replaces them by a folder."""
    for path in workdir.glob(pattern):
        content = change(path.read_bytes())
        path.unlink()
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)


def data_section(config: bytes) -> bytes:
    (section,) = re.findall(rb"^\[data\]\n.*?(?=^\[)", config, re.MULTILINE | re.DOTALL)
    return section


def of_another_version(content: bytes) -> bytes:
    metadata = json.loads(content) | {"format": 2, "version": "0.0.9"}
    del metadata["metadata_digest"]
    return json.dumps(metadata | {"metadata_digest": json_digest(metadata)}).encode()


METADATA = "checkpoints/*/metadata/metadata"


@pytest.mark.parametrize(
    ("pattern", "change", "refusal", "refusal_to_translate"),
    [
        ("metrics.jsonl", lambda _: None, "metrics.jsonl: not a file", None),
        ("tokenizer.model", lambda old: old[:999], "not a SentencePiece model", "same"),
        ("tokenizer.model", lambda _: None, "cannot read the tokenizer", "same"),
        ("config.toml", lambda _: b"\x80\x04K\x01.", "config.toml, line 1: not valid UTF-8", "same"),
        ("config.toml", lambda _: b"model = " + b"[" * 9999, "config.toml: n", "same"),
        ("config.toml", data_section, "model.embed_dim: 32 in checkpoint 240, now 256", "same"),
        (
            "config.toml",
            lambda old: old.replace(b"peak_lr = 0.01", b"peak_lr = 0.02"),
            "optimizer.peak_lr: 0.01 in checkpoint 240, now 0.02",
            None,
        ),
        (METADATA, lambda _: b"[" * 100_000, "none of its checkpoints is intact; nothing was deleted", "be used"),
        (METADATA, of_another_version, "were written by version 0.0.9 of this program, in a format that", "same"),
    ],
)
def test_damaged_files_are_refused(trained, refused, tmp_path, pattern, change, refusal, refusal_to_translate):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    damage(workdir, pattern, change)
    refused(refusal, "train", "--workdir", workdir, "--training.num-steps", 300)
    if refusal_to_translate:
        words = refusal if refusal_to_translate == "same" else refusal_to_translate
        refused(words, "translate", "--workdir", workdir, input="one.\n")
    else:
        assert Translator.load(workdir).step in saved_steps(workdir / "checkpoints")


def test_another_tokenizer_is_refused(trained, toy, refused, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    pairs = list(open_corpus(read_config(toy).data).split("train"))
    (workdir / "tokenizer.model").write_bytes(train_tokenizer(pairs, TokenizerConfig(kind="bpe", vocab_size=45))[0])
    train = ("train", "--workdir", workdir, "--training.num-steps", 300)
    refused("its checkpoints were made with a different tokenizer", *train)
    words = "its tokenizer is not the one that checkpoint 240 was trained with"
    refused(words, "translate", "--workdir", workdir, input="one.\n")


@pytest.mark.parametrize(
    "line",
    ["\0\0", '{"step": true}', '{"step": 3, "loss": []}', '{"step": 3, "samples": "x"}', '{"step":' + "[" * 9999],
)
def test_invalid_metrics_are_refused(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": null, "batch": "ab"}}\n{line}\n{{"step"')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2: not the metrics of a step; repair or remove it"):
        Workdir(tmp_path).read_metrics()


def test_last_step_is_that_of_the_last_complete_line(tmp_path):
    lines = '{"step": 8}\n{"step": 19, "loss": 1.5}\n'
    for text, step in (("", 0), ('{"st', 0), (lines, 19), (lines + '{"step": 20, "lo', 19)):
        (tmp_path / "metrics.jsonl").write_text(text)
        assert Workdir(tmp_path).last_step() == step


def test_lost_checkpoints_do_not_cost_the_metrics(trained, succeed, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "w", ignore=shutil.ignore_patterns("checkpoints"))
    done = succeed("train", "--workdir", workdir, "--training.num-steps", 1, "--training.eval-every", 0)
    assert f"{workdir} has no checkpoint, so the run starts again; its metrics are now in" in done.stderr
    assert (workdir / "metrics.1.jsonl").read_bytes() == (trained[0] / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in metrics(workdir)] == [1]


def test_lost_config_does_not_cost_the_tokenizer(trained, toy, run, tmp_path):
    """The config is deleted because it was refused; the tokenizer of another one must not replace the old tokenizer."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    (workdir / "config.toml").unlink()
    done = run("train", "--config", toy, "--workdir", workdir, "--tokenizer.kind", "bpe")
    assert done.returncode == 2, done.stderr
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert metrics(workdir) == metrics(trained[0])
