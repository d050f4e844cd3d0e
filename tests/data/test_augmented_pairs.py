"""Pairs that differ between epochs: in a changed text, and in sampled segmentations."""

import dataclasses
import pickle
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.augmentation import AUGMENTATIONS, augment_pair, augmented, draw_augmentations
from lingua_flax.data.augmented_pairs import AugmentedPairs
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.draw_order import random_words
from lingua_flax.data.packing import Planner
from lingua_flax.data.placeholders import spans_to_keep
from lingua_flax.data.subword_sampling import samplers_of
from lingua_flax.data.tokenized_pairs import TokenizedPairs, tokenize
from lingua_flax.data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from lingua_flax.data.training_batches import TrainingBatches, rows_per_epoch
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import AugmentConfig, TokenizerConfig
from lingua_flax.options.special_ids import EOS_ID, UNK_ID
from lingua_flax.training.preparation import prepare
from tests.helpers.batches import pairs_in
from tests.helpers.pairs import PAIRS
from tests.toy import write_corpus

ENDED = [Pair(f"{source}.", f"{target} !") for source, target in PAIRS]
SOME, ALL = (dict(zip(AUGMENTATIONS, values, strict=True)) for values in ((0.2, 0.3, 0.4), (1.0, 0.0, 1.0)))


def test_changes():
    for text, *changed in (
        ("Don't, x-y 'cat' ...", "DON'T, X-Y 'CAT' ...", "Don't, X-Y 'Cat' ...", "Don't, x-y 'cat'"),
        ("la ville d’été, où ?", "LA VILLE D’ÉTÉ, OÙ ?", "La Ville D’été, Où ?", "la ville d’été, où"),
        ("Straße NATO 3rd.", "STRASSE NATO 3RD.", "Straße NATO 3rd.", "Straße NATO 3rd"),
        ("他走了。", "他走了。", "他走了。", "他走了"),
        ("v. 1.5 (a)", "V. 1.5 (A)", "V. 1.5 (A)", "v. 1.5 (a)"),
        ("?!", "?!", "?!", "?!"),
    ):
        assert [augmented(text, name, "en") for name in AUGMENTATIONS] == changed
    assert list(AugmentConfig.model_fields) == list(AUGMENTATIONS)


THINGS = ["%s", "{user-name}", "%(n)d", "https://i.org/ı", "`i`", "<b>", "me@i.org", ":id", "i.pdf", "istanbul", "ısı,"]


@given(st.lists(st.sampled_from(THINGS)).map(" ".join), st.sampled_from(list(AUGMENTATIONS)), st.booleans())
def test_what_is_kept_stays_as_it_is(text, name, is_turkish):
    changed = augmented(f"{text}.", name, "tr" if is_turkish else "it")
    assert [span.kept for span in spans_to_keep(changed)] == [span.kept for span in spans_to_keep(text)]
    assert ("İ" in changed) <= is_turkish <= ("ISTANBUL" not in changed and "Istanbul" not in changed)


