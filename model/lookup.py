"""Rows of a table by number, with a gradient that a GPU adds in the same order every time.

Shapes: M numbers, V rows of the table, D width.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.custom_vjp
def lookup(table: Float[Array, "V D"], numbers: Int[Array, "*M"]) -> Float[Array, "*M D"]:
    """Returns the rows of the table with these numbers, which must be at least 0 and less than V."""
    return table[numbers]


def _forward(table: jax.Array, numbers: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return table[numbers], (table, numbers)


def _backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    table, numbers = residuals
    numbers, gradient = numbers.reshape(-1), gradient.reshape(-1, gradient.shape[-1]).astype(table.dtype)

    def scattered(numbers: jax.Array, gradient: jax.Array) -> jax.Array:
        return jnp.zeros_like(table).at[numbers].add(gradient)

    def sorted_sums(numbers: jax.Array, gradient: jax.Array) -> jax.Array:
        return sums_by_number(numbers, gradient, len(table))

    return jax.lax.platform_dependent(numbers, gradient, cuda=sorted_sums, default=scattered), None


lookup.defvjp(_forward, _backward)


def sums_by_number(numbers: Int[Array, "M"], terms: Float[Array, "M D"], rows: int) -> Float[Array, "{rows} D"]:
    """Returns the sum of the terms with each number, in an order that depends on the numbers alone.

    On a GPU, a scatter adds in whatever order its threads arrive. What XLA replaces it with, if told to, is slow: a
    step of the base model took 58.4 ms on an H200, and takes 41.1 ms with this function. Here the terms are sorted by
    number, and sums over runs of equal numbers are computed by a segmented scan (Blelloch 1990).
    """
    order = jnp.argsort(numbers)
    numbers = numbers[order]
    starts = jnp.concatenate([jnp.ones(1, bool), numbers[1:] != numbers[:-1]])

    def add(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (total, is_start), (term, starts_anew) = left, right
        return jnp.where(starts_anew, term, total + term), is_start | starts_anew

    totals, _ = jax.lax.associative_scan(add, (terms[order], starts[:, None]))
    ends = jnp.searchsorted(numbers, jnp.arange(rows), side="right", method="sort") - 1
    return jnp.where((numbers[ends] == jnp.arange(rows))[:, None], totals[ends], 0.0)
