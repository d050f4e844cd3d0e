"""The order in which pairs are drawn: permutations, shares of the corpora, and the same on every machine."""

from itertools import combinations

import numpy as np

from lingua_flax.data.draw_order import Draws, permute, random_words


def splitmix(state):
    """Returns the next number of SplitMix64 as published by Vigna, computed with Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_random_words_are_splitmix64():
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the first number of the published generator for seed 0
    assert random_words(0).tolist() == [splitmix(0)]
    keys = [5, 2**63]
    assert random_words(7, np.array(keys)).tolist() == [splitmix((splitmix(7) + key) % 2**64) for key in keys]


def test_every_key_gives_a_permutation():
    """Of which the image of any index can be computed without the others."""
    for size in (1, 2, 3, 4, 5, 16, 17, 1000, 4097):
        for key in range(5):
            keys = random_words(1, np.full(size, key))
            order = permute(np.arange(size), size, keys)
            assert sorted(order.tolist()) == list(range(size))
            assert permute(np.array([size // 2]), size, keys[:1]) == order[size // 2]


def test_the_order_is_the_same_on_every_machine():
    """The numbers are those of the first run; any change of the order would change every run."""
    drawn = Draws([29_000, 7], [2.0, 1.0], seed=1)[np.arange(9)]
    assert drawn.corpora.tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    assert drawn.pairs.tolist() == [1900, 6, 1299, 14380, 3, 19145, 27725, 5, 22753]
    assert Draws([29_000, 7], [2.0, 1.0], seed=1)[np.array([10**12])].pairs.tolist() == [4]


def test_corpora_are_drawn_in_proportion_to_their_weights_at_all_times():
    for weights in ((1.0, 1.0, 1.0), (3.0, 1.0, 0.5), (0.7, 0.2, 0.1), (0.001, 1.0, 7.0)):
        drawn = Draws([500, 100, 200], weights, seed=3)[np.arange(20_000)]
        for corpus, weight in enumerate(weights):
            expected = np.arange(1, 20_001) * weight / sum(weights)
            assert abs(np.cumsum(drawn.corpora == corpus) - expected).max() <= 2


def test_every_pair_is_drawn_once_per_epoch_of_its_corpus():
    drawn = Draws([500, 100], [1.0, 1.0], seed=3)[np.arange(2000)]
    for corpus, size, epochs in ((0, 500, 2), (1, 100, 10)):
        selected = drawn.corpora == corpus
        found = sorted(zip(drawn.epochs[selected].tolist(), drawn.pairs[selected].tolist(), strict=True))
        assert found == [(epoch, pair) for epoch in range(epochs) for pair in range(size)]


def test_epochs_seeds_and_corpora_have_different_orders():
    """Otherwise the same sentence in two languages would always be drawn at the same time."""
    orders = []
    for seed, corpus, epoch in ((3, 0, 0), (3, 0, 1), (3, 1, 0), (4, 0, 0)):
        drawn = Draws([400, 400], [1.0, 1.0], seed)[np.arange(1600)]
        orders.append(drawn.pairs[(drawn.corpora == corpus) & (drawn.epochs == epoch)])
    for one, other in combinations(orders, 2):
        assert np.mean(one == other) < 0.05


def test_first_corpus_of_a_mixture_keeps_the_order_it_has_alone():
    mixed = Draws([400, 30], [5.0, 1.0], seed=3)[np.arange(600)]
    alone = Draws([400], [1.0], seed=3)[np.arange(500)]
    np.testing.assert_array_equal(mixed.pairs[mixed.corpora == 0], alone.pairs)
