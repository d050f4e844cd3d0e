"""Fast attention against equation 1 as written: values and gradients, mainly of packed rows."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.host.errors import UserError
from lingua_flax.model.attention import scaled_dot_product_attention
from lingua_flax.model.masks import SegmentMask
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.training.kernels.fast_attention import FusedAttention, fast_attention
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


def plain(query, keys, values, num_heads, mask):
    """Returns the output of equation 1 in the layout of fast attention."""

    def split(heads):
        return jnp.swapaxes(heads.reshape(*heads.shape[:2], num_heads, -1), 1, 2)

    output, _ = scaled_dot_product_attention(split(query), split(keys), split(values), mask.dense())
    return jnp.swapaxes(output, 1, 2).reshape(query.shape)


def output_and_gradients(attention, mask, head_dim=64):
    """Returns the output and the gradients of query, keys and values; queries that see no key count as 0."""
    draw = np.random.default_rng(0)
    lengths = (mask.queries.shape[1], mask.keys.shape[1], mask.keys.shape[1], mask.queries.shape[1])
    shapes = [(len(mask.queries), length, WIDTH) for length in lengths]
    *inputs, gradient = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes)
    seen = jnp.any(mask.dense()[:, 0], axis=-1, keepdims=True)

    @jax.jit
    def both(*inputs):
        output, pull_back = jax.vjp(lambda *inputs: attention(*inputs, WIDTH // head_dim, mask), *inputs)
        return jnp.where(seen, output, 0), *pull_back(jnp.where(seen, gradient, 0))

    return jax.device_get(both(*inputs))


def fused(platform: str, mesh: MeshConfig = MeshConfig(data=1)) -> FusedAttention:
    return FusedAttention(make_mesh(mesh), platform, interpret=True)


def check(actual, expected):
    assert all(np.isfinite(array).all() for array in expected)
    for result, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(result, reference, atol=5e-6)


@pytest.mark.parametrize(
    ("platform", "head_dim", "kind"),
    [("tpu", 32, "causal"), ("tpu", 128, "cross"), ("gpu", 32, "cross"), ("gpu", 64, "causal")],
)
def test_values_and_gradients_match_equation_1(platform, head_dim, kind):
    mask = masks()[kind]
    check(output_and_gradients(fused(platform), mask, head_dim), output_and_gradients(plain, mask, head_dim))


def check_on_a_mesh() -> None:
    """Checks attention with rows and heads sharded over 2 x 2 x 2 devices, each with one group of heads."""
    mask = SegmentMask(*(jnp.concatenate([side, side[:2]]) for side in masks()["cross"][:2]))
    sharded = fused("tpu", MeshConfig(data=2, fsdp=2, tensor=2))
    check(output_and_gradients(sharded, mask), output_and_gradients(plain, mask))


def test_sharded_attention_matches_equation_1(run, tmp_path):
    program = tmp_path / "check.py"
    program.write_text("from tests.training.test_fast_attention import check_on_a_mesh; check_on_a_mesh()")
    result = run(program, env=simulated_devices(8))
    assert result.returncode == 0, result.stderr


def mesh_of(platform: str):
    """Returns a stand-in with the attributes of a mesh on which the selection depends; "t4" is an old GPU."""
    device = SimpleNamespace(platform="gpu" if platform == "t4" else platform)
    if platform == "t4":
        device.compute_capability = "7.5"
    return SimpleNamespace(shape={"tensor": 1}, devices=np.array([device]))


@pytest.mark.parametrize(
    ("platform", "options", "expected"),
    [
        ("cpu", {}, "None"),
        ("tpu", {}, "None"),  # until a run on a TPU has been recorded
        ("tpu", {"attention": "fused"}, "fused"),
        ("gpu", {}, "fused"),
        ("gpu", {"attention": "plain"}, "None"),
        ("gpu", {"attention_dropout_rate": 0.1}, "None"),
    ],
)
def test_implementation_is_selected_by_platform_and_options(platform, options, expected):
    config = Config.model_validate({"model": {"embed_dim": 512, "num_heads": 8} | options, "data": {"row_length": 128}})
    assert str(fast_attention(config, mesh_of(platform))) == expected


NOT_HERE = "runs only on TPUs and on NVIDIA GPUs of the Ampere generation or later"


@pytest.mark.parametrize(
    ("options", "platform", "dtype", "row_length", "reason"),
    [
        ({}, "cpu", "float32", 128, NOT_HERE),
        ({}, "t4", "bfloat16", 128, NOT_HERE),
        ({}, "tpu", "bfloat16", 1024, "supports rows of at most 512 positions"),
        ({"num_heads": 2}, "tpu", "bfloat16", 128, "needs a head width that divides 128"),
        ({}, "gpu", "float32", 128, "computes in bfloat16 on GPUs, not in float32"),
        ({}, "gpu", "bfloat16", 256, "needs on GPUs a head width in .* and a data.row_length in"),
        ({"embed_dim": 384}, "gpu", "bfloat16", 128, "needs on GPUs a head width in"),
    ],
)
def test_unsupported_implementation_is_refused_or_not_selected(options, platform, dtype, row_length, reason):
    sections = {"data": {"row_length": row_length}, "devices": {"precision": dtype}}
    model = {"embed_dim": 512, "num_heads": 8, "max_length": 1024} | options
    auto, fused = (
        Config.model_validate({"model": model | {"attention": kind}} | sections) for kind in ("auto", "fused")
    )
    with pytest.raises(UserError, match=reason):
        fast_attention(fused, mesh_of(platform))
    assert fast_attention(auto, mesh_of(platform)) is None


def test_unsupported_implementation_is_refused_before_corpus_is_prepared(run, tmp_path):
    for options in (["--workdir", tmp_path / "w"], ["--dry-run"]):
        result = run("train", "--config", "configs/tiny.toml", "--model.attention", "fused", *options, process=True)
        assert result.returncode == 2, result.stderr
        assert NOT_HERE in result.stderr
    assert not (tmp_path / "w").exists()
