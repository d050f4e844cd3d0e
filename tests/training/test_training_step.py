"""Loss, schedules and the training step against independent computations."""

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
from lingua_flax.options.schema import Config, MeshConfig, ModelConfig, OptimizerConfig
from lingua_flax.training.loss import _in_one_pass, _in_two_passes, cross_entropy, number_of_blocks
from lingua_flax.training.optimizer import Decay, decay_factor, learning_rate, make_optimizer
from lingua_flax.training.state import TrainState, initial_state, state_shardings, updated_ema
from lingua_flax.training.step import batch_digest, make_train_step
from tests.model.test_transformer import random_params


def reference_loss(x, table, targets, smoothing):
    """Returns the loss by optax, from all logits at once."""
    logits = jnp.einsum("btd,vd->btv", x, table)
    smoothed = optax.smooth_labels(jax.nn.one_hot(targets, len(table)), smoothing)
    return jnp.sum(jnp.where(targets != 0, optax.softmax_cross_entropy(logits, smoothed), 0.0))


@pytest.mark.parametrize(("block_size", "blocks"), [(None, 1), (3, 6), (4, 3), (7, 2), (18, 1), (19, 1)])
def test_blocks_hold_at_least_the_requested_number_of_positions(block_size, blocks):
    assert number_of_blocks((3, 6), block_size) == blocks


@pytest.mark.parametrize(("block_size", "smoothing"), [(None, 0.0), (None, 0.1), (3, 0.0), (4, 0.1)])
def test_cross_entropy_and_gradients_match_optax(block_size, smoothing):
    random = np.random.default_rng(0)
    x, table = (random.normal(size=shape).astype(np.float32) for shape in [(3, 6, 5), (7, 5)])
    targets = jnp.array([[4, 5, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0], [2, 3, 4, 5, 3, 1]])

    def loss(x, table):
        return 0.5 * cross_entropy(x, table, targets, smoothing, block_size)[0]  # the factor also scales the gradients

    def reference(x, table):
        return 0.5 * reference_loss(x, table, targets, smoothing)

    expected, expected_gradients = jax.jit(jax.value_and_grad(reference, argnums=(0, 1)))(x, table)
    actual, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, table)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(loss)(x, table), expected, rtol=1e-6
    )  # a separate path: no gradients are computed
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_cross_entropy_ignores_padding():
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    changed_padding = x.copy()
    changed_padding[0, 2:] += 9.0
    targets = jnp.array([[4, 1, 0], [3, 1, 2]])
    loss = jax.jit(lambda x: cross_entropy(x, jnp.eye(5), targets, 0.1))
    (total, count), (changed, _) = loss(x), loss(changed_padding)
    assert (changed, count) == (total, 5)


def test_cross_entropy_of_uniform_logits():
    """Two tokens, V = 4: ln 4 each, with and without smoothing."""
    for smoothing in (0.0, 0.1):
        total, count = cross_entropy(jnp.zeros((1, 3, 2)), jnp.ones((4, 2)), jnp.array([[3, 1, 0]]), smoothing)
        np.testing.assert_allclose(total / count, np.log(4), rtol=1e-6)


def test_online_softmax_of_gpus_matches_two_passes():
    logits = 30.0 * jnp.asarray(np.random.default_rng(0).normal(size=(5, 300)), jnp.float32)
    logits = logits.at[0].set(-3e4).at[1, 7].set(3e4)
    (maximum, total), expected = jax.jit(_in_one_pass)(logits), _in_two_passes(logits)
    np.testing.assert_array_equal(maximum, expected[0])
    np.testing.assert_allclose(total, expected[1], rtol=1e-5)


def test_bfloat16_cross_entropy_sums_table_gradient_in_float32():
    """The gradients of 4,096 positions all have the same direction: a sum in bfloat16 would stop growing at 256."""
    x, targets = jnp.ones((64, 64, 2), jnp.bfloat16), jnp.full((64, 64), 3)
    gradient = jax.jit(jax.grad(lambda table: cross_entropy(x, table, targets, block_size=512)[0]))(jnp.zeros((4, 2)))
    np.testing.assert_allclose(gradient, 4096 * np.array([[0.25] * 2] * 3 + [[-0.75] * 2]))


