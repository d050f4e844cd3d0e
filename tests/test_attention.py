"""The attention mechanisms against numbers worked by hand, a slow reference and JAX's own implementation."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.attention import MultiHeadAttention, scaled_dot_product_attention
from model.key_value_cache import KeysValues
from model.layers import ResidualConnection
from model.masks import causal_mask, segment_mask
from model.positions import Rotation, sinusoidal_positions
from options.schema import ModelConfig

EXAMPLES = json.loads((Path(__file__).parent / "worked_examples.json").read_text())
HAND = {"atol": 1.1e-4}  # the examples are rounded to four places


def one_head(query, keys, values, mask=None):
    """The product's attention for a single sentence and head: [T, H], [S, H], [S, H] -> outputs, weights."""
    arrays = (jnp.asarray(x, jnp.float32)[None, None] for x in (query, keys, values))
    mask = None if mask is None else jnp.broadcast_to(mask, (1, 1, len(query), len(keys)))
    output, weights = scaled_dot_product_attention(*arrays, mask)
    return output[0, 0], weights[0, 0]


def test_self_attention_by_hand():
    example = EXAMPLES["self_attention_i_play_football"]
    x = np.array(example["X"])
    query, keys, values = (x @ np.array(example[name]) for name in ("WQ", "WK", "WV"))
    output, weights = one_head(query, keys, values)
    np.testing.assert_allclose(weights, example["weights"], **HAND)
    np.testing.assert_allclose(output, example["output"], **HAND)


