"""lingua_flax.train and lingua_flax.evaluate do what the commands do, in a program of the user's."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lingua_flax
from tests.conftest import ROOT
from tests.processes import digests, metrics, read_lines

SCRIPT = Path(__file__).parent / "scripts" / "train_from_python.py"
MEASURED = {"seconds", "sentences_per_second", "compile_seconds"}


@pytest.fixture(scope="module")
def program(toy, run, tmp_path_factory):
    """Returns what the program has seen, and the workdir of its run."""
    folder = tmp_path_factory.mktemp("program")
    done = run(SCRIPT, toy, folder)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr
    return json.loads((folder / "seen.json").read_text()), folder / "w"


def test_a_run_that_is_stopped_in_every_way_is_that_of_the_command(program, trained):
    seen, workdir = program
    assert (seen["30"], seen["110"]) == ("StopError(0)", "StopError(15)")
    (saved,) = map(int, seen["saved"])
    assert 30 <= saved < 40
    assert digests(workdir) == digests(trained[0])
    assert metrics(workdir) == metrics(trained[0])


def test_on_metrics_is_called_with_every_line_and_the_result_is_the_best(program):
    """Except those that follow the one at which it raised, until the run is resumed."""
    seen, workdir = program
    saved, written = int(seen["saved"][0]), read_lines(workdir)
    assert seen["lines"] == [line for line in written if line["step"] <= 30 or line["step"] > saved]
    validations = [line for line in written if "validation_loss" in line]
    best = max(validations, key=lambda line: line["validation_chrf"] + line["validation_bleu"])
    result = seen["result"]
    assert (result["step"], result["best_step"]) == (240, best["step"])
    assert (result["best_chrf"], result["best_bleu"]) == (best["validation_chrf"], best["validation_bleu"])
    last = [line for line in written if "loss" in line][-1]
    assert result["seconds"] == pytest.approx(last["seconds"], abs=1e-3)


def test_scores_are_those_of_the_command(trained, toy, succeed, tmp_path):
    files = ("--json", tmp_path / "scores.json", "--output", tmp_path / "expected.txt")
    succeed("evaluate", "--workdir", trained[0], "--beam-size", 2, "--ter", *files)
    expected = json.loads((tmp_path / "scores.json").read_text())
    test = {"source": toy.parent / "test.en", "reference": str(toy.parent / "test.fr")}
    for workdir, more in ((trained[0], {"output": tmp_path / "hyps.txt"}), (str(trained[0]), test)):
        scores = lingua_flax.evaluate(workdir, beam_size=2, ter=True, **more)
        assert scores.keys() == expected.keys()
        assert {name: scores[name] for name in scores.keys() - MEASURED}.items() <= expected.items()
    assert (tmp_path / "hyps.txt").read_text() == (tmp_path / "expected.txt").read_text()
    scores = lingua_flax.evaluate(trained[0], "validation", checkpoint="last", data={"name": "text"})
    assert scores["sentences"] == 31


def test_mistakes_are_one_sentence_and_write_nothing(trained, tmp_path):
    workdir = tmp_path / "w"
    for call, message in (
        (lambda: lingua_flax.evaluate(trained[0], beam=1), "unknown option beam; did you mean beam_size?"),
        (lambda: lingua_flax.evaluate(trained[0], devices={"platfrom": "cpu"}), "did you mean devices.platform?"),
        (lambda: lingua_flax.evaluate(trained[0], score=True), "unknown option score"),
        (lambda: lingua_flax.train("tinny", workdir), "tinny: cannot read the config"),
        (lambda: lingua_flax.train({"model": {"num_head": 2}}, workdir), "did you mean model.num_heads?"),
        (lambda: lingua_flax.train({"devices": {"topology": "v5e:1x1"}}, workdir), "has no effect without --dry-run"),
        (lambda: lingua_flax.train(None, workdir), "has no config.toml yet"),
        (lambda: lingua_flax.train("tiny", trained[0]), "was created with a different config: "),
    ):
        with pytest.raises(lingua_flax.UserError, match=re.escape(message)) as raised:
            call()
        assert "\n" not in str(raised.value)
        assert not workdir.exists()


def test_importing_the_package_imports_nothing_slow():
    code = "import lingua_flax, sys; print([name for name in ('jax', 'numpy', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    assert all(hasattr(lingua_flax, name) for name in lingua_flax.__all__)
