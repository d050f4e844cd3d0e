"""What a run records: metrics.jsonl, learning curves, and event files as TensorBoard reads them."""

import pytest

from lingua_flax.host.figures import save_figure
from lingua_flax.options.schema import Config
from lingua_flax.runs.learning_curves import MAX_POINTS, Curves, draw_curves
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.recorder import Recorder
from lingua_flax.training.tensorboard_events import EventFiles
from lingua_flax.training.validation import Sample, Validation
from tests.processes import events


def points_of(axes):
    return [tuple(zip(*line.get_data(), strict=True)) for line in axes.get_lines()]


def test_drawn_points_match_the_metrics():
    curves = Curves()
    for step in range(1, 2 * MAX_POINTS + 1):
        curves.add({"step": step, "loss": None if step == 3 else float(step)})
    curves.add({"step": 7, "validation_loss": 2.0, "validation_loss_shuffled": 3.0, "validation_chrf": 1.5})
    curves.add({"step": 9, "validation_loss": 1.0, "validation_loss_shuffled": None, "validation_chrf": 8.0})
    losses, scores = draw_curves({"validation": [curves]}).axes
    drawn = dict(zip((line.get_label() for line in losses.get_lines()), points_of(losses), strict=True))
    training = drawn["training, with dropout and label smoothing"]
    assert len(training) == MAX_POINTS
    assert training[:2] == ((1.5, 1.5), (4.5, 4.5))  # the loss of step 3 is not finite
    assert training[-1] == (2 * MAX_POINTS, 2 * MAX_POINTS)
    assert drawn["validation"] == ((7, 2.0), (9, 1.0))
    assert drawn["validation, sources shuffled"] == ((7, 3.0),)
    assert points_of(scores) == [((7, 1.5), (9, 8.0))]


def test_compared_systems_have_a_line_for_each_run_and_a_band_around_the_mean():
    """The second run of a has one validation more, for which there is no mean; the run of b has none of chrF."""
    first, second, of_b = Curves([{"step": 1, "loss": 9.0}]), Curves(), Curves()
    for curves, points in ((first, [(5, 3.0), (10, 1.0)]), (second, [(5, 5.0), (10, 2.0), (15, 1.0)])):
        for step, loss in points:
            curves.add({"step": step, "validation_loss": loss, "validation_chrf": 4 * loss})
    of_b.add({"step": 5, "validation_loss": 2.0, "validation_chrf": None})
    losses, scores = draw_curves({"a": [first, second], "b": [of_b]}).axes
    of_a = [((5, 4.0), (10, 1.5)), ((5, 3.0), (10, 1.0)), ((5, 5.0), (10, 2.0), (15, 1.0))]
    assert points_of(losses) == [*of_a, ((5, 2.0),)]
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ["a (mean of 2)", "b"]
    (band,) = losses.collections  # 3 and 5 have the deviation sqrt(2)
    heights = [y for x, y in band.get_paths()[0].vertices if x == 5]
    assert (min(heights), max(heights)) == pytest.approx((4 - 2**0.5, 4 + 2**0.5))
    assert points_of(scores)[0] == ((5, 16.0), (10, 6.0))


def test_picture_is_drawn_at_every_validation_with_the_lines_before_a_resume(tmp_path):
    """Not only at the end, which a long run reaches late and a killed run never. Event files can be turned off."""
    picture, workdir, title = tmp_path / "curves.png", Workdir(tmp_path), r"runs $\foo$: text, en to fr"  # no formula
    config = Config.model_validate({"training": {"tensorboard": False}})
    logged = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    with Recorder(workdir, title, config, 10, first_step=2, logged_lines=logged) as recorder:
        recorder.validation(4, Validation(2.0, None, 12.0, 1.0, ()), 1.0, best=True)
        first = picture.read_bytes()
        recorder.validation(8, Validation(1.0, None, 19.0, 9.0, ()), 1.0, best=True)
        curves = Curves([*logged, *workdir.read_metrics()])
        expected = draw_curves({"validation": [curves]}, title)
        save_figure(expected, tmp_path / "expected.png")
        assert picture.read_bytes() == (tmp_path / "expected.png").read_bytes() != first
    assert not list(tmp_path.glob("events.*"))
    save_figure(draw_curves({"validation": [Curves()]}), picture)  # of a run without metrics


def test_samples_of_a_validation_are_in_its_line(tmp_path):
    samples = (Sample("*one* <b>", "un \u2028\n", '"deux"'), Sample("", "", "\ufffd"))
    workdir = Workdir(tmp_path)
    with Recorder(workdir, "a run", Config(), 10) as recorder:
        recorder.validation(4, Validation(2.0, None, 12.0, 1.0, samples), 1.5, best=True)
        recorder.validation(8, Validation(2.0, 3.0, 12.0, 1.0, ()), 1.5, best=False)
    assert [line["samples"] for line in workdir.read_metrics()] == [[sample._asdict() for sample in samples], []]
    assert events(tmp_path) == {
        "validation/loss": [(4, 2.0), (8, 2.0)],
        "validation/loss_shuffled": [(8, 3.0)],
        "validation/chrf": [(4, 12.0), (8, 12.0)],
        "validation/bleu": [(4, 1.0), (8, 1.0)],
    }


def test_events_after_the_checkpoint_are_dropped(tmp_path):
    """The first process has no checkpoint; the second one's is of step 3, before the validation of that step."""
    logged = [{"step": step, "loss": float(step)} for step in range(1, 4)] + [{"step": 2, "validation_loss": 20.0}]
    first = EventFiles(tmp_path, [], 0)
    first.write([*logged, {"step": 4, "loss": 4.0, "seconds": 1.0}])
    first.write([{"step": 3, "validation_loss": 30.0, "validation_bleu": None}])  # written, but not closed
    second = EventFiles(tmp_path, logged, 3)
    second.write([{"step": 3, "validation_loss": 30.5}, {"step": 4, "loss": 40.0}, {"step": 5, "loss": 50.0}])
    second.close()
    assert events(tmp_path) == {
        "train/loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)],
        "validation/loss": [(2, 20.0), (3, 30.5)],
    }
