"""The training step against optax and against numbers computed by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from lingua_flax.data.batch import unpacked_batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.model.dropout import Dropout
from lingua_flax.model.transformer import Structure, structure
from lingua_flax.options.schema import Config, MeshConfig, ModelConfig
from lingua_flax.training.state import TrainState, initial_state, state_shardings
from lingua_flax.training.step import batch_digest, make_train_step
from tests.helpers.parameters import random_params

VOCABULARY = 19


def tiny_config(**sections) -> Config:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "embed_dim": 12, "num_heads": 2, "mlp_dim": 17}
    base = {
        "data": {"row_length": 8},
        "model": sizes | {"max_length": 8, "dropout_rate": 0.0},
        "optimizer": {"warmup_steps": 4, "peak_lr": 0.01},
        "training": {"tokens_per_batch": 48, "num_steps": 12},
    }
    for name, section in sections.items():
        base[name] = base[name] | section
    return Config.model_validate(base)


@pytest.fixture(scope="module")
def batch():
    """Six rows with pairs of different lengths, so that parts of a batch hold different numbers of tokens."""
    rng = np.random.default_rng(3)
    sides = [
        [[*rng.integers(4, VOCABULARY, size=n).tolist(), 1] for n in lengths]
        for lengths in ((5, 2, 7, 1, 4, 3), (7, 1, 2, 6, 3, 1))
    ]
    return unpacked_batch(*sides, rows=6, length=8)


@functools.cache
def network(config: ModelConfig) -> Structure:
    return structure(config, VOCABULARY, VOCABULARY)


@functools.cache
def fresh_params(config: ModelConfig) -> dict:
    return random_params(network(config))


@functools.cache
def training_step(config: Config) -> jax.stages.Wrapped:
    return make_train_step(network(config.model), config, config.training.num_steps, make_mesh(MeshConfig()))


def first_state(config: Config, params: dict | None = None) -> TrainState:
    """Returns the state before the first step, in buffers that the step may consume."""
    return initial_state(jax.tree.map(jnp.array, params or fresh_params(config.model)), config)


def take_steps(config, batch, count, params=None):
    state, metrics = first_state(config, params), None
    for _ in range(count):
        state, metrics = training_step(config)(state, batch)
    return jax.device_get((state, metrics))


def with_nan(params: dict) -> dict:
    """Returns a copy of the parameters with a NaN in the embedding of a token that occurs in the batch."""
    table = params["target_embedding"].copy()
    table[5, 0] = np.nan
    return params | {"target_embedding": table}


def largest_difference(a, b):
    differences = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), *jax.device_get((a, b)))
    return np.max(jax.tree.leaves(differences))  # NaN if any is


def is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def test_training_steps_match_optax(batch):
    """AdamW on clipped gradients of the smoothed loss, with dropout masks drawn from seed and step."""
    config = tiny_config(
        model={"attention_dropout_rate": 0.3},
        optimizer={"name": "adamw", "weight_decay": 0.5, "clip_norm": 0.05},
        training={"seed": 2},
    )
    adamw = optax.adamw(
        lambda count: 0.01 * (count + 1) / 4, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.5, mask=is_matrix
    )
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), adamw)

    def mean_loss(params, step):
        dropout = Dropout(jax.random.fold_in(jax.random.key(2), step))
        model = nnx.merge(network(config.model).graphdef, params)
        logits, _ = model(jnp.asarray(batch.source), jnp.asarray(batch.target_in), dropout=dropout)
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(batch.target_out, 19), 0.1))
        return losses[batch.target_out != 0].mean()

    @jax.jit
    def reference_step(params, state, step):
        updates, state = optimizer.update(jax.grad(mean_loss)(params, step), state, params)
        return optax.apply_updates(params, updates), state

    expected = fresh_params(config.model)
    expected_state = jax.jit(optimizer.init)(expected)
    for step in range(3):
        expected, expected_state = reference_step(expected, expected_state, jnp.array(step))
    state, metrics = take_steps(config, batch, 3)
    assert largest_difference(state.params, expected) < 2e-5
    assert metrics.tokens == 26
    np.testing.assert_allclose(metrics.learning_rate, 0.0075, rtol=1e-6)


def test_accumulated_gradients_match_those_of_the_whole_batch(batch):
    whole, metrics = take_steps(tiny_config(), batch, 1)
    accumulated, same_metrics = take_steps(tiny_config(training={"accumulation_steps": 3}), batch, 1)
    np.testing.assert_allclose(same_metrics.loss, metrics.loss, rtol=1e-6)
    np.testing.assert_allclose(same_metrics.gradient_norm, metrics.gradient_norm, rtol=1e-5)
    assert largest_difference(accumulated.optimizer[1].mu, whole.optimizer[1].mu) < 1e-7


def test_non_finite_step_is_skipped_and_counted(batch):
    params = with_nan(fresh_params(tiny_config().model))
    before = jax.device_get(first_state(tiny_config(), params))
    state, metrics = take_steps(tiny_config(), batch, 2, params)
    assert state.step == 2
    assert state.skipped == state.skipped_in_a_row == metrics.skipped_in_a_row == 2
    assert not np.isfinite(metrics.loss)
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.optimizer), (before.params, before.optimizer))
    finite, metrics = take_steps(tiny_config(), batch, 2)
    assert finite.skipped == metrics.skipped_in_a_row == 0


def test_moving_average_follows_the_parameters_after_each_step_and_changes_nothing_else(batch):
    """A skipped step does not count as an update of the average."""
    config = tiny_config(training={"ema_decay": 0.28})
    params, step = fresh_params(config.model), training_step(config)
    state, average = first_state(config), params
    for decay in (2 / 11, 3 / 12, 0.28):  # (1 + n) / (10 + n), but at most the configured one
        state, _ = step(state, batch)
        average = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, average, jax.device_get(state.params))
        assert largest_difference(state.ema_params, average) < 1e-6
    assert state.eval_params is state.ema_params
    plain, _ = take_steps(tiny_config(), batch, 3)
    assert largest_difference(state.params, plain.params) == 0.0
    assert plain.ema_params is None
    skipped, _ = take_steps(config, batch, 2, with_nan(params))
    np.testing.assert_array_equal(skipped.ema_params["encoder_norm"]["scale"], params["encoder_norm"]["scale"])
    copies = [jax.tree.map(jnp.array, params) for _ in range(2)]  # the step consumes its arguments
    recovered, _ = step(skipped._replace(params=copies[0], ema_params=copies[1]), batch)
    expected = jax.tree.map(lambda old, new: 2 / 11 * old + 9 / 11 * new, params, jax.device_get(recovered.params))
    assert largest_difference(recovered.ema_params, expected) < 1e-6  # the first update, although the third step


def murmur(words):
    """Returns MurmurHash3's 32-bit finalizer, computed in Python integers."""
    words = (words ^ (words >> 16)) * 0x85EBCA6B % 2**32
    words = (words ^ (words >> 13)) * 0xC2B2AE35 % 2**32
    return words ^ (words >> 16)