def test_bfloat16_cross_entropy_has_the_gradients_of_optax():
    random = np.random.default_rng(0)
    x, table = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for shape in ((4, 8, 6), (11, 6)))
    targets = jnp.asarray(random.integers(2, 11, (4, 8)))

    def expected_loss(x, table):
        return optax.softmax_cross_entropy_with_integer_labels(x @ table.T, targets).sum()

    def loss(x, table):
        return cross_entropy(x, table, targets, block_size=16)[0]

    actual = jax.jit(jax.grad(loss, (0, 1)))(x, jnp.float32(table))
    expected = jax.jit(jax.grad(expected_loss, (0, 1)))(jnp.float32(x), jnp.float32(table))
    assert [gradient.dtype for gradient in actual] == [jnp.bfloat16, jnp.float32]
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.float32(ours), theirs, rtol=0.02, atol=0.02)


def test_learning_rates_match_hand_calculation():
    def check(expected, steps, **options):
        rate = jax.jit(learning_rate(OptimizerConfig(peak_lr=0.5, **options), 12))
        np.testing.assert_allclose(rate(jnp.array(steps)), expected, rtol=1e-6, atol=1e-7)

    check([0.125, 0.25, 0.5, 0.25, 0.125], [1, 2, 4, 16, 64], warmup_steps=4, schedule="inverse_sqrt")
    check([0.125, 0.5, 0.25, 0.0, 0.0], [1, 4, 8, 12, 13], warmup_steps=4, schedule="cosine")
    check([0.125, 0.5, 0.5], [1, 4, 100], warmup_steps=4, schedule="constant")
    check([0.5, 0.5], [1, 4], warmup_steps=0, schedule="constant")
    check([0.125, 0.5, 0.5], [1, 4, 5], warmup_share=1 / 3, schedule="constant")


def test_decay_of_the_wsd_schedule_matches_hand_calculation():
    config = OptimizerConfig(schedule="wsd", decay_share=0.25)
    assert Decay.scheduled(config, 16) == (12, 16)
    assert Decay.after(config, 6) == (6, 8)
    assert Decay.after(config, 1) == (1, 2)  # at least one step
    factors = [float(decay_factor(jnp.array([12, 16]), jnp.int32(step))) for step in (1, 12, 13, 15, 16, 17)]
    assert factors == [1, 1, 0.75, 0.25, 0, 0]


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


def optax_steps(optimizer, loss, params, count):
    """Takes steps by optax alone; the loss is a function of parameters and step, counted from 0."""

    @jax.jit
    def take_step(params, state, step):
        updates, state = optimizer.update(jax.grad(loss)(params, step), state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for step in range(count):
        params, state = take_step(params, state, jnp.array(step))
    return params


def largest_difference(a, b):
    differences = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), *jax.device_get((a, b)))
    return np.max(jax.tree.leaves(differences))  # NaN if any is


def is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


# With everything that a step may do except accumulation and averaging.
REGULARIZED = tiny_config(
    model={"attention_dropout_rate": 0.3},
    optimizer={"name": "adamw", "weight_decay": 0.5, "clip_norm": 0.05},
    training={"seed": 2},
)


def test_training_steps_match_optax(batch):
    """AdamW on clipped gradients of the smoothed loss, with dropout masks drawn from seed and step."""
    config, params = REGULARIZED, fresh_params(REGULARIZED.model)

    def mean_loss(params, step):
        dropout = Dropout(jax.random.fold_in(jax.random.key(2), step))
        model = nnx.merge(network(config.model).graphdef, params)
        logits, _ = model(jnp.asarray(batch.source), jnp.asarray(batch.target_in), dropout=dropout)
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(batch.target_out, 19), 0.1))
        return losses[batch.target_out != 0].mean()

    adamw = optax.adamw(
        lambda count: 0.01 * (count + 1) / 4, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.5, mask=is_matrix
    )
    expected = optax_steps(optax.chain(optax.clip_by_global_norm(0.05), adamw), mean_loss, params, 3)
    state, metrics = take_steps(config, batch, 3)
    assert largest_difference(state.params, expected) < 2e-5
    assert metrics.tokens == 26
    np.testing.assert_allclose(metrics.learning_rate, 0.0075, rtol=1e-6)


