"""One optimizer step: a pure function of state and batch, compiled once.

Shapes: A parts of an accumulated batch, R packed rows, L row length.
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

# Positions per block of the loss on a single CPU device, so that the logits of a block fit into its cache (see
# training/loss.py; measured: benchmarks/RESULTS.md). Elsewhere the loss is computed in one block: with several devices,
# the gradients of every block would have to be summed across them, and no block size was tuned for GPUs or TPUs.
LOSS_BLOCK = 512


class TrainState(NamedTuple):
    """Everything that a training step changes.

    Attributes:
      params: The parameters.
      optimizer: The state of the optimizer.
      step: Number of steps taken, skipped ones included.
      skipped: Number of steps skipped because of a non-finite loss or gradient.
      skipped_in_a_row: Number of consecutive skipped steps up to now.
      average: Moving average of the parameters, or None without training.ema_decay.
    """

    params: Any
    optimizer: Any
    step: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    average: Any = None

    @property
    def params_to_use(self) -> Any:
        """The parameters to translate with: the moving average if there is one."""
        return self.params if self.average is None else self.average


def checkpoint_items(state: TrainState) -> tuple[Any, Any]:
    """Returns the two items of a checkpoint: the parameters to translate with, and the rest of the training state."""
    training = (state.optimizer, state.step, state.skipped, state.skipped_in_a_row)
    return state.params_to_use, training if state.average is None else (*training, state.params)


def state_from_checkpoint_items(params: Any, training: Any) -> TrainState:
    """Returns the state whose `checkpoint_items` are given; the inverse of that function."""
    optimizer, step, skipped, in_a_row, *current_params = training
    state = TrainState(params, optimizer, step, skipped, in_a_row)
    return state._replace(params=current_params[0], average=params) if current_params else state


class StepMetrics(NamedTuple):
    """The metrics of one step; scalars, unless otherwise stated.

    Attributes:
      loss: Mean over the target tokens of the batch, padding excluded, float32.
      tokens: Number of these tokens, float32.
      gradient_norm: Global norm of the gradient before clipping, float32.
      learning_rate: Learning rate of this step, float32.
      skipped_in_a_row: Consecutive skipped steps, this one included; 0 if it was not skipped, int32.
      batch: The digest of the batch (see `batch_digest`), uint32 [2].
    """

    loss: jax.Array
    tokens: jax.Array
    gradient_norm: jax.Array
    learning_rate: jax.Array
    skipped_in_a_row: jax.Array
    batch: jax.Array


def initial_state(params: Any, config: Config) -> TrainState:
    """Returns the state before the first step."""
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # separate buffers, since all are donated
    average = jax.tree.map(jnp.copy, params) if config.training.ema_decay else None
    return TrainState(params, make_optimizer(config.optimizer).init(params), step, skipped, in_a_row, average)


def param_shardings(network: Structure, mesh: Mesh, *, gathered: bool = False) -> Any:
    """Returns the sharding of each parameter; if `gathered`, the one during use, not sharded along mesh axis "fsdp"."""
    return jax.tree.map(lambda axes: parameter_sharding(mesh, axes, gathered=gathered), network.axes)


def state_shardings(network: Structure, config: Config, mesh: Mesh) -> Any:
    """Returns the sharding of each array of a state.

    Optimizer moments and the moving average are sharded like their parameters; everything else is replicated.
    """
    on_every_device = replicated(mesh)
    template = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    shardings = param_shardings(network, mesh)

    def like_its_parameter(moment: Any, parameter: Any, sharding: NamedSharding) -> NamedSharding:
        return sharding if moment.shape == parameter.shape else on_every_device  # Adafactor keeps row and column means

    optimizer = optax.tree_map_params(
        functools.partial(jax.eval_shape, make_optimizer(config.optimizer).init),  # only shapes; computes nothing
        like_its_parameter,
        template.optimizer,
        network.params,
        shardings,
        transform_non_params=lambda _: on_every_device,
    )
    average = None if template.average is None else shardings
    return template._replace(
        params=shardings,
        optimizer=optimizer,
        average=average,
        step=on_every_device,
        skipped=on_every_device,
        skipped_in_a_row=on_every_device,
    )


def update_average(average: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """Returns decay * average + (1 - decay) * params.

    The decay is at most (1 + n) / (10 + n) after n updates, so that the initial parameters are soon forgotten; this is
    the rule of TensorFlow's ExponentialMovingAverage. `optax.incremental_update` adds two products instead, and after
    7,000 updates deviates 1.6 times as much from the average in float64.

    Args:
      average, params: Trees of the same structure.
      decay: Upper bound of the decay.
      updates: Number n of parameter updates so far, the one that yielded `params` included; float32 scalar.
    """
    decay_now = jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda old, new: old + (1.0 - decay_now) * (new - old), average, params)


def batch_digest(batch: Batch) -> jax.Array:
    """Returns a digest of the whole batch: two sums modulo 2**32 of hashes of (side, row, column, id, segment).

    The sums, uint32 [2], do not depend on the order of summation. They are computed on the devices that hold the batch,
    so no process needs all rows and no host waits for the result.
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
    """Returns the jitted training step: (TrainState, Batch) -> (TrainState, StepMetrics).

    The step donates the buffers of the state that it is given, which cannot be used afterwards.

    If the loss or the gradient norm is not finite, the step is skipped and counted: parameters, moving average and
    optimizer state do not change. `optax.apply_if_finite` checks only gradients and does not handle the average.

    Args:
      network: Structure of the network.
      config: Configuration of the run.
      num_steps: Length of the run in steps, for the learning-rate schedule.
      mesh: Devices of the run.
      unroll: Parts of an accumulated batch per iteration of the loop over parts. XLA's cost analysis counts the
        operations of a single iteration.
    """
    optimizer = make_optimizer(config.optimizer)
    schedule = learning_rate(config.optimizer, num_steps)
    parts = config.training.accumulation_steps
    platform = mesh.devices.flat[0].platform
    block_size = LOSS_BLOCK if mesh.size == 1 and platform == "cpu" else None
    log_normalizer = None
    if platform == "tpu":
        from training.fused_loss import FusedLogNormalizer  # importing Pallas for TPUs takes time

        log_normalizer = FusedLogNormalizer(mesh)
    gathered_shardings = param_shardings(network, mesh, gathered=True)

    def loss_sum(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Without this constraint, XLA shards the activations like the parameters, along D, and gathers the activations,
        # which can more than double the memory for temporaries.
        if mesh.shape["fsdp"] > 1:
            params = jax.lax.with_sharding_constraint(params, gathered_shardings)
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
        """Computes the sums of `gradients` one part of the batch at a time: [R, L] is split into [A, R / A, L]."""
        rows = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))  # shards the rows of each part, not the parts
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
        rate = schedule(state.step + 1)
        updates, new_optimizer = optimizer.update(grads, state.optimizer, state.params)
        new_params = jax.tree.map(lambda leaf, update: leaf - rate * update, state.params, updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)

        def new_if_finite(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        new_average = None
        if state.average is not None:
            updates_made = (state.step + 1 - state.skipped).astype(jnp.float32)
            new_average = update_average(state.average, new_params, config.training.ema_decay, updates_made)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        new_state = TrainState(
            params=new_if_finite(new_params, state.params),
            optimizer=new_if_finite(new_optimizer, state.optimizer),
            step=state.step + 1,
            skipped=state.skipped + ~finite,
            skipped_in_a_row=in_a_row,
            average=new_if_finite(new_average, state.average),
        )
        return new_state, StepMetrics(loss, count, norm, rate, in_a_row, batch_digest(batch))

    state, rows = state_shardings(network, config, mesh), row_sharding(mesh)
    return jax.jit(train_step, donate_argnums=0, in_shardings=(state, rows), out_shardings=(state, replicated(mesh)))
