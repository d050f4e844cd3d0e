"""Attention, positions and normalization against worked examples, slow NumPy references and JAX's own attention."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.model.attention import MultiHeadAttention, scaled_dot_product_attention
from lingua_flax.model.key_value_cache import KeysValues
from lingua_flax.model.layers import ResidualConnection
from lingua_flax.model.masks import causal_mask, segment_mask
from lingua_flax.model.positions import Rotation, sinusoidal_positions
from lingua_flax.options.precision import FLOAT32
from lingua_flax.options.schema import ModelConfig
from tests.command_server import ROOT

EXAMPLES = json.loads((ROOT / "tests" / "worked_examples.json").read_text())
ROUNDED = {"atol": 1.1e-4}  # the examples are rounded to four places


@jax.jit
def one_head(query, keys, values, mask=None):
    """Returns outputs and weights of a single sentence and head: [T, H], [S, H], [S, H] -> [T, H], [T, S]."""
    arrays = (jnp.asarray(x, jnp.float32)[None, None] for x in (query, keys, values))
    mask = None if mask is None else jnp.broadcast_to(mask, (1, 1, len(query), len(keys)))
    output, weights = scaled_dot_product_attention(*arrays, mask)
    return output[0, 0], weights[0, 0]


def test_self_attention_matches_worked_example():
    example = EXAMPLES["self_attention_i_play_football"]
    x = np.array(example["X"])
    query, keys, values = (x @ np.array(example[name]) for name in ("WQ", "WK", "WV"))
    output, weights = one_head(query, keys, values)
    np.testing.assert_allclose(weights, example["weights"], **ROUNDED)
    np.testing.assert_allclose(output, example["output"], **ROUNDED)


def test_multi_head_attention_matches_worked_example():
    example = EXAMPLES["multi_head_the_cat_sat"]
    attention = MultiHeadAttention(ModelConfig(embed_dim=4, num_heads=2), rngs=nnx.Rngs(0))
    for projection, name in ((attention.query, "WQ"), (attention.key, "WK"), (attention.value, "WV")):
        projection.kernel[...] = jnp.concatenate([jnp.array(head[name]) for head in example["heads"]], axis=1)
    attention.output.kernel[...] = jnp.array(example["WO"])
    x = jnp.array(example["X"])[None]
    output, weights = attention(x, x)
    for head, expected in enumerate(example["heads"]):
        np.testing.assert_allclose(weights[0, head], expected["weights"], **ROUNDED)
    np.testing.assert_allclose(output[0], example["output"], atol=4e-4)


def test_unscaled_attention_of_column_vectors_matches_worked_example():
    example = EXAMPLES["self_attention_the_cat_eats_fish"]
    x = np.array(example["X"])
    query, keys, values = (x @ np.array(example[name]).T for name in ("WQ", "WK", "WV"))
    output, weights = one_head(query * np.sqrt(2), keys, values)  # cancels the scaling
    np.testing.assert_allclose(weights, example["weights"], **ROUNDED)
    np.testing.assert_allclose(output, example["output"], **ROUNDED)


def test_scaling_matches_worked_example():
    example = EXAMPLES["scaling"]
    scores = np.array(example["scores"], np.float32)
    identity = np.eye(4, dtype=np.float32)
    _, halved = one_head(scores[None], identity, identity)  # width 4: scores are divided by 2
    _, unscaled = one_head(2 * scores[None], identity, identity)
    np.testing.assert_allclose(halved[0], example["halved"], **ROUNDED)
    np.testing.assert_allclose(unscaled[0], example["unscaled"], **ROUNDED)
    gradient = jax.jit(jax.jacobian(lambda s: one_head(s[None], identity, identity)[1][0]))
    np.testing.assert_allclose(2 * np.diag(gradient(scores)), example["jacobian_diagonal_halved"], **ROUNDED)
    np.testing.assert_allclose(2 * np.diag(gradient(2 * scores)), example["jacobian_diagonal_unscaled"], **ROUNDED)


def test_softmax_matches_worked_example():
    example = EXAMPLES["softmax"]
    _, weights = one_head(2 * np.array([example["scores"]]), np.eye(4), np.eye(4))
    np.testing.assert_allclose(weights[0], example["weights"], **ROUNDED)


def test_masked_self_attention_matches_worked_example():
    example = EXAMPLES["masked_self_attention_write_a_poem"]
    output, weights = one_head(np.sqrt(3) * np.array(example["scores"]), np.eye(3), np.eye(3), causal_mask(3))
    np.testing.assert_allclose(weights, example["weights"], **ROUNDED)
    np.testing.assert_allclose(output, example["weights"], **ROUNDED)
    assert (np.triu(weights, 1) == 0).all()


def test_cross_attention_matches_worked_example():
    example = EXAMPLES["cross_attention_le_chat_mange"]
    hidden = np.array(example["initial_hidden"])
    for step in example["steps"]:
        weights = np.array(step["weights"])
        query = np.sqrt(4) * np.log(np.where(weights > 0, weights, 1.0))
        output, attended = one_head(query[None], np.eye(4), example["encoder_outputs"], jnp.array(weights > 0))
        np.testing.assert_allclose(attended[0], weights, **ROUNDED)
        np.testing.assert_allclose(output[0], step["context"], **ROUNDED)
        hidden = hidden + np.asarray(output[0])
        np.testing.assert_allclose(hidden, step["hidden_after_residual"], **ROUNDED)


def test_parameter_free_self_attention_matches_worked_example():
    example = EXAMPLES["parameter_free_self_attention"]
    x = np.array(example["X"])
    output, weights = one_head(np.sqrt(3) * x, x, x)
    np.testing.assert_allclose(weights, example["weights"], **ROUNDED)
    np.testing.assert_allclose(output, example["output"], **ROUNDED)


def test_position_encodings_match_worked_example():
    example = EXAMPLES["positional_encoding_i_am_a_robot"]
    np.testing.assert_allclose(sinusoidal_positions(4, 4, float(example["base"])), example["table"], **ROUNDED)


def test_layer_norm_matches_worked_example():
    example = EXAMPLES["layer_norm"]
    config = ModelConfig(embed_dim=3, num_heads=1, positions="learned", norm="post")
    residual = ResidualConnection(config, precision=FLOAT32, rngs=nnx.Rngs(0))
    normalized, _ = residual(jnp.array(example["input"]), lambda y: (jnp.zeros_like(y), None))
    np.testing.assert_allclose(normalized, example["normalized"], **ROUNDED)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_residual_connection_matches_its_definition(norm):
    config = ModelConfig(embed_dim=4, num_heads=2, norm=norm)
    residual = ResidualConnection(config, precision=FLOAT32, rngs=nnx.Rngs(0))
    x = np.array([1.0, 2.0, 4.0, 9.0])

    def normalize(y):
        return (y - y.mean()) / np.sqrt(y.var() + 1e-6)

    expected = x + normalize(x) ** 2 if norm == "pre" else normalize(x + x**2)
    actual, extra = residual(jnp.array(x), lambda y: (y**2, "extra"))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert extra == "extra"


def test_shapes_and_initialization_of_base_model():
    attention = MultiHeadAttention(ModelConfig(embed_dim=512, num_heads=8), rngs=nnx.Rngs(0))
    x = jnp.ones((1, 6, 512))
    keys, values = attention.keys_values(x)
    output, weights = attention(x, x)
    assert keys.shape == (1, 8, 64, 6)
    assert values.shape == (1, 8, 6, 64)
    assert weights.shape == (1, 8, 6, 6)
    assert output.shape == (1, 6, 512)
    bound = np.sqrt(6 / (512 + 512))  # glorot-uniform
    kernel = np.asarray(attention.query.kernel[...])
    assert bound * 0.99 < np.abs(kernel).max() <= bound
    assert abs(kernel.std() - bound / np.sqrt(3)) < 1e-3


@pytest.fixture
def random_heads():
    """Random queries [2, 3, 7, 5], keys and values [2, 3, 11, 5], and a mask with at least one key for each query."""
    rng = np.random.default_rng(0)
    query, keys, values = (rng.normal(size=(2, 3, n, 5)).astype(np.float32) for n in (7, 11, 11))
    mask = rng.random((2, 1, 7, 11)) < 0.6
    mask[..., 0] = True
    return query, keys, values, mask


def test_attention_matches_numpy_reference(random_heads):
    query, keys, values, mask = random_heads
    output, weights = jax.device_get(scaled_dot_product_attention(*map(jnp.asarray, random_heads)))
    for b, t, n in np.ndindex(2, 7, 3):
        scores = [query[b, n, t] @ keys[b, n, s] / np.sqrt(5) if mask[b, 0, t, s] else -np.inf for s in range(11)]
        expected = np.exp(scores) / np.sum(np.exp(scores))
        np.testing.assert_allclose(weights[b, n, t], expected, atol=1e-6)
        mixed = sum(expected[s] * values[b, n, s] for s in range(11))
        np.testing.assert_allclose(output[b, n, t], mixed, atol=1e-6)


def test_attention_matches_jax(random_heads):
    query, keys, values, mask = random_heads
    output, _ = scaled_dot_product_attention(*map(jnp.asarray, random_heads))
    expected = jax.nn.dot_product_attention(*(jnp.swapaxes(x, 1, 2) for x in (query, keys, values)), mask=mask)
    np.testing.assert_allclose(jnp.swapaxes(output, 1, 2), expected, atol=1e-6)


def test_precomputed_keys_and_values_give_identical_results():
    attention = MultiHeadAttention(ModelConfig(embed_dim=12, num_heads=3), rngs=nnx.Rngs(0))
    x, memory = jax.random.normal(jax.random.key(1), (2, 7, 12)), jax.random.normal(jax.random.key(2), (2, 11, 12))
    projected = attention.keys_values(memory)
    assert isinstance(projected, KeysValues)
    for direct, cached in zip(attention(x, memory), attention.attend(x, projected), strict=True):
        np.testing.assert_array_equal(direct, cached)


def test_rotation_is_multiplication_of_complex_numbers():
    """Dimensions i and i + H / 2 are real and imaginary parts; position t rotates pair i by t / base**(2 i / H)."""
    heads = jax.random.normal(jax.random.key(0), (2, 3, 5, 6))
    positions = jnp.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
    rotated = np.asarray(Rotation.at(positions, 6, 100.0).rotate(heads))
    pairs = np.asarray(heads)[..., :3] + 1j * np.asarray(heads)[..., 3:]
    for b, n, t, i in np.ndindex(2, 3, 5, 3):
        expected = pairs[b, n, t, i] * np.exp(1j * int(positions[b, t]) / 100 ** (2 * i / 6))
        np.testing.assert_allclose(rotated[b, n, t, i] + 1j * rotated[b, n, t, i + 3], expected, atol=1e-5)


def test_normalized_queries_and_keys_match_numpy_reference():
    """Queries and keys keep only their directions, multiplied by learned scales; values are not normalized."""
    attention = MultiHeadAttention(ModelConfig(embed_dim=6, num_heads=2, qk_norm=True), rngs=nnx.Rngs(0))
    attention.query_norm.scale[...] = jnp.array([0.5, 1.0, 2.0])
    attention.key_norm.scale[...] = jnp.array([3.0, 1.0, 1.5])
    random = np.random.default_rng(0)
    x, memory = (random.normal(size=(1, length, 6)).astype(np.float32) for length in (4, 5))
    attend = functools.partial(nnx.jit(MultiHeadAttention.__call__), attention)
    output, weights = jax.device_get(attend(x, memory))
    queries, keys, values = (
        side[0] @ np.asarray(projection.kernel[...])
        for side, projection in ((x, attention.query), (memory, attention.key), (memory, attention.value))
    )
    heads = np.zeros((4, 6))
    for n, t in np.ndindex(2, 4):
        lanes = slice(3 * n, 3 * n + 3)
        query = queries[t, lanes]
        query = query / np.linalg.norm(query) * np.sqrt(3) * [0.5, 1.0, 2.0]
        scores = [
            query @ (key / np.linalg.norm(key) * np.sqrt(3) * [3.0, 1.0, 1.5]) / np.sqrt(3) for key in keys[:, lanes]
        ]
        expected = np.exp(scores) / np.sum(np.exp(scores))
        np.testing.assert_allclose(weights[0, n, t], expected, atol=1e-5)
        heads[t, lanes] = expected @ values[:, lanes]
    np.testing.assert_allclose(output[0], heads @ np.asarray(attention.output.kernel[...]), atol=1e-5)
    np.testing.assert_allclose(attend(7.0 * x, memory)[0], output, atol=1e-5)


def test_segment_mask_separates_sentences_and_padding():
    mask = segment_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
