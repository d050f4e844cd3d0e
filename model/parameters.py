"""Parameters: construction of linear layers and norms, the logical axis names of every parameter, and arrays by name.

The logical axes are "vocab" (vocabulary pieces), "embed" (model width D), "heads" (all heads concatenated, N * H) and
"mlp" (feed-forward width F). devices/sharding.py maps each of them to a mesh axis.
"""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from lingua_flax.model.linear import Linear, bfloat16_dot_general
from lingua_flax.options.precision import BFLOAT16_PRODUCTS, Precision
from lingua_flax.options.schema import ModelConfig


def axis_metadata(*axes: str | None) -> dict[str, Any]:
    """Returns the metadata of a parameter with these logical axes; an axis named None is never sharded."""
    return {"logical_axes": axes}


def partition_specs(state: Any) -> Any:
    """Returns the PartitionSpec of each parameter, with the logical names of its axes, as a plain tree."""
    return nnx.to_pure_dict(state, lambda param: PartitionSpec(*param.get_metadata().get("logical_axes", ())))


def linear(
    inputs: int, outputs: int, axes: tuple[str, str], *, bias: bool, precision: Precision, rngs: nnx.Rngs
) -> Linear:
    """Creates a linear layer with the uniform initialization of Glorot and Bengio (2010).

    `axes` are the logical names of the kernel's two axes; the bias has the second.
    """
    return Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=precision.activations,
        dot_general=bfloat16_dot_general if precision == BFLOAT16_PRODUCTS else jax.lax.dot_general,
        kernel_init=nnx.with_metadata(nnx.initializers.glorot_uniform(), **axis_metadata(*axes)),
        bias_init=nnx.with_metadata(nnx.initializers.zeros_init(), **axis_metadata(axes[1])),
        rngs=rngs,
    )


def layer_norm(config: ModelConfig, dtype: Any, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Creates a norm of the residual stream, which computes in `dtype` (Ba et al. 2016)."""
    return nnx.LayerNorm(config.embed_dim, epsilon=config.norm_epsilon, dtype=dtype, rngs=rngs)


def params_by_name(params: Any) -> dict[str, Any]:
    """Returns the arrays of a tree of parameters by name, such as encoder.0.self_attention.query.kernel."""
    return {_dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def replace_params(params: Any, named: Mapping[str, Any]) -> Any:
    """Returns the parameters with the named arrays substituted."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: named.get(_dotted(path), leaf), params)


def _dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