def test_batch_digest_is_two_sums_of_hashes(batch):
    sums = [0, 0]
    for side, (ids, segments) in enumerate(
        ((batch.source, batch.source_segments), (batch.target_out, batch.target_segments))
    ):
        for (row, column), token in np.ndenumerate(ids):
            for lane in (0, 1):
                word = 2 * side + lane
                for coordinate in (row, column, int(token), int(segments[row, column])):
                    word = murmur((word + 0x9E3779B9 + coordinate) % 2**32)
                sums[lane] = (sums[lane] + word) % 2**32
    assert jax.jit(batch_digest)(batch).tolist() == sums


def test_optimizer_with_masked_states_can_be_used(monkeypatch, batch):
    """Those of Muon have no leaves for the parameters of the other part."""
    optimizer = optax.contrib.muon(1.0)
    for module in ("state", "step"):
        monkeypatch.setattr(f"lingua_flax.training.{module}.make_optimizer", lambda _: optimizer)
    config = tiny_config()
    shardings = state_shardings(network(config.model), config, make_mesh(MeshConfig()))
    table = fresh_params(config.model)["target_embedding"]
    moments = jax.tree.leaves(optimizer.init(fresh_params(config.model)))
    specs = [leaf.spec for leaf in jax.tree.leaves(shardings.optimizer)]
    like_table = {spec for moment, spec in zip(moments, specs, strict=True) if moment.shape == table.shape}
    assert like_table == {shardings.params["target_embedding"].spec}
    assert all(not any(spec) for moment, spec in zip(moments, specs, strict=True) if moment.ndim == 0)
    _, metrics = training_step.__wrapped__(config)(first_state(config), batch)
    assert np.isfinite(metrics.loss)
