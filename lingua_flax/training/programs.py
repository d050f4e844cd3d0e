"""What a run computes on its devices: the training step, the state and its layout, and the network that validates."""

import dataclasses
import logging
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import check_divides
from lingua_flax.devices.platform import compute_precision, pads_to_longest
from lingua_flax.devices.sharding import local_rows, put_on_devices, replicated, row_sharding
from lingua_flax.model.parameters import replace_params
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options import exportable
from lingua_flax.training.kernels.fast_attention import fast_attention
from lingua_flax.training.kernels.trial import proven
from lingua_flax.training.optimizer import Decay
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.state import TrainState, initial_state, param_shardings, state_shardings
from lingua_flax.training.step import make_train_step
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


class Programs:
    """The programs of a run, compiled when they are first used, and the `local_rows` of this process in a batch.

    `attention` is the implementation that the training step uses, "plain" or "fused".
    """

    def __init__(self, prepared: Preparation, mesh: Mesh):
        """Tries fast attention if it is to be used; raises UserError if the mesh does not divide the vocabularies."""
        config, tokenizer = prepared.config, prepared.tokenizer
        self._config, self._inherited, self._mesh = config, prepared.inherited, mesh
        self._vocab_sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        check_divides(mesh, config, self._vocab_sizes)
        precision, kind = compute_precision(config.devices.precision, mesh), mesh.devices.flat[0].device_kind
        candidate = fast_attention(config, mesh)
        fast = candidate and proven(candidate, config)
        self.attention = str(fast or "plain")
        log.info("computing on %d x %s, %s, attention: %s", mesh.size, kind, precision.products, self.attention)
        for line in exportable.summary(config.model):
            log.info("%s", line)
        self.local_rows = local_rows(mesh, config.rows_per_batch)
        self.network = structure(config.model, *self._vocab_sizes, precision, fast)
        self.train_step = make_train_step(self.network, config, prepared.num_steps, mesh)
        self._shardings = state_shardings(self.network, config, mesh)
        self._gathered = param_shardings(self.network, mesh, gathered=True)
        self._gather = jax.jit(lambda params: params, out_shardings=self._gathered)
        plain = structure(config.model, *self._vocab_sizes, precision) if fast else self.network
        longest = pads_to_longest(config.devices.padding, mesh)
        self._translator = Translator(plain.graphdef, None, tokenizer, config.model, mesh=mesh, pads_to_longest=longest)

    def initial_state(self) -> TrainState:
        """Returns the state before the first step, with parameters copied from another run if the config says so."""
        return jax.jit(self._initial_state, out_shardings=self._shardings)(self._inherited)

    def state_template(self) -> TrainState:
        """Returns the shapes of a state."""
        return jax.eval_shape(self._initial_state, self._inherited)

    def placed(self, state: TrainState) -> TrainState:
        """Returns a state from a checkpoint on the devices."""
        return put_on_devices(state, self._shardings._replace(decay=None))

    def placed_rows(self, rows: Batch) -> Batch:
        """Returns the rows of this process as a part of the batch on the devices."""
        shape = (self._config.rows_per_batch, self._config.data.row_length)
        return jax.make_array_from_process_local_data(row_sharding(self._mesh), rows, shape)

    def with_decay(self, state: TrainState, decay: Decay | None) -> TrainState:
        """Returns the state with the decay of the "wsd" schedule; unchanged for another schedule."""
        if decay is None:
            return state
        return state._replace(decay=put_on_devices(np.array(decay, np.int32), replicated(self._mesh)))

    def translator(self, params: Any) -> Translator:
        """Returns a translator with these parameters, gathered along "fsdp" once instead of at every decoding step."""
        gathered = params if self._mesh.shape["fsdp"] == 1 else self._gather(params)
        return dataclasses.replace(self._translator, params=gathered)

    def translator_template(self) -> Translator:
        """Returns a translator whose parameters are shapes, with which its programs can be compiled."""
        shapes = jax.tree.map(lambda shape, of: shape.update(sharding=of), self.network.params, self._gathered)
        return dataclasses.replace(self._translator, params=shapes)

    def _initial_state(self, inherited: dict[str, Any]) -> TrainState:
        key = jax.random.key(self._config.training.seed)
        params = replace_params(initial_params(self._config.model, *self._vocab_sizes, key), inherited)
        return initial_state(params, self._config)
