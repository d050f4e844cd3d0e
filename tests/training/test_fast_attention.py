"""Fast attention against equation 1 as written: values and gradients, mainly of packed rows."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.host.errors import UserError
from lingua_flax.model.attention import scaled_dot_product_attention
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.transformer import structure
from lingua_flax.options.schema import Config, MeshConfig, ModelConfig
from lingua_flax.training.kernels.fast_attention import FusedAttention, fast_attention
from lingua_flax.training.loss import cross_entropy
from tests.model.test_transformer import random_params
from tests.processes import simulated_devices

# Segments of the queries and keys of packed rows: several sentences and padding, padded targets with a source that
# fills its row and the reverse, a row without tokens on one side, and one without any.
QUERIES = [[1, 1, 1, 2, 2, 2, 3, 3], [1, 1, 0, 0, 0, 0, 0, 0], [1] * 8, [1, 2, 2, 3, 3, 3, 4, 4], [1] * 8, [0] * 8]
KEYS = [
    [1, 1, 2, 2, 2, 3, 3, 3, 3, 0],
    [1] * 10,
    [1, 1, 1] + [0] * 7,
    [1, 1, 1, 2, 3, 4, 4, 0, 0, 0],
    [0] * 10,
    [0] * 10,
]


def masks() -> dict[str, SegmentMask]:
    queries, keys = jnp.array(QUERIES), jnp.array(KEYS)
    return {"cross": SegmentMask(queries, keys), "causal": SegmentMask(queries, queries, causal=True)}


WIDTH = 256


def operands(mask: SegmentMask, dtype: jnp.dtype = jnp.float32) -> tuple[list[jax.Array], jax.Array]:
    """Returns query, keys and values, and the gradient of the output, which is 0 for queries that see nothing."""
    draw = np.random.default_rng(0)
    lengths = (mask.queries.shape[1], mask.keys.shape[1], mask.keys.shape[1], mask.queries.shape[1])
    *inputs, gradient = (jnp.asarray(draw.normal(size=(len(mask.queries), length, WIDTH)), dtype) for length in lengths)
    return inputs, jnp.where(seen(mask), gradient, 0).astype(dtype)


def seen(mask: SegmentMask) -> jax.Array:
    """Returns whether each query sees any key, [B, T, 1]."""
    return jnp.any(mask.dense()[:, 0], axis=-1, keepdims=True)


def plain(query, keys, values, num_heads, mask):
    """Returns the output of equation 1 in the layout of fast attention."""

    def split(heads):
        return jnp.swapaxes(heads.reshape(*heads.shape[:2], num_heads, -1), 1, 2)

    output, _ = scaled_dot_product_attention(split(query), split(keys), split(values), mask.dense())
    return jnp.swapaxes(output, 1, 2).reshape(query.shape)


def output_and_gradients(attention, mask, inputs, gradient, head_dim=64):
    @jax.jit
    def both(*inputs):
        output, pull_back = jax.vjp(lambda *inputs: attention(*inputs, WIDTH // head_dim, mask), *inputs)
        return jnp.where(seen(mask), output, 0), *pull_back(gradient)

    return [np.asarray(array, np.float32) for array in both(*inputs)]


def fused(platform: str, mesh: MeshConfig = MeshConfig(data=1)) -> FusedAttention:
    return FusedAttention(make_mesh(mesh), platform, interpret=True)


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
@pytest.mark.parametrize(("head_dim", "kind"), [(32, "causal"), (64, "cross"), (128, "causal")])
def test_values_and_gradients_match_equation_1(platform, head_dim, kind):
    mask = masks()[kind]
    expected = output_and_gradients(plain, mask, *operands(mask), head_dim)
    actual = output_and_gradients(fused(platform), mask, *operands(mask), head_dim)
    for result, reference in zip(actual, expected, strict=True):
        assert np.isfinite(result).all()
        np.testing.assert_allclose(result, reference, atol=5e-6)


@pytest.mark.parametrize("kind", ["cross", "causal"])
def test_bfloat16_errors_are_close_to_those_of_plain_attention(kind):
    """At most one and a half times as large, relative to float32."""
    mask = masks()[kind]
    exact = output_and_gradients(plain, mask, *operands(mask))
    inputs, gradient = operands(mask, jnp.bfloat16)
    errors = {}
    for name, attention in (("plain", plain), ("tpu", fused("tpu")), ("gpu", fused("gpu"))):
        actual = output_and_gradients(attention, mask, inputs, gradient)
        errors[name] = [np.linalg.norm(result - reference) for result, reference in zip(actual, exact, strict=True)]
    for name in ("tpu", "gpu"):
        assert all(error <= 1.5 * usual for error, usual in zip(errors[name], errors["plain"], strict=True)), errors


def alone(query, keys, values, num_heads):
    """Returns equation 1 for a single sentence without a mask, [T, D], computed head by head in NumPy."""
    heads = []
    for q, k, v in zip(*(np.split(side, num_heads, axis=-1) for side in (query, keys, values)), strict=True):
        weights = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
        heads.append(weights @ v / weights.sum(axis=-1, keepdims=True))
    return np.concatenate(heads, axis=-1)


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_packed_sentences_match_sentences_alone(platform):
    mask = masks()["cross"]
    inputs, gradient = operands(mask)
    packed = output_and_gradients(fused(platform), mask, inputs, gradient)[0][0]
    query, keys, values = (np.asarray(side[0]) for side in inputs)
    for segment in (1, 2, 3):
        targets, sources = (np.flatnonzero(np.equal(side[0], segment)) for side in (QUERIES, KEYS))
        expected = alone(query[targets], keys[sources], values[sources], num_heads=4)
        np.testing.assert_allclose(packed[targets], expected, atol=5e-6)


def check_on_a_mesh() -> None:
    """Checks attention with rows and heads sharded over 2 x 2 x 2 devices, each with one group of heads."""
    mask = masks()["cross"]
    mask = SegmentMask(*(jnp.concatenate([side, side[:2]]) for side in mask[:2]))
    expected = output_and_gradients(plain, mask, *operands(mask))
    actual = output_and_gradients(fused("tpu", MeshConfig(data=2, fsdp=2, tensor=2)), mask, *operands(mask))
    for result, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(result, reference, atol=5e-6)


def test_sharded_attention_matches_equation_1(run, tmp_path):
    program = tmp_path / "check.py"
    program.write_text("from tests.training.test_fast_attention import check_on_a_mesh; check_on_a_mesh()")
    result = run(program, env=simulated_devices(8))
    assert result.returncode == 0, result.stderr


def loss_and_gradients(batch: Batch, fast: FusedAttention | None) -> tuple[jax.Array, dict]:
    """Returns the mean loss of a small network on a batch, and its gradients with respect to all parameters."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=128, num_heads=2, mlp_dim=32)
    network = structure(config, 23, 23, fast=fast)

    @jax.jit
    @jax.value_and_grad
    def loss(params, batch):
        model = nnx.merge(network.graphdef, params)
        x, weights = model.hidden_states(
            batch.source,
            batch.target_in,
            source_segments=batch.source_segments,
            source_positions=batch.source_positions,
            target_segments=batch.target_segments,
            target_positions=batch.target_positions,
        )
        assert {layer is None for kind in weights for layer in kind} == {fast is not None}
        total, count = cross_entropy(x, model.output_table, batch.target_out, 0.1)
        return total / count

    return jax.device_get(loss(random_params(network), batch))


