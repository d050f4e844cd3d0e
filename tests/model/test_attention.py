"""Attention, positions and normalization against worked examples, slow NumPy references and JAX's own attention."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.model.attention import MultiHeadAttention, scaled_dot_product_attention
from lingua_flax.model.dropout import NO_DROPOUT
from lingua_flax.model.layers import ResidualConnection
from lingua_flax.model.masks import causal_mask, segment_mask
from lingua_flax.model.positions import RotaryEmbedding, sinusoidal_positions
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


def arrays(example):
    return (np.array(EXAMPLES[example][name]) for name in ("X", "WQ", "WK", "WV"))


def test_one_head_matches_worked_examples():
    """All but the first are not scaled, which a factor of the queries cancels; fish has column vectors."""

    def check(example, query, keys, values, mask=None):
        output, weights = one_head(query, keys, values, mask)
        expected = EXAMPLES[example]
        np.testing.assert_allclose(weights, np.atleast_2d(expected["weights"]), **ROUNDED)
        np.testing.assert_allclose(output, np.atleast_2d(expected.get("output", expected["weights"])), **ROUNDED)

    x, *matrices = arrays("self_attention_i_play_football")
    check("self_attention_i_play_football", *(x @ matrix for matrix in matrices))
    x, *matrices = arrays("self_attention_the_cat_eats_fish")
    query, keys, values = (x @ matrix.T for matrix in matrices)
    check("self_attention_the_cat_eats_fish", np.sqrt(2) * query, keys, values)
    x = np.array(EXAMPLES["parameter_free_self_attention"]["X"])
    check("parameter_free_self_attention", np.sqrt(3) * x, x, x)
    scores = np.array(EXAMPLES["masked_self_attention_write_a_poem"]["scores"])
    check("masked_self_attention_write_a_poem", np.sqrt(3) * scores, np.eye(3), np.eye(3), causal_mask(3))
    check("softmax", 2 * np.array([EXAMPLES["softmax"]["scores"]]), np.eye(4), np.eye(4))


def test_multi_head_attention_matches_worked_example():
    example = EXAMPLES["multi_head_the_cat_sat"]
    attention = MultiHeadAttention(ModelConfig(embed_dim=4, num_heads=2), rngs=nnx.Rngs(0))
    for projection, name in ((attention.query, "WQ"), (attention.key, "WK"), (attention.value, "WV")):
        projection.kernel[...] = jnp.concatenate([jnp.array(head[name]) for head in example["heads"]], axis=1)
    attention.output.kernel[...] = jnp.array(example["WO"])
    x = jnp.array(example["X"])[None]
    result = attention(*attention.project(x))
    for head, expected in enumerate(example["heads"]):
        np.testing.assert_allclose(result.weights[0, head], expected["weights"], **ROUNDED)
    np.testing.assert_allclose(result.output[0], example["output"], atol=4e-4)


def test_scaling_matches_worked_example():
    example = EXAMPLES["scaling"]
    scores = np.array(example["scores"], np.float32)
    identity = np.eye(4, dtype=np.float32)  # width 4: scores are divided by 2
    gradient = jax.jit(jax.jacobian(lambda scores: one_head(scores[None], identity, identity)[1][0]))
    for factor, name in ((1, "halved"), (2, "unscaled")):
        _, weights = one_head(factor * scores[None], identity, identity)
        np.testing.assert_allclose(weights[0], example[name], **ROUNDED)
        diagonal = 2 * np.diag(gradient(factor * scores))
        np.testing.assert_allclose(diagonal, example[f"jacobian_diagonal_{name}"], **ROUNDED)


def test_cross_attention_matches_worked_example():
    example = EXAMPLES["cross_attention_le_chat_mange"]
    for step in example["steps"]:
        weights = np.array(step["weights"])
        query = np.sqrt(4) * np.log(np.where(weights > 0, weights, 1.0))
        output, attended = one_head(query[None], np.eye(4), example["encoder_outputs"], jnp.array(weights > 0))
        np.testing.assert_allclose(attended[0], weights, **ROUNDED)
        np.testing.assert_allclose(output[0], step["context"], **ROUNDED)


def test_position_encodings_and_layer_norm_match_worked_examples():
    example = EXAMPLES["positional_encoding_i_am_a_robot"]
    np.testing.assert_allclose(sinusoidal_positions(4, 4, float(example["base"])), example["table"], **ROUNDED)
    example = EXAMPLES["layer_norm"]
    x, normalized = np.array(example["input"]), np.array(example["normalized"])
    for norm, sublayer, expected in (("post", jnp.zeros_like, normalized), ("pre", jnp.square, x + normalized**2)):
        config = ModelConfig(embed_dim=3, num_heads=1, positions="learned", norm=norm)
        residual = ResidualConnection(config, precision=FLOAT32, rngs=nnx.Rngs(0))
        actual = residual.after(jnp.array(x), sublayer(residual.before(jnp.array(x))), NO_DROPOUT)
        np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_projections_are_initialized_glorot_uniform():
    attention = MultiHeadAttention(ModelConfig(embed_dim=512, num_heads=8), rngs=nnx.Rngs(0))
    bound = np.sqrt(6 / (512 + 512))
    kernel = np.asarray(attention.query.kernel[...])
    assert bound * 0.99 < np.abs(kernel).max() <= bound
    assert abs(kernel.std() - bound / np.sqrt(3)) < 1e-3


def test_attention_matches_jax():
    """Every query sees at least one key."""
    rng = np.random.default_rng(0)
    operands = [rng.normal(size=(2, 3, n, 5)).astype(np.float32) for n in (7, 11, 11)]
    mask = rng.random((2, 1, 7, 11)) < 0.6
    mask[..., 0] = True
    output, _ = scaled_dot_product_attention(*map(jnp.asarray, (*operands, mask)))
    expected = jax.nn.dot_product_attention(*(np.swapaxes(x, 1, 2) for x in operands), mask=mask)
    np.testing.assert_allclose(np.swapaxes(output, 1, 2), expected, atol=1e-6)


def test_rotation_is_multiplication_of_complex_numbers():
    """Dimensions i and i + H / 2 are real and imaginary parts; position t rotates pair i by t / base**(2 i / H)."""
    heads = jax.random.normal(jax.random.key(0), (2, 3, 5, 6))
    positions = jnp.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
    rotated = np.asarray(RotaryEmbedding.at(positions, 6, 100.0).rotate(heads))
    pairs = np.asarray(heads)[..., :3] + 1j * np.asarray(heads)[..., 3:]
    for b, n, t, i in np.ndindex(2, 3, 5, 3):
        expected = pairs[b, n, t, i] * np.exp(1j * int(positions[b, t]) / 100 ** (2 * i / 6))
        np.testing.assert_allclose(rotated[b, n, t, i] + 1j * rotated[b, n, t, i + 3], expected, atol=1e-5)


def test_segment_mask_separates_sentences_and_padding():
    mask = segment_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
