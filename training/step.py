"""One optimizer step: a pure function of state and batch, compiled once.

A parts of an accumulated batch, R packed rows, L row length.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from data.batch import Batch
from devices.mesh import ROW_AXES
from devices.sharding import parameter_sharding, replicated, row_sharding
from model.dropout import Dropout
from model.murmur3 import murmur3
from model.transformer import Structure
from options.schema import Config
from training.loss import cross_entropy
from training.optimizer import learning_rate, make_optimizer

# Positions whose logits are computed at a time on a CPU, whose cache then holds them (see training/loss.py): 138 ms
# with 512, 143 with 1,024, 166 with 256, 148 with all 4,096. On several devices the gradients of each block would be
# summed over them, and what suits a GPU or TPU was not measured: there all are computed at once.
LOSS_BLOCK = 512


class TrainState(NamedTuple):
    """Everything that a step changes.

    step: counts the steps taken, those that were skipped included. average: the moving average of the parameters, None
    where there is none (training.ema_decay).
    """

    params: Any
    optimizer: Any
    step: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    average: Any = None

    @property
    def params_to_use(self) -> Any:
        """The parameters to translate with."""
        return self.params if self.average is None else self.average


def checkpoint_items(state: TrainState) -> tuple[Any, Any]:
    """A state as the two items of a checkpoint: the parameters to use, and what training needs beside them."""
    training = (state.optimizer, state.step, state.skipped, state.skipped_in_a_row)
    return state.params_to_use, training if state.average is None else (*training, state.params)


def state_of_items(params: Any, training: Any) -> TrainState:
    """The state that `checkpoint_items` was given."""
    optimizer, step, skipped, in_a_row, *own = training
    state = TrainState(params, optimizer, step, skipped, in_a_row)
    return state._replace(params=own[0], average=params) if own else state


class StepMetrics(NamedTuple):
    """What a step reports, float32 and int32 scalars, and the batch's digest, uint32 [2].

    The loss is the mean over the batch's real target tokens.
    """

    loss: jax.Array
    tokens: jax.Array
    gradient_norm: jax.Array
    learning_rate: jax.Array
    skipped_in_a_row: jax.Array
    batch: jax.Array


def initial_state(params: Any, config: Config) -> TrainState:
    """The state before the first step."""
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # three buffers: each is donated to a step
    average = jax.tree.map(jnp.copy, params) if config.training.ema_decay else None
    return TrainState(params, make_optimizer(config.optimizer).init(params), step, skipped, in_a_row, average)


def param_shardings(network: Structure, mesh: Mesh, *, gathered: bool = False) -> Any:
    """Where each parameter lies; gathered: where it does while it is used, whole along the mesh's axis "fsdp"."""
    return jax.tree.map(lambda axes: parameter_sharding(mesh, axes, gathered=gathered), network.axes)


def state_shardings(network: Structure, config: Config, mesh: Mesh) -> Any:
    """Where each array of a state lies: what the optimizer and the average keep of a parameter lies where that does."""
    everywhere = replicated(mesh)
    template = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    places = param_shardings(network, mesh)

    def like_its_parameter(kept: Any, parameter: Any, place: NamedSharding) -> NamedSharding:
        return place if kept.shape == parameter.shape else everywhere  # Adafactor keeps means of rows and columns

    optimizer = optax.tree_map_params(
        functools.partial(jax.eval_shape, make_optimizer(config.optimizer).init),  # shapes: nothing is computed
        like_its_parameter,
        template.optimizer,
        network.params,
        places,
        transform_non_params=lambda _: everywhere,
    )
    average = None if template.average is None else places
    return template._replace(
        params=places,
        optimizer=optimizer,
        average=average,
        step=everywhere,
        skipped=everywhere,
        skipped_in_a_row=everywhere,
    )


def update_average(average: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """decay * average + (1 - decay) * params, after so many updates, with those just made.

    At first the decay is (1 + n) / (10 + n), so that the initial parameters are soon forgotten: a usual choice, that of
    TensorFlow's ExponentialMovingAverage. optax.incremental_update adds two products instead, and is 1.6 times as far
    from the average in float64 after 7,000 updates.
    """
    decay_now = jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda old, new: old + (1.0 - decay_now) * (new - old), average, params)


