"""The commands as users run them: real processes, real files, real signals."""

import functools
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import sacrebleu

from lingua_flax.commands.evaluate import EvaluateCommand, output_files
from lingua_flax.commands.main import COMMANDS
from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.evaluation.evaluate import EvaluationSet, evaluate, print_evaluation
from lingua_flax.host.digests import json_digest
from lingua_flax.host.version import VERSION
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import DecodingOptions, TokenizerConfig
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import TIMES, digests, events, finish, metrics, start, start_command, wait_for
from tests.toy import write_corpus

SCRIPTS = Path(__file__).parent / "scripts"
LOGGING_COMPILATIONS = {"JAX_LOG_COMPILES": "1", "JAX_LOGGING_LEVEL": "WARNING"}


def check_samples(lines, log, toy):
    """Checks that the samples of each validation are the same pairs, and those of the log."""
    sides = ((toy.parent / f"validation.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "fr"))
    pairs = list(zip(*sides, strict=True))
    validations = [line["samples"] for line in lines if "validation_loss" in line]
    samples = [sample for own in validations for sample in own]
    assert [len(own) for own in validations] == [3, 3, 3]
    for own in validations:
        shown = [(sample["source"], sample["reference"]) for sample in own]
        assert shown == [(sample["source"], sample["reference"]) for sample in validations[0]]
        assert set(shown) <= set(pairs)
    for name in ("source", "reference", "translation"):
        assert re.findall(rf"^  {name} +(.*)$", log, re.MULTILINE) == [sample[name] for sample in samples]
    assert not any("samples" in line for line in lines if "loss" in line)


def test_training_learns_and_reports_its_results(trained, toy):
    workdir, done = trained
    assert done.returncode == 0, done.stderr
    assert "kept 700 of 700 pairs, 0 longer than 32 tokens" in done.stderr
    assert "step 10/240  loss" in done.stderr
    assert "validation at step 80" in done.stderr
    assert "best validation BLEU" in done.stdout
    assert "240 of 240" in done.stdout
    lines = metrics(workdir)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 241))
    assert [line["step"] for line in lines if "validation_loss" in line] == [80, 160, 240]
    assert lines[-1]["validation_bleu"] > 50
    check_samples(lines, done.stderr, toy)
    assert {re.sub(r"^(events)\.out\.tfevents\..*", r"\1", path.name) for path in workdir.iterdir()} == {
        "config.toml",
        "tokenizer.model",
        "words.tsv",
        "metrics.jsonl",
        "curves.png",
        "events",
        "checkpoints",
    }


def test_finished_run_says_so_and_changes_nothing(trained, toy, run):
    workdir, _ = trained
    before = (metrics(workdir), digests(workdir))
    for arguments in (["--config", toy, "--workdir", workdir], ["--workdir", workdir]):
        again = run("train", *arguments)
        assert again.returncode == 0, again.stderr
        assert "finished: 240 of 240 steps" in again.stdout
    assert (metrics(workdir), digests(workdir)) == before


class InterruptedRun(NamedTuple):
    """A run killed by SIGKILL, resumed, stopped by another signal, and resumed again until it finished.

    Attributes:
      workdir: its workdir.
      killed_at: step of the newest checkpoint when it was last killed.
      signal_number: the signal that stopped it.
      signaled_at: the last step in metrics.jsonl when that signal was sent.
      stopped_at: step of the newest checkpoint when it had stopped.
      status: exit status of the stopped process.
      killed_log, stopped_log: stderr of the killed and the stopped process, with the compilations that JAX logs.
      finished: the process that finished the run.
    """

    workdir: Path
    killed_at: int
    signal_number: signal.Signals
    signaled_at: int
    stopped_at: int
    status: int
    killed_log: str
    stopped_log: str
    finished: subprocess.CompletedProcess


