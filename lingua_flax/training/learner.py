"""What a run has on its devices: the training state, the step that advances it, and the network that validates."""

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
from lingua_flax.options import export_formats
from lingua_flax.training.kernels.fused_attention import selected_attention
from lingua_flax.training.kernels.trial import proven
from lingua_flax.training.optimizer import Decay
from lingua_flax.training.preparation import Preparation
from lingua_flax.training.state import (
    TrainState,
    checkpoint_items,
    initial_state,
    param_shardings,
    state_from_checkpoint_items,
    state_shardings,
)
from lingua_flax.training.step import StepMetrics, make_train_step
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


class Learner:
    """The network in training on the devices of a mesh; programs are compiled when they are first used.

    `initialize` or `restore` sets its `state`. `attention` is the implementation that steps use, "plain" or "fused";
    `local_rows` are the rows of a batch that this process provides.
    """

    state: TrainState

    def __init__(self, prepared: Preparation, mesh: Mesh):
        """Tries fused attention if it is to be used; raises UserError if the mesh does not divide the vocabularies."""
        config, tokenizer = prepared.config, prepared.tokenizer
        self.mesh, self._config, self._inherited = mesh, config, prepared.inherited
        self._vocab_sizes = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
        check_divides(mesh, config, self._vocab_sizes)
        precision, kind = compute_precision(config.devices.precision, mesh), mesh.devices.flat[0].device_kind
        candidate = selected_attention(config, mesh)
        fused = candidate and proven(candidate, config)
        self.attention = str(fused or "plain")
        log.info("computing on %d x %s, %s, attention: %s", mesh.size, kind, precision.products, self.attention)
        for line in export_formats.summary(config.model):
            log.info("%s", line)
        self.local_rows = local_rows(mesh, config.rows_per_batch)
        self.network = structure(config.model, *self._vocab_sizes, precision, fused)
        self._train_step = make_train_step(self.network, config, prepared.num_steps, mesh)
        self._shardings = state_shardings(self.network, config, mesh)
        self._gathered = param_shardings(self.network, mesh, gathered=True)
        self._gather = jax.jit(lambda params: params, out_shardings=self._gathered)
        plain = structure(config.model, *self._vocab_sizes, precision) if fused else self.network
        longest = pads_to_longest(config.devices.padding, mesh)
        self._translator = Translator(plain.graphdef, None, tokenizer, config.model, mesh=mesh, pads_to_longest=longest)

    def initialize(self) -> None:
        """Sets the state before the first step, with parameters copied from another run if the config says so."""
        self.state = jax.jit(self._initial_state, out_shardings=self._shardings)(self._inherited)
        self._inherited = {}

    def restore(self, params: Any, training: Any) -> None:
        """Sets the state to the items of a checkpoint."""
        state = state_from_checkpoint_items(params, training)
        self.state = put_on_devices(state, self._shardings._replace(decay=None))

    def item_templates(self) -> tuple[Any, Any]:
        """Returns the shapes of the items of a checkpoint."""
        return checkpoint_items(jax.eval_shape(self._initial_state, {}))

    def set_decay(self, decay: Decay | None) -> None:
        """Sets the decay of the "wsd" schedule; another schedule has none."""
        if decay is not None:
            on_devices = put_on_devices(np.array(decay, np.int32), replicated(self.mesh))
            self.state = self.state._replace(decay=on_devices)

    def placed(self, rows: Batch) -> Batch:
        """Returns the rows of this process as a part of the batch on the devices."""
        shape = (self._config.rows_per_batch, self._config.data.row_length)
        return jax.make_array_from_process_local_data(row_sharding(self.mesh), rows, shape)

    def step(self, batch: Batch) -> StepMetrics:
        """Dispatches a training step on a batch that has been placed; returns its metrics, on the devices."""
        self.state, metrics = self._train_step(self.state, batch)
        return metrics

    def translator(self) -> Translator:
        """Returns a translator with the current parameters, or their average if there is one."""
        params = self.state.eval_params
        # Gathered along "fsdp" once instead of at every decoding step.
        gathered = params if self.mesh.shape["fsdp"] == 1 else self._gather(params)
        return dataclasses.replace(self._translator, params=gathered)

    def translator_template(self) -> Translator:
        """Returns a translator whose parameters are shapes, with which its programs can be compiled."""
        shapes = jax.tree.map(lambda shape, of: shape.update(sharding=of), self.network.params, self._gathered)
        return dataclasses.replace(self._translator, params=shapes)

    def _initial_state(self, inherited: dict[str, Any]) -> TrainState:
        key = jax.random.key(self._config.training.seed)
        params = replace_params(initial_params(self._config.model, *self._vocab_sizes, key), inherited)
        return initial_state(params, self._config)
