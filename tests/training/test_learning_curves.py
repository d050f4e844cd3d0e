"""Learning curves: the points in the picture, and event files as TensorBoard reads them."""

import html
import re
import shutil
import struct
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.hparams_plugin import HParamsPlugin
from tensorboard.plugins.text.text_plugin import text_array_to_html
from tensorboard.util.tensor_util import make_ndarray
from werkzeug.test import Client

from lingua_flax.host.errors import is_disk_full
from lingua_flax.host.figures import save_figure
from lingua_flax.options.schema import Config
from lingua_flax.runs.learning_curves import MAX_POINTS, Curves, draw_curves
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.recorder import Recorder
from lingua_flax.training.tensorboard_events import EventFiles
from lingua_flax.training.validation import Sample, Validation
from tests.processes import events, metrics


def lines_of(axes):
    """Returns the points of each line by its label."""
    return {line.get_label(): tuple(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}


def test_drawn_points_match_the_metrics():
    curves = Curves()
    for step in range(1, 2 * MAX_POINTS + 1):
        curves.add({"step": step, "loss": None if step == 3 else float(step)})
    curves.add({"step": 7, "validation_loss": 2.0, "validation_loss_shuffled": 3.0, "validation_bleu": 1.5})
    curves.add({"step": 9, "validation_loss": 1.0, "validation_loss_shuffled": None, "validation_bleu": 8.0})
    figure = draw_curves({"validation": [curves]}, "a run")
    assert figure.get_suptitle() == "a run"
    losses, scores = figure.axes
    drawn = lines_of(losses)
    training = drawn["training, with dropout and label smoothing"]
    assert len(training) == MAX_POINTS
    assert training[0] == (1.5, 1.5)
    assert training[1] == (4.5, 4.5)  # the loss of step 3 is not finite
    assert training[-1] == (2 * MAX_POINTS, 2 * MAX_POINTS)
    assert drawn["validation"] == ((7, 2.0), (9, 1.0))
    assert drawn["validation, sources shuffled"] == ((7, 3.0),)
    assert list(lines_of(scores).values()) == [((7, 1.5), (9, 8.0))]


def test_a_run_without_metrics_is_drawn_empty():
    figure = draw_curves({"validation": [Curves()]}, "a run", "(greedy, lower case)")
    assert len(figure.axes) == 2
    assert figure.axes[1].get_ylabel() == "validation BLEU (greedy, lower case)"


def test_dollar_signs_in_a_title_are_not_math(tmp_path):
    save_figure(draw_curves({"validation": [Curves()]}, r"runs $\foo$: text, en to fr"), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()


def test_the_picture_is_drawn_at_every_validation(tmp_path):
    """Not only at the end, which a long run reaches late and a killed run never."""
    picture = tmp_path / "curves.png"
    config = Config.model_validate({"training": {"tensorboard": False}})
    with Recorder(Workdir(tmp_path), "a run", config, 10) as recorder:
        recorder.validation(4, Validation(2.0, None, 1.0, None, ()), 1.0, best=True)
        first = picture.read_bytes()
        recorder.validation(8, Validation(1.0, None, 9.0, 9.0, ()), 1.0, best=True)
        assert picture.read_bytes() != first


def test_the_samples_of_a_validation_are_in_its_line(tmp_path):
    """Any text, and no curve in TensorBoard."""
    samples = (Sample("*one* <b>", "un \u2028\n", '"deux"'), Sample("", "", "\ufffd"))
    workdir = Workdir(tmp_path)
    with Recorder(workdir, "a run", Config(), 10) as recorder:
        recorder.validation(4, Validation(2.0, None, 1.0, None, samples), 1.5, best=True)
        recorder.validation(8, Validation(2.0, 3.0, 1.0, None, ()), 1.5, best=False)
    first, second = workdir.read_metrics()
    assert first == {
        "step": 4,
        "validation_loss": 2.0,
        "validation_loss_shuffled": None,
        "validation_bleu": 1.0,
        "validation_seconds": 1.5,
        "samples": [
            {"source": "*one* <b>", "reference": "un \u2028\n", "translation": '"deux"'},
            {"source": "", "reference": "", "translation": "\ufffd"},
        ],
    }
    assert second["samples"] == []
    assert events(tmp_path) == {
        "validation/loss": [(4, 2.0), (8, 2.0)],
        "validation/loss_shuffled": [(8, 3.0)],
        "validation/bleu": [(4, 1.0), (8, 1.0)],
        "best/loss": [(4, 2.0), (8, 2.0)],
        "best/bleu": [(4, 1.0), (8, 1.0)],
    }
    texts = EventAccumulator(str(tmp_path)).Reload().Tensors("validation/samples/text_summary")
    assert [event.step for event in texts] == [4]
    shown = text_array_to_html(make_ndarray(texts[0].tensor_proto), enable_markdown=True)
    lines = html.unescape(re.sub("<[^>]*>", "", shown)).splitlines()
    assert [line.rstrip() for line in lines if line.strip()] == [
        *["source       *one* <b>", "reference    un", 'translation  "deux"'],
        *["source", "reference", "translation  \ufffd"],
    ]


def test_tensorboard_tells_runs_apart_by_their_options(tmp_path):
    """Read by its HParams plugin: options as numbers, truth values and text, with the last value of each curve."""
    losses = {1: (3.0, 2.0), 2: (1.0, 4.0)}
    for seed, values in losses.items():
        config = Config.model_validate({"training": {"seed": seed}, "optimizer": {"name": f"adam{'w' * (seed - 1)}"}})
        (tmp_path / f"run{seed}").mkdir()
        with Recorder(Workdir(tmp_path / f"run{seed}"), "a run", config, 10) as recorder:
            for step, loss in enumerate(values, 1):
                recorder.validation(step, Validation(loss, None, 10 * loss, None, ()), 1.0, best=False)
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    context = TBContext(data_provider=provider, logdir=str(tmp_path), multiplexer=multiplexer)
    plugin = Client(HParamsPlugin(context).get_plugin_apps()["/session_groups"])
    request = {"startIndex": 0, "sliceSize": 10, "colParams": [], "allowedStatuses": ["STATUS_UNKNOWN"]}
    groups = plugin.post("/", json=request).json["sessionGroups"]
    shown = {group["hparams"]["training.seed"]: group for group in groups}
    assert set(shown) == set(losses)
    assert [shown[seed]["hparams"]["optimizer.name"] for seed in losses] == ["adam", "adamw"]
    assert shown[1]["hparams"]["tokenizer.joint"] is True
    for seed, values in losses.items():
        last = {each["name"]["tag"]: each["value"] for each in shown[seed]["metricValues"]}
        assert last["validation/loss"] == values[-1]
        assert (last["best/loss"], last["best/bleu"]) == (min(values), 10 * max(values))


def test_tensorboard_names_runs_after_their_workdirs(tmp_path):
    """As tensorboard --logdir checkpoints does: each run has the curves of training and validation together."""
    for name in ("tiny", "wide"):
        (tmp_path / name).mkdir()
        with Recorder(Workdir(tmp_path / name), "a run", Config(), 10) as recorder:
            recorder.steps([{"step": 1, "loss": 1.0, "real_tokens": 1.0, "tokens_per_second": 1.0, "idle": 0.0}])
            recorder.validation(1, Validation(2.0, None, 1.0, None, ()), 3.0, best=True)
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload().Runs()
    assert set(runs) == {"tiny", "wide"}
    assert all({"train/loss", "validation/loss", "best/loss"} <= set(run["tensors"]) for run in runs.values())
    assert not any("seconds" in curve for run in runs.values() for curve in run["tensors"] if "per" not in curve)


def test_a_resumed_run_knows_its_best_validation(tmp_path):
    logged = [{"step": step, "validation_loss": loss} for step, loss in ((1, 1.0), (2, 3.0))]
    EventFiles(tmp_path, logged, 2, {}).write([{"step": 3, "validation_loss": 2.0}])
    assert events(tmp_path)["best/loss"] == [(2, 1.0), (3, 1.0)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_and_the_previous_picture_kept(tmp_path):
    picture = tmp_path / "curves.png"
    save_figure(draw_curves({"validation": [Curves()]}), picture)
    before = picture.read_bytes()
    (tmp_path / ".curves.png.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        save_figure(draw_curves({"validation": [Curves()]}, "another"), picture)
    assert is_disk_full(raised.value)
    assert picture.read_bytes() == before


def test_events_after_the_checkpoint_are_dropped(tmp_path):
    """The first process dies at step 5; its checkpoint is of step 3, before the validation of that step."""
    workdir = Workdir(tmp_path)
    first = EventFiles(tmp_path, [], 0, {})
    first.write([{"step": step, "loss": float(step), "seconds": 1.0} for step in range(1, 6)])
    first.write([{"step": 3, "validation_loss": 30.0, "validation_bleu": None}])  # written, but not closed
    logged = [{"step": step, "loss": float(step)} for step in range(1, 4)]
    second = EventFiles(workdir.path, logged, 3, {})
    second.write([{"step": 3, "validation_loss": 30.5}, {"step": 4, "loss": 40.0}, {"step": 5, "loss": 50.0}])
    second.close()
    assert events(tmp_path) == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)],
        "validation/loss": [(3, 30.5)],
        "best/loss": [(3, 30.5)],
    }


def test_a_run_restarted_from_scratch_shows_only_its_own_events(tmp_path):
    folder = tmp_path
    EventFiles(folder, [], 0, {}).write([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.5}])
    (file,) = folder.iterdir()
    file.rename(folder / "events.out.tfevents.1000000000.earlier")  # files created in the same second share a name
    EventFiles(folder, [], 0, {}).write([{"step": 1, "loss": 2.0}])
    assert len(list(folder.iterdir())) == 2
    assert events(tmp_path) == {"train/loss": [(1, 2.0)]}


