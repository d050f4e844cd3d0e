"""Pairs that are left out because of the others: repetitions, unusual lengths, shifted lines, and other words."""

import math
import random
import re
from collections import Counter, defaultdict

import numpy as np

from lingua_flax.data.cleaning import lexical_scores
from lingua_flax.data.cleaning.corpus_filters import (
    UNRELATED,
    Shift,
    correlation,
    deviations,
    digests,
    find_shifts,
    occurrences,
)
from lingua_flax.data.cleaning.lexical_scores import find_cut, train
from lingua_flax.data.cleaning.report import alignment_warnings
from lingua_flax.data.corpora.corpus import Pair
from tests.helpers.pairs import lengths_of


def test_occurrences_match_a_slow_reference():
    draw = random.Random(1)
    values = [draw.randrange(300) for _ in range(1000)]
    assert occurrences(np.array(values, np.uint64)).tolist() == [values[:i].count(v) for i, v in enumerate(values)]


def test_pairs_are_the_same_only_if_both_sides_are():
    """Up to digits and punctuation, 431 of 16,145 pairs of one corpus were, such as "1 Acatl, 1415"."""
    pairs = [Pair("year 1", "ano 1"), Pair("year 2", "ano 2"), Pair("Year 1", "ano 1"), Pair("year 1a", "no 1")]
    assert len({digests(pair)[0] for pair in [*pairs, *pairs]}) == len(pairs)
    assert digests(Pair("a", "b"))[1] == digests(Pair("a", "c"))[1]


def test_deviations_find_only_unusual_ratios():
    draw = np.random.default_rng(1)
    source = draw.integers(10, 200, 5000)
    target = np.maximum(1, source * 1.2 + draw.normal(0, 1, 5000) * np.sqrt(source) * 1.5).astype(int)
    target[:100] *= 3
    found = np.flatnonzero(deviations(np.stack([source, target], axis=1)) > 6)
    assert set(found) <= set(range(100))
    assert len(found) > 85


def test_shifts_are_found_where_they_begin_and_end():
    for seed, shift in enumerate((-3, -1, 1, 2)):
        (part,) = find_shifts(lengths_of(lambda i, by=shift: by if 2000 <= i < 4000 else 0, seed=seed))
        assert part.by == shift
        assert abs(part.first - 2001) <= 20
        assert abs(part.last - 4000) <= 20


def test_a_shift_is_found_among_pairs_that_do_not_match():
    for dirt in (0.1, 0.5):
        lengths, draw = lengths_of(lambda i: 1 if i >= 3000 else 0), np.random.default_rng(1)
        lines = draw.random(len(lengths)) < dirt
        lengths[lines, 1] = draw.permutation(lengths[lines, 1])
        (part,) = find_shifts(lengths)
        assert part.by == 1
        assert abs(part.first - 3001) <= 50


def test_few_pairs_are_not_shifted_by_chance():
    for seed in range(30):
        assert find_shifts(np.random.default_rng(seed).integers(1, 50, (8, 2))) == []
    assert find_shifts(lengths_of(lambda i: 1))[0][:2] == (1, 6000)


def test_unrelated_parts_and_corpora():
    lengths = lengths_of(lambda i: 0)
    lengths[3000:, 1] = np.random.default_rng(2).permutation(lengths[3000:, 1])
    (part,) = find_shifts(lengths)
    assert part.by == UNRELATED
    assert abs(part.first - 3001) <= 20
    lengths[:, 1] = np.random.default_rng(2).permutation(lengths[:, 1])
    assert find_shifts(lengths) == []
    (warning,) = alignment_warnings(len(lengths), correlation(lengths), [])
    assert "hardly correlated" in warning
    assert correlation(np.ones((5, 2))) is None
    assert list(alignment_warnings(6000, 0.9, [])) == []
    (warning,) = alignment_warnings(6000, 0.1, [Shift(4001, 6000, -1)])
    assert warning.startswith("lines 4,001 to 6,000 are misaligned: the source side is 1 line behind; near line 4,001")


# Words.


def model_1(pairs, iterations):
    """IBM Model 1 as in the paper, without NumPy: the probability of each target word given each source word."""
    p = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = Counter(), Counter()
        for source, target in pairs:
            for t in target:
                norm = sum(p[s, t] for s in source)
                for s in source:
                    counts[s, t] += p[s, t] / norm
                    totals[s] += p[s, t] / norm
        p = {key: count / totals[key[0]] for key, count in counts.items()}
    return p, totals


def words_of(text):
    return list(dict.fromkeys(word[:5] for word in re.findall(r"\w+", text.casefold())))


def test_scores_match_a_slow_model_1():
    """Every word of this corpus is frequent, so that there are no rare ones."""
    draw = random.Random(5)
    lexicon = {f"word{chr(97 + i)}": f"wort{chr(97 + i)}" for i in range(12)}
    pairs = []
    for _ in range(60):
        sources = draw.sample(list(lexicon), draw.randrange(2, 6))
        pairs.append(Pair(" ".join(sources), " ".join(lexicon[word] for word in sources)))
    model, trained, *_ = train(pairs)
    assert trained.tolist() == list(range(60))
    sides = [[words_of(text) for text in side] for side in zip(*pairs, strict=True)]
    new = [Pair("wordа wordb wordc", "wortb wortc wortd"), Pair("wordb worde", "wortb worte"), Pair("wordb", "wortc")]
    expected = np.zeros(len(new))
    for own, other in ((1, 0), (0, 1)):
        p, totals = model_1(list(zip(sides[other], sides[own], strict=True)), lexical_scores.ITERATIONS)
        frequency = Counter(word for text in sides[own] for word in text)
        share = {word: (count + 1) / (frequency.total() + len(frequency) + 1) for word, count in frequency.items()}
        unknown = 1 / (frequency.total() + len(frequency) + 1)
        for index, pair in enumerate(new):
            words, others = words_of(pair[own]), words_of(pair[other])
            for word in words:
                given = [p.get((s, word), 0) * totals[s] / (totals[s] + 0.5) if totals[s] else 0 for s in others]
                given = [each if each > share.get(word, unknown) else 0 for each in given]
                ratio = sum(given) / len(others) / share.get(word, unknown)
                expected[index] += math.log(0.9 * ratio + 0.1) / len(words) / 2
    np.testing.assert_allclose(model.score(new), expected, rtol=1e-5)


def test_cut_loses_few_and_finds_most():
    draw = np.random.default_rng(3)
    mismatched = draw.normal(-1.2, 0.4, 10_000)
    for share in (0, 0.05, 0.2):
        good, bad = draw.normal(2, 0.6, 10_000), draw.normal(-1.1, 0.4, round(10_000 * share))
        cut = find_cut(np.concatenate([good, bad]), mismatched)
        assert np.mean(good < cut) < 0.005
        assert not len(bad) or np.mean(bad < cut) > 0.97
    for good, bad in ((-1.2, 0.4), (-1.2, 0.4)), ((0.6, 0.9), (-0.2, 0.9)):  # words do not tell
        assert find_cut(draw.normal(*good, 1000), draw.normal(*bad, 1000)) is None
