"""The state of a training run: parameters, optimizer and counters, how they are sharded, and their checkpoint items."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lingua_flax.devices.sharding import MESH_AXIS_OF, replicated
from lingua_flax.model.transformer import Structure
from lingua_flax.options.schema import Config
from lingua_flax.training.optimizer import make_optimizer


class TrainState(NamedTuple):
    """Everything that a training step changes."""

    params: Any
    optimizer: Any
    step: jax.Array  # number of steps taken, including those skipped because of a non-finite loss or gradient
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    ema_params: Any = None  # moving average of the parameters, with training.ema_decay
    # The decay of the "wsd" schedule, an optimizer.Decay as int32 [2]. The run sets it; checkpoints do not contain it.
    decay: jax.Array | None = None

    @property
    def eval_params(self) -> Any:
        """The parameters to translate with: the moving average if there is one."""
        return self.params if self.ema_params is None else self.ema_params


def checkpoint_items(state: TrainState) -> tuple[Any, Any]:
    """Returns the two items of a checkpoint: the parameters to translate with, and the rest of the training state."""
    training = (state.optimizer, state.step, state.skipped, state.skipped_in_a_row)
    return state.eval_params, training if state.ema_params is None else (*training, state.params)


def state_from_checkpoint_items(params: Any, training: Any) -> TrainState:
    """Returns the state whose `checkpoint_items` are given; the inverse of that function."""
    optimizer, step, skipped, in_a_row, *current_params = training
    state = TrainState(params, optimizer, step, skipped, in_a_row)
    return state._replace(params=current_params[0], ema_params=params) if current_params else state


def initial_state(params: Any, config: Config) -> TrainState:
    """Returns the state before the first step."""
    step, skipped, in_a_row = (jnp.zeros((), jnp.int32) for _ in range(3))  # separate buffers, since all are donated
    ema_params = jax.tree.map(jnp.copy, params) if config.training.ema_decay else None
    decay = jnp.zeros(2, jnp.int32) if config.optimizer.schedule == "wsd" else None
    return TrainState(params, make_optimizer(config.optimizer).init(params), step, skipped, in_a_row, ema_params, decay)


def param_shardings(network: Structure, mesh: Mesh, *, gathered: bool = False) -> Any:
    """Returns the sharding of each parameter; if `gathered`, the one during use, not sharded along mesh axis "fsdp"."""
    mesh_axis_of = MESH_AXIS_OF | {"embed": None} if gathered else MESH_AXIS_OF
    return jax.tree.map(
        lambda axes: NamedSharding(mesh, PartitionSpec(*(mesh_axis_of[name] if name else None for name in axes))),
        network.axes,
    )


def state_shardings(network: Structure, config: Config, mesh: Mesh) -> Any:
    """Returns a state's shardings: optimizer moments and averages like their parameters, everything else replicated."""
    on_every_device = replicated(mesh)
    template = jax.eval_shape(lambda params: initial_state(params, config), network.params)
    shardings = param_shardings(network, mesh)

    leaves = zip(jax.tree_util.tree_leaves_with_path(network.params), jax.tree.leaves(shardings), strict=True)
    parameters = {path: (leaf.shape, sharding) for (path, leaf), sharding in leaves}

    def like_its_parameter(path: tuple[Any, ...], moment: Any) -> NamedSharding:
        """A moment's path ends with that of its parameter; Adafactor keeps row and column means, of other shapes."""
        ends = (parameters.get(path[start:]) for start in range(len(path)))
        shape, sharding = next(filter(None, ends), (None, on_every_device))
        return sharding if moment.shape == shape else on_every_device

    # optax.tree.map_params fails for optimizers that treat some parameters in another way, such as Muon.
    optimizer = jax.tree_util.tree_map_with_path(like_its_parameter, template.optimizer)
    ema_params = None if template.ema_params is None else shardings
    counters = jax.tree.map(lambda _: on_every_device, template)
    return counters._replace(params=shardings, optimizer=optimizer, ema_params=ema_params)


def updated_ema(ema_params: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """Returns decay * ema_params + (1 - decay) * params.

    As in TensorFlow's ExponentialMovingAverage, the decay is at most (1 + n) / (10 + n) after n updates, float32, with
    the one that yielded `params`. `optax.incremental_update` adds two products instead, and deviates 1.6 times as much
    from the average in float64 after 7,000 updates.
    """
    decay_now = jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda old, new: old + (1.0 - decay_now) * (new - old), ema_params, params)