def test_dropout_repeats_for_the_same_step_and_differs_between_steps(batch):
    """That it also depends on the seed follows from the comparison with optax."""

    def loss_at(step):
        state = first_state(REGULARIZED)._replace(step=jnp.int32(step))
        return float(training_step(REGULARIZED)(state, batch)[1].loss)

    assert loss_at(0) == loss_at(0) != loss_at(1)


def test_accumulated_gradients_match_those_of_the_whole_batch(batch):
    whole, metrics = take_steps(tiny_config(), batch, 1)
    accumulated, same_metrics = take_steps(tiny_config(training={"accumulation_steps": 3}), batch, 1)
    np.testing.assert_allclose(same_metrics.loss, metrics.loss, rtol=1e-6)
    np.testing.assert_allclose(same_metrics.gradient_norm, metrics.gradient_norm, rtol=1e-5)
    assert largest_difference(accumulated.optimizer[1].mu, whole.optimizer[1].mu) < 1e-7


def updates(options, params, gradients):
    """Returns what the optimizer with these options makes of each of the gradients in turn."""
    optimizer = make_optimizer(OptimizerConfig(clip_norm=0.0, **options))
    update, state, results = jax.jit(optimizer.update), optimizer.init(params), []
    for gradient in gradients:
        result, state = update(gradient, state, params)
        results.append(jax.device_get(result))
    return results, state


