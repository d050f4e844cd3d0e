"""Fused attention against equation 1 as written: values and gradients, mainly of packed rows; and where it is used."""

from types import SimpleNamespace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.host.errors import UserError
from lingua_flax.model.attention import scaled_dot_product_attention
from lingua_flax.model.masks import SegmentMask
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.training.kernels.fused_attention import FusedAttention, selected_attention
from tests.helpers.commands import succeed
from tests.processes import simulated_devices

# Segments of the queries and keys of packed rows: several sentences and padding, padded targets with a source that
# fills its row and the reverse, a row without tokens on one side, and one without any.
QUERIES = ["11122233", "11000000", "11111111", "12233344", "11111111", "00000000"]
KEYS = ["1122233330", "1111111111", "1110000000", "1112344000", "0000000000", "0000000000"]
WIDTH = 256


def masks() -> dict[str, SegmentMask]:
    queries, keys = (jnp.array([[int(segment) for segment in row] for row in rows]) for rows in (QUERIES, KEYS))
    return {"cross": SegmentMask(queries, keys), "causal": SegmentMask(queries, queries, causal=True)}


def plain(query, keys, values, mask):
    return scaled_dot_product_attention(query, keys, values, mask.dense())[0]


def output_and_gradients(attention, mask, head_dim=64):
    """Returns the output and the gradients of query, keys and values; queries that see no key count as 0."""
    draw = np.random.default_rng(0)
    lengths = (mask.queries.shape[1], mask.keys.shape[1], mask.keys.shape[1], mask.queries.shape[1])
    shapes = [(len(mask.queries), WIDTH // head_dim, length, head_dim) for length in lengths]
    *inputs, gradient = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes)
    seen = jnp.any(mask.dense(), axis=-1, keepdims=True)

    @jax.jit
    def both(*inputs):
        output, pull_back = jax.vjp(lambda *inputs: attention(*inputs, mask), *inputs)
        return jnp.where(seen, output, 0), *pull_back(jnp.where(seen, gradient, 0))

    return jax.device_get(both(*inputs))


def fused(platform: Literal["tpu", "gpu"], mesh: MeshConfig = MeshConfig(data=1)) -> FusedAttention:
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
    queries, keys = (jnp.concatenate([side, side[:2]]) for side in masks()["cross"][:2])
    mask = SegmentMask(queries, keys)
    sharded = fused("tpu", MeshConfig(data=2, fsdp=2, tensor=2))
    check(output_and_gradients(sharded, mask), output_and_gradients(plain, mask))


def test_sharded_attention_matches_equation_1(run, tmp_path):
    program = tmp_path / "check.py"
    program.write_text("from tests.training.test_fused_attention import check_on_a_mesh; check_on_a_mesh()")
    succeed(run, program, env=simulated_devices(8))


def mesh_of(platform: str):
    """Returns a stand-in with the attributes of a mesh on which the selection depends; "t4" is an old GPU."""
    device = SimpleNamespace(platform="gpu" if platform == "t4" else platform)
    if platform == "t4":
        device.compute_capability = "7.5"
    return SimpleNamespace(shape={"tensor": 1}, devices=np.array([device]))


NOT_HERE = "runs only on TPUs and on NVIDIA GPUs of the Ampere generation or later"


def config_of(attention: str, model: dict, row_length: int = 128, precision: str = "auto") -> Config:
    model = {"embed_dim": 512, "num_heads": 8, "max_length": 1024, "attention": attention} | model
    sections = {"data": {"row_length": row_length}, "devices": {"precision": precision}}
    return Config.model_validate(sections | {"model": model})


def test_implementation_is_selected_by_platform_and_options():
    """It is refused for a reason, if it is asked for where it cannot be used."""
    assert selected_attention(config_of("plain", {}), mesh_of("gpu")) is None
    for platform, model, row_length, precision, of_auto, of_fused in (
        ("tpu", {}, 128, "auto", "None", "fused"),  # until a run on a TPU has been recorded
        ("gpu", {}, 128, "auto", "fused", "fused"),
        ("cpu", {}, 128, "float32", "None", NOT_HERE),
        ("t4", {}, 128, "bfloat16", "None", NOT_HERE),
        ("tpu", {}, 1024, "bfloat16", "None", "supports rows of at most 512 positions"),
        ("tpu", {"num_heads": 2}, 128, "bfloat16", "None", "needs a head width that divides 128"),
        ("gpu", {}, 128, "float32", "None", "computes in bfloat16 on GPUs, not in float32"),
        ("gpu", {}, 256, "bfloat16", "None", "needs on GPUs a head width in .* and a data.row_length in"),
        ("gpu", {"embed_dim": 384}, 128, "bfloat16", "None", "needs on GPUs a head width in"),
    ):
        mesh = mesh_of(platform)
        auto, fused = (config_of(attention, model, row_length, precision) for attention in ("auto", "fused"))
        assert str(selected_attention(auto, mesh)) == of_auto
        if of_fused == "fused":
            assert str(selected_attention(fused, mesh)) == "fused"
        else:
            with pytest.raises(UserError, match=of_fused):
                selected_attention(fused, mesh)


def test_position_encodings_that_may_change_scores_are_refused():
    config = config_of("fused", {})
    changed = config.model_copy(update={"model": config.model.model_copy(update={"positions": "other"})})
    with pytest.raises(UserError, match="does not support other positions"):
        selected_attention(changed, mesh_of("gpu"))
