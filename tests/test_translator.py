"""The translator on a small random network: against an uncached loop, and indifferent to batches and padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.errors import UserError
from configs.schema import DecodingOptions, ModelConfig, TokenizerConfig
from configs.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from data.batch import pad_rows
from data.tokenizer import parse_tokenizers, train_tokenizer
from model.transformer import initial_params, structure
from tests.test_data import PAIRS
from translation.translator import Translator

GREEDY = DecodingOptions(beam_size=1)
LINES = ["the cat eats fish .", "a dog sleeps", "where is it?", "", "the old village sleeps near the water", "milk"]


@pytest.fixture(scope="module")
def translator():
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, TokenizerConfig(vocab_size=60)))
    config = ModelConfig(
        num_encoder_layers=2, num_decoder_layers=2, embed_dim=32, num_heads=2, mlp_dim=48, max_length=40,
        tied_embeddings="none",
    )  # fmt: skip
    graphdef, _ = structure(config, 60, 60)
    params = initial_params(config, 60, 60, jax.random.key(4))
    params["output_embedding"] *= 4.0  # far apart logits: no ties to be broken by rounding
    return Translator(graphdef, params, tokenizer, config)


def uncached_greedy(translator, line):
    """The likeliest token after each prefix, by whole passes of the network."""
    source = translator.tokenizer.encode_source([line])
    tokens, limit = [BOS_ID], min(40, 2 * len(source[0]) + 10)
    while tokens[-1] != EOS_ID:
        logits = whole_pass(translator.params, pad_rows(source, 1, 40), pad_rows([tokens], 1, 40), translator.graphdef)
        last = np.array(logits[0, len(tokens) - 1])
        last[[PAD_ID, BOS_ID, UNK_ID]] = -np.inf
        tokens.append(EOS_ID if len(tokens) == limit else int(last.argmax()))
    return translator.tokenizer.decode_target([tokens[1:]])[0]


@functools.partial(jax.jit, static_argnames="graphdef")
def whole_pass(params, source, target_in, graphdef):
    return nnx.merge(graphdef, params)(source, target_in)[0]


def test_cached_greedy_equals_uncached(translator):
    found = [translation.text for translation in translator.translate(LINES, GREEDY)]
    assert found == [uncached_greedy(translator, line) if line else "" for line in LINES]
    assert len(set(found)) > 3


@pytest.mark.parametrize("beams", [1, 4])
def test_translations_do_not_depend_on_batches(translator, beams):
    options = DecodingOptions(beam_size=beams, batch_size=2)
    together = translator.translate(LINES, DecodingOptions(beam_size=beams), num_hypotheses=beams)
    for other in (translator.translate(LINES, options, num_hypotheses=beams),
                  [translator.translate([line], options, num_hypotheses=beams)[0] for line in LINES]):  # fmt: skip
        for a, b in zip(together, other, strict=True):
            assert [hypothesis.text for hypothesis in a.hypotheses] == [hypothesis.text for hypothesis in b.hypotheses]
            scores = [[hypothesis.score for hypothesis in translation.hypotheses] for translation in (a, b)]
            np.testing.assert_allclose(*scores, rtol=1e-4)


def test_scores_are_the_networks_own(translator):
    """The score of a hypothesis, from a whole pass over it."""
    options = DecodingOptions(beam_size=3, length_penalty=1.0)
    model = nnx.merge(translator.graphdef, translator.params)
    source = jnp.array(translator.tokenizer.encode_source([LINES[0]]))
    hypotheses = translator.search(np.pad(np.asarray(source), ((0, 0), (0, 0))), options)
    for tokens, score in zip(np.asarray(hypotheses.tokens[0]), np.asarray(hypotheses.scores[0]), strict=True):
        length = int(np.argmax(tokens == EOS_ID)) + 1
        logits, _ = model(source, jnp.array([[BOS_ID, *tokens[: length - 1]]]))
        possible = logits[0].at[:, jnp.array([PAD_ID, BOS_ID, UNK_ID])].set(-jnp.inf)
        log_probabilities = jax.nn.log_softmax(possible)[jnp.arange(length), tokens[:length]]
        np.testing.assert_allclose(score, log_probabilities.sum() / ((5 + length) / 6), rtol=1e-4)


def test_hypotheses_come_best_first_and_differ(translator):
    for translation in translator.translate(LINES[:3], DecodingOptions(beam_size=4), num_hypotheses=4):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert translation.text == translation.hypotheses[0].text


def test_the_decoding_length_is_kept(translator):
    short = translator.search(np.array([[5, 6, 1]]), DecodingOptions(beam_size=2, max_decoding_length=3))
    assert short.tokens.shape == (1, 2, 3)
    assert (np.asarray(short.tokens) == EOS_ID).any(axis=-1).all()


def test_what_the_model_cannot_do_is_refused(translator):
    with pytest.raises(UserError, match="num_hypotheses 3 exceeds beam_size 1"):
        translator.translate(["milk"], GREEDY, num_hypotheses=3)
    with pytest.raises(UserError, match="max_decoding_length 41 exceeds the model's max_length 40"):
        translator.translate(["milk"], DecodingOptions(max_decoding_length=41))