def random_trees(count):
    """Returns parameters and gradients of a large matrix, a small one and a vector."""
    random = np.random.default_rng(0)
    shapes = {"up": (256, 128), "embedding": (19, 128), "scale": (128,)}
    return [
        {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]


def test_adamw_is_adam_with_decay_of_matrices():
    params, *gradients = random_trees(3)
    (_, plain), _ = updates({"name": "adam"}, params, gradients)
    (_, decayed), _ = updates({"name": "adamw", "weight_decay": 0.5}, params, gradients)
    for name in ("up", "embedding"):
        np.testing.assert_allclose(decayed[name], plain[name] + 0.5 * params[name], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(decayed["scale"], plain["scale"])


def test_adafactor_matches_optax_and_stores_rows_and_columns_only():
    params, *gradients = random_trees(4)
    reference = optax.adafactor(1.0, multiply_by_parameter_scale=False)
    update, reference_state = jax.jit(reference.update), reference.init(params)
    actual, state = updates({"name": "adafactor"}, params, gradients)
    for gradient, result in zip(gradients, actual, strict=True):
        expected, reference_state = update(gradient, reference_state, params)
        assert largest_difference(jax.tree.map(np.negative, result), expected) < 1e-5
    sizes = [leaf.size for leaf in jax.tree.leaves(state)]
    assert max(sizes) == 19 * 128  # too small to be factored
    assert sum(sizes) < 0.1 * 256 * 128


def test_non_finite_step_is_skipped_and_counted(batch):
    params = fresh_params(tiny_config().model)
    before = jax.device_get(first_state(tiny_config(), with_nan(params)))
    state, metrics = take_steps(tiny_config(), batch, 2, with_nan(params))
    assert state.step == 2
    assert state.skipped == state.skipped_in_a_row == metrics.skipped_in_a_row == 2
    for actual, expected in zip(
        jax.tree.leaves((state.params, state.optimizer)),
        jax.tree.leaves((before.params, before.optimizer)),
        strict=True,
    ):
        np.testing.assert_array_equal(actual, expected)
    assert not np.isfinite(metrics.loss)
    finite, metrics = take_steps(tiny_config(), batch, 2)
    assert finite.skipped == metrics.skipped_in_a_row == 0


def test_moving_average_matches_hand_calculation():
    """Decays (1 + n) / (10 + n) = 2/11, 3/12, ..., but at most the configured one."""
    old, new = {"a": jnp.array([1.0, 8.0])}, {"a": jnp.array([12.0, -3.0])}
    np.testing.assert_allclose(updated_ema(old, new, 0.999, jnp.float32(1))["a"], [10.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(updated_ema(old, new, 0.999, jnp.float32(2))["a"], [9.25, -0.25], rtol=1e-6)
    np.testing.assert_allclose(updated_ema(old, new, 0.5, jnp.float32(100))["a"], [6.5, 2.5], rtol=1e-6)


def test_moving_average_takes_the_parameters_after_a_step(batch):
    config = tiny_config(training={"ema_decay": 0.3})
    params = fresh_params(config.model)
    state, _ = training_step(config)(first_state(config), batch)
    expected = jax.tree.map(lambda old, new: 2 / 11 * old + 9 / 11 * new, params, jax.device_get(state.params))
    assert largest_difference(state.ema_params, expected) < 1e-6


@pytest.mark.slow
def test_moving_average_follows_parameters_and_changes_nothing_else(batch):
    """A skipped step does not count as an update of the average."""
    config = tiny_config(training={"ema_decay": 0.3})
    params, step = fresh_params(config.model), training_step(config)
    state, average = first_state(config), params
    for count in range(1, 5):
        state, _ = step(state, batch)
        current, decay = jax.device_get(state.params), min(0.3, (1 + count) / (10 + count))
        average = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, average, current)
        assert largest_difference(state.ema_params, average) < 1e-6
        assert state.eval_params is state.ema_params
    plain, _ = take_steps(tiny_config(), batch, 4)
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


def test_batch_digest_distinguishes_batches(batch):
    """Different order of rows, position of a token, segment, or sides."""
    changed = [
        batch,
        batch._replace(source=batch.source[::-1], source_segments=batch.source_segments[::-1]),
        batch._replace(target_out=np.roll(batch.target_out, 1, axis=1)),
        batch._replace(target_segments=2 * batch.target_segments),
        batch._replace(source=batch.target_out, target_out=batch.source),
    ]
    assert len({tuple(jax.jit(batch_digest)(each).tolist()) for each in changed}) == len(changed)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.contrib.muon(1.0),  # its masked states have no leaves for the parameters of the other part
        optax.lion(1.0),
        pytest.param(optax.sgd(1.0, momentum=0.9), marks=pytest.mark.slow),
        pytest.param(optax.adamw(1.0, mask=is_matrix), marks=pytest.mark.slow),
        pytest.param(optax.adafactor(1.0, min_dim_size_to_factor=8), marks=pytest.mark.slow),
    ],
    ids=["muon", "lion", "sgd", "adamw", "adafactor"],
)
def test_any_optimizer_of_optax_can_be_used(monkeypatch, batch, optimizer):
    for module in ("state", "step"):
        monkeypatch.setattr(f"lingua_flax.training.{module}.make_optimizer", lambda _: optimizer)
    config = tiny_config()
    shardings = state_shardings(network(config.model), config, make_mesh(MeshConfig()))
    table = fresh_params(config.model)["target_embedding"]
    moments = jax.tree.leaves(optimizer.init(fresh_params(config.model)))
    specs = [leaf.spec for leaf in jax.tree.leaves(shardings.optimizer)]
    like_table = {spec for moment, spec in zip(moments, specs, strict=True) if moment.shape == table.shape}
    assert like_table in ({shardings.params["target_embedding"].spec}, set())  # Adafactor has none of this shape
    assert all(not any(spec) for moment, spec in zip(moments, specs, strict=True) if moment.ndim == 0)
    _, metrics = training_step.__wrapped__(config)(first_state(config), batch)
    assert np.isfinite(metrics.loss)