def test_changes_are_drawn_independently_with_their_probabilities():
    chosen = draw_augmentations(SOME, random_words(7, np.arange(40_000)))
    np.testing.assert_allclose(chosen.mean(axis=0), list(SOME.values()), atol=0.01)
    np.testing.assert_allclose((chosen[:, 0] & chosen[:, 2]).mean(), 0.08, atol=0.01)
    certain = draw_augmentations(
        dict(zip(AUGMENTATIONS, (0.0, 1.0, 0.0), strict=True)), random_words(7, np.arange(1000))
    )
    assert (certain == [False, True, False]).all()
    upper, title = (True, False, True), (False, True, False)
    assert augment_pair(Pair("i ı.", "i ı !"), upper, ("en", "tr_TR")) == Pair("I I", "İ I")
    assert augment_pair(Pair("i ı.", "i ı !"), title, ("aze", "de")) == Pair("İ I.", "I I !")


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

    def augmented(self, alpha: float) -> AugmentedPairs:
        samplers = samplers_of(self.tokenizer, alpha) if alpha else None
        return AugmentedPairs(self.pairs, ENDED, ("en", "de"), self.tokenizer, 24, SOME, samplers)

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
    indices = np.arange(len(toy.pairs))
    keys, augmented = random_words(5, indices), toy.augmented(alpha)
    draws, sources, targets = augmented.draw(indices, keys)
    chosen = zip(toy.pairs.positions(draws), draw_augmentations(SOME, keys)[draws], strict=True)
    changed = [augment_pair(ENDED[position], changes, ("en", "de")) for position, changes in chosen]
    assert toy.texts(sources, targets) == changed
    assert all(ids[0] == toy.tokenizer.source_tags[0] for ids in sources)
    assert all(ids[-1] == EOS_ID for ids in [*sources, *targets])
    assert 20 < max(map(len, [*sources, *targets])) <= 24
    assert ((sources, targets) == toy.tokenizer.encode_pairs(changed)) == (alpha == 0)
    assert pickle.loads(pickle.dumps(augmented)).draw(indices, keys)[1:] == (sources, targets)
    plain = dataclasses.replace(augmented, fractions=dict.fromkeys(AUGMENTATIONS, 0.0))
    sampled, others = (plain.draw(indices, each)[1] for each in (keys, keys + np.uint64(1)))
    assert (sampled != others) == (alpha > 0)


def test_a_pair_that_would_be_too_long_stays_as_it_is(tmp_path, toy):
    text = [Pair("the black cats were sleeping near the water", "un chien dort"), Pair("un chien", "a dog")]
    pairs = tokenize(text, "g", toy.tokenizer, tmp_path)
    limit = len(pairs[0][0])
    augmented = AugmentedPairs(pairs, text, ("en", "de"), toy.tokenizer, limit, ALL, None)
    assert augmented.draw(np.arange(2), np.arange(2))[0].tolist() == [1]
    with closing(TrainingBatches(Planner([pairs], [1.0], limit, 3, [augmented]), 2, processes=0)) as batches:
        packed = toy.texts(*zip(*pairs_in(next(batches).rows), strict=True))
    assert sorted(packed)[:2] == [Pair("UN CHIEN", "A DOG"), text[0]]


def test_batches_have_every_pair_of_an_epoch_and_other_changes_in_the_next(toy):
    planner, epochs = Planner([toy.pairs], [1.0], 24, seed=3, augmented=[toy.augmented(0.0)]), []
    rows = [len(planner.window(number)) for number in (0, 1)]
    assert rows_per_epoch(planner) == rows[0]
    with closing(TrainingBatches(planner, 1, processes=0)) as batches:
        for count in rows:
            pairs = [pair for _ in range(count) for pair in pairs_in(next(batches).rows)]
            epochs.append(sorted(toy.texts(*zip(*pairs, strict=True))))
    plain = [ENDED[position] for position in toy.pairs.positions(np.arange(len(toy.pairs)))]
    for texts in epochs:
        targets = [sorted(target.lower().removesuffix(" !") for _, target in side) for side in (texts, plain)]
        assert targets[0] == targets[1]
    assert epochs[0] != epochs[1]
    assert 0.34 < sum(text in plain for text in epochs[0]) / len(plain) < 0.6  # some would be too long


def test_a_run_trains_on_changed_pairs(tmp_path):
    config = read_config(write_corpus(tmp_path))
    data = config.data.model_copy(update={"augment": AugmentConfig(no_final_punctuation=0.5)})
    prepared = prepare(config.model_copy(update={"data": data}), tmp_path / "w")
    targets = [target for _, target in pairs_in(next(TrainingBatches(prepared.planner, config.rows_per_batch)).rows)]
    changed = [not text.endswith("!") for text in prepared.tokenizer.decode_target(targets)]
    assert 0.3 < np.mean(changed) < 0.7
