"""Learning curves: the points in the picture, and when and how it is written."""

import pytest

from lingua_flax.host.figures import save_figure
from lingua_flax.options.schema import Config
from lingua_flax.runs.learning_curves import MAX_POINTS, Curves, draw_curves
from lingua_flax.runs.workdir import Workdir
from lingua_flax.training.recorder import Recorder
from lingua_flax.training.validation import Validation


def points_of(axes):
    """Returns the points of each line."""
    return [tuple(zip(*line.get_data(), strict=True)) for line in axes.get_lines()]


def test_drawn_points_match_the_metrics():
    curves = Curves()
    for step in range(1, 2 * MAX_POINTS + 1):
        curves.add({"step": step, "loss": None if step == 3 else float(step)})
    curves.add({"step": 7, "validation_loss": 2.0, "validation_loss_shuffled": 3.0, "validation_bleu": 1.5})
    curves.add({"step": 9, "validation_loss": 1.0, "validation_loss_shuffled": None, "validation_bleu": 8.0})
    figure = draw_curves({"validation": [curves]}, "a run", "validation BLEU (greedy, lower case)")
    assert figure.get_suptitle() == "a run"
    losses, scores = figure.axes
    assert scores.get_ylabel() == "validation BLEU (greedy, lower case)"
    drawn = dict(zip((line.get_label() for line in losses.get_lines()), points_of(losses), strict=True))
    training = drawn["training, with dropout and label smoothing"]
    assert len(training) == MAX_POINTS
    assert training[:2] == ((1.5, 1.5), (4.5, 4.5))  # the loss of step 3 is not finite
    assert training[-1] == (2 * MAX_POINTS, 2 * MAX_POINTS)
    assert drawn["validation"] == ((7, 2.0), (9, 1.0))
    assert drawn["validation, sources shuffled"] == ((7, 3.0),)
    assert points_of(scores) == [((7, 1.5), (9, 8.0))]


def test_compared_systems_have_a_line_for_each_run_and_a_band_around_the_mean():
    """The second run of a has one validation more, for which there is no mean; the run of b has none of BLEU."""
    first, second, of_b = Curves([{"step": 1, "loss": 9.0}]), Curves(), Curves()
    for curves, points in ((first, [(5, 3.0), (10, 1.0)]), (second, [(5, 5.0), (10, 2.0), (15, 1.0)])):
        for step, loss in points:
            curves.add({"step": step, "validation_loss": loss, "validation_bleu": 4 * loss})
    of_b.add({"step": 5, "validation_loss": 2.0, "validation_bleu": None})
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
    picture, workdir = tmp_path / "curves.png", Workdir(tmp_path)
    config = Config.model_validate({"training": {"tensorboard": False}})
    logged = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    with Recorder(workdir, "a run", config, 10, first_step=2, logged_lines=logged) as recorder:
        recorder.validation(4, Validation(2.0, None, 1.0, None, ()), 1.0, best=True)
        first = picture.read_bytes()
        recorder.validation(8, Validation(1.0, None, 9.0, 9.0, ()), 1.0, best=True)
        curves = Curves([*logged, *workdir.read_metrics()])
        expected = draw_curves({"validation": [curves]}, "a run", "validation BLEU (greedy)")
        save_figure(expected, tmp_path / "expected.png")
        assert picture.read_bytes() == (tmp_path / "expected.png").read_bytes() != first
    assert not list(tmp_path.glob("events.*"))


def test_run_without_metrics_is_drawn_and_dollar_signs_in_its_title_are_not_math(tmp_path):
    save_figure(draw_curves({"validation": [Curves()]}, r"runs $\foo$: text, en to fr"), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()
