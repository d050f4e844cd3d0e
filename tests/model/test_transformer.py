"""The whole network: packing, cached decoding, positions, parameter counts, precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.transformer import Structure, initial_params, structure
from lingua_flax.options.precision import BFLOAT16, BFLOAT16_PRODUCTS
from lingua_flax.options.schema import ModelConfig
from tests.helpers.parameters import random_params

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2, "embed_dim": 12, "num_heads": 2}
SMALL |= {"mlp_dim": 17, "max_length": 32}
VOCABULARY = 23
# Every value of every option; the fewer the networks, the less there is to compile.
DEFAULT: dict[str, object] = {}
LEARNED = {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "decoder"}
ROTARY = {"positions": "rotary", "tied_embeddings": "none"}
NORMALIZED = {"norm": "post", "positions": "rotary", "rotary_cross_attention": False, "qk_norm": True}
NORMALIZED |= {"activation": "silu", "attention_bias": True, "output_bias": True, "norm_epsilon": 0.01}
VARIANTS = [DEFAULT, LEARNED, ROTARY, NORMALIZED]

# Two pairs with 5 and 3 tokens on either side; all batches have the same shape, for which one program is compiled.
SOURCE = np.array([[5, 6, 7, 8, 1, 0, 0, 0, 0], [9, 10, 1, 0, 0, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[2, 11, 12, 13, 14, 0, 0, 0, 0], [2, 15, 16, 0, 0, 0, 0, 0, 0]], np.int32)
POSITIONS = np.arange(9, dtype=np.int32)[None].repeat(2, 0)
REAL = TARGET != 0


@functools.cache
def network(**options) -> Structure:
    return structure(ModelConfig(**{**SMALL, **options}), VOCABULARY, VOCABULARY)


@functools.cache
def params(**options) -> dict:
    return random_params(network(**options))


@functools.partial(jax.jit, static_argnums=0)
def forward(graphdef, params, source, target, layout) -> jax.Array:
    return nnx.merge(graphdef, params)(source, target, **layout)[0]


def logits(options: dict, source=SOURCE, target=TARGET, **layout) -> np.ndarray:
    """Returns the logits of the network with these options; by default, each row is one sentence."""
    layout = {
        "source_segments": (source != 0).astype(np.int32),
        "source_positions": POSITIONS,
        "target_segments": (target != 0).astype(np.int32),
        "target_positions": POSITIONS,
        **layout,
    }
    return np.asarray(forward(network(**options).graphdef, params(**options), source, target, layout))


@pytest.mark.parametrize("options", [LEARNED, ROTARY])
def test_packed_rows_match_padded_rows(options):
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0], [0, 1, 2, 0, 1, 2, 3, 4, 0]], np.int32)
    packed = logits(
        options,
        np.array([[5, 6, 7, 8, 1, 9, 10, 1, 0], [9, 10, 1, 5, 6, 7, 8, 1, 0]], np.int32),
        np.array([[2, 11, 12, 13, 14, 2, 15, 16, 0], [2, 15, 16, 2, 11, 12, 13, 14, 0]], np.int32),
        source_segments=segments,
        source_positions=positions,
        target_segments=segments,
        target_positions=positions,
    )
    long, short = logits(options)
    np.testing.assert_allclose(packed[0, :8], [*long[:5], *short[:3]], atol=5e-6)
    np.testing.assert_allclose(packed[1, :8], [*short[:3], *long[:5]], atol=5e-6)


@functools.partial(jax.jit, static_argnums=0)
def start_decoding(graphdef, params, source):
    return nnx.merge(graphdef, params).start_decoding(source, num_beams=2, length=5)


@functools.partial(jax.jit, static_argnums=0)
def decode_step(graphdef, params, *arguments):
    return nnx.merge(graphdef, params).decode_step(*arguments)


@pytest.mark.parametrize("options", VARIANTS)
def test_cached_decoding_matches_full_forward_pass(options):
    """Decodes two targets per sentence, which swap rows between positions; a step cannot see later targets."""
    network_and_params = network(**options).graphdef, params(**options)
    targets = np.stack([TARGET, np.where(TARGET > 4, TARGET - 1, TARGET)], axis=1)
    expected = [logits(options, target=targets[:, beam]) for beam in range(2)]
    assert not np.allclose(expected[0][:, 2:5], expected[1][:, 2:5], atol=1e-3)
    encoded, caches = start_decoding(*network_and_params, SOURCE)
    rows = np.array([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]], np.int32)  # the row of each target at each position
    for index in range(5):
        target_in_row = np.argsort(rows[index])
        history = np.broadcast_to(rows.T, (2, 2, 5))[:, target_in_row]
        history[:, :, index + 1 :] = 7  # ignored
        tokens = targets[:, target_in_row, index]
        positions = np.full(len(tokens), index, np.int32)
        actual, caches = decode_step(*network_and_params, tokens, positions, np.int32(index), history, encoded, caches)
        for row, target in enumerate(target_in_row):
            real = targets[:, target, index] != 0
            np.testing.assert_allclose(np.asarray(actual)[real, row], expected[target][real, index], atol=2e-6)


def test_rotary_attention_depends_only_on_relative_positions():
    """Stretching one side or shifting only one changes the result, unless cross-attention is not rotated."""
    for options, source_positions, target_positions, is_same in (
        (ROTARY, POSITIONS + 3, POSITIONS + 3, True),
        (ROTARY, POSITIONS * 2, POSITIONS, False),
        (ROTARY, POSITIONS, POSITIONS * 2, False),
        (ROTARY, POSITIONS + 3, POSITIONS, False),
        (NORMALIZED, POSITIONS + 3, POSITIONS, True),
        (NORMALIZED, POSITIONS * 2, POSITIONS, False),
    ):
        moved = logits(options, source_positions=source_positions, target_positions=target_positions)
        assert np.allclose(moved[REAL], logits(options)[REAL], rtol=0, atol=5e-6 if is_same else 1e-3) == is_same


def test_parameter_counts_match_hand_calculation():
    """Width 12, feed-forward 17, 1 + 2 layers, vocabulary 23.

    An attention has 4 * 12 * 12 = 576 weights, a feed-forward 12 * 17 + 17 + 17 * 12 + 12 = 437, a norm 24. An encoder
    layer: 576 + 437 + 2 * 24 = 1061; a decoder layer: 2 * 576 + 437 + 3 * 24 = 1661; embedding 23 * 12 = 276; two final
    norms 48. 1061 + 2 * 1661 + 276 + 48 = 4707.
    """
    final_norms, embedding, position_embedding, scales = 48, 276, 32 * 12, (1 + 2 * 2) * 2 * 6
    biases = (1 + 2 * 2) * 4 * 12 + 23
    counts = [sum(leaf.size for leaf in jax.tree.leaves(network(**options).params)) for options in VARIANTS]
    assert counts == [
        4707,
        4707 - final_norms + embedding + position_embedding,
        4707 + 2 * embedding,
        4707 - final_norms + scales + biases,
    ]


@pytest.mark.parametrize(("precision", "options"), [(BFLOAT16, DEFAULT), (BFLOAT16_PRODUCTS, ROTARY)])
def test_bfloat16_with_float32_parameters_and_logits(precision, options):
    """Logits are products of rounded operands, and the same if the matrices were converted before."""
    half = structure(ModelConfig(**{**SMALL, **options}), VOCABULARY, VOCABULARY, precision)
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype("float32")}
    own = params(**options)

    @jax.jit
    def outputs(params):
        network, inputs = nnx.merge(half.graphdef, params), (jnp.array(SOURCE), jnp.array(TARGET))
        converted = network.with_converted_matrices()
        assert converted.output_table.dtype == converted.encoder[0].feed_forward.up.kernel.dtype == precision.products
        memory, _ = network.encode(inputs[0], jnp.array(SOURCE.clip(max=1)), jnp.array(POSITIONS))
        assert memory.dtype == precision.activations
        x, sublayers = network.hidden_states(*inputs)
        return network.logits(x), sublayers.encoder[0].attention.weights, x, converted(*inputs)[0]

    actual, weights, x, from_converted = outputs(own)
    assert weights.dtype == actual.dtype == jnp.float32
    expected = logits(options)
    np.testing.assert_allclose(np.asarray(actual)[REAL], expected[REAL], atol=0.1)
    assert not np.allclose(np.asarray(actual)[REAL], expected[REAL], atol=1e-4)  # rounded at all
    np.testing.assert_array_equal(from_converted, actual)
    assert x.dtype == precision.products
    table = own["target_embedding" if options == DEFAULT else "output_embedding"].astype(precision.products)
    np.testing.assert_allclose(actual, np.float64(x) @ np.float64(table).T, rtol=1e-5, atol=1e-5)


def test_initial_params_match_structure_and_depend_on_key():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "embed_dim": 4, "num_heads": 1, "mlp_dim": 4}
    first, again, other = (initial_params(ModelConfig(**sizes), 4, 4, jax.random.key(seed)) for seed in (1, 1, 2))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (first, structure(ModelConfig(**sizes), 4, 4).params))
    assert shapes[0] == shapes[1]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    assert not np.array_equal(first["target_embedding"], other["target_embedding"])
