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

WORDS = "the a small large red green cat dog house river sees eats near under and".split()  # noqa: SIM905
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


def test_equal_systems_do_not_differ():
    references, runs = texts((0.2, 0.3), 4)
    same = score_runs(CHRF(), {"a": runs[:1], "b": runs[:1]}, [references])
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    alone = score_runs(CHRF(), {"a": runs}, [references])
    assert alone.p_value is alone.difference is None


def test_multi30k_is_scored_in_the_published_protocol_too():
    references, (run,) = texts((0.2,), 5)
    data = EvaluationSet("multi30k, test", references, references, multi30k=("de", "test"))
    scores = score_systems({"a": [run]}, data, tokenize="13a", lowercase=False)
    assert list(scores) == ["bleu", "bleu_lowercase", "chrf", "ter", "published_bleu"]
    metric = PublishedBLEU("de")
    assert scores["published_bleu"].scores["a"] == [metric.corpus_score(run, [references]).score]
    assert scores["published_bleu"].signature == str(metric.get_signature())
