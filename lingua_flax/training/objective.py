"""What a training step minimizes, as a function of parameters, batch and random key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from lingua_flax.data.batch import Batch
from lingua_flax.model.dropout import Dropout
from lingua_flax.model.transformer import Structure
from lingua_flax.options.schema import Config
from lingua_flax.training.loss import cross_entropy
from lingua_flax.training.state import param_shardings

# Positions per block of the loss on a single device: on a CPU, so that the logits of a block fit into its cache (see
# training/loss.py; measured: docs/results/diary.md); on a GPU, so that they take less memory (a step of the base model
# 9.5 instead of 12.3 GB, in the same 34.8 ms, on an H200). With several devices the loss is computed in one block: the
# gradients of every block would have to be summed across them.
LOSS_BLOCKS = {"cpu": 512, "gpu": 8192}


class Sums(NamedTuple):
    """The label-smoothed cross-entropy and the number of the target tokens of a batch, without padding; float32."""

    loss: jax.Array
    tokens: jax.Array


Objective = Callable[[Any, Batch, jax.Array], tuple[jax.Array, Sums]]


def make_objective(network: Structure, config: Config, mesh: Mesh) -> Objective:
    """Returns the function that training minimizes: (params, batch, key) -> (objective, Sums), summed over tokens."""
    platform = mesh.devices.flat[0].platform
    block_size = LOSS_BLOCKS.get(platform) if mesh.size == 1 else None
    log_normalizer = None
    if platform == "tpu":
        from lingua_flax.training.kernels.fused_loss import FusedLogNormalizer  # importing Pallas for TPUs takes time

        log_normalizer = FusedLogNormalizer(mesh)
    gathered_shardings = param_shardings(network, mesh, gathered=True)

    def objective(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Sums]:
        # Without this constraint, XLA shards the activations like the parameters, along D, and gathers the activations,
        # which can more than double the memory for temporaries.
        if mesh.shape["fsdp"] > 1:
            params = jax.lax.with_sharding_constraint(params, gathered_shardings)
        model, inputs = nnx.merge(network.graphdef, params), batch._asdict()
        table, targets = model.output_table, inputs.pop("target_out")
        x, _ = model.hidden_states(**inputs, dropout=Dropout(key))
        smoothing = config.training.label_smoothing
        loss, tokens = cross_entropy(x, table, targets, smoothing, block_size, log_normalizer)
        return loss, Sums(loss, tokens)

    return objective