def test_network_gradients_with_fused_attention_match_plain_attention():
    batch = packed_batch()
    (loss, gradients), (expected_loss, expected) = (loss_and_gradients(batch, fast) for fast in (fused("tpu"), None))
    np.testing.assert_allclose(loss, expected_loss, rtol=2e-5)
    for result, reference in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, reference, atol=5e-6)


def packed_batch() -> Batch:
    """Returns eight rows of random ids, laid out like the segments above."""
    draw = np.random.default_rng(0)
    segments = np.array([QUERIES[row % len(QUERIES)] for row in range(8)], np.int32)
    first = np.diff(segments, prepend=-1, axis=1) != 0
    positions = np.arange(8) - np.maximum.accumulate(np.where(first, np.arange(8), 0), axis=1)
    ids = [np.where(segments > 0, draw.integers(4, 23, segments.shape), 0).astype(np.int32) for _ in range(3)]
    return Batch(ids[0], segments, positions.astype(np.int32), ids[1], ids[2], segments, positions.astype(np.int32))


NOT_HERE = (
    "runs only on TPUs and on NVIDIA GPUs of the Ampere generation or later; "
    'use "auto" to select a supported implementation'
)


def mesh_of(platform: str, tensor: int = 1):
    """Returns a stand-in with the attributes of a mesh on which the selection depends; "t4" is an old GPU."""
    device = SimpleNamespace(platform="gpu" if platform == "t4" else platform)
    if platform == "t4":
        device.compute_capability = "7.5"
    return SimpleNamespace(shape={"tensor": tensor}, devices=np.array([device]))


