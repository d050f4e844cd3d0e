"""How parameters are made: linear layers, and the logical names of every parameter's axes.

vocab: pieces of a vocabulary; embed: the model's width D; heads: all heads side by side, N * H; mlp: the feed-forward
width F. devices/mesh.py says which axis of the mesh shares each of them out.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from model.cpu import Linear


def along(*axes: str | None) -> dict[str, Any]:
    """Metadata of a parameter with these axes; None is never shared out.

    Flax would place the parameter at once, and wants a mesh in context for that; here whoever makes the parameters
    does, by the out_shardings of jax.jit, so that a network can be built without a mesh as well.
    """
    return {"out_sharding": axes, "eager_sharding": False}


def linear(inputs: int, outputs: int, axes: tuple[str, str], *, bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs) -> Linear:
    """A linear layer with Glorot and Bengio's (2010) uniform initial weights."""
    return Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=dtype,
        kernel_init=nnx.initializers.glorot_uniform(),
        kernel_metadata=along(*axes),
        bias_metadata=along(axes[1]),
        rngs=rngs,
    )
