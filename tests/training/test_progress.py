"""When a run validates, saves, decays and ends, worked out by hand from a config and its progress."""

from lingua_flax.options.schema import Config
from lingua_flax.training.optimizer import Decay
from lingua_flax.training.progress import Plan, Progress


def plan(num_steps: int = 100, *, has_validation_set: bool = True, optimizer: dict | None = None, **training) -> Plan:
    training = {"eval_every": 10, "checkpoint_every": 25, **training}
    config = Config.model_validate({"training": training, "optimizer": {"warmup_steps": 5, **(optimizer or {})}})
    return Plan(config, num_steps, has_validation_set)


def validated(*scores: float) -> Progress:
    """Returns the progress after a validation with each of these scores, every ten steps."""
    progress = Progress()
    for chrf in scores:
        progress = progress._replace(step=progress.step + 10).after_validation(chrf, 0.0)
    return progress


def test_first_highest_validation_is_the_best():
    progress, best = Progress(), []
    for chrf, bleu in ((0.0, 0.0), (4.0, 0.0), (8.0, 1.0), (8.5, 0.5), (8.75, 0.0)):
        progress = progress.after_step(pairs=3).after_validation(chrf, bleu)
        best.append((progress.best_step, progress.validations_since_best))
    assert best == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]
    assert (progress.step, progress.pairs, progress.validated) == (5, 15, 5)
    assert progress.best == "chrF 8.00, BLEU 1.00"
    assert Progress().best == ""


def test_another_validation_set_is_not_compared_with_the_old_ones_best():
    old = validated(62.0, 60.0, 59.0)._replace(validation_set="old")
    assert old.with_validation_set("old") == old
    new = old.with_validation_set("new")
    assert (new.step, new.validated, new.best, new.validations_since_best) == (30, 30, "", 0)
    assert plan(patience=2).is_finished(old)
    assert not plan(patience=2).is_finished(new)
    assert new.after_step(pairs=1).after_validation(20.0, 0.0).best_step == 31


def test_validations_and_saves_are_due_at_their_steps_and_at_the_end():
    due = [step for step in range(1, 36) if plan(35).validation_is_due(Progress(step=step))]
    assert due == [10, 20, 30, 35]
    assert not plan(35).validation_is_due(Progress(step=20, validated=20))
    assert not plan(35, has_validation_set=False, eval_every=0).validation_is_due(Progress(step=35))
    due = [step for step in range(61) if plan(60).save_is_due(Progress(step=step, best_step=30))]
    assert due == [0, 25, 30, 50, 60]


def test_patience_ends_a_run():
    for patience, bleus, last_step in (
        (0, (9.0, 1.0, 1.0, 1.0), 100),
        (3, (9.0, 1.0, 1.0), 100),
        (3, (9.0, 1.0, 1.0, 1.0), 40),
        (1, (), 100),
    ):
        progress = validated(*bleus)
        assert plan(patience=patience).last_step(progress) == last_step
        assert plan(patience=patience).is_finished(progress) == (progress.step == last_step)
        assert not plan(patience=patience).is_finished(progress.with_new_patience())


def test_patience_brings_the_decay_forward():
    """A share of 0.2 of 100 steps is 20 steps; after 40 steps, 10 more are 0.2 of the 50."""
    early = plan(patience=2, optimizer={"schedule": "wsd", "decay_share": 0.2})
    progress = validated(9.0, 1.0, 1.0, 1.0)
    assert early.decay(progress) == Decay(80, 100)
    assert early.decays_from_now_on(progress)
    assert not early.decays_from_now_on(validated(9.0, 1.0))
    decaying = Progress(step=40, validated=40, validations_since_best=3, decay_start=40)
    assert early.decay(decaying) == Decay(40, 50)
    assert early.last_step(decaying) == 50
    assert early.last_step(decaying.with_new_patience()) == 100
    assert not early.decays_from_now_on(decaying)
    assert not early.decays_from_now_on(Progress(step=80, validations_since_best=5))  # it is due anyway


def test_a_run_with_more_steps_than_asked_for_is_finished():
    progress, more = (
        Progress(step=120, best_chrf=56.25, best_bleu=31.25, best_step=90),
        "120 (more than the 100 asked for)",
    )
    assert plan(100).is_finished(progress)
    assert plan(100).summary(progress) == f"{more} steps, best validation chrF 56.25, BLEU 31.25 at step 90"
    assert plan(200).summary(Progress(step=120)) == "120 of 200 steps, stopped early"
    assert plan(1).summary(Progress(step=1)) == "1 of 1 step"