def test_multi_head_attention_by_hand():
    example = EXAMPLES["multi_head_the_cat_sat"]
    attention = MultiHeadAttention(4, 2, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for projection, name in ((attention.query, "WQ"), (attention.key, "WK"), (attention.value, "WV")):
        projection.kernel[...] = jnp.concatenate([jnp.array(head[name]) for head in example["heads"]], axis=1)
    attention.output.kernel[...] = jnp.array(example["WO"])
    x = jnp.array(example["X"])[None]
    output, weights = attention(x, x)
    for head, expected in enumerate(example["heads"]):
        np.testing.assert_allclose(weights[0, head], expected["weights"], **HAND)
    np.testing.assert_allclose(output[0], example["output"], atol=4e-4)


def test_unscaled_attention_on_column_vectors_by_hand():
    example = EXAMPLES["self_attention_the_cat_eats_fish"]
    x = np.array(example["X"])
    query, keys, values = (x @ np.array(example[name]).T for name in ("WQ", "WK", "WV"))
    output, weights = one_head(query * np.sqrt(2), keys, values)  # undoes the scaling
    np.testing.assert_allclose(weights, example["weights"], **HAND)
    np.testing.assert_allclose(output, example["output"], **HAND)


def test_scaling_by_hand():
    example = EXAMPLES["scaling"]
    scores = np.array(example["scores"], np.float32)
    identity = np.eye(4, dtype=np.float32)
    _, halved = one_head(scores[None], identity, identity)  # width 4: scores are divided by 2
    _, unscaled = one_head(2 * scores[None], identity, identity)
    np.testing.assert_allclose(halved[0], example["halved"], **HAND)
    np.testing.assert_allclose(unscaled[0], example["unscaled"], **HAND)
    gradient = jax.jacobian(lambda s: one_head(s[None], identity, identity)[1][0])
    np.testing.assert_allclose(2 * np.diag(gradient(scores)), example["jacobian_diagonal_halved"], **HAND)
    np.testing.assert_allclose(2 * np.diag(gradient(2 * scores)), example["jacobian_diagonal_unscaled"], **HAND)


def test_softmax_by_hand():
    example = EXAMPLES["softmax"]
    _, weights = one_head(2 * np.array([example["scores"]]), np.eye(4), np.eye(4))
    np.testing.assert_allclose(weights[0], example["weights"], **HAND)


def test_masked_self_attention_by_hand():
    example = EXAMPLES["masked_self_attention_write_a_poem"]
    output, weights = one_head(np.sqrt(3) * np.array(example["scores"]), np.eye(3), np.eye(3), causal_mask(3))
    np.testing.assert_allclose(weights, example["weights"], **HAND)
    np.testing.assert_allclose(output, example["weights"], **HAND)
    assert (np.triu(weights, 1) == 0).all()


def test_cross_attention_by_hand():
    example = EXAMPLES["cross_attention_le_chat_mange"]
    hidden = np.array(example["initial_hidden"])
    for step in example["steps"]:
        weights = np.array(step["weights"])
        query = np.sqrt(4) * np.log(np.where(weights > 0, weights, 1.0))
        output, attended = one_head(query[None], np.eye(4), example["encoder_outputs"], jnp.array(weights > 0))
        np.testing.assert_allclose(attended[0], weights, **HAND)
        np.testing.assert_allclose(output[0], step["context"], **HAND)
        hidden = hidden + np.asarray(output[0])
        np.testing.assert_allclose(hidden, step["hidden_after_residual"], **HAND)


def test_parameter_free_self_attention_by_hand():
    example = EXAMPLES["parameter_free_self_attention"]
    x = np.array(example["X"])
    output, weights = one_head(np.sqrt(3) * x, x, x)
    np.testing.assert_allclose(weights, example["weights"], **HAND)
    np.testing.assert_allclose(output, example["output"], **HAND)


def test_position_encodings_by_hand():
    example = EXAMPLES["positional_encoding_i_am_a_robot"]
    np.testing.assert_allclose(sinusoidal_positions(4, 4, float(example["base"])), example["table"], **HAND)


def test_layer_norm_by_hand():
    example = EXAMPLES["layer_norm"]
    config = ModelConfig(embed_dim=3, num_heads=1, positions="learned", norm="post")
    around = ResidualConnection(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    normalized = around(jnp.array(example["input"]), lambda x: jnp.zeros_like(x))
    np.testing.assert_allclose(normalized, example["normalized"], **HAND)


def test_shapes_of_the_paper():
    attention = MultiHeadAttention(512, 8, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 6, 512))
    keys, values = attention.keys_values(x)
    output, weights = attention(x, x)
    assert keys.shape == values.shape == (1, 8, 6, 64)
    assert weights.shape == (1, 8, 6, 6)
    assert output.shape == (1, 6, 512)
    bound = np.sqrt(6 / (512 + 512))  # glorot-uniform
    kernel = np.asarray(attention.query.kernel[...])
    assert bound * 0.99 < np.abs(kernel).max() <= bound
    assert abs(kernel.std() - bound / np.sqrt(3)) < 1e-3


@pytest.fixture
def random_heads():
    """Random queries [2, 3, 7, 5], keys and values [2, 3, 11, 5] and a mask that leaves each query some key."""
    rng = np.random.default_rng(0)
    query, keys, values = (rng.normal(size=(2, 3, n, 5)).astype(np.float32) for n in (7, 11, 11))
    mask = rng.random((2, 1, 7, 11)) < 0.6
    mask[..., 0] = True
    return query, keys, values, mask


def test_attention_equals_slow_numpy(random_heads):
    query, keys, values, mask = random_heads
    output, weights = scaled_dot_product_attention(*map(jnp.asarray, random_heads))
    for b, t, n in np.ndindex(2, 7, 3):
        scores = [query[b, n, t] @ keys[b, n, s] / np.sqrt(5) if mask[b, 0, t, s] else -np.inf for s in range(11)]
        expected = np.exp(scores) / np.sum(np.exp(scores))
        np.testing.assert_allclose(weights[b, n, t], expected, atol=1e-6)
        mixed = sum(expected[s] * values[b, n, s] for s in range(11))
        np.testing.assert_allclose(output[b, n, t], mixed, atol=1e-6)


def test_attention_equals_jax(random_heads):
    query, keys, values, mask = random_heads
    output, _ = scaled_dot_product_attention(*map(jnp.asarray, random_heads))
    expected = jax.nn.dot_product_attention(*(jnp.swapaxes(x, 1, 2) for x in (query, keys, values)), mask=mask)
    np.testing.assert_allclose(jnp.swapaxes(output, 1, 2), expected, atol=1e-6)


def test_keys_and_values_projected_beforehand_give_the_same():
    attention = MultiHeadAttention(15, 3, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    x, memory = jax.random.normal(jax.random.key(1), (2, 7, 15)), jax.random.normal(jax.random.key(2), (2, 11, 15))
    projected = attention.keys_values(memory)
    assert isinstance(projected, KeysValues)
    for direct, cached in zip(attention(x, memory), attention.attend(x, projected), strict=True):
        np.testing.assert_array_equal(direct, cached)


def test_a_rotation_multiplies_complex_numbers():
    """Dimensions i and i + H / 2 are real and imaginary part; at position t pair i turns by t / base**(2 i / H)."""
    heads = jax.random.normal(jax.random.key(0), (2, 3, 5, 6))
    positions = jnp.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
    turned = Rotation.at(positions, 6, 100.0).rotate(heads)
    pairs = np.asarray(heads)[..., :3] + 1j * np.asarray(heads)[..., 3:]
    for b, n, t, i in np.ndindex(2, 3, 5, 3):
        expected = pairs[b, n, t, i] * np.exp(1j * int(positions[b, t]) / 100 ** (2 * i / 6))
        np.testing.assert_allclose(turned[b, n, t, i] + 1j * turned[b, n, t, i + 3], expected, atol=1e-5)


def test_normalised_queries_and_keys_equal_slow_numpy():
    """Only their directions count, times the learned scales; values are as they were."""
    attention = MultiHeadAttention(6, 2, qk_norm=True, dropout_rate=0.0, dtype=jnp.float32, rngs=nnx.Rngs(0))
    attention.query_norm.scale[...] = jnp.array([0.5, 1.0, 2.0])
    attention.key_norm.scale[...] = jnp.array([3.0, 1.0, 1.5])
    x, memory = jax.random.normal(jax.random.key(1), (1, 4, 6)), jax.random.normal(jax.random.key(2), (1, 5, 6))
    _, weights = attention(x, memory)
    queries, keys = np.asarray(x[0] @ attention.query.kernel[...]), np.asarray(memory[0] @ attention.key.kernel[...])
    for n, t in np.ndindex(2, 4):
        query = queries[t, 3 * n : 3 * n + 3]
        query = query / np.linalg.norm(query) * np.sqrt(3) * [0.5, 1.0, 2.0]
        scores = []
        for row in keys[:, 3 * n : 3 * n + 3]:
            scores.append(query @ (row / np.linalg.norm(row) * np.sqrt(3) * [3.0, 1.0, 1.5]) / np.sqrt(3))
        np.testing.assert_allclose(weights[0, n, t], np.exp(scores) / np.sum(np.exp(scores)), atol=1e-5)
    longer, _ = attention(7.0 * x, memory)
    np.testing.assert_allclose(longer, attention(x, memory)[0], atol=1e-5)


def test_segment_mask_separates_sentences_and_padding():
    mask = segment_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
