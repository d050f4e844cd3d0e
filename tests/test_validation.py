"""Validation: the loss with other sentences' sources, and the warning where it is as low as the real one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.batch import pad_rows
from data.tokenizer import Tokenizer, parse_tokenizers, train_tokenizer
from model.transformer import initial_params, structure
from options.schema import Config, ModelConfig, TokenizerConfig
from options.special_ids import BOS_ID
from runs.workdir import Workdir
from tests.test_data import PAIRS
from tests.test_translator import whole_pass
from training.recorder import Recorder
from training.validation import Validation, ValidationSet, shuffled_sources, validate
from translation.translator import Translator


@pytest.fixture(scope="module")
def translator():
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    config = ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, embed_dim=16, num_heads=2, mlp_dim=16, max_length=40,
        tied_embeddings="none",
    )  # fmt: skip
    graphdef = structure(config, 60, 60).graphdef
    params = initial_params(config, 60, 60, jax.random.key(4))
    params["output_embedding"] *= 4.0
    return Translator(graphdef, params, tokenizer, config)


def tokenized(translator, pairs):
    return ValidationSet.of(pairs, translator.tokenizer)


def test_every_sentence_gets_anothers_source_and_always_the_same():
    sources = ["a", "b", "a", "c", "d", "a", "b", "e"]
    shuffled = shuffled_sources(sources)
    assert shuffled == shuffled_sources(list(sources))
    assert set(shuffled) == set(sources)
    assert all(ours != theirs for ours, theirs in zip(sources, shuffled, strict=True))
    assert sorted(shuffled_sources([str(i) for i in range(99)])) == sorted(str(i) for i in range(99))
    assert shuffled_sources(["a", "a"]) is None
    assert shuffled_sources([]) is None


def test_the_shuffled_loss_is_that_of_the_shuffled_pairs(translator):
    """By a loop over the pairs, each by itself."""
    pairs = [tuple(pair) for pair in PAIRS[:6]]
    found = validate(translator, tokenized(translator, pairs))
    encode_source, encode_target = translator.tokenizer.encode_source, translator.tokenizer.encode_target

    def mean_loss(sources):
        total = count = 0.0
        for source, (_, target) in zip(sources, pairs, strict=True):
            (ids,) = encode_target([target])
            rows = pad_rows(encode_source([source]), 1, 40), pad_rows([[BOS_ID, *ids[:-1]]], 1, 40)
            logits = whole_pass(translator.params, *rows, translator.graphdef)
            total -= float(np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(ids)), ids].sum())
            count += len(ids)
        return total / count

    sources = [source for source, _ in pairs]
    assert found.loss == pytest.approx(mean_loss(sources), rel=1e-5)
    assert found.shuffled_loss == pytest.approx(mean_loss(shuffled_sources(sources)), rel=1e-5)
    assert abs(found.shuffled_loss - found.loss) > 1e-3
    assert validate(translator, tokenized(translator, [pairs[0]] * 2)).shuffled_loss is None


class TokenizedOnce(Tokenizer):
    """A tokenizer that has done its work: only the empty prefixes of translations are still given to it."""

    def encode_source(self, lines):
        raise AssertionError(lines)

    def encode_target(self, lines):
        assert not any(lines)
        return super().encode_target(lines)


def test_text_is_tokenized_once_for_all_validations(translator):
    data = tokenized(translator, PAIRS[:6])
    spent = TokenizedOnce(translator.tokenizer.source, translator.tokenizer.target)
    assert validate(dataclasses.replace(translator, tokenizer=spent), data) == validate(translator, data)


def test_a_network_that_does_not_look_at_the_source_is_warned_of(translator, tmp_path, caplog):
    """One whose cross-attention brings nothing; not the one of a table that tells sources apart."""
    blind = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if "cross_attention" in jax.tree_util.keystr(path) else leaf,
        translator.params,
    )
    found = validate(dataclasses.replace(translator, params=blind), tokenized(translator, PAIRS[:6]))
    assert found.shuffled_loss == pytest.approx(found.loss, rel=1e-6)
    config = Config.model_validate({"training": {"tensorboard": False}, "optimizer": {"warmup_steps": 5}})
    recorder = Recorder(Workdir(tmp_path), "a run", config, 10)
    recorder.validation(4, found, 1.0, best=True)
    assert not caplog.records  # before the end of warm-up every network is blind
    recorder.validation(5, found, 1.0, best=True)
    assert "so far the model ignores the sentences that it translates" in caplog.text
    caplog.clear()
    recorder.validation(6, Validation(1.0, 1.2, 30.0, ()), 1.0, best=True)
    recorder.validation(7, Validation(1.0, None, 30.0, ()), 1.0, best=True)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