def test_a_run_writes_events_and_a_picture(trained):
    """TensorBoard shows every number in metrics.jsonl that is a curve."""
    workdir, _ = trained
    curves = events(workdir)
    for line in metrics(workdir):
        group = "validation" if "validation_loss" in line else "train"
        for name, value in line.items():
            if name not in ("step", "batch", "samples"):
                curve = dict(curves[f"{group}/{name.removeprefix('validation_')}"])
                assert curve[line["step"]] == pytest.approx(value, rel=1e-6)
    assert not [name for name in curves if "samples" in name]
    assert len(curves["train/loss"]) == 240
    assert [step for step, _ in curves["validation/bleu"]] == [80, 160, 240]
    header = (workdir / "curves.png").read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert np.prod(struct.unpack(">II", header[16:24])) > 500_000


def test_a_resumed_run_draws_all_its_steps_and_events_can_be_turned_off(trained, run, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir, ignore=shutil.ignore_patterns("events.*"))
    before = (workdir / "curves.png").read_bytes()
    options = ["--training.eval-every", 0, "--training.tensorboard", "False", "--training.num-steps", 250]
    resumed = run("train", "--workdir", workdir, *options)
    assert resumed.returncode == 0, resumed.stderr
    lines = Workdir(workdir).read_metrics()
    assert lines[-1]["step"] == 250
    expected = draw_curves({"validation": [Curves(lines)]}, "w: text, en to fr")
    with matplotlib.rc_context():  # other tests in this process may have changed the fonts
        matplotlib.rc_file_defaults()
        save_figure(expected, tmp_path / "expected.png")
    assert (workdir / "curves.png").read_bytes() == (tmp_path / "expected.png").read_bytes() != before
    assert not list(workdir.glob("events.*"))
