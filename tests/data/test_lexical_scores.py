"""How well the words of a pair match, compared with a slow IBM Model 1, and the cut between good and bad pairs."""

import math
import random
import re
from collections import Counter, defaultdict

import numpy as np

from lingua_flax.data.cleaning import lexical_scores
from lingua_flax.data.cleaning.lexical_scores import find_cut, train
from lingua_flax.data.corpora.corpus import Pair


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


def test_texts_without_spaces_have_words():
    pairs = [Pair("the cat", "猫です"), Pair("a dog", "犬です")]
    assert [words.counts.tolist() for words in lexical_scores._hashed_words(pairs)] == [[2, 2], [3, 3]]


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