def base(options: dict, **sections: dict) -> Config:
    return Config.model_validate({"model": {"embed_dim": 512, "num_heads": 8} | options, **sections})


@pytest.mark.parametrize(
    ("platform", "options", "expected"),
    [
        ("cpu", {}, "None"),
        ("tpu", {}, "None"),  # until a run on a TPU has been recorded
        ("tpu", {"attention": "fused"}, "fused"),
        ("gpu", {}, "fused"),
        ("t4", {}, "None"),
        ("tpu", {"attention": "plain"}, "None"),
        ("gpu", {"attention": "plain"}, "None"),
        ("gpu", {"attention_dropout_rate": 0.1}, "None"),
        ("gpu", {"num_heads": 4}, "None"),  # head width 128
        ("tpu", {"attention_dropout_rate": 0.1}, "None"),
        ("tpu", {"num_heads": 2}, "None"),  # head width 256
    ],
)
def test_implementation_is_selected_by_platform_and_options(platform, options, expected):
    assert str(fast_attention(base(options, data={"row_length": 128}), mesh_of(platform))) == expected


@pytest.mark.parametrize(
    ("options", "platform", "dtype", "row_length", "reason"),
    [
        ({}, "cpu", "float32", 128, f'model.attention "fused" {NOT_HERE}'),
        ({}, "t4", "float32", 128, f'model.attention "fused" {NOT_HERE}'),
        ({}, "tpu", "bfloat16", 1024, "supports rows of at most 512 positions"),
        ({"num_heads": 2}, "tpu", "bfloat16", 128, "needs a head width that divides 128"),
        ({}, "gpu", "float32", 128, "computes in bfloat16 on GPUs, not in float32"),
        ({}, "gpu", "bfloat16", 256, "needs on GPUs a head width in .* and a data.row_length in"),
        ({"embed_dim": 384}, "gpu", "bfloat16", 128, "needs on GPUs a head width in"),
    ],
)
def test_unsupported_implementation_is_refused(options, platform, dtype, row_length, reason):
    sections = {"data": {"row_length": row_length}, "devices": {"precision": dtype}}
    with pytest.raises(UserError, match=reason):
        fast_attention(base(options | {"max_length": 1024, "attention": "fused"}, **sections), mesh_of(platform))
    assert fast_attention(base(options | {"max_length": 1024}, **sections), mesh_of(platform)) is None


def test_unsupported_implementation_is_refused_before_corpus_is_prepared(run, tmp_path):
    for options in (["--workdir", tmp_path / "w"], ["--dry-run"]):
        result = run("train", "--config", "configs/tiny.toml", "--model.attention", "fused", *options)
        assert result.returncode == 2, result.stderr
        assert result.stderr == f'error: model.attention "fused" {NOT_HERE}\n'
    assert not (tmp_path / "w").exists()