@pytest.fixture(
    scope="module",
    params=[
        # Steps of the checkpoints after which to kill the run (0: before training starts), the signal that stops the
        # resumed run, and the step whose metrics the signal waits for.
        pytest.param(([40], signal.SIGTERM, 0), id="in-training"),
        pytest.param(([0, 120], signal.SIGINT, 160), id="in-validation", marks=pytest.mark.slow),
        pytest.param(([40], signal.SIGTERM, 240), id="in-last-validation", marks=pytest.mark.slow),
    ],
)
def interrupted_run(request, toy, run, tmp_path_factory) -> InterruptedRun:
    """Returns a run of the same length as the uninterrupted one."""
    kills, number, step = request.param
    folder = tmp_path_factory.mktemp("interrupted")
    workdir, log = folder / "killed run", folder / "log"

    def start_training():
        with open(log, "w", encoding="utf-8") as stderr:
            return start(toy, workdir, stderr=stderr, env=os.environ | LOGGING_COMPILATIONS)

    def has_saved(step):
        return step in saved_steps(workdir / "checkpoints") if step else (workdir / "tokenizer.model").exists()

    def last_logged_step():
        text = (workdir / "metrics.jsonl").read_text(encoding="utf-8")
        return max(map(int, re.findall(r'"step": (\d+),', text)), default=0)

    for kill in kills:
        process = start_training()
        wait_for(process, functools.partial(has_saved, kill))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    killed_at, killed_log = saved_steps(workdir / "checkpoints")[-1], log.read_text(encoding="utf-8")
    awaited = max(step, last_logged_step() + 1)  # a step that only the resumed process logs
    process = start_training()
    wait_for(process, lambda: last_logged_step() >= awaited)
    signaled_at = last_logged_step()
    process.send_signal(number)
    process.communicate(timeout=HUNG_AFTER)
    return InterruptedRun(
        workdir=workdir,
        killed_at=killed_at,
        signal_number=number,
        signaled_at=signaled_at,
        stopped_at=saved_steps(workdir / "checkpoints")[-1],
        status=process.returncode,
        killed_log=killed_log,
        stopped_log=log.read_text(encoding="utf-8"),
        finished=run("train", "--config", toy, "--workdir", workdir),
    )


def test_killed_run_resumes_bit_for_bit(trained, interrupted_run):
    workdir = interrupted_run.workdir
    assert f"resuming from step {interrupted_run.killed_at}\n" in interrupted_run.stopped_log
    assert interrupted_run.finished.returncode == 0, interrupted_run.finished.stderr
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])
    actual, expected = events(workdir), events(trained[0])
    assert actual.keys() == expected.keys()
    assert all(actual[name] == expected[name] for name in actual if name.removeprefix("train/") not in TIMES)


def test_signal_saves_the_run_and_explains_how_to_continue(trained, interrupted_run):
    log, stopped_at, finished = interrupted_run.stopped_log, interrupted_run.stopped_at, interrupted_run.finished
    assert interrupted_run.status == {signal.SIGTERM: 143, signal.SIGINT: 130}[interrupted_run.signal_number], log
    assert log.endswith(f"\nstep {stopped_at} is saved; run the same command again to continue\n")
    assert "Traceback" not in log
    assert interrupted_run.signaled_at <= stopped_at
    assert (stopped_at < 240) == (interrupted_run.signaled_at < 240)  # it does not run to its end first
    assert finished.returncode == 0, finished.stderr
    assert (f"resuming from step {stopped_at}\n" in finished.stderr) == (stopped_at < 240)
    assert metrics(interrupted_run.workdir) == metrics(trained[0])
    assert digests(interrupted_run.workdir) == digests(trained[0])


def test_train_step_is_compiled_once(interrupted_run):
    """According to JAX's own log, in a new and in a resumed process."""
    for log in (interrupted_run.killed_log, interrupted_run.stopped_log):
        assert sum(line.startswith("Compiling jit(train_step)") for line in log.splitlines()) == 1


