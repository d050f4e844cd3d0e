"""Pairs that differ between epochs: in a changed text, and in sampled segmentations."""

import dataclasses
import pickle
import shutil
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.draw_order import random_words
from lingua_flax.data.packing import Planner
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.text_changes import CHANGES, change_pair, draw_changes
from lingua_flax.data.tokenized_pairs import TokenizedPairs, tokenize
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.data.training_batches import TrainingBatches, rows_per_epoch
from lingua_flax.data.varied_pairs import VariedPairs
from lingua_flax.options.schema import AugmentConfig, TokenizerConfig
from lingua_flax.options.special_ids import EOS_ID, UNK_ID
from tests.helpers.batches import identical, pairs_in
from tests.helpers.commands import succeed
from tests.helpers.pairs import PAIRS
from tests.processes import digests, metrics
from tests.toy import write_corpus

ENDED = [Pair(f"{source}.", f"{target} !") for source, target in PAIRS]
SOME, ALL = (dict(zip(CHANGES, values, strict=True)) for values in ((0.2, 0.3, 0.4), (1.0, 0.0, 1.0)))


def test_changes():
    for text, *changed in (
        ("Don't, x-y 'cat' ...", "DON'T, X-Y 'CAT' ...", "Don't, X-Y 'Cat' ...", "Don't, x-y 'cat'"),
        ("la ville d’été, où ?", "LA VILLE D’ÉTÉ, OÙ ?", "La Ville D’été, Où ?", "la ville d’été, où"),
        ("Straße NATO 3rd.", "STRASSE NATO 3RD.", "Straße NATO 3rd.", "Straße NATO 3rd"),
        ("他走了。", "他走了。", "他走了。", "他走了"),
        ("v. 1.5 (a)", "V. 1.5 (A)", "V. 1.5 (A)", "v. 1.5 (a)"),
        ("?!", "?!", "?!", "?!"),
        ("", "", "", ""),
    ):
        assert [change(text) for change in CHANGES.values()] == changed
    assert list(AugmentConfig.model_fields) == list(CHANGES)


def test_changes_are_drawn_independently_with_their_probabilities():
    chosen = draw_changes(SOME, random_words(7, np.arange(40_000)))
    np.testing.assert_allclose(chosen.mean(axis=0), list(SOME.values()), atol=0.01)
    np.testing.assert_allclose((chosen[:, 0] & chosen[:, 2]).mean(), 0.08, atol=0.01)
    certain = draw_changes(dict(zip(CHANGES, (0.0, 1.0, 0.0), strict=True)), random_words(7, np.arange(1000)))
    assert (certain == [False, True, False]).all()
    assert change_pair(Pair("a b.", "c !"), (True, False, True)) == Pair("A B", "C")


def test_the_tokenizer_is_trained_on_changed_pairs():
    """Twice the same; a letter that is never a capital in the corpus has a piece."""
    models = [train_tokenizer(ENDED, TokenizerConfig(vocab_size=120), fractions=SOME) for _ in range(2)]
    assert models[0] == models[1] != train_tokenizer(ENDED, TokenizerConfig(vocab_size=80))
    assert parse_tokenizers(models[0]).source.piece_to_id("G") != UNK_ID
    assert "G" not in str(PAIRS)


class Toy(NamedTuple):
    """A tokenizer whose sources begin with a tag, and the pairs of at most 24 tokens."""

    tokenizer: Tokenizer
    pairs: TokenizedPairs

    def varied(self, alpha: float) -> VariedPairs:
        samplers = samplers_of(self.tokenizer, alpha) if alpha else None
        return VariedPairs(self.pairs, ENDED, self.tokenizer, 24, SOME, samplers)

    def planner(self, alpha: float) -> Planner:
        return Planner([self.pairs], [1.0], 24, seed=3, varied=[self.varied(alpha)])

    def texts(self, sources, targets) -> list[Pair]:
        decoded = [self.tokenizer.source.decode(list(map(int, ids))) for ids in sources]
        return list(map(Pair, decoded, self.tokenizer.decode_target(targets)))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    config = TokenizerConfig(vocab_size=120)
    models = train_tokenizer(ENDED, config, ["<2fr>"], SOME)
    tokenizer = parse_tokenizers(models).with_source_tag("<2fr>")
    pairs = tokenize(ENDED, "f", tokenizer, tmp_path_factory.mktemp("cache")).no_longer_than(24)
    assert 0 < len(pairs) < len(ENDED)
    return Toy(tokenizer, pairs)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_variant_spells_the_changed_pair_and_fits_into_a_row(toy, alpha):
    keys = random_words(5, np.arange(len(toy.pairs)))
    varied = toy.varied(alpha)
    draws, sources, targets = varied.draw(np.arange(len(toy.pairs)), keys)
    chosen = draw_changes(SOME, keys)[draws]
    originals = [ENDED[position] for position in toy.pairs.positions(draws)]
    assert toy.texts(sources, targets) == [change_pair(*each) for each in zip(originals, chosen, strict=True)]
    assert all(ids[0] == toy.tokenizer.source_tags[0] for ids in sources)
    assert all(ids[-1] == EOS_ID for ids in [*sources, *targets])
    assert 20 < max(map(len, [*sources, *targets])) <= 24
    best = toy.tokenizer.encode_pairs([change_pair(*each) for each in zip(originals, chosen, strict=True)])
    assert ((sources, targets) == best) == (alpha == 0)
    copied = pickle.loads(pickle.dumps(varied)).draw(np.arange(len(toy.pairs)), keys)
    assert copied[1:] == (sources, targets)
    plain = dataclasses.replace(varied, fractions=dict.fromkeys(CHANGES, 0.0))
    sampled, others = (plain.draw(np.arange(len(toy.pairs)), each)[1] for each in (keys, keys + np.uint64(1)))
    assert (sampled != others) == (alpha > 0)


