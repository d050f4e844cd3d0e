"""lingua_flax.train and lingua_flax.evaluate do what the commands do, in a program of the user's."""

import json
import os
import subprocess
import sys

import pytest

import lingua_flax
from lingua_flax.translation.translator import Translator
from tests.command_server import PROJECT_ON_PATH
from tests.conftest import HUNG_AFTER, ROOT
from tests.processes import digests, metrics, read_lines

SCRIPT = ROOT / "tests" / "commands" / "scripts" / "train_from_python.py"
MEASURED = {"seconds", "sentences_per_second", "compile_seconds"}


@pytest.fixture(scope="module")
def program(toy, tmp_path_factory):
    """Returns what the program has seen, what it printed on stdout, and the workdir of its run."""
    folder = tmp_path_factory.mktemp("program")
    done = subprocess.run(
        [sys.executable, SCRIPT, toy, folder],
        env=os.environ | PROJECT_ON_PATH,
        capture_output=True,
        text=True,
        timeout=HUNG_AFTER,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads((folder / "seen.json").read_text()), done.stdout, folder / "w"


def test_a_run_that_is_stopped_in_every_way_is_that_of_the_command(program, trained):
    seen, stdout, workdir = program
    assert stdout == ""
    assert seen["raised in on_metrics"] == "enough"
    assert (seen["Ctrl-C"], seen["own handler"]) == ("KeyboardInterrupt", "SIGTERM")
    (saved,) = map(int, seen["saved"])
    assert 30 <= saved < 40
    assert digests(workdir) == digests(trained[0])
    assert metrics(workdir) == metrics(trained[0])


def test_on_metrics_is_called_with_every_line_in_order(program):
    """Except those that follow the one at which it raised, until the run is resumed."""
    seen, _, workdir = program
    saved, written = int(seen["saved"][0]), read_lines(workdir)
    assert seen["lines"] == [line for line in written if line["step"] <= 30 or line["step"] > saved]
    assert {"step", "loss"} <= set(seen["lines"][0])
    assert sum("validation_loss" in line for line in seen["lines"]) == 3


def test_the_result_is_that_of_the_best_validation(program):
    seen, _, workdir = program
    validations = [line for line in read_lines(workdir) if "validation_loss" in line]
    best = max(validations, key=lambda line: (line["validation_bleu"], -line["validation_loss"]))
    result = seen["result"]
    assert (result["step"], result["best_step"]) == (240, best["step"])
    assert (result["best_bleu"], result["best_loss"]) == (best["validation_bleu"], best["validation_loss"])
    last = [line for line in read_lines(workdir) if "loss" in line][-1]
    assert result["seconds"] == pytest.approx(last["seconds"], abs=1e-3)


def test_scores_are_those_of_the_command(program, run, tmp_path):
    seen, _, workdir = program
    options = ("--beam-size", 2, "--ter", "--json", tmp_path / "scores.json", "--output", tmp_path / "hyps.txt")
    done = run("evaluate", "--workdir", workdir, *options)
    assert done.returncode == 0, done.stderr
    expected = json.loads((tmp_path / "scores.json").read_text())
    for scores in seen["scores"]:
        assert scores.keys() == expected.keys()
        for name in expected.keys() - MEASURED:
            assert scores[name] == expected[name], name
    assert (workdir.parent / "hyps.txt").read_text() == (tmp_path / "hyps.txt").read_text()
    assert seen["sentences"] == 31


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 1}, "unknown option beam; did you mean beam_size?"),
        ({"devices": {"platfrom": "cpu"}}, "unknown option devices.platfrom; did you mean devices.platform?"),
        ({"beam_size": "many"}, 'beam_size: must be a whole number, got "many"'),
        ({"score": True}, "unknown option score"),
        ({"source": "lines.en"}, "--source and --reference go together"),
    ],
)
def test_a_mistake_in_an_evaluation_is_one_sentence(trained, options, message):
    with pytest.raises(lingua_flax.UserError) as raised:
        lingua_flax.evaluate(trained[0], **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("tinny", "tinny: cannot read the config"),
        ({"model": {"num_head": 2}}, "unknown option model.num_head; did you mean model.num_heads?"),
        ({"training": {"num_steps": 0}}, "training.num_steps"),
        ({"devices": {"topology": "v5e:1x1"}}, "devices.topology has no effect without --dry-run"),
        (None, "has no config.toml yet"),
    ],
)
def test_a_mistake_in_a_config_is_one_sentence_and_writes_nothing(tmp_path, config, message):
    with pytest.raises(lingua_flax.UserError, match=message.replace("?", r"\?")):
        lingua_flax.train(config, tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_a_config_that_is_not_that_of_the_workdir_is_refused(trained):
    with pytest.raises(
        lingua_flax.UserError, match=r"was created with a different config: .*tokenizer\.vocab_size: 45"
    ):
        lingua_flax.train("tiny", trained[0])


def test_other_devices_than_those_that_jax_uses_are_refused_in_a_sentence(run):
    code = (
        "import jax, lingua_flax.devices.platform as platform; jax.devices(); "
        "platform.available_devices = lambda platform: []; platform.initialize_devices('tpu')"
    )
    done = run("-c", code)
    assert "devices.platform tpu: JAX uses cpu in this process already; restart it" in done.stderr


def test_importing_the_package_imports_nothing_slow():
    code = "import lingua_flax, sys; print([name for name in ('jax', 'numpy', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    assert all(hasattr(lingua_flax, name) for name in lingua_flax.__all__)


def test_a_translator_is_shown_in_a_line(trained):
    one = Translator.load(trained[0], "last")
    both = Translator.load(trained[0], "last", ensemble=[trained[0]])
    count = one.num_parameters
    assert repr(one) == f"Translator(en-fr, step 240, {count:,} parameters, cpu)"
    assert repr(both) == f"Translator(en-fr, 2 networks, steps 240 240, {2 * count:,} parameters, cpu)"
    assert len(repr(both.others)) < 200