@pytest.mark.parametrize(
    ("program", "number"),
    [
        ("train", signal.SIGTERM),
        ("evaluate", signal.SIGINT),
        ("translate", signal.SIGTERM),  # SIGINT: test_translate_streams_complete_gzip_files
        pytest.param("train", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("evaluate", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("translate", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_signal_ends_preparation_evaluation_and_translation_at_once(trained, tmp_path, program, number):
    """The signal arrives while minutes of work are left, which the command does not do."""
    log, cache, lines, translations, workdir = (
        tmp_path / name for name in ("log", "cache", "lines", "translations", "w")
    )
    lines.write_text("one two three.\n" * 200_000)
    arguments, is_at_work, has_completed = {
        "train": (
            ["--config", "configs/tiny.toml", "--workdir", workdir, "--data.cache-directory", cache],
            (cache / "phrasebook").exists,
            workdir.exists,
        ),
        "evaluate": (
            ["--workdir", trained[0], "--source", lines, "--reference", lines, "--output", translations],
            lambda: "Compiling jit(search_or_sample)" in log.read_text(),
            translations.exists,
        ),
        "translate": (
            ["--workdir", trained[0], "--input", lines, "--output", translations],
            lambda: translations.exists() and translations.stat().st_size,
            lambda: translations.read_bytes().count(b"\n") == 200_000,
        ),
    }[program]
    with open(log, "w", encoding="utf-8") as stderr:
        process = start_command(program, *arguments, stderr=stderr, env=os.environ | LOGGING_COMPILATIONS)
    wait_for(process, is_at_work)
    process.send_signal(number)
    process.communicate(timeout=HUNG_AFTER)
    errors = log.read_text(encoding="utf-8")
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], errors
    # A thread that is compiling may still log that it has finished.
    assert f"\nstopped by {signal.Signals(number).name}\n" in f"\n{errors}", errors[-2000:]
    assert "Traceback" not in errors
    assert not has_completed()


def test_reader_that_closes_the_pipe_is_no_error(trained):
    process = start_command("translate", "--workdir", trained[0], "--beam-size", 1, stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write("one.\n" * 5000)
    process.stdin.close()
    assert process.wait(timeout=HUNG_AFTER) == 141
    assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def train_with_warmup_share(toy, run, tmp_path_factory):
    """Returns a function that trains with the given length and a warm-up of a quarter of it.

    It returns the workdir, which tests must not change, the options without the length, and the completed command.
    """

    @functools.cache
    def train(*length):
        workdir = tmp_path_factory.mktemp("warmup") / "w"
        options = ["--optimizer.warmup-share", 0.25, "--optimizer.schedule", "constant", "--training.eval-every", 0]
        done = run("train", "--config", toy, "--workdir", workdir, *options, *length)
        assert done.returncode == 0, done.stderr
        return workdir, options, done

    return train


@pytest.mark.slow
def test_epochs_determine_the_number_of_steps(train_with_warmup_share):
    workdir, _, done = train_with_warmup_share("--training.num-epochs", 2)
    last = metrics(workdir)[-1]
    assert f"training for 2 epochs: {last['step']} steps" in done.stderr
    assert 1.8 < last["epoch"] < 2.4  # packed rows also hold pairs of the next epoch


@pytest.mark.slow
@pytest.mark.parametrize(
    "length", [("--training.num-epochs", 2), pytest.param(("--training.num-steps", 20), marks=pytest.mark.slow)]
)
def test_warmup_share_is_fixed_when_the_run_starts(toy, run, tmp_path, train_with_warmup_share, length):
    """An extended run keeps its warm-up steps and says so if the share would now give a different number."""
    original, options, _ = train_with_warmup_share(*length)
    workdir = shutil.copytree(original, tmp_path / "w")
    train = ["train", "--config", toy, "--workdir", workdir]
    steps = len(metrics(workdir))
    assert steps < 60
    warmup = round(steps / 4)
    expected = [0.01 * min(1, step / warmup) for step in range(1, 61)]
    assert [line["learning_rate"] for line in metrics(workdir)] == pytest.approx(expected[:steps])
    optimizer = read_config(workdir / "config.toml").optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_share) == (warmup, None)
    again = run(*train, *options, *length)
    assert again.returncode == 0, again.stderr
    assert "finished" in again.stdout
    assert "warm-up" not in again.stderr
    extended = run(*train, *options, "--training.num-steps", 60)
    assert extended.returncode == 0, extended.stderr
    assert f"warm-up stays at the {warmup} steps with which this run was started" in extended.stderr
    assert [line["step"] for line in metrics(workdir)] == list(range(1, 61))
    assert [line["learning_rate"] for line in metrics(workdir)] == pytest.approx(expected)
    refused = run(*train, "--optimizer.warmup-steps", warmup + 1, *options[2:])
    assert refused.returncode == 2, refused.stderr
    assert f"optimizer.warmup_steps: {warmup} in the workdir, now {warmup + 1}" in refused.stderr


def test_patience_stops_early(toy, run, tmp_path):
    """The learning rate is too low to improve anything after the first validation."""
    train = ["train", "--config", toy, "--workdir", tmp_path / "w", "--training.eval-every", 1]
    train += ["--optimizer.peak-lr", 1e-30]
    # More patience, which starts anew because the run is extended: three validations more.
    extended = ["--training.patience", 3, "--training.num-steps", 300]
    for options, last, total in ((["--training.patience", 2], 3, 240), (extended, 6, 300)):
        done = run(*train, *options)
        assert done.returncode == 0, done.stderr
        assert metrics(tmp_path / "w")[-1]["step"] == last
        again = run(*train, *options)
        assert f"finished: {last} of {total} steps, stopped early" in again.stdout
    assert "resuming from step 3\n" in done.stderr


@pytest.mark.slow
def test_end_of_patience_begins_the_decay_of_the_wsd_schedule(toy, run, tmp_path):
    """The last three of nine steps decay, also when the run is resumed after the second step of the decay."""
    workdir = tmp_path / "w"
    train = ["train", "--config", toy, "--workdir", workdir, "--training.eval-every", 3, "--training.patience", 1]
    train += ["--training.checkpoint-every", 1, "--training.keep-checkpoints", 9, "--optimizer.warmup-steps", 2]
    train += ["--optimizer.schedule", "wsd", "--optimizer.decay-share", 1 / 3, "--optimizer.peak-lr", 1e-9]
    done = run(*train)
    assert done.returncode == 0, done.stderr
    assert "patience is exhausted: the learning rate decays from here on, and the run ends at step 9" in done.stderr
    assert "9 of 240" in done.stdout
    assert "step 9/9  loss" in done.stderr
    lines = metrics(workdir)
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates == pytest.approx([5e-10, *[1e-9] * 5, 2e-9 / 3, 1e-9 / 3, 0], rel=1e-6, abs=1e-16)
    expected = digests(workdir)
    shutil.rmtree(workdir / "checkpoints" / "9")
    resumed = run(*train)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 8\n" in resumed.stderr
    assert "step 9/9  loss" in resumed.stderr
    assert metrics(workdir) == lines
    assert digests(workdir) == expected
    assert "finished: 9 of 240 steps, stopped early" in run(*train).stdout
    shutil.rmtree(workdir / "checkpoints" / "9")
    shutil.rmtree(workdir / "checkpoints" / "8")
    shorter = run(*train, "--training.num-steps", 8)  # fewer steps than the decay takes
    assert shorter.returncode == 0, shorter.stderr
    assert "step 8/8  loss" in shorter.stderr


def test_non_finite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(toy, run, tmp_path):
    options = ["--optimizer.peak-lr", 1e38, "--optimizer.clip-norm", 0, "--optimizer.warmup-steps", 0]
    options += ["--training.checkpoint-every", 1, "--training.eval-every", 0]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 1, done.stderr
    assert "not finite for 3 steps in a row" in done.stderr
    assert "Lower optimizer.peak_lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert saved_steps(tmp_path / "w" / "checkpoints")


def test_different_config_is_refused_with_the_differences(trained, toy, run):
    before = (trained[0] / "config.toml").read_bytes()
    done = run("train", "--config", toy, "--workdir", trained[0], "--model.num-heads", 4, "--training.seed", 5)
    assert done.returncode == 2
    assert "model.num_heads: 2 in the workdir, now 4; training.seed: 1 in the workdir, now 5" in done.stderr
    assert (trained[0] / "config.toml").read_bytes() == before


def test_lost_config_does_not_cost_the_tokenizer(trained, toy, run, tmp_path):
    """The config is deleted because it was refused; the tokenizer of another one must not replace the old tokenizer."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    (workdir / "config.toml").unlink()
    done = run("train", "--config", toy, "--workdir", workdir, "--tokenizer.kind", "bpe")
    assert done.returncode == 2, done.stderr
    assert (workdir / "tokenizer.model").read_bytes() == (trained[0] / "tokenizer.model").read_bytes()
    assert metrics(workdir) == metrics(trained[0])


def test_metrics_of_lost_checkpoints_are_kept(trained, toy, run, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "w", ignore=shutil.ignore_patterns("checkpoints"))
    done = run("train", "--workdir", workdir, "--training.num-steps", 1, "--training.eval-every", 0)
    assert done.returncode == 0, done.stderr
    assert f"{workdir} has no checkpoint, so the run starts again; its metrics are now in" in done.stderr
    assert (workdir / "metrics.1.jsonl").read_bytes() == (trained[0] / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in metrics(workdir)] == [1]


@pytest.mark.parametrize("command", ["train", "translate"])
def test_workdir_with_metadata_under_its_old_name_is_refused_in_one_sentence(trained, run, tmp_path, command):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    for step in (workdir / "checkpoints").iterdir():
        (step / "metadata").rename(step / "record")
    done = run(command, "--workdir", workdir, *(["--training.num-steps", 300] if command == "train" else []))
    assert done.returncode == 2
    wanted = f"error: {workdir}: its checkpoints were written by a development version of this program, in a format"
    assert done.stderr.splitlines()[-1].startswith(wanted)


@pytest.mark.parametrize("command", ["train", "translate"])
def test_workdir_of_another_version_is_refused_in_one_sentence(trained, run, tmp_path, command):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    for step in saved_steps(workdir / "checkpoints"):
        file = workdir / "checkpoints" / str(step) / "metadata" / "metadata"
        record = json.loads(file.read_text())
        del record["metadata_digest"]
        record |= {"format": 2, "version": "0.0.9"}
        file.write_text(json.dumps(record | {"metadata_digest": json_digest(record)}))
    done = run(command, "--workdir", workdir, *(["--training.num-steps", 300] if command == "train" else []))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {workdir}: its checkpoints were written by version 0.0.9")
    assert metrics(workdir) == metrics(trained[0])


def test_every_command_reports_its_version(run):
    for command in (*COMMANDS, *(path.name for path in ROOT.glob("*.py")), "--version"):
        done = run(command, "--version")
        assert (done.returncode, done.stdout) == (0, f"lingua-flax {VERSION}\n")


def test_checkpoints_name_the_version_that_wrote_them(trained):
    checkpoints = trained[0] / "checkpoints"
    assert read_metadata(checkpoints, saved_steps(checkpoints)[-1])["version"] == VERSION


def test_different_training_data_is_refused(trained, run, tmp_path):
    other = write_corpus(tmp_path / "other").parent
    lines = (other / "train.en").read_text().splitlines()
    (other / "train.en").write_text("\n".join(["zero zero zero.", *lines[1:]]) + "\n")
    options = ["--training.num-steps", 300, "--data.train-source", other / "train.en"]
    refused = run("train", "--workdir", trained[0], *options)
    assert refused.returncode == 2, refused.stderr
    assert "made with a different corpus" in refused.stderr
    moved = write_corpus(tmp_path / "moved").parent / "test.en"
    accepted = run("train", "--workdir", trained[0], "--data.test-source", moved)
    assert accepted.returncode == 0, accepted.stderr


def run_sacrebleu(*arguments) -> str:
    """Returns what the sacrebleu command prints, with four decimals."""
    command = [Path(sys.executable).parent / "sacrebleu", *arguments, "-w", "4"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_evaluate_scores_like_the_sacrebleu_command(trained, run, tmp_path):
    source, reference = tmp_path / "in.en", tmp_path / "ref.fr"
    source.write_text("one two three.\n\nseven.\nnine eight five four.\none\u2028 two.\n", encoding="utf-8")
    reference.write_text("trois deux un !\n\nsept !\nquatre cinq huit neuf!\ndeux un  !\n", encoding="utf-8")
    hypotheses, scores = tmp_path / "hyps.txt", tmp_path / "scores.json"
    files = ["--source", source, "--reference", reference, "--output", hypotheses, "--json", scores]
    done = run("evaluate", "--workdir", trained[0], *files, "--beam-size", 3, "--ter")
    assert done.returncode == 0, done.stderr
    assert hypotheses.read_bytes().count(b"\n") == 5
    actual = json.loads(scores.read_text())
    bleu, chrf = json.loads(run_sacrebleu(reference, "-i", hypotheses, "-m", "bleu", "chrf"))
    assert f"{actual['bleu']:.4f}" == f"{bleu['score']:.4f}"
    assert f"{actual['chrf']:.4f}" == f"{chrf['score']:.4f}"
    assert actual["bleu_signature"] == bleu["signature"].removeprefix("BLEU|")
    ter = json.loads(
        run_sacrebleu(reference, "-i", hypotheses, "-m", "ter", "--ter-case-sensitive", "--ter-normalized")
    )
    assert f"{actual['ter']:.4f}" == f"{ter['score']:.4f}"
    assert actual["ter_signature"] == ter["signature"].removeprefix("TER|")
    lowercase = run_sacrebleu(reference, "-i", hypotheses, "-lc", "-b")
    assert f"{actual['bleu_lowercase']:.4f}" == lowercase.strip()
    assert actual["sentences"] == 5
    assert actual["beam_size"] == 3
    assert "case:lc" in actual["bleu_lowercase_signature"]
    assert f"version:{sacrebleu.__version__}" in actual["bleu_signature"]


@pytest.mark.slow
def test_lowercase_model_is_validated_and_scored_case_insensitively(toy, run, tmp_path):
    """The corpus is in capitals, which such a model cannot write."""
    for path in toy.parent.glob("*.??"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").upper(), encoding="utf-8")
    config, workdir, scores = tmp_path / "toy.toml", tmp_path / "w", tmp_path / "scores.json"
    config.write_text(toy.read_text(encoding="utf-8").replace(str(toy.parent), str(tmp_path)), encoding="utf-8")
    options = ["--tokenizer.lowercase", "True", "--training.num-steps", 160, "--training.eval-every", 160]
    trained = run("train", "--config", config, "--workdir", workdir, *options)
    assert trained.returncode == 0, trained.stderr
    (best,) = (line["validation_bleu"] for line in metrics(workdir) if "validation_bleu" in line)
    assert f"BLEU {best:.2f} (greedy, lower case), the best so far" in trained.stderr
    assert f"best validation BLEU │ {best:.2f} at step 160 (greedy, lower case)" in trained.stdout
    hypotheses, references = tmp_path / "hyps.txt", tmp_path / "test.fr"
    files = ["--output", hypotheses, "--compare", references, "--json", scores]
    done = run("evaluate", "--workdir", workdir, "--beam-size", 1, *files, "--ter")
    assert done.returncode == 0, done.stderr
    actual = json.loads(scores.read_text())
    expected = json.loads(run_sacrebleu(references, "-i", hypotheses, "-lc"))
    assert f"{actual['bleu']:.4f}" == f"{actual['bleu_lowercase']:.4f}" == f"{expected['score']:.4f}"
    assert actual["bleu_signature"] == expected["signature"].removeprefix("BLEU|")
    assert actual["bleu_low"] <= actual["bleu"] <= actual["bleu_high"]
    assert actual["baseline_bleu"] == pytest.approx(100)
    assert "case:lc" in actual["compare_signature"]
    assert "case:lc" in actual["chrf_signature"]
    for name in ("BLEU", "chrF", "TER"):
        assert len(re.findall(rf"│ {name}, lower case +│", done.stdout)) == 1
    assert "│ BLEU  " not in done.stdout
    with_case = float(run_sacrebleu(references, "-i", hypotheses, "-b"))
    assert with_case < min(best, actual["bleu"]) / 2


@pytest.fixture(scope="module")
def evaluated(trained, run, tmp_path_factory):
    """Returns the folder with the translations and scores of the test split, and the completed command."""
    folder = tmp_path_factory.mktemp("evaluated")
    files = ["--output", folder / "hyps.txt.gz", "--json", folder / "scores.json"]
    return folder, run("evaluate", "--workdir", trained[0], *files)


def test_evaluate_scores_a_split_with_an_interval(trained, evaluated, run, tmp_path):
    folder, done = evaluated
    assert done.returncode == 0, done.stderr
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["bleu_low"] < scores["bleu"] < scores["bleu_high"]
    assert scores["bleu"] > 50
    assert scores["sentences"] == 37
    assert scores["checkpoint_step"] == read_metadata(trained[0] / "checkpoints", 240)["best_step"]
    assert f"{scores['bleu']:.2f}" in done.stdout
    assert scores["bleu_signature"] in done.stdout
    options = ["--checkpoint", 240, "--split", "validation", "--beam-size", 1, "--json", tmp_path / "greedy.json"]
    greedy = run("evaluate", "--workdir", trained[0], *options)
    assert greedy.returncode == 0, greedy.stderr
    expected = metrics(trained[0])[-1]["validation_bleu"]
    assert json.loads((tmp_path / "greedy.json").read_text())["bleu"] == pytest.approx(expected)


def test_decoding_speed_excludes_compilation(monkeypatch, capsys):
    """The translator compiles in `warm_up`; test_translator shows that nothing is compiled afterwards."""
    now = 100.0

    def warm_up(lines, options):
        nonlocal now
        now += 40.0

    def translate(lines, options, after_batch):
        nonlocal now
        now += 2.0
        return [SimpleNamespace(text=line) for line in lines]

    monkeypatch.setattr("lingua_flax.evaluation.evaluate.time", SimpleNamespace(monotonic=lambda: now))
    translator = SimpleNamespace(
        warm_up=warm_up,
        translate_sentences=translate,
        tokenizer=SimpleNamespace(lowercase=False),
        num_parameters=7,
        step=1,
    )
    data = EvaluationSet("three lines", ["a", "b", "c"], ["a", "b", "c"])
    translations, scores = evaluate(translator, data, DecodingOptions())
    assert (scores["seconds"], scores["compile_seconds"], scores["sentences_per_second"]) == (2.0, 40.0, 1.5)
    print_evaluation("w", data, translations, scores)
    table = capsys.readouterr().out
    assert "2.0 s, 1.5 a second" in table
    assert re.search(r"│ compilation +│ 40\.0 s +│", table)


def test_output_files_have_the_ending_of_the_hypotheses(tmp_path):
    for names in (
        ["hyps.txt", "hyps.source.txt", "hyps.reference.txt"],
        ["hyps.txt.gz", "hyps.source.txt.gz", "hyps.reference.txt.gz"],
        ["x.gz", "x.source.gz", "x.reference.gz"],
    ):
        options = EvaluateCommand(workdir=tmp_path, output=tmp_path / names[0])
        assert output_files(options) == [tmp_path / name for name in names]


def test_evaluate_writes_reproducible_gzip_files_to_compare_with(trained, evaluated, run, toy, tmp_path):
    folder, _ = evaluated
    hypotheses = folder / "hyps.txt.gz"
    assert {path.name for path in folder.glob("*.gz")} == {
        "hyps.txt.gz",
        "hyps.source.txt.gz",
        "hyps.reference.txt.gz",
    }
    for name, side in (("source", "en"), ("reference", "fr")):
        assert (
            gzip.decompress((folder / f"hyps.{name}.txt.gz").read_bytes()) == (toy.parent / f"test.{side}").read_bytes()
        )
    files = ["--compare", hypotheses, "--output", tmp_path / "again.gz", "--json", tmp_path / "scores.json"]
    again = run("evaluate", "--workdir", trained[0], *files)
    assert again.returncode == 0, again.stderr
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["baseline_bleu"] == scores["bleu"] > 50
    assert (tmp_path / "again.gz").read_bytes() == hypotheses.read_bytes()


class Translated(NamedTuple):
    """A text with peculiar lines and its translations in the three formats of lingua-flax translate."""

    plain: str
    json_lines: list[dict]
    n_best: list[list[str]]


@pytest.fixture(scope="module")
def translated(trained, run, tmp_path_factory) -> Translated:
    """Returns the output of three commands, of which one reads and writes files and the others use pipes."""
    text = "one two.\n\n  \nthree.\r\n\ufeffnine.\nfour\u2028five\x0bsix.\n<pad> </s> one.\n日本 👍.\nseven."
    folder = tmp_path_factory.mktemp("translated")
    source, output = folder / "in.txt", folder / "out.jsonl"
    source.write_bytes(text.encode())
    command = ["translate", "--workdir", trained[0], "--beam-size", 4]
    plain = run(*command, input=text)
    files = ["--input", source, "--output", output, "--json-lines"]
    to_file = run(*command, "--num-hypotheses", 3, *files)
    n_best = run(*command, "--num-hypotheses", 3, input=text)
    for done in (plain, to_file, n_best):
        assert done.returncode == 0, done.stderr
    assert to_file.stdout == ""
    assert n_best.stdout.endswith("\n")
    return Translated(
        plain=plain.stdout,
        json_lines=[json.loads(line) for line in output.read_text(encoding="utf-8").removesuffix("\n").split("\n")],
        n_best=[line.split("\t") for line in n_best.stdout.removesuffix("\n").split("\n")],
    )


def test_translate_keeps_every_line(translated):
    assert translated.plain.count("\n") == 9
    lines = translated.plain.removesuffix("\n").split("\n")
    assert lines[0] == "deux un !"
    assert lines[1] == lines[2] == ""
    assert lines[8] == "sept !"
    assert [line["hypotheses"][0]["text"] for line in translated.json_lines] == lines
    assert [next(row[2] for row in translated.n_best if row[0] == str(number)) for number in range(1, 10)] == lines


def test_translate_writes_n_best_lists(translated):
    rows = translated.n_best
    assert [row[0] for row in rows if row[0] in "129"] == ["1", "1", "1", "2", "9", "9", "9"]  # line 2 is empty
    for number, line in enumerate(translated.json_lines, 1):
        scores = [hypothesis["score"] for hypothesis in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        expected = [[str(number), f"{each['score']:.4f}", each["text"]] for each in line["hypotheses"]]
        assert [row for row in rows if row[0] == str(number)] == expected
    assert translated.json_lines[0]["source"] == "one two."


def test_translate_streams_complete_gzip_files(trained, tmp_path):
    """Ctrl-C leaves the translations so far as an intact file."""
    output = tmp_path / "out.gz"
    options = ["--workdir", trained[0], "--output", output, "--beam-size", 1]
    process = start_command("translate", *options, stdin=subprocess.PIPE)
    process.stdin.write("one two.\n" * 1024 + "three.\n")
    process.stdin.flush()
    wait_for(process, lambda: output.exists() and output.stat().st_size)
    process.send_signal(signal.SIGINT)
    ((status, _, stderr),) = finish([process])
    assert status == 130, stderr
    assert stderr.endswith("stopped by SIGINT\n")
    assert gzip.decompress(output.read_bytes()).decode() == "deux un !\n" * 1024


@pytest.mark.slow
def test_relative_workdir_and_home_directory(toy, run, tmp_path):
    """The current directory is not that of the program; a second start finds the checkpoint of the first one."""
    options = {"cwd": tmp_path, "env": os.environ | {"HOME": str(toy.parent)}}
    (tmp_path / "c.toml").write_text(toy.read_text().replace(str(toy.parent), "~"))
    train = ["train", "--config", "c.toml", "--workdir", "w x/ä"]
    train += ["--training.num-steps", 1, "--training.eval-every", 0]
    first = run(*train, **options)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "w x" / "ä" / "checkpoints" / "1").is_dir()
    second = run(*train, **options)
    assert second.returncode == 0, second.stderr
    assert "w x/ä: finished: 1 of 1 steps" in second.stdout


@pytest.mark.slow
def test_copied_read_only_workdir_evaluates_and_translates(trained, toy, run, tmp_path):
    """Its path and those in its config are relative to the current directory and to the home directory."""
    options = {"cwd": tmp_path, "env": os.environ | {"HOME": str(toy.parent)}}
    workdir = shutil.copytree(trained[0], tmp_path / "copied ä b")
    config = (workdir / "config.toml").read_text(encoding="utf-8")
    (workdir / "config.toml").write_text(config.replace(str(toy.parent), "~"), encoding="utf-8")
    before = sorted(str(path) for path in workdir.rglob("*"))
    subprocess.run(["chmod", "-R", "a-w", workdir], check=True)
    try:
        translated = run("translate", "--workdir", workdir.name, input="one two.\n", **options)
        assert (translated.returncode, translated.stdout) == (0, "deux un !\n"), translated.stderr
        evaluated = run("evaluate", "--workdir", workdir.name, **options)
        assert evaluated.returncode == 0, evaluated.stderr
        assert sorted(str(path) for path in workdir.rglob("*")) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", workdir], check=True)


def test_run_with_damaged_newest_checkpoint_resumes_from_the_previous_one(trained, run, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    files = [path for path in (workdir / "checkpoints" / "240" / "params").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[:-20])
    done = run("train", "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert "checkpoint 240 is damaged" in done.stderr
    assert "resuming from step 200" in done.stderr
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])


def test_full_disk_is_reported_in_one_line_and_the_run_resumes_later(trained, run, tmp_path):
    """A limit on file sizes, which any user can set, stands for a full disk: not even the tokenizer fits."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    train = ["train", "--workdir", workdir, "--training.num-steps", 241, "--training.eval-every", 0]
    failed = run(SCRIPTS / "full_disk.py", *train)
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.count("the disk is full") == 1
    assert "Traceback" not in failed.stderr
    done = run(*train)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in metrics(workdir) if "loss" in line] == list(range(1, 242))
    assert saved_steps(workdir / "checkpoints")[-1] == 241


def test_help_lists_every_option(run):
    for program, option in (
        ("train", "--model.num-encoder-layers"),
        ("evaluate", "--json"),
        ("translate", "--num-hypotheses"),
    ):
        done = run(program, "--help")
        assert done.returncode == 0
        assert option in done.stdout
        assert "--workdir" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--tokenizer.joint False --tokenizer.vocab-size 28 --model.tied-embeddings decoder --model.positions learned "
        "--model.norm post --optimizer.name adamw --optimizer.weight-decay 0.01 --training.accumulation-steps 2",
        "--tokenizer.kind bpe --tokenizer.byte-fallback True --tokenizer.vocab-size 310 --model.activation gelu "
        "--model.tied-embeddings none --optimizer.schedule cosine --devices.precision bfloat16 "
        "--tokenizer.sampling-alpha 0.1",
        "--model.positions rotary --model.qk-norm True --training.ema-decay 0.9",
    ],
)
def test_other_options_train_evaluate_and_translate(toy, run, tmp_path, options):
    workdir = tmp_path / "w"
    done = run("train", "--config", toy, "--workdir", workdir, "--training.num-steps", 40, *options.split())
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in metrics(workdir) if "loss" in line]
    assert losses[-1] < losses[0] - 0.5
    assert run("evaluate", "--workdir", workdir).returncode == 0
    assert run("translate", "--workdir", workdir, input="one\n\ntwo\n").stdout.count("\n") == 3
    if "rotary" in options:
        refused = run("translate", "--workdir", workdir, "--positions", tmp_path / "positions.png")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "positions are rotary" in refused.stderr