def test_a_pair_that_would_be_too_long_stays_as_it_is(tmp_path, toy):
    text = [Pair("the black cats were sleeping near the water", "un chien dort"), Pair("un chien", "a dog")]
    pairs = tokenize(text, "g", toy.tokenizer, tmp_path)
    limit = len(pairs[0][0])
    draws, sources, _ = VariedPairs(pairs, text, toy.tokenizer, limit, ALL, None).draw(np.arange(2), np.arange(2))
    assert draws.tolist() == [1]
    assert toy.texts(sources, sources)[0].source == "UN CHIEN"
    planner = Planner([pairs], [1.0], limit, 3, [VariedPairs(pairs, text, toy.tokenizer, limit, ALL, None)])
    with closing(TrainingBatches(planner, 2, processes=0)) as batches:
        packed = toy.texts(*zip(*pairs_in(next(batches).rows), strict=True))
    assert sorted(packed)[:2] == [Pair("UN CHIEN", "A DOG"), text[0]]


def test_batches_have_every_pair_of_an_epoch_and_other_changes_in_the_next(toy):
    planner, epochs = toy.planner(0.0), []
    rows = [len(planner.window(number)) for number in (0, 1)]
    assert rows_per_epoch(planner) == rows[0]
    with closing(TrainingBatches(planner, 1, processes=0)) as batches:
        for count in rows:
            pairs = [pair for _ in range(count) for pair in pairs_in(next(batches).rows)]
            epochs.append(sorted(toy.texts(*zip(*pairs, strict=True))))
    plain = [ENDED[position] for position in toy.pairs.positions(np.arange(len(toy.pairs)))]
    for texts in epochs:
        assert sorted(target.lower().removesuffix(" !") for _, target in texts) == sorted(
            target.lower().removesuffix(" !") for _, target in plain
        )
    assert epochs[0] != epochs[1]
    assert 0.34 < sum(text in plain for text in epochs[0]) / len(plain) < 0.6  # some would be too long


def test_restored_batches_are_the_same_for_any_number_of_processes(toy):
    planner = toy.planner(0.0)
    with closing(TrainingBatches(planner, 8, processes=0)) as batches:
        made = [(batches.state(), next(batches)) for _ in range(12)]
    assert made[-1][0]["window"] >= 1
    for processes, first in ((0, 5), (2, 0)):
        with closing(TrainingBatches(planner, 8, processes=processes)) as batches:
            batches.restore(made[first][0])
            assert all(identical(batch, next(batches)) for _, batch in made[first:])
    kept = [TrainingBatches(planner, 8, np.arange(begin, begin + 4), processes=0) for begin in (0, 4)]
    for _, batch in made:
        halves = [next(part).rows for part in kept]
        assert all(map(np.array_equal, batch.rows, map(np.concatenate, zip(*halves, strict=True))))


def test_a_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    train = ["train", "--config", write_corpus(tmp_path), "--workdir", tmp_path / "w", "--tokenizer.vocab-size", 70]
    train += ["--training.num-steps", 20, "--training.checkpoint-every", 10, "--training.eval-every", 0]
    train += ["--data.augment.no-final-punctuation", 0.5]
    augment = ["--data.augment.upper-case", 0.3]
    succeed(run, *train, *augment)
    expected = metrics(tmp_path / "w"), digests(tmp_path / "w")
    shutil.rmtree(tmp_path / "w" / "checkpoints" / "20")
    changed = run(*train, "--data.augment.upper-case", 0.2)
    assert changed.returncode == 2
    assert "data.augment.upper_case: 0.3 in the workdir, now 0.2" in changed.stderr
    resumed = run(*train, *augment)
    assert "resuming from step 10" in resumed.stderr
    assert (metrics(tmp_path / "w"), digests(tmp_path / "w")) == expected
