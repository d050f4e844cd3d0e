"""One optimizer step: a pure function of state and batch, compiled once.

Shapes: A parts of an accumulated batch, R packed rows, L row length.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import ROW_AXES
from lingua_flax.devices.sharding import replicated, row_sharding
from lingua_flax.model.dropout import Dropout, murmur3
from lingua_flax.model.transformer import Structure
from lingua_flax.options.schema import Config
from lingua_flax.training.loss import cross_entropy
from lingua_flax.training.optimizer import decay_factor, learning_rate, make_optimizer
from lingua_flax.training.state import TrainState, param_shardings, state_shardings, updated_ema

# Positions per block of the loss on a device: on a CPU, so that the logits of a block fit into its cache (see
# training/loss.py; measured: docs/results/index.md); on a GPU, so that they take less memory (a step of the base model
# 9.5 instead of 12.3 GB, in the same 34.8 ms, on an H200), and on a TPU likewise.
LOSS_BLOCKS = {"cpu": 512, "gpu": 8192, "tpu": 1024}


class StepMetrics(NamedTuple):
    """The metrics of one step; float32 scalars, unless otherwise stated."""

    loss: jax.Array  # mean over the target tokens of the batch, padding excluded
    tokens: jax.Array
    gradient_norm: jax.Array  # global, before clipping
    learning_rate: jax.Array
    skipped_in_a_row: jax.Array  # consecutive skipped steps, this one included; int32
    batch: jax.Array  # its `batch_digest`


def batch_digest(batch: Batch) -> jax.Array:
    """Returns a digest of the whole batch, uint32 [2]: two sums of hashes of (side, row, column, id, segment).

    They are computed on the devices that hold the batch, so no process needs all rows, in whatever order.
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


def loss_block_size(mesh: Mesh) -> int | None:
    """Returns the positions per block of the loss, on all devices together, or None for a single block."""
    platform = mesh.devices.flat[0].platform
    if platform == "tpu":
        return LOSS_BLOCKS[platform] * math.prod(mesh.shape[axis] for axis in ROW_AXES)
    # The compiler for TPUs sums the gradients of all blocks across devices at once; others would sum those of each.
    return LOSS_BLOCKS.get(platform) if mesh.size == 1 else None


def make_objective(
    network: Structure, config: Config, mesh: Mesh
) -> Callable[[Any, Batch, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns the function that training minimizes: (params, batch, key) -> (loss summed over tokens, their number)."""
    block_size = loss_block_size(mesh)
    gathered_shardings = param_shardings(network, mesh, gathered=True)

    def objective(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Without this constraint, XLA shards the activations like the parameters, along D, and gathers the activations,
        # which can more than double the memory for temporaries.
        if mesh.shape["fsdp"] > 1:
            params = jax.lax.with_sharding_constraint(params, gathered_shardings)
        model, inputs = nnx.merge(network.graphdef, params), batch._asdict()
        targets = inputs.pop("target_out")
        x, _ = model.hidden_states(**inputs, dropout=Dropout(key))
        smoothing = config.training.label_smoothing
        return cross_entropy(x, model.output_table, targets, smoothing, block_size, model.logit_bias)

    return objective


def make_train_step(network: Structure, config: Config, num_steps: int, mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the jitted training step, which donates its state: (TrainState, Batch) -> (TrainState, StepMetrics).

    If the loss or the gradient norm is not finite, the step is skipped and counted: parameters, moving average and
    optimizer state do not change. `optax.apply_if_finite` checks only gradients and does not handle the average.
    """
    optimizer = make_optimizer(config.optimizer)
    schedule = learning_rate(config.optimizer, num_steps)
    parts = config.training.accumulation_steps
    loss_and_gradient = jax.value_and_grad(make_objective(network, config, mesh), has_aux=True)

    def accumulated(params: Any, batch: Batch, key: jax.Array) -> Any:
        """Sums `loss_and_gradient` over parts of the batch: [R, L] is split into [A, R / A, L]."""
        rows = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))  # shards the rows of each part, not the parts
        batches = jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf.reshape(parts, -1, *leaf.shape[1:]), rows), batch
        )
        zeros = ((jnp.zeros(()), jnp.zeros(())), jax.tree.map(jnp.zeros_like, params))

        def add(total: Any, part: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, batch = part
            part_key = jax.random.fold_in(key, index)
            return jax.tree.map(jnp.add, total, loss_and_gradient(params, batch, part_key)), None

        return jax.lax.scan(add, zeros, (jnp.arange(parts), batches))[0]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.key(config.training.seed), state.step)
        (loss_sum, count), sums = (loss_and_gradient if parts == 1 else accumulated)(state.params, batch, key)
        loss, grads = loss_sum / count, jax.tree.map(lambda leaf: leaf / count, sums)
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