def batch_digest(batch: Batch) -> jax.Array:
    """Two sums modulo 2**32 over hashes of (side, row, column, id, segment): uint32 [2], a function of the whole batch.

    Computed where the batch lies, in any order, so that no process needs all rows and no host waits for it.
    """
    total = jnp.zeros((2,), jnp.uint32)
    for side, (ids, segments) in enumerate(
        ((batch.source, batch.source_segments), (batch.target_out, batch.target_segments))
    ):
        columns = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, 1)
        rows = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, 0)
        for lane in range(2):
            words = jnp.full(ids.shape, 2 * side + lane, jnp.uint32)
            for coordinate in (rows, columns, ids, segments):
                words = murmur3(words + jnp.uint32(0x9E3779B9) + coordinate.astype(jnp.uint32))
            total = total.at[lane].add(jnp.sum(words, dtype=jnp.uint32))
    return total


def make_train_step(
    network: Structure, config: Config, num_steps: int, mesh: Mesh, unroll: int = 1
) -> jax.stages.Wrapped:
    """The jitted step, TrainState and Batch -> TrainState and StepMetrics; it consumes the state it is given.

    A loss or gradient that is not finite leaves parameters, average and optimizer as they are and is counted;
    optax.apply_if_finite looks at gradients alone, and knows of no average.

    Args:
      unroll: how many parts of an accumulated batch one turn of its loop takes; XLA counts the operations of one turn.
    """
    optimizer = make_optimizer(config.optimizer)
    rate_at = learning_rate(config.optimizer, num_steps)
    parts = config.training.accumulation_steps
    platform = mesh.devices.flat[0].platform
    block_size = LOSS_BLOCK if mesh.size == 1 and platform == "cpu" else None
    log_normalizer = None
    if platform == "tpu":
        from training.fused_loss import FusedLogNormalizer  # Pallas for TPUs takes 0.1 s to import

        log_normalizer = FusedLogNormalizer(mesh)
    whole = param_shardings(network, mesh, gathered=True)

    def loss_sum(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Without this XLA shares out activations as the parameters are, along D, and gathers those: with eight devices
        # as fsdp and a width of 512, 689 instead of 297 MB of temporaries.
        if mesh.shape["fsdp"] > 1:
            params = jax.lax.with_sharding_constraint(params, whole)
        model = nnx.merge(network.graphdef, params)
        x, _ = model.hidden_states(
            batch.source,
            batch.target_in,
            source_segments=batch.source_segments,
            source_positions=batch.source_positions,
            target_segments=batch.target_segments,
            target_positions=batch.target_positions,
            dropout=Dropout(key),
        )
        return cross_entropy(
            x, model.output_table, batch.target_out, config.training.label_smoothing, block_size, log_normalizer
        )

    def gradients(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        (loss, count), grads = jax.value_and_grad(loss_sum, has_aux=True)(params, batch, key)
        return loss, count, grads

    def accumulated(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        """The same sums, one part of the batch after the other: [R, L] is taken as [A, R / A, L]."""
        rows = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))  # each part is shared out, not the parts
        batches = jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf.reshape(parts, -1, *leaf.shape[1:]), rows), batch
        )
        zeros = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))

        def add(total: Any, part: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, batch = part
            return jax.tree.map(jnp.add, total, gradients(params, batch, jax.random.fold_in(key, index))), None

        return jax.lax.scan(add, zeros, (jnp.arange(parts), batches), unroll=unroll)[0]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.key(config.training.seed), state.step)
        loss, count, grads = (gradients if parts == 1 else accumulated)(state.params, batch, key)
        loss, grads = loss / count, jax.tree.map(lambda leaf: leaf / count, grads)
        norm = optax.tree.norm(grads)
        rate = rate_at(state.step + 1)
        updates, new_optimizer = optimizer.update(grads, state.optimizer, state.params)
        new_params = jax.tree.map(lambda leaf, update: leaf - rate * update, state.params, updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)

        def kept(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        new_average = None
        if state.average is not None:
            updates_made = (state.step + 1 - state.skipped).astype(jnp.float32)
            new_average = update_average(state.average, new_params, config.training.ema_decay, updates_made)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        new_state = TrainState(
            params=kept(new_params, state.params),
            optimizer=kept(new_optimizer, state.optimizer),
            step=state.step + 1,
            skipped=state.skipped + ~finite,
            skipped_in_a_row=in_a_row,
            average=kept(new_average, state.average),
        )
        return new_state, StepMetrics(loss, count, norm, rate, in_a_row, batch_digest(batch))

    state, rows = state_shardings(network, config, mesh), row_sharding(mesh)
    return jax.jit(train_step, donate_argnums=0, in_shardings=(state, rows), out_shardings=(state, replicated(mesh)))