@pytest.mark.slow
def test_existing_tokenizer_is_used_and_kept_wherever_its_file_is(trained, toy, run, tmp_path):
    workdir, file, moved, other = (tmp_path / name for name in ("w", "a.model", "b.model", "other.model"))
    shutil.copy(trained[0] / "tokenizer.model", file)
    train = ["train", "--config", toy, "--workdir", workdir, "--training.eval-every", 0]
    done = run(*train, "--tokenizer.model-file", file, "--training.num-steps", 1)
    assert done.returncode == 0, done.stderr
    assert "training the tokenizer" not in done.stderr
    assert (workdir / "tokenizer.model").read_bytes() == file.read_bytes()
    file.rename(moved)
    for steps, model in ((1, file), (2, moved)):  # the file is missing in a finished run, and moved in a longer one
        done = run(*train, "--tokenizer.model-file", model, "--training.num-steps", steps)
        assert done.returncode == 0, done.stderr
    pairs = list(zip(*((toy.parent / f"train.{side}").read_text().splitlines() for side in ("en", "fr")), strict=True))
    other.write_bytes(train_tokenizer(pairs, TokenizerConfig(vocab_size=45, kind="bpe"))[0])
    refused = run(*train, "--tokenizer.model-file", other, "--training.num-steps", 3)
    assert refused.returncode == 2, refused.stderr
    assert f"tokenizer.model_file {other} is not the tokenizer that {workdir} was made with" in refused.stderr
    assert saved_steps(workdir / "checkpoints")[-1] == 2
