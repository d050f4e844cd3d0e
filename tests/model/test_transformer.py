"""The whole network: causality, packing, cached decoding, tying, parameter counts, precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.dropout import Dropout
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.model.transformer import AttentionWeights, Structure, Transformer, initial_params, structure
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS
from lingua_flax.options.schema import ModelConfig
from tests.helpers.parameters import random_params

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2, "embed_dim": 12, "num_heads": 2}
SMALL |= {"mlp_dim": 17, "max_length": 32}
VOCABULARY = 23
# Every value of every option; the fewer the networks, the less there is to compile.
DEFAULT = {}
LEARNED = {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "decoder"}
ROTARY = {"positions": "rotary", "tied_embeddings": "none"}
NORMALIZED = {"norm": "post", "positions": "rotary", "rotary_cross_attention": False, "qk_norm": True}
VARIANTS = [DEFAULT, LEARNED, ROTARY, NORMALIZED]

SOURCE = np.array([[5, 6, 7, 8, 1, 0], [9, 10, 1, 0, 0, 0]], np.int32)
TARGET = np.array([[2, 11, 12, 13, 14], [2, 15, 16, 0, 0]], np.int32)
SOURCE_POSITIONS, TARGET_POSITIONS = np.arange(6)[None].repeat(2, 0), np.arange(5)[None].repeat(2, 0)
REAL = TARGET != 0


@functools.cache
def network(**options) -> Structure:
    return structure(ModelConfig(**{**SMALL, **options}), VOCABULARY, VOCABULARY)


@functools.cache
def params(**options) -> dict:
    return random_params(network(**options))


def model(graphdef, params) -> Transformer:
    return nnx.merge(graphdef, params)


@functools.partial(jax.jit, static_argnums=0)
def forward(graphdef, params, source, target, packing) -> tuple[jax.Array, AttentionWeights]:
    return model(graphdef, params)(source, target, **packing)


def logits(options: dict, source=SOURCE, target=TARGET, **packing) -> np.ndarray:
    """Returns the logits of the network with these options."""
    return np.asarray(forward(network(**options).graphdef, params(**options), source, target, packing)[0])


def test_gradients_reach_no_later_target_and_every_use_of_the_tied_embedding():
    """Of the logit of piece 3 at each target position, with respect to position encodings, from 10, and embeddings."""
    learned = {"positions": "learned"}
    graphdef = network(**learned).graphdef
    source, target, positions = (jnp.asarray(x) for x in (SOURCE[:1], TARGET[:1], TARGET_POSITIONS[:1] + 10))

    @jax.jit
    @jax.jacrev
    def gradients(params):
        return model(graphdef, params)(source, target, target_positions=positions)[0][0, :, 3]

    actual = jax.device_get(gradients(params(**learned)))
    influence = np.abs(actual["position_embedding"][:, 10:15]).sum(axis=-1)
    assert (np.triu(influence, 1) == 0).all()
    assert (influence[np.tril_indices(5)] > 0).all()
    used = np.flatnonzero(np.abs(actual["target_embedding"]).sum(axis=(0, 2)))
    assert set(used) == {*SOURCE[0], *TARGET[0], 3} - {0}


@pytest.mark.parametrize("options", VARIANTS)
def test_packed_rows_match_padded_rows(options):
    expected = logits(options)
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]], np.int32)
    packed = logits(
        options,
        np.array([[5, 6, 7, 8, 1, 9, 10, 1, 0]], np.int32),
        np.array([[2, 11, 12, 13, 14, 2, 15, 16, 0]], np.int32),
        source_segments=segments,
        source_positions=positions,
        target_segments=segments,
        target_positions=positions,
    )
    np.testing.assert_allclose(packed[0, :5], expected[0], atol=5e-6)
    np.testing.assert_allclose(packed[0, 5:8], expected[1, :3], atol=5e-6)


@functools.partial(jax.jit, static_argnums=0)
def start_decoding(graphdef, params, source):
    return model(graphdef, params).start_decoding(source, num_beams=2, length=5)


@functools.partial(jax.jit, static_argnums=0)
def decode_step(graphdef, params, *arguments):
    return model(graphdef, params).decode_step(*arguments)


@pytest.mark.parametrize("options", VARIANTS)
def test_cached_decoding_matches_full_forward_pass(options):
    """Decodes two targets per sentence, which swap rows between positions."""
    network_and_params = network(**options).graphdef, params(**options)
    targets = np.stack([TARGET, np.where(TARGET > 4, TARGET - 1, TARGET)], axis=1)
    expected = [logits(options, target=targets[:, beam]) for beam in range(2)]
    assert not np.allclose(expected[0][:, 2:], expected[1][:, 2:], atol=1e-3)
    memory, caches = start_decoding(*network_and_params, SOURCE)
    rows = np.array([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]], np.int32)  # the row of each target at each position
    for index in range(5):
        target_in_row = np.argsort(rows[index])
        history = np.broadcast_to(rows.T, (2, 2, 5))[:, target_in_row]
        history[:, :, index + 1 :] = 7  # ignored
        tokens = targets[:, target_in_row, index]
        actual, caches = decode_step(*network_and_params, tokens, np.int32(index), history, memory, caches)
        for row, target in enumerate(target_in_row):
            real = targets[:, target, index] != 0
            np.testing.assert_allclose(np.asarray(actual)[real, row], expected[target][real, index], atol=2e-6)


def test_position_base_is_taken_from_config():
    other_base = network(**ROTARY, position_base=10.0).graphdef
    other_logits, _ = forward(other_base, params(**ROTARY), SOURCE, TARGET, {})
    assert not np.allclose(other_logits, logits(ROTARY), atol=1e-2)
    for base in (10000.0, 10.0):
        table = model(network(position_base=base).graphdef, params()).position_table()
        np.testing.assert_array_equal(table, sinusoidal_positions(SMALL["max_length"], SMALL["embed_dim"], base))


def test_rotary_attention_depends_only_on_relative_positions():
    """Stretching one side or shifting only one changes the result, unless cross-attention is not rotated."""
    source, target = SOURCE_POSITIONS, TARGET_POSITIONS
    for options, source_positions, target_positions, is_same in (
        (ROTARY, source + 3, target + 3, True),
        (ROTARY, source * 2, target, False),
        (ROTARY, source, target * 2, False),
        (ROTARY, source + 3, target, False),
        (NORMALIZED, source + 3, target, True),
        (NORMALIZED, source * 2, target, False),
    ):
        moved = logits(options, source_positions=source_positions, target_positions=target_positions)
        assert np.allclose(moved, logits(options), rtol=0, atol=5e-6 if is_same else 1e-3) == is_same


def test_parameter_counts_match_hand_calculation():
    """Width 12, feed-forward 17, 1 + 2 layers, vocabulary 23.

    An attention has 4 * 12 * 12 = 576 weights, a feed-forward 12 * 17 + 17 + 17 * 12 + 12 = 437, a norm 24. An encoder
    layer: 576 + 437 + 2 * 24 = 1061; a decoder layer: 2 * 576 + 437 + 3 * 24 = 1661; embedding 23 * 12 = 276; two final
    norms 48. 1061 + 2 * 1661 + 276 + 48 = 4707.
    """
    final_norms, embedding, position_embedding, scales = 48, 276, 32 * 12, (1 + 2 * 2) * 2 * 6
    counts = [sum(leaf.size for leaf in jax.tree.leaves(network(**options).params)) for options in VARIANTS]
    assert counts == [
        4707,
        4707 - final_norms + embedding + position_embedding,
        4707 + 2 * embedding,
        4707 - final_norms + scales,
    ]


@pytest.mark.parametrize(("precision", "tied"), [(BFLOAT16, "all"), (BFLOAT16_PRODUCTS, "none")])
def test_bfloat16_with_float32_parameters_and_logits(precision, tied):
    """Logits are products of rounded operands, and the same if the matrices were converted before."""
    options = SMALL | {"tied_embeddings": tied}
    half = structure(ModelConfig(**options), VOCABULARY, VOCABULARY, precision)
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("float32")}
    own = params(tied_embeddings=tied)

    @jax.jit
    def outputs(params):
        network, inputs = model(half.graphdef, params), (jnp.array(SOURCE), jnp.array(TARGET))
        converted = network.with_converted_matrices()
        assert converted.output_table.dtype == converted.encoder[0].feed_forward.up.kernel.dtype == precision.products
        memory, _ = network.encode(inputs[0], jnp.array(SOURCE.clip(max=1)), jnp.array(SOURCE_POSITIONS))
        assert memory.dtype == precision.activations
        return *network(*inputs), network.hidden_states(*inputs)[0], converted(*inputs)[0]

    actual, weights, x, from_converted = outputs(own)
    assert weights.encoder[0].dtype == actual.dtype == jnp.float32
    expected = logits({"tied_embeddings": tied})
    np.testing.assert_allclose(np.asarray(actual)[REAL], expected[REAL], atol=0.1)
    assert not np.allclose(np.asarray(actual)[REAL], expected[REAL], atol=1e-4)  # rounded at all
    np.testing.assert_array_equal(from_converted, actual)
    assert x.dtype == precision.products
    table = own["target_embedding" if tied == "all" else "output_embedding"].astype(precision.products)
    np.testing.assert_allclose(actual, np.float64(x) @ np.float64(table).T, rtol=1e-5, atol=1e-5)


def test_initial_params_match_structure_and_depend_on_key():
    config, vocabularies = ModelConfig(**SMALL), (VOCABULARY, VOCABULARY)
    initialize = jax.jit(initial_params, static_argnums=(0, 1, 2))
    first, again, other = (initialize(config, *vocabularies, jax.random.key(seed)) for seed in (1, 1, 2))
    shapes, expected = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (first, network().params))
    assert shapes == expected
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    assert not np.array_equal(first["target_embedding"], other["target_embedding"])


def test_dropout_applies_only_during_training():
    graphdef = network(dropout_rate=0.5, attention_dropout_rate=0.5).graphdef

    @jax.jit
    def dropped(params, key):
        return model(graphdef, params)(jnp.array(SOURCE), jnp.array(TARGET), dropout=Dropout(key))[0]

    expected = logits({})
    np.testing.assert_array_equal(forward(graphdef, params(), SOURCE, TARGET, {})[0], expected)
    assert not np.allclose(dropped(params(), jax.random.key(0))[0], expected[0], atol=0.1)
