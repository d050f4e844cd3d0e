"""lingua-flax train: what a run reports and writes, when it ends, and how it may be continued."""

import logging
import os
import re
import shutil
import subprocess

import pytest

from lingua_flax.__main__ import COMMANDS
from lingua_flax.commands.train import resolve_config
from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import to_toml
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.training.preparation import prepare
from tests.command_server import ROOT
from tests.helpers.folders import contents
from tests.processes import digests, metrics
from tests.toy import write_corpus


def test_training_learns_and_reports_its_results(trained, toy):
    workdir, done = trained
    assert done.returncode == 0, done.stderr
    for words in ("kept 700 of 700 pairs, 0 longer than 32 tokens", "step 10/240  loss", "validation at step 80"):
        assert words in done.stderr
    for words in ("best validation", "240 of 240"):
        assert words in done.stdout
    lines = metrics(workdir)
    validations = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 241))
    assert [line["step"] for line in validations] == [80, 160, 240]
    assert lines[-1]["validation_bleu"] > 50
    assert read_metadata(workdir / "checkpoints", 240)["version"] == VERSION
    names = {re.sub(r"^(events)\.out\.tfevents\..*", r"\1", path.name) for path in workdir.iterdir()}
    of_run = {"config.toml", "tokenizer.model", "words.tsv", "metrics.jsonl"}
    assert names == of_run | {"curves.png", "events", "checkpoints"}


def test_finished_run_says_so_and_changes_nothing(trained, toy, succeed):
    workdir, _ = trained
    before = (metrics(workdir), digests(workdir))
    for arguments in (["--config", toy, "--workdir", workdir], ["--workdir", workdir]):
        again = succeed("train", *arguments)
        assert "finished: 240 of 240 steps" in again.stdout
    assert (metrics(workdir), digests(workdir)) == before


def test_changed_config_and_corpus_are_refused(trained, toy, run, tmp_path):
    before = (trained[0] / "config.toml").read_bytes()
    done = run("train", "--config", toy, "--workdir", trained[0], "--model.num-heads", 4, "--training.seed", 5)
    assert done.returncode == 2
    assert "model.num_heads: 2 in the workdir, now 4; training.seed: 1 in the workdir, now 5" in done.stderr
    source = write_corpus(tmp_path / "other").parent / "train.en"
    source.write_text(source.read_text().replace("one", "two", 1))
    options = ["--training.num-steps", 300, "--data.train-source", source]
    done = run("train", "--workdir", trained[0], *options)
    assert done.returncode == 2
    assert "made with a different corpus" in done.stderr
    assert (trained[0] / "config.toml").read_bytes() == before


def test_warmup_share_is_fixed_when_the_run_starts(toy, tmp_path, caplog):
    """An extended run keeps its warm-up steps and says so if the share would now give a different number."""
    caplog.set_level(logging.INFO)
    workdir, share = tmp_path / "w", ["--optimizer.warmup-share", "0.25"]

    def prepared(*options):
        return prepare(resolve_config(["--config", str(toy), "--workdir", str(workdir), *options])[0], workdir)

    first = prepared(*share, "--training.num-epochs", "2")
    warmup = first.config.optimizer.warmup_steps
    assert warmup == round(first.num_steps / 4)
    assert f"training for 2 epochs: {first.num_steps} steps" in caplog.text
    workdir.mkdir()
    (workdir / "config.toml").write_text(to_toml(first.config), encoding="utf-8")
    (workdir / "tokenizer.model").write_bytes(first.tokenizer_models[0])
    assert prepared(*share, "--training.num-steps", "60").config.optimizer.warmup_steps == warmup
    assert f"warm-up stays at the {warmup} steps with which this run was started" in caplog.text
    with pytest.raises(UserError, match=f"optimizer.warmup_steps: {warmup} in the workdir, now {warmup + 1}"):
        prepared("--optimizer.warmup-steps", str(warmup + 1))


def test_patience_stops_early_and_an_extended_run_goes_on_with_moved_files(toy, run, succeed, tmp_path):
    """The learning rate is too low to improve anything after the first validation.

    The cosine schedule ends with the run, so it depends on the length.
    """
    workdir, files = tmp_path / "w ö", write_corpus(tmp_path / "files").parent
    train = ["train", "--config", toy, "--workdir", workdir, "--training.eval-every", 1]
    train += ["--optimizer.peak-lr", 1e-30, "--optimizer.schedule", "cosine"]
    # More patience, which starts anew because the run is extended: three validations more.
    extended = ["--training.patience", 3, "--training.num-steps", 300, "--training.log-every", 5]
    for split in ("train", "validation", "test"):
        for side, ending in (("source", "en"), ("target", "fr")):
            extended += [f"--data.{split}-{side}", files / f"{split}.{ending}"]
    succeed(*train, "--training.patience", 2)
    assert [line["step"] for line in metrics(workdir) if "loss" in line] == [1, 2, 3]
    done = succeed(*train, *extended)
    assert [line["step"] for line in metrics(workdir) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert "finished: 6 of 300 steps, stopped early" in run(*train, *extended).stdout
    assert "resuming from step 3\n" in done.stderr
    warning = "the cosine schedule depends on the number of steps, 240 when this checkpoint was saved and now 300"
    assert warning in done.stderr


def test_non_finite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(toy, run, tmp_path):
    options = ["--optimizer.peak-lr", 1e38, "--optimizer.clip-norm", 0, "--optimizer.warmup-steps", 0]
    options += ["--training.checkpoint-every", 1, "--training.eval-every", 0]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 1, done.stderr
    assert "not finite for 3 steps in a row" in done.stderr
    assert "Lower optimizer.peak_lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert saved_steps(tmp_path / "w" / "checkpoints")


@pytest.mark.slow
def test_relative_paths_and_a_read_only_copy(toy, run, succeed, tmp_path):
    """The current directory is not that of the program, and paths in the config begin with the home directory."""
    options = {"cwd": tmp_path, "env": os.environ | {"HOME": str(toy.parent)}}
    (tmp_path / "c.toml").write_text(toy.read_text().replace(str(toy.parent), "~"))
    train = ["train", "--config", "c.toml", "--workdir", "w x/ä"]
    train += ["--training.num-steps", 1, "--training.eval-every", 0]
    succeed(*train, **options)
    assert "w x/ä: finished: 1 of 1 steps" in run(*train, **options).stdout
    copy = shutil.copytree(tmp_path / "w x" / "ä", tmp_path / "copied ä b")
    config = (copy / "config.toml").read_text(encoding="utf-8")
    (copy / "config.toml").write_text(config.replace(str(toy.parent), "~"), encoding="utf-8")
    before = contents(copy)
    subprocess.run(["chmod", "-R", "a-w", copy], check=True)
    try:
        translated = run("translate", "--workdir", copy.name, input="one two.\n", **options)
        assert (translated.returncode, translated.stdout.count("\n")) == (0, 1), translated.stderr
        succeed("evaluate", "--workdir", copy.name, **options)
        assert contents(copy) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", copy], check=True)


def test_every_command_reports_its_version_and_lists_its_options(run, succeed):
    for command in (*COMMANDS, *(path.name for path in ROOT.glob("*.py")), "--version"):
        done = run(command, "--version")
        assert (done.returncode, done.stdout) == (0, f"lingua-flax {VERSION}\n")
    for command, option in (("train", "--model.num-encoder-layers"), ("translate", "--num-hypotheses")):
        done = succeed(command, "--help")
        assert option in done.stdout
