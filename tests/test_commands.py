"""The commands as users run them: real processes, real files, real signals."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from data.tokenizer import train_tokenizer
from host.digests import json_digest
from host.version import VERSION
from options.config_files import read_config
from options.schema import TokenizerConfig
from runs.checkpoint import read_record, saved_steps
from tests.conftest import HUNG_AFTER, PROMPTLY, ROOT
from tests.processes import TIMES, digests, events, finish, metrics, start, start_command, wait_for
from tests.toy import write_corpus


def test_training_learns_and_tells_what_it_reached(trained):
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
    assert {path.name for path in workdir.iterdir()} == {
        "config.toml",
        "tokenizer.model",
        "metrics.jsonl",
        "curves.png",
        "tensorboard",
        "checkpoints",
    }


def test_the_train_step_is_compiled_once(toy, run, tmp_path):
    """By JAX's own log, in a fresh and in a resumed process."""
    for steps in (30, 60):
        done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", "--training.num-steps", steps,
                   env=os.environ | {"JAX_LOG_COMPILES": "1", "JAX_LOGGING_LEVEL": "WARNING"})  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sum(line.startswith("Compiling jit(train_step)") for line in done.stderr.splitlines()) == 1


def test_a_finished_run_says_so_and_changes_nothing(trained, toy, run):
    workdir, _ = trained
    before = (metrics(workdir), digests(workdir))
    for arguments in (["--config", toy, "--workdir", workdir], ["--workdir", workdir]):
        again = run("train.py", *arguments)
        assert again.returncode == 0, again.stderr
        assert "finished: 240 of 240 steps" in again.stdout
    assert (metrics(workdir), digests(workdir)) == before


