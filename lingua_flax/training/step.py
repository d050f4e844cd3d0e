"""One optimizer step: a pure function of state and batch, compiled once.

Shapes: A parts of an accumulated batch, R packed rows, L row length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import ROW_AXES
from lingua_flax.devices.sharding import replicated, row_sharding
from lingua_flax.model.murmur3 import murmur3
from lingua_flax.model.transformer import Structure
from lingua_flax.options.schema import Config
from lingua_flax.training.objective import Sums, make_objective
from lingua_flax.training.optimizer import decay_factor, learning_rate, make_optimizer
from lingua_flax.training.state import TrainState, state_shardings, updated_ema


class StepMetrics(NamedTuple):
    """The metrics of one step; float32 scalars, unless otherwise stated.

    Attributes:
      loss: Mean over the target tokens of the batch, padding excluded.
      tokens: Number of these tokens.
      gradient_norm: Global norm of the gradient before clipping.
      skipped_in_a_row: Consecutive skipped steps, this one included; 0 if it was not skipped, int32.
      batch: The digest of the batch (see `batch_digest`), uint32 [2].
    """

    loss: jax.Array
    tokens: jax.Array
    gradient_norm: jax.Array
    learning_rate: jax.Array
    skipped_in_a_row: jax.Array
    batch: jax.Array


def batch_digest(batch: Batch) -> jax.Array:
    """Returns a digest of the whole batch: two sums modulo 2**32 of hashes of (side, row, column, id, segment).

    The sums, uint32 [2], do not depend on the order of summation. They are computed on the devices that hold the batch,
    so no process needs all rows and no host waits for the result.
    """
    total = jnp.zeros((2,), jnp.uint32)
    sides = ((batch.source, batch.source_segments), (batch.target_out, batch.target_segments))
    for side, (ids, segments) in enumerate(sides):
        columns = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, 1)
        rows = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, 0)
        for lane in range(2):
            words = jnp.full(ids.shape, 2 * side + lane, jnp.uint32)
            for coordinate in (rows, columns, ids, segments):
                words = murmur3(words + jnp.uint32(0x9E3779B9) + coordinate.astype(jnp.uint32))
            total = total.at[lane].add(jnp.sum(words, dtype=jnp.uint32))
    return total


def make_train_step(network: Structure, config: Config, num_steps: int, mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the jitted training step: (TrainState, Batch) -> (TrainState, StepMetrics).

    The step donates the buffers of the state that it is given, which cannot be used afterwards.

    If the loss or the gradient norm is not finite, the step is skipped and counted: parameters, moving average and
    optimizer state do not change. `optax.apply_if_finite` checks only gradients and does not handle the average.
    """
    optimizer = make_optimizer(config.optimizer)
    schedule = learning_rate(config.optimizer, num_steps)
    parts = config.training.accumulation_steps
    objective = make_objective(network, config, mesh)

    def gradients(params: Any, batch: Batch, key: jax.Array) -> tuple[Sums, Any]:
        (_, sums), grads = jax.value_and_grad(objective, has_aux=True)(params, batch, key)
        return sums, grads

    def accumulated(params: Any, batch: Batch, key: jax.Array) -> tuple[Sums, Any]:
        """Computes the sums of `gradients` one part of the batch at a time: [R, L] is split into [A, R / A, L]."""
        rows = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))  # shards the rows of each part, not the parts
        batches = jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf.reshape(parts, -1, *leaf.shape[1:]), rows), batch
        )
        zeros = (Sums(jnp.zeros(()), jnp.zeros(())), jax.tree.map(jnp.zeros_like, params))

        def add(total: Any, part: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, batch = part
            return jax.tree.map(jnp.add, total, gradients(params, batch, jax.random.fold_in(key, index))), None

        return jax.lax.scan(add, zeros, (jnp.arange(parts), batches))[0]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.key(config.training.seed), state.step)
        sums, grads = (gradients if parts == 1 else accumulated)(state.params, batch, key)
        count = sums.tokens
        loss, grads = sums.loss / count, jax.tree.map(lambda leaf: leaf / count, grads)
        norm = optax.tree.norm(grads)
        rate = schedule(state.step + 1)
        if state.decay is not None:
            rate *= decay_factor(state.decay, state.step + 1)
        updates, new_optimizer = optimizer.update(grads, state.optimizer, state.params)
        new_params = jax.tree.map(lambda leaf, update: leaf - rate * update, state.params, updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)

        def new_if_finite(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        new_ema_params = None
        if state.ema_params is not None:
            updates_made = (state.step + 1 - state.skipped).astype(jnp.float32)
            new_ema_params = updated_ema(state.ema_params, new_params, config.training.ema_decay, updates_made)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        new_state = TrainState(
            params=new_if_finite(new_params, state.params),
            optimizer=new_if_finite(new_optimizer, state.optimizer),
            step=state.step + 1,
            skipped=state.skipped + ~finite,
            skipped_in_a_row=in_a_row,
            ema_params=new_if_finite(new_ema_params, state.ema_params),
            decay=state.decay,
        )
        return new_state, StepMetrics(loss, count, norm, rate, in_a_row, batch_digest(batch))

    state, rows = state_shardings(network, config, mesh), row_sharding(mesh)
    return jax.jit(train_step, donate_argnums=0, in_shardings=(state, rows), out_shardings=(state, replicated(mesh)))
