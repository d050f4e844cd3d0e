"""Event files as TensorBoard reads them."""

import html
import re

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.hparams_plugin import HParamsPlugin
from tensorboard.plugins.text.text_plugin import text_array_to_html
from tensorboard.util.tensor_util import make_ndarray
from werkzeug.test import Client

from lingua_flax.options.schema import Config
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.recorder import Recorder
from lingua_flax.training.tensorboard_events import EventFiles
from lingua_flax.training.validation import Sample, Validation
from tests.processes import events, metrics


def test_samples_of_a_validation_are_in_its_line(tmp_path):
    """Any text, and no curve in TensorBoard."""
    samples = (Sample("*one* <b>", "un \u2028\n", '"deux"'), Sample("", "", "\ufffd"))
    workdir = Workdir(tmp_path)
    with Recorder(workdir, "a run", Config(), 10) as recorder:
        recorder.validation(4, Validation(2.0, None, 1.0, None, samples), 1.5, best=True)
        recorder.validation(8, Validation(2.0, 3.0, 1.0, None, ()), 1.5, best=False)
    assert [line["samples"] for line in workdir.read_metrics()] == [[sample._asdict() for sample in samples], []]
    assert events(tmp_path) == {
        "validation/loss": [(4, 2.0), (8, 2.0)],
        "validation/loss_shuffled": [(8, 3.0)],
        "validation/bleu": [(4, 1.0), (8, 1.0)],
        "best/loss": [(4, 2.0), (8, 2.0)],
        "best/bleu": [(4, 1.0), (8, 1.0)],
    }
    (text,) = EventAccumulator(str(tmp_path)).Reload().Tensors("validation/samples/text_summary")
    assert text.step == 4
    shown = text_array_to_html(make_ndarray(text.tensor_proto), enable_markdown=True)
    lines = html.unescape(re.sub("<[^>]*>", "", shown)).splitlines()
    assert [line.rstrip() for line in lines if line.strip()] == [
        *["source       *one* <b>", "reference    un", 'translation  "deux"'],
        *["source", "reference", "translation  \ufffd"],
    ]


def test_runs_are_told_apart_by_their_workdirs_and_options(tmp_path):
    """Read by the HParams plugin: options as numbers, truth values and text, with the last value of each curve."""
    losses = {1: (3.0, 2.0), 2: (1.0, 4.0)}
    for seed, values in losses.items():
        config = Config.model_validate({"training": {"seed": seed}, "optimizer": {"name": f"adam{'w' * (seed - 1)}"}})
        (tmp_path / f"run{seed}").mkdir()
        with Recorder(Workdir(tmp_path / f"run{seed}"), "a run", config, 10) as recorder:
            recorder.steps([{"step": 1, "loss": 1.0, "real_tokens": 1.0, "tokens_per_second": 1.0, "idle": 0.0}])
            for step, loss in enumerate(values, 1):
                recorder.validation(step, Validation(loss, None, 10 * loss, None, ()), 1.0, best=False)
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert set(multiplexer.Runs()) == {"run1", "run2"}
    curves = multiplexer.Runs()["run1"]["tensors"]
    assert {"train/loss", "validation/loss", "best/loss"} <= set(curves)
    assert not any("seconds" in curve for curve in curves)
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    context = TBContext(data_provider=provider, logdir=str(tmp_path), multiplexer=multiplexer)
    plugin = Client(HParamsPlugin(context).get_plugin_apps()["/session_groups"])
    request = {"startIndex": 0, "sliceSize": 10, "colParams": [], "allowedStatuses": ["STATUS_UNKNOWN"]}
    groups = plugin.post("/", json=request).json["sessionGroups"]
    shown = {group["hparams"]["training.seed"]: group for group in groups}
    assert [shown[seed]["hparams"]["optimizer.name"] for seed in losses] == ["adam", "adamw"]
    assert shown[1]["hparams"]["tokenizer.joint"] is True
    for seed, values in losses.items():
        last = {each["name"]["tag"]: each["value"] for each in shown[seed]["metricValues"]}
        assert last["validation/loss"] == values[-1]
        assert (last["best/loss"], last["best/bleu"]) == (min(values), 10 * max(values))


def test_events_after_the_checkpoint_are_dropped(tmp_path):
    """The first process has no checkpoint; the second one's is of step 3, before the validation of that step.

    The best validation is one before that checkpoint.
    """
    EventFiles(tmp_path, [], 0, {}).write([{"step": 1, "loss": 7.0}, {"step": 9, "loss": 8.0}])
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / "events.out.tfevents.1000000000.earlier")  # files created in the same second share a name
    logged = [{"step": step, "loss": float(step)} for step in range(1, 4)] + [{"step": 2, "validation_loss": 20.0}]
    first = EventFiles(tmp_path, [], 0, {})
    first.write([*logged, {"step": 4, "loss": 4.0, "seconds": 1.0}])
    first.write([{"step": 3, "validation_loss": 30.0, "validation_bleu": None}])  # written, but not closed
    second = EventFiles(tmp_path, logged, 3, {})
    second.write([{"step": 3, "validation_loss": 30.5}, {"step": 4, "loss": 40.0}, {"step": 5, "loss": 50.0}])
    second.close()
    assert events(tmp_path) == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)],
        "validation/loss": [(2, 20.0), (3, 30.5)],
        "best/loss": [(2, 20.0), (3, 20.0)],
    }


def test_every_number_of_a_run_that_is_a_curve_is_shown(trained):
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