@pytest.mark.parametrize("kills", [[40], pytest.param([1, 120], marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_parameters_bit_for_bit(trained, toy, run, tmp_path, kills):
    workdir = tmp_path / "killed run"
    for step in kills:
        process = start(toy, workdir)
        if step == 1:
            wait_for(process, (workdir / "tokenizer.model").exists)
        else:
            wait_for(process, lambda step=step: step in saved_steps(workdir / "checkpoints"))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    newest = saved_steps(workdir / "checkpoints")[-1]
    done = run("train.py", "--config", toy, "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert f"resuming from step {newest}" in done.stderr
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])
    shown, expected = events(workdir), events(trained[0])
    assert shown.keys() == expected.keys()
    assert all(shown[name] == expected[name] for name in shown if name.removeprefix("train/") not in TIMES)


@pytest.mark.parametrize(
    ("number", "status", "sign"),
    # In training, in the first validation, and in the last.
    [
        (signal.SIGTERM, 143, '"step": 10,'),
        pytest.param(signal.SIGINT, 130, '"step": 80,', marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, '"step": 240,', marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(trained, toy, run, tmp_path, number, status, sign):
    workdir = tmp_path / "w"
    lines = workdir / "metrics.jsonl"
    process = start(toy, workdir)
    wait_for(process, lambda: lines.exists() and sign in lines.read_text())
    process.send_signal(number)
    _, errors = process.communicate(timeout=PROMPTLY)
    assert process.returncode == status, errors
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    step = saved_steps(workdir / "checkpoints")[-1]
    assert f"step {step} is saved" in errors
    assert run("train.py", "--workdir", workdir).returncode == 0
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_preparation_evaluation_and_translation_at_once(trained, tmp_path, number, status):
    """In the midst of each, with more to do than would be done within minutes."""
    log, cache, lines, translations = (tmp_path / name for name in ("log", "cache", "lines", "translations"))
    lines.write_text("one two three.\n" * 200_000)
    logging_compilations = os.environ | {"JAX_LOG_COMPILES": "1", "JAX_LOGGING_LEVEL": "WARNING"}
    for at_work, *command in (
        ((cache / "phrasebook").exists,
         "train.py", "--config", "configs/tiny.toml", "--workdir", tmp_path / "w", "--data.cache-directory", cache),
        (lambda: translations.exists() and translations.stat().st_size,
         "translate.py", "--workdir", trained[0], "--input", lines, "--output", translations),
        (lambda: "Compiling jit(_decode_batch)" in log.read_text(),
         "evaluate.py", "--workdir", trained[0], "--source", lines, "--reference", lines),
    ):  # fmt: skip
        with open(log, "w") as stderr:
            process = start_command(*command, stderr=stderr, env=logging_compilations)
        wait_for(process, at_work)
        process.send_signal(number)
        process.communicate(timeout=PROMPTLY)
        errors = log.read_text()
        assert process.returncode == status, errors
        assert errors.endswith(f"stopped by {signal.Signals(number).name}\n")
        assert "Traceback" not in errors
    assert not (tmp_path / "w").exists()


def test_a_reader_that_has_enough_is_no_error(trained):
    process = start_command("translate.py", "--workdir", trained[0], stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write("one.\n" * 5000)
    process.stdin.close()
    assert process.wait(timeout=HUNG_AFTER) == 141
    assert process.stderr.read() == ""


def test_a_longer_run_goes_on(trained, toy, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    done = run("train.py", "--workdir", workdir, "--training.num-steps", 250, "--training.eval-every", 0)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in metrics(workdir) if "loss" in line] == list(range(1, 251))


def test_epochs_give_the_length(toy, run, tmp_path):
    done = run(
        "train.py", "--config", toy, "--workdir", tmp_path / "w", "--training.num-epochs", 2, "--training.eval-every", 0
    )
    assert done.returncode == 0, done.stderr
    last = metrics(tmp_path / "w")[-1]
    assert f"2 epochs are {last['step']} steps" in done.stderr
    assert 1.8 < last["epoch"] < 2.4  # the rows packed side by side hold pairs of the next epoch


@pytest.mark.parametrize("length", [["--training.num-steps", 20], ["--training.num-epochs", 0.5]])
def test_warm_up_is_a_share_of_the_steps_that_the_run_was_made_with(toy, run, tmp_path, length):
    """A longer run keeps its steps, and says so where the share would give others."""
    workdir = tmp_path / "w"
    options = ["--optimizer.warmup-share", 0.25, "--optimizer.schedule", "constant", "--training.eval-every", 0]
    train = ["train.py", "--config", toy, "--workdir", workdir, *options]
    done = run(*train, *length)
    assert done.returncode == 0, done.stderr
    steps = len(metrics(workdir))
    warmup = round(steps / 4)
    expected = [0.01 * min(1, step / warmup) for step in range(1, 61)]
    assert [line["learning_rate"] for line in metrics(workdir)] == pytest.approx(expected[:steps])
    optimizer = read_config(workdir / "config.toml").optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_share) == (warmup, None)
    again = run(*train, *length)
    assert again.returncode == 0, again.stderr
    assert "finished" in again.stdout
    assert "warm-up" not in again.stderr
    done = run(*train, "--training.num-steps", 60)
    assert done.returncode == 0, done.stderr
    assert f"warm-up stays at the {warmup} steps with which this run was started" in done.stderr
    assert [line["learning_rate"] for line in metrics(workdir)] == pytest.approx(expected)
    refused = run(*train[:-6], "--optimizer.warmup-steps", 9, *options[2:])
    assert refused.returncode == 2, refused.stderr
    assert f"optimizer.warmup_steps: {warmup} in the workdir, now 9" in refused.stderr


def test_patience_stops_early(toy, run, tmp_path):
    options = ["--training.eval-every", 2, "--training.patience", 2, "--optimizer.peak-lr", 1e-9]
    done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 0, done.stderr
    assert metrics(tmp_path / "w")[-1]["step"] == 6
    again = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert "finished: 6 of 240 steps, stopped early" in again.stdout
    for name, more, last in (("patience", 3, 8), ("num-steps", 300, 10)):  # a third validation; patience begins anew
        workdir = shutil.copytree(tmp_path / "w", tmp_path / name)
        train = ["train.py", "--config", toy, "--workdir", workdir, *options, f"--training.{name}", more]
        done = run(*train)
        assert done.returncode == 0, done.stderr
        assert "resuming from step 6" in done.stderr
        assert metrics(workdir)[-1]["step"] == last
        assert f"finished: {last} of " in run(*train).stdout


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(toy, run, tmp_path):
    options = ["--optimizer.peak-lr", 1e38, "--optimizer.clip-norm", 0, "--optimizer.warmup-steps", 0]
    done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", "--training.checkpoint-every", 1, *options)
    assert done.returncode == 1, done.stderr
    assert "not finite for 3 steps in a row" in done.stderr
    assert "Lower optimizer.peak_lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert saved_steps(tmp_path / "w" / "checkpoints")


def test_a_run_made_with_another_config_is_refused_with_the_differences(trained, toy, run):
    before = (trained[0] / "config.toml").read_bytes()
    done = run("train.py", "--config", toy, "--workdir", trained[0], "--model.num-heads", 4, "--training.seed", 5)
    assert done.returncode == 2
    assert "model.num_heads: 2 in the workdir, now 4; training.seed: 1 in the workdir, now 5" in done.stderr
    assert (trained[0] / "config.toml").read_bytes() == before


@pytest.mark.parametrize("command", ["train.py", "translate.py"])
def test_a_workdir_of_another_version_is_refused_in_a_sentence(trained, run, tmp_path, command):
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    for step in saved_steps(workdir / "checkpoints"):
        file = workdir / "checkpoints" / str(step) / "record" / "metadata"
        record = json.loads(file.read_text())
        del record["record_digest"]
        record |= {"format": 2, "version": "0.0.9"}
        file.write_text(json.dumps(record | {"record_digest": json_digest(record)}))
    done = run(command, "--workdir", workdir, *(["--training.num-steps", 300] if command == "train.py" else []))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {workdir}: its checkpoints were written by version 0.0.9")
    assert metrics(workdir) == metrics(trained[0])


def test_every_command_reports_its_version(run):
    for command in ("train.py", "evaluate.py", "translate.py", "verify_resume.py"):
        done = run(command, "--version")
        assert (done.returncode, done.stdout) == (0, f"lingua-flax {VERSION}\n")


def test_checkpoints_name_the_version_that_wrote_them(trained):
    checkpoints = trained[0] / "checkpoints"
    assert read_record(checkpoints, saved_steps(checkpoints)[-1])["version"] == VERSION


def test_other_training_data_is_refused(trained, run, tmp_path):
    other = write_corpus(tmp_path / "other").parent
    lines = (other / "train.en").read_text().splitlines()
    (other / "train.en").write_text("\n".join(["zero zero zero.", *lines[1:]]) + "\n")
    arguments = ["--workdir", trained[0], "--training.num-steps", 300, "--data.train-source", other / "train.en"]
    done = run("train.py", *arguments)
    assert done.returncode == 2, done.stderr
    assert "made with a different corpus" in done.stderr
    same = run(
        "train.py", "--workdir", trained[0], "--data.test-source", write_corpus(tmp_path / "moved").parent / "test.en"
    )
    assert same.returncode == 0, same.stderr  # moved, but the same


def test_evaluate_gives_what_the_sacrebleu_command_gives(trained, run, tmp_path):
    source, reference = tmp_path / "in.en", tmp_path / "ref.fr"
    source.write_text("one two three.\n\nseven.\nnine eight five four.\none\u2028 two.\n", encoding="utf-8")
    reference.write_text("trois deux un !\n\nsept !\nquatre cinq huit neuf!\ndeux un  !\n", encoding="utf-8")
    hypotheses, scores = tmp_path / "hyps.txt", tmp_path / "scores.json"
    files = ["--source", source, "--reference", reference, "--output", hypotheses, "--json", scores]
    done = run("evaluate.py", "--workdir", trained[0], *files, "--beam-size", 3)
    assert done.returncode == 0, done.stderr
    assert hypotheses.read_bytes().count(b"\n") == 5
    found = json.loads(scores.read_text())
    command = [
        str(Path(sys.executable).parent / "sacrebleu"),
        str(reference),
        "-i",
        str(hypotheses),
        "-m",
        "bleu",
        "chrf",
        "-w",
        "4",
    ]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert f"{found['bleu']:.4f}" == f"{printed[0]['score']:.4f}"
    assert f"{found['chrf']:.4f}" == f"{printed[1]['score']:.4f}"
    assert found["bleu_signature"] == printed[0]["signature"].removeprefix("BLEU|")
    lowercase = subprocess.run(
        [*command[:4], "-lc", "-b", "-w", "4"], capture_output=True, text=True, check=True
    ).stdout
    assert f"{found['bleu_lowercase']:.4f}" == lowercase.strip()
    assert found["sentences"] == 5
    assert found["beam_size"] == 3
    assert "case:lc" in found["bleu_lowercase_signature"]
    assert f"version:{sacrebleu.__version__}" in found["bleu_signature"]


def test_a_model_in_lower_case_is_validated_and_scored_without_case(toy, run, tmp_path):
    """The toy corpus in capitals, which such a model cannot write: with case it would have no BLEU at all."""
    for path in toy.parent.glob("*.??"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").upper(), encoding="utf-8")
    config, workdir, scores = tmp_path / "toy.toml", tmp_path / "w", tmp_path / "scores.json"
    config.write_text(toy.read_text(encoding="utf-8").replace(str(toy.parent), str(tmp_path)), encoding="utf-8")
    trained = run("train.py", "--config", config, "--workdir", workdir, "--tokenizer.lowercase", "True")
    assert trained.returncode == 0, trained.stderr
    best = max(line["validation_bleu"] for line in metrics(workdir) if "validation_bleu" in line)
    assert best > 50
    assert f"BLEU {best:.2f} (greedy, lower case), the best so far" in trained.stderr
    assert re.search(rf"best validation BLEU +│ {best:.2f} at step \d+ \(greedy, lower case\)", trained.stdout)
    hypotheses, references = tmp_path / "hyps.txt", tmp_path / "hyps.reference.txt"
    command = ["evaluate.py", "--workdir", workdir, "--beam-size", 1, "--json", scores]
    assert run(*command, "--output", hypotheses).returncode == 0
    done = run(*command, "--compare", references)
    assert done.returncode == 0, done.stderr
    found = json.loads(scores.read_text())
    sacrebleu_command = [Path(sys.executable).parent / "sacrebleu", references, "-i", hypotheses, "-lc", "-w", "4"]
    printed = json.loads(subprocess.run(sacrebleu_command, capture_output=True, text=True, check=True).stdout)
    assert f"{found['bleu']:.4f}" == f"{found['bleu_lowercase']:.4f}" == f"{printed['score']:.4f}"
    assert found["bleu_signature"] == printed["signature"].removeprefix("BLEU|")
    assert found["bleu_low"] <= found["bleu"] <= found["bleu_high"]
    assert found["baseline_bleu"] == pytest.approx(100)
    assert "case:lc" in found["compare_signature"]
    assert "case:lc" in found["chrf_signature"]
    for name in ("BLEU", "chrF"):
        assert len(re.findall(rf"│ {name}, lower case +│", done.stdout)) == 1
    assert "│ BLEU  " not in done.stdout


def test_evaluate_scores_a_split_with_an_interval(trained, run, tmp_path):
    scores = tmp_path / "scores.json"
    done = run("evaluate.py", "--workdir", trained[0], "--json", scores)
    assert done.returncode == 0, done.stderr
    found = json.loads(scores.read_text())
    assert found["bleu_low"] < found["bleu"] < found["bleu_high"]
    assert found["bleu"] > 50
    assert found["sentences"] == 37
    assert found["checkpoint_step"] == read_record(trained[0] / "checkpoints", 240)["best_step"]
    assert f"{found['bleu']:.2f}" in done.stdout
    assert found["bleu_signature"] in done.stdout
    last = run(
        "evaluate.py",
        "--workdir",
        trained[0],
        "--checkpoint",
        240,
        "--split",
        "validation",
        "--beam-size",
        1,
        "--json",
        scores,
    )
    assert last.returncode == 0, last.stderr
    greedy = [line for line in metrics(trained[0]) if "validation_bleu" in line][-1]
    assert json.loads(scores.read_text())["bleu"] == pytest.approx(greedy["validation_bleu"])


def test_evaluate_times_decoding_without_compilation(trained, run, tmp_path):
    """Compiled for the first time and fetched from the cache the programs translate as fast."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = ["evaluate.py", "--workdir", trained[0], "--json", tmp_path / "scores.json"]
    found = []
    for _ in range(2):
        done = run(*command, env=environment)
        assert done.returncode == 0, done.stderr
        found.append(json.loads((tmp_path / "scores.json").read_text()))
        assert re.search(rf"│ compilation +│ {found[-1]['compile_seconds']:.1f} s +│", done.stdout)
    first, second = found
    assert first["compile_seconds"] > second["compile_seconds"] > 0
    for scores in found:
        assert scores["seconds"] < first["compile_seconds"] / 2
        assert scores["sentences_per_second"] == pytest.approx(37 / scores["seconds"])


def test_translate_keeps_every_line(trained, run, tmp_path):
    text = "one two.\n\n  \nthree.\r\n\ufeffnine.\nfour\u2028five\x0bsix.\n<pad> </s> one.\n日本 👍.\nseven."
    done = run("translate.py", "--workdir", trained[0], input=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 9
    lines = done.stdout.split("\n")
    assert lines[0] == "deux un !"
    assert lines[1] == lines[2] == ""
    assert lines[8] == "sept !"
    source = tmp_path / "in.txt"
    source.write_bytes(text.encode())
    to_file = run("translate.py", "--workdir", trained[0], "--input", source, "--output", tmp_path / "out.txt")
    assert to_file.returncode == 0, to_file.stderr
    assert to_file.stdout == ""
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == done.stdout


@pytest.mark.parametrize(
    ("name", "companions"),
    [
        ("hyps.txt.gz", ["hyps.source.txt.gz", "hyps.reference.txt.gz"]),
        ("x.gz", ["x.source.gz", "x.reference.gz"]),
    ],
)
def test_evaluate_writes_gzip_where_the_name_says_so(trained, run, toy, tmp_path, name, companions):
    """What is written is a file to compare with, and the same bytes when it is written again."""
    hypotheses = tmp_path / name
    command = ["evaluate.py", "--workdir", trained[0], "--beam-size", 1]
    assert run(*command, "--output", hypotheses).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {name, *companions}
    for companion, side in zip(companions, ("en", "fr"), strict=True):
        assert gzip.decompress((tmp_path / companion).read_bytes()) == (toy.parent / f"test.{side}").read_bytes()
    before = hypotheses.read_bytes()
    written_again = ["--output", tmp_path / "again.gz", "--json", tmp_path / "scores.json"]
    again = run(*command, "--compare", hypotheses, *written_again)
    assert again.returncode == 0, again.stderr
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["baseline_bleu"] == found["bleu"] > 50
    assert (tmp_path / "again.gz").read_bytes() == before


def test_translate_streams_whole_gzip_files(trained, tmp_path):
    """Killed by Ctrl-C, it leaves what it had translated as a file that is not damaged."""
    output = tmp_path / "out.gz"
    options = ["--workdir", trained[0], "--output", output, "--beam-size", 1]
    process = start_command("translate.py", *options, stdin=subprocess.PIPE)
    process.stdin.write("one two.\n" * 1024 + "three.\n")
    process.stdin.flush()
    wait_for(process, lambda: output.exists() and output.stat().st_size)
    process.send_signal(signal.SIGINT)
    ((status, _, stderr),) = finish([process])
    assert status == 130, stderr
    assert gzip.decompress(output.read_bytes()).decode() == "deux un !\n" * 1024


def test_translate_n_best(trained, run):
    done = run(
        "translate.py", "--workdir", trained[0], "--num-hypotheses", 3, "--beam-size", 4, input="one two.\nthree.\n"
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert rows[0][2] == "deux un !"
    as_json = run(
        "translate.py",
        "--workdir",
        trained[0],
        "--num-hypotheses",
        3,
        "--beam-size",
        4,
        "--json-lines",
        input="one two.\n",
    )
    found = json.loads(as_json.stdout)
    assert found["source"] == "one two."
    assert [f"{hypothesis['score']:.4f}" for hypothesis in found["hypotheses"]] == [row[1] for row in rows[:3]]


def test_a_copied_and_read_only_workdir_evaluates_and_translates(trained, run, tmp_path):
    workdir = tmp_path / "kopiert ä b"
    shutil.copytree(trained[0], workdir)
    before = sorted(str(path) for path in workdir.rglob("*"))
    subprocess.run(["chmod", "-R", "a-w", workdir], check=True)
    try:
        done = run("translate.py", "--workdir", workdir, input="one two.\n")
        assert (done.returncode, done.stdout) == (0, "deux un !\n"), done.stderr
        assert run("evaluate.py", "--workdir", workdir).returncode == 0
        assert sorted(str(path) for path in workdir.rglob("*")) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", workdir], check=True)


def test_a_relative_workdir_and_a_home_directory(toy, run, tmp_path):
    """From another folder, as most people work; a second start finds the checkpoint of the first."""
    options = {"cwd": tmp_path, "env": os.environ | {"HOME": str(toy.parent), "PYTHONPATH": str(ROOT)}}
    (tmp_path / "c.toml").write_text(toy.read_text().replace(str(toy.parent), "~"))
    train = [ROOT / "train.py", "--config", "c.toml", "--workdir", "w x/ä", "--training.num-steps"]
    assert run(*train, 20, **options).returncode == 0
    done = run(*train, 30, **options)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 20" in done.stderr
    assert run(ROOT / "evaluate.py", "--workdir", "w x/ä", **options).returncode == 0
    assert run(ROOT / "translate.py", "--workdir", "w x/ä", input="one.\n", **options).returncode == 0


def test_a_run_whose_newest_checkpoint_is_damaged_takes_the_one_before(trained, toy, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    files = [path for path in (workdir / "checkpoints" / "240" / "params").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[:-20])
    done = run("train.py", "--workdir", workdir)
    assert done.returncode == 0, done.stderr
    assert "checkpoint 240 is damaged" in done.stderr
    assert "resuming from step 200" in done.stderr
    assert metrics(workdir) == metrics(trained[0])
    assert digests(workdir) == digests(trained[0])


def test_a_full_disk_is_one_line_and_the_run_goes_on_afterwards(trained, toy, run, tmp_path):
    """A limit on the size of files, as a full disk can't be made everywhere: no file of a checkpoint fits."""
    limit = (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    limited = ["-c", f"import resource, runpy, sys; sys.argv = sys.argv[1:]; {limit}"]
    shutil.copytree(trained[0], tmp_path / "w")
    train = ["train.py", "--workdir", tmp_path / "w", "--training.num-steps", 280]
    done = run(*limited, *train)
    assert done.returncode == 1, done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(*train)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in metrics(tmp_path / "w") if "loss" in line] == list(range(1, 281))


def test_help_shows_every_option(run):
    for program, option in (
        ("train.py", "--model.num-encoder-layers"),
        ("evaluate.py", "--json"),
        ("translate.py", "--num-hypotheses"),
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
    done = run("train.py", "--config", toy, "--workdir", workdir, "--training.num-steps", 40, *options.split())
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in metrics(workdir) if "loss" in line]
    assert losses[-1] < losses[0] - 0.5
    assert run("evaluate.py", "--workdir", workdir).returncode == 0
    assert run("translate.py", "--workdir", workdir, input="one\n\ntwo\n").stdout.count("\n") == 3
    if "rotary" in options:
        refused = run("translate.py", "--workdir", workdir, "--positions", tmp_path / "positions.png")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "positions are rotary" in refused.stderr


def test_an_existing_tokenizer_is_used(trained, toy, run, tmp_path):
    model = trained[0] / "tokenizer.model"
    options = ["--tokenizer.model-file", model, "--training.num-steps", 1, "--training.eval-every", 0]
    done = run("train.py", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "w" / "tokenizer.model").read_bytes() == model.read_bytes()
    assert "training the tokenizer" not in done.stderr


def test_a_resumed_run_keeps_its_tokenizer_wherever_the_model_file_is_now(trained, toy, run, tmp_path):
    workdir, file, moved, other = (tmp_path / name for name in ("w", "a.model", "b.model", "other.model"))
    shutil.copy(trained[0] / "tokenizer.model", file)
    train = ["train.py", "--config", toy, "--workdir", workdir, "--training.eval-every", 0]
    assert run(*train, "--tokenizer.model-file", file, "--training.num-steps", 1).returncode == 0
    file.rename(moved)
    for steps, model in ((2, file), (3, moved), (3, moved)):  # it is gone, moved, and the run finished
        done = run(*train, "--tokenizer.model-file", model, "--training.num-steps", steps)
        assert done.returncode == 0, done.stderr
    pairs = list(zip(*((toy.parent / f"train.{side}").read_text().splitlines() for side in ("en", "fr")), strict=True))
    other.write_bytes(train_tokenizer(pairs, TokenizerConfig(vocab_size=45, kind="bpe"))[0])
    done = run(*train, "--tokenizer.model-file", other, "--training.num-steps", 4)
    assert done.returncode == 2, done.stderr
    assert f"tokenizer.model_file {other} is not the tokenizer that {workdir} was made with" in done.stderr
    assert saved_steps(workdir / "checkpoints")[-1] == 3
