"""Comparing several runs of two systems: against sacreBLEU, and against a slow bootstrap on resampled texts."""

import random
import statistics

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest, estimate_ci

from lingua_flax.evaluation import comparison
from lingua_flax.evaluation.comparison import resampled_means, score_runs, score_systems
from lingua_flax.evaluation.evaluate import EvaluationSet
from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU
from lingua_flax.runs.learning_curves import Curves, draw_curves

WORDS = [
    "the",
    "a",
    "small",
    "large",
    "red",
    "green",
    "cat",
    "dog",
    "house",
    "river",
    "sees",
    "eats",
    "near",
    "under",
    "and",
]
METRICS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}


def texts(errors, seed, count=40):
    """Returns references and, for each share of wrong words, translations."""
    draw = random.Random(seed)
    references = [[draw.choice(WORDS) for _ in range(draw.randint(4, 9))] for _ in range(count)]
    runs = [
        [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line) for line in references]
        for share in errors
    ]
    return [" ".join(line) for line in references], runs


def counts_of(metric, runs, references):
    return np.array([metric._extract_corpus_statistics(run, [references]) for run in runs], float)


@pytest.mark.parametrize("name", METRICS)
def test_single_runs_are_resampled_as_by_sacrebleu(name):
    references, (one, other) = texts((0.2, 0.25), 1)
    _, results = PairedTest(
        [("other", other), ("one", one)], {name: METRICS[name]()}, [references], test_type="bs", n_samples=1000
    )()
    (expected,) = [results[key] for key in results if key != "System"]
    metric = METRICS[name]()
    means = resampled_means(metric, [counts_of(metric, [run], references) for run in (other, one)])
    for resampled, result in zip(means, expected, strict=True):
        assert estimate_ci(resampled) == pytest.approx((result.mean, result.ci))


@pytest.mark.parametrize("name", METRICS)
def test_runs_and_sentences_are_resampled_together(name, monkeypatch):
    """The texts themselves are resampled here, and scored one by one."""
    monkeypatch.setattr(comparison, "BOOTSTRAP_SAMPLES", 60)
    references, runs = texts((0.2, 0.3, 0.4, 0.25, 0.45), 2, count=12)
    systems = {"a": runs[:3], "b": runs[3:]}
    result = score_runs(METRICS[name](), systems, [references])

    def score(run, indices):
        return METRICS[name]().corpus_score([run[i] for i in indices], [[references[i] for i in indices]]).score

    differences = []
    drawn_sentences, draw_runs = np.random.default_rng(12345).choice(12, (60, 12)), np.random.default_rng(12346)
    for indices in drawn_sentences:
        means = []
        for own in systems.values():
            means.append(statistics.mean(score(own[i], indices) for i in draw_runs.choice(len(own), len(own))))
        differences.append(means[0] - means[1])
    whole = [[score(run, range(12)) for run in own] for own in systems.values()]
    assert [*result.scores.values()] == [pytest.approx(each) for each in whole]
    assert [*result.mean.values()] == pytest.approx([statistics.mean(each) for each in whole])
    assert [*result.deviation.values()] == pytest.approx([statistics.stdev(each) for each in whole])
    observed = statistics.mean(whole[0]) - statistics.mean(whole[1])
    center = statistics.mean(differences)
    farther = sum(abs(each - center) >= abs(observed) for each in differences)
    assert result.difference == pytest.approx(observed)
    assert result.p_value == pytest.approx((farther + 1) / 61)
    assert (result.low, result.high) == pytest.approx(np.percentile(differences, [2.5, 97.5]))


def test_a_lucky_seed_is_not_significant():
    """Sentences alone would prove that the system with the lucky run is better; its other runs show that it is not."""
    references, (lucky, *others) = texts((0.05, 0.4, 0.42, 0.41, 0.4, 0.43), 3)
    alone = score_runs(BLEU(), {"a": [lucky], "b": [others[0]]}, [references])
    together = score_runs(BLEU(), {"a": [lucky, *others[:2]], "b": others[2:]}, [references])
    assert alone.p_value < 0.01 < 0.2 < together.p_value
    assert together.low < 0 < together.high


def test_equal_systems_do_not_differ():
    references, runs = texts((0.2, 0.3), 4)
    same = score_runs(CHRF(), {"a": runs[:1], "b": runs[:1]}, [references])
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    alone = score_runs(CHRF(), {"a": runs}, [references])
    assert alone.p_value is alone.difference is None
    assert alone.mean["a"] == pytest.approx(statistics.mean(alone.scores["a"]))


def test_multi30k_is_scored_in_the_published_protocol_too():
    references, (run,) = texts((0.2,), 5)
    data = EvaluationSet("multi30k, test", references, references, multi30k=("de", "test"))
    scores = score_systems({"a": [run]}, data, tokenize="13a", lowercase=False)
    assert list(scores) == ["bleu", "bleu_lowercase", "chrf", "ter", "published_bleu"]
    metric = PublishedBLEU("de")
    expected = metric.corpus_score(run, [references]).score
    published = scores["published_bleu"]
    assert (published.scores["a"], published.signature) == ([expected], str(metric.get_signature()))


def test_curves_have_a_line_for_each_run_and_a_band_around_the_mean():
    """The second run of a has one validation more, for which there is no mean; the run of b has none of BLEU."""
    runs = {
        "a": [
            [
                {"step": 1, "loss": 9.0},
                *({"step": s, "validation_loss": x, "validation_bleu": 4 * x} for s, x in points),
            ]
            for points in ([(5, 3.0), (10, 1.0)], [(5, 5.0), (10, 2.0), (15, 1.0)])
        ],
        "b": [[{"step": 5, "validation_loss": 2.0, "validation_bleu": None}]],
    }
    losses, scores = draw_curves({name: list(map(Curves, lines)) for name, lines in runs.items()}).axes
    drawn = [tuple(zip(*line.get_data(), strict=True)) for line in losses.get_lines()]
    assert drawn[0] == ((5, 4.0), (10, 1.5))
    assert drawn[1:] == [((5, 3.0), (10, 1.0)), ((5, 5.0), (10, 2.0), (15, 1.0)), ((5, 2.0),)]
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ["a (mean of 2)", "b"]
    (band,) = losses.collections  # 3 and 5 have the deviation sqrt(2)
    heights = [y for x, y in band.get_paths()[0].vertices if x == 5]
    assert (min(heights), max(heights)) == pytest.approx((4 - 2**0.5, 4 + 2**0.5))
    assert tuple(zip(*scores.get_lines()[0].get_data(), strict=True)) == ((5, 16.0), (10, 6.0))
