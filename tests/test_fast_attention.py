"""Fast attention against equation 1 as it is written: values and gradients, of packed rows above all."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from devices.mesh import make_mesh
from host.errors import UserError
from model.attention import scaled_dot_product_attention
from model.masks import SegmentMask
from model.transformer import initial_params, structure
from options.schema import Config, MeshConfig
from tests.test_devices import EIGHT
from training.fast_attention import CudnnAttention, FusedAttention, fast_attention
from training.step import initial_state, make_train_step

# Segments of queries and keys, which stand for packed rows: several sentences and padding, padded targets beside a
# source that fills its row and the reverse, a row without a token on one side, and one without any.
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
    """Query, keys and values, and the gradient of the output, which is 0 where nobody reads that."""
    draw = np.random.default_rng(0)
    lengths = (mask.queries.shape[1], mask.keys.shape[1], mask.keys.shape[1], mask.queries.shape[1])
    *inputs, gradient = (jnp.asarray(draw.normal(size=(len(mask.queries), length, WIDTH)), dtype) for length in lengths)
    return inputs, jnp.where(seen(mask), gradient, 0).astype(dtype)


def seen(mask: SegmentMask) -> jax.Array:
    """Whether a query sees anything, [B, T, 1]."""
    return jnp.any(mask.dense()[:, 0], axis=-1, keepdims=True)


def plain(query, keys, values, num_heads, mask):
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


def fused(mesh: MeshConfig = MeshConfig(data=1)) -> FusedAttention:
    return FusedAttention(make_mesh(mesh), interpret=True)


@pytest.mark.parametrize("kind", ["cross", "causal"])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_values_and_gradients_equal_the_textbooks(kind, head_dim):
    mask = masks()[kind]
    expected = output_and_gradients(plain, mask, *operands(mask), head_dim)
    for attention in (fused(), CudnnAttention("xla")):
        found = output_and_gradients(attention, mask, *operands(mask), head_dim)
        for one, other in zip(found, expected, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, atol=5e-6)


@pytest.mark.parametrize("kind", ["cross", "causal"])
def test_in_bfloat16_errors_are_those_of_plain_attention(kind):
    """At most half as much again, measured against float32."""
    mask = masks()[kind]
    exact = output_and_gradients(plain, mask, *operands(mask))
    half = [jnp.bfloat16(array) for array in operands(mask)[0]], jnp.bfloat16(operands(mask)[1])
    errors = {}
    for name, attention in (("plain", plain), ("fused", fused()), ("cudnn", CudnnAttention("xla"))):
        found = output_and_gradients(attention, mask, *half)
        errors[name] = [np.linalg.norm(one - other) for one, other in zip(found, exact, strict=True)]
    for name in ("fused", "cudnn"):
        assert all(error <= 1.5 * usual for error, usual in zip(errors[name], errors["plain"], strict=True)), errors


def test_a_sentence_sees_nothing_of_its_neighbours():
    """A row of three packed sentences gives what they give alone."""
    mask = masks()["cross"]
    (query, keys, values), _ = operands(mask)
    for attention in (fused(), CudnnAttention("xla")):
        packed = attention(query, keys, values, 4, mask)
        for segment in (1, 2, 3):
            here, there = (np.flatnonzero(np.array(side[0]) == segment) for side in (QUERIES, KEYS))
            ones = SegmentMask(jnp.ones((1, len(here)), jnp.int32), jnp.ones((1, len(there)), jnp.int32))
            alone = plain(query[:1, here], keys[:1, there], values[:1, there], 4, ones)
            np.testing.assert_allclose(packed[:1, here], alone, atol=5e-6)


def check_on_a_mesh() -> None:
    """Rows and heads shared out over 2 x 2 x 2 devices, each with one group of heads."""
    mask = masks()["cross"]
    mask = SegmentMask(*(jnp.concatenate([side, side[:2]]) for side in mask[:2]))
    expected = output_and_gradients(plain, mask, *operands(mask))
    found = output_and_gradients(fused(MeshConfig(data=2, fsdp=2, tensor=2)), mask, *operands(mask))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_shared_out_over_a_mesh(run):
    program = "from tests.test_fast_attention import check_on_a_mesh; check_on_a_mesh()"
    done = run("-c", program, env=os.environ | EIGHT)
    assert done.returncode == 0, done.stderr


def test_five_steps_of_training_equal_those_with_plain_attention():
    config = Config.model_validate(
        {
            "data": {"row_length": 8},
            "model": {
                "embed_dim": 128,
                "num_heads": 4,
                "mlp_dim": 32,
                "num_encoder_layers": 1,
                "num_decoder_layers": 1,
            },
            "training": {"tokens_per_batch": 64},
            "optimizer": {"warmup_steps": 2},
        }
    )
    mesh = make_mesh(MeshConfig(data=1))
    batches = [packed_batch(seed) for seed in range(5)]
    losses = []
    for fast in (None, fused()):
        network = structure(config.model, 23, 23, fast=fast)
        step = make_train_step(network, config, 5, mesh)
        state = initial_state(initial_params(config.model, 23, 23, jax.random.key(0)), config)
        losses.append([])
        for batch in batches:
            state, metrics = step(state, batch)
            losses[-1].append((float(metrics.loss), float(metrics.gradient_norm)))
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)


def packed_batch(seed: int):
    """Eight rows, each a row of the segments above, with drawn ids."""
    from data.batch import Batch

    draw = np.random.default_rng(seed)
    segments = np.array([QUERIES[row % len(QUERIES)] for row in range(8)], np.int32)
    first = np.diff(segments, prepend=-1, axis=1) != 0
    positions = np.arange(8) - np.maximum.accumulate(np.where(first, np.arange(8), 0), axis=1)
    ids = [np.where(segments > 0, draw.integers(4, 23, segments.shape), 0).astype(np.int32) for _ in range(3)]
    return Batch(ids[0], segments, positions.astype(np.int32), ids[1], ids[2], segments, positions.astype(np.int32))


def mesh_of(platform: str, tensor: int = 1):
    """Only what the choice asks of a mesh."""
    device = SimpleNamespace(platform=platform)
    return SimpleNamespace(shape={"tensor": tensor}, devices=np.array([device]))


def base(options: dict, **sections: dict) -> Config:
    return Config.model_validate({"model": {"embed_dim": 512, "num_heads": 8} | options, **sections})


@pytest.mark.parametrize(
    ("platform", "options", "chosen"),
    [
        ("cpu", {}, "None"),
        ("tpu", {}, "fused"),
        ("gpu", {}, "None"),
        ("tpu", {"attention": "plain"}, "None"),
        ("gpu", {"attention": "cudnn"}, "cudnn"),
        ("tpu", {"attention_dropout_rate": 0.1}, "None"),
        ("tpu", {"num_heads": 2}, "None"),  # heads of 256
    ],
)
def test_attention_is_chosen_by_the_platform_of_the_mesh(platform, options, chosen):
    assert str(fast_attention(base(options, data={"row_length": 128}), mesh_of(platform))) == chosen


@pytest.mark.parametrize(
    ("options", "platform", "dtype", "row_length", "reason"),
    [
        ({"attention": "fused"}, "cpu", "float32", 128,
         'model.attention "fused" runs only on TPUs; use "auto" to select a supported implementation'),
        ({"attention": "fused"}, "tpu", "bfloat16", 1024, "supports rows of at most 512 positions"),
        ({"attention": "fused", "num_heads": 2}, "tpu", "bfloat16", 128, "needs a head width that divides 128"),
        ({"attention": "cudnn"}, "tpu", "bfloat16", 128, 'model.attention "cudnn" runs only on NVIDIA GPUs'),
        ({"attention": "cudnn"}, "gpu", "float32", 128, "supports bfloat16, not float32"),
        ({"attention": "cudnn", "attention_dropout_rate": 0.1}, "gpu", "bfloat16", 128,
         "does not support attention dropout"),
        ({"attention": "cudnn", "embed_dim": 36, "num_heads": 3}, "gpu", "bfloat16", 128, "a multiple of 8"),
    ],
)  # fmt: skip
def test_attention_that_cannot_be(options, platform, dtype, row_length, reason):
    sections = {"data": {"row_length": row_length}, "devices": {"precision": dtype}}
    with pytest.raises(UserError, match=reason):
        fast_attention(base(options | {"max_length": 1024}, **sections), mesh_of(platform))
    auto = base(options | {"max_length": 1024, "attention": "auto"}, **sections)
    assert fast_attention(auto, mesh_of(platform)) is None or platform == "tpu"


def test_attention_that_cannot_be_is_refused_before_a_corpus_is_prepared(run, tmp_path):
    for further in (["--workdir", tmp_path / "w"], ["--dry-run"]):
        done = run("train.py", "--config", "configs/tiny.toml", "--model.attention", "fused", *further)
        assert done.returncode == 2, done.stderr
        reason = 'model.attention "fused" runs only on TPUs; use "auto" to select a supported implementation'
        assert done.stderr == f"error: {reason}\n"
    assert not (tmp_path / "w").exists()
