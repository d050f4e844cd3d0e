"""A linear layer that trains faster on a CPU than `nnx.Linear` and computes the same function, up to the last digits.

On request, products are computed in bfloat16 in the form that XLA multiplies fast on a CPU: float32 results, and
operands that it reads row by row.

Shapes: M positions, I width of the input, O width of the output.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Float32

Product = Callable[[jax.Array, jax.Array], jax.Array]


class Linear(nnx.Linear):
    """Flax's linear layer, applied to its input [..., I] as a matrix, with its bias in float32.

    The gradient of the kernel is then a single matrix product that sums over one axis. If it has to sum over two (rows
    and positions), XLA first transposes the activations, which is slower on a CPU (docs/results/index.md).
    """

    def __call__(self, inputs: Float[Array, "*B I"], out_sharding: Any = None) -> Float[Array, "*B O"]:
        matrix = inputs.reshape(-1, inputs.shape[-1]).astype(self.dtype)
        y = self.dot_general(matrix, self.kernel[...].astype(self.dtype), (((1,), (0,)), ((), ())))
        if self.bias is not None:
            y = (y + self.bias[...]).astype(y.dtype)  # in float32, in which its gradient then is summed over positions
        return y.reshape(*inputs.shape[:-1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def bfloat16_dot_general(
    x: Float32[Array, "M I"], kernel: Float32[Array, "I O"], dimensions: Any
) -> Float32[Array, "M O"]:
    """Replaces `jax.lax.dot_general` in a linear layer: rounds both operands to bfloat16 and sums in float32.

    The products of the backward pass are computed in the same way.
    """
    return _bfloat16_forward(x, kernel, dimensions)[0]


def _bfloat16_forward(x: jax.Array, kernel: jax.Array, _: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    x, kernel = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32), (x, kernel)


def _bfloat16_backward(
    _: Any, operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = operands
    gradient = gradient.astype(jnp.bfloat16)
    # With kernel.T, XLA would store the transpose, and the product would take four times as long.
    x_gradient = jax.lax.dot_general(gradient, kernel, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return x_gradient, transposed_product(x, gradient)


bfloat16_dot_general.defvjp(_bfloat16_forward, _bfloat16_backward)


def product(x: Float[Array, "*B I"], matrix: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """Returns x matrix, in the type of both."""

    def product_on_cpu(x: jax.Array, matrix: jax.Array) -> jax.Array:
        # XLA has no fast program for a bfloat16 result.
        return jnp.matmul(x, matrix, preferred_element_type=jnp.float32).astype(x.dtype)

    return _on_cpu_in_bfloat16(product_on_cpu, jnp.matmul, x, matrix)


def transposed_product(x: Float[Array, "*B I"], y: Float[Array, "*B O"]) -> Float32[Array, "I O"]:
    """Returns x^T y, for x and y as matrices with a row for each position, summed in float32.

    For bfloat16 on a CPU, the transpose of x is stored first, since XLA multiplies fast only what it reads row by row:
    0.31 instead of 1.45 ms for 2,048 positions and widths of 192, on one core of an Intel Xeon with AMX.
    """
    positions = tuple(range(x.ndim - 1))

    def sum_over_positions(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x, y, ((positions, positions), ((), ())), preferred_element_type=jnp.float32)

    def sum_on_cpu(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = (array.reshape(-1, array.shape[-1]) for array in (x, y))
        transpose = with_layout_constraint(x.T, Layout(major_to_minor=(0, 1)))
        return jnp.matmul(transpose, y, preferred_element_type=jnp.float32)

    return _on_cpu_in_bfloat16(sum_on_cpu, sum_over_positions, x, y)


def _on_cpu_in_bfloat16(on_cpu: Product, otherwise: Product, x: jax.Array, y: jax.Array) -> jax.Array:
    """Applies `on_cpu` to bfloat16 operands in programs for CPUs, `otherwise` to all others."""
    if x.dtype != jnp.bfloat16:
        return otherwise(x, y)
    return jax.lax.platform_dependent(x, y, cpu=on_cpu, default=otherwise)
