"""Loss, schedules and the training step against independent computations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from data.batch import unpacked_batch
from devices.mesh import make_mesh
from model.transformer import initial_params, structure
from options.schema import Config, MeshConfig, OptimizerConfig
from training.loss import _number_of_blocks, cross_entropy
from training.optimizer import learning_rate
from training.step import batch_digest, initial_state, make_train_step, update_average


def reference_loss(x, table, targets, smoothing):
    """By optax, from all logits at once."""
    logits = jnp.einsum("btd,vd->btv", x, table)
    smoothed = optax.smooth_labels(jax.nn.one_hot(targets, len(table)), smoothing)
    return jnp.sum(jnp.where(targets != 0, optax.softmax_cross_entropy(logits, smoothed), 0.0))


@pytest.mark.parametrize(("block_size", "blocks"), [(None, 1), (3, 6), (4, 3), (7, 2), (18, 1), (19, 1)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_its_gradients_equal_optax(block_size, blocks, smoothing):
    random = np.random.default_rng(0)
    x, table = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in [(3, 6, 5), (7, 5)])
    targets = jnp.array([[4, 5, 1, 0, 0, 0], [6, 1, 0, 0, 0, 0], [2, 3, 4, 5, 3, 1]])
    assert _number_of_blocks(3, 6, block_size) == blocks

    def loss(x, table):
        return 0.5 * cross_entropy(x, table, targets, smoothing, block_size)[0]  # half: gradients are scaled as well

    expected, of_expected = jax.value_and_grad(reference_loss, argnums=(0, 1))(x, table, targets, smoothing)
    found, gradients = jax.value_and_grad(loss, argnums=(0, 1))(x, table)
    np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-6)
    np.testing.assert_allclose(loss(x, table), found, rtol=1e-6)  # which is computed without the gradients
    for gradient, wanted in zip(gradients, of_expected, strict=True):
        np.testing.assert_allclose(gradient, 0.5 * wanted, atol=1e-6)


def test_cross_entropy_counts_no_padding():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5)), jnp.float32)
    table = jnp.eye(5)
    targets = jnp.array([[4, 1, 0], [3, 1, 2]])
    total, count = cross_entropy(x, table, targets, 0.1)
    changed, _ = cross_entropy(x.at[0, 2:].add(9.0), table, targets, 0.1)
    assert (changed, count) == (total, 5)


def test_cross_entropy_by_hand():
    """Two tokens, V = 4, uniform logits: ln 4 each, with and without smoothing."""
    for smoothing in (0.0, 0.1):
        total, count = cross_entropy(jnp.zeros((1, 3, 2)), jnp.ones((4, 2)), jnp.array([[3, 1, 0]]), smoothing)
        np.testing.assert_allclose(total / count, np.log(4), rtol=1e-6)


def test_cross_entropy_of_bfloat16_sums_the_tables_gradient_in_float32():
    """Of 4,096 positions, each in the same direction: bfloat16 would stop adding at 256."""
    x, targets = jnp.ones((64, 64, 2), jnp.bfloat16), jnp.full((64, 64), 3)
    gradient = jax.grad(lambda table: cross_entropy(x, table, targets, block_size=512)[0])(jnp.zeros((4, 2)))
    np.testing.assert_allclose(gradient, 4096 * np.array([[0.25] * 2] * 3 + [[-0.75] * 2]))


def rates(schedule, steps, **options):
    config = OptimizerConfig(peak_lr=0.5, warmup_steps=4, schedule=schedule, **options)
    return [float(learning_rate(config, 12)(jnp.array(step))) for step in steps]


def test_schedules_by_hand():
    np.testing.assert_allclose(rates("inverse_sqrt", [1, 2, 4, 16, 64]), [0.125, 0.25, 0.5, 0.25, 0.125], rtol=1e-6)
    np.testing.assert_allclose(rates("cosine", [1, 4, 8, 12, 13]), [0.125, 0.5, 0.25, 0.0, 0.0], atol=1e-7)
    np.testing.assert_allclose(rates("constant", [1, 4, 100]), [0.125, 0.5, 0.5], rtol=1e-6)
    share = OptimizerConfig(peak_lr=0.5, warmup_share=1 / 3, schedule="constant")
    assert [float(learning_rate(share, 12)(jnp.array(step))) for step in (1, 4, 5)] == [0.125, 0.5, 0.5]
    no_warmup = OptimizerConfig(peak_lr=0.5, warmup_steps=0, schedule="constant")
    assert learning_rate(no_warmup, 12)(jnp.array(1)) == 0.5


def tiny_config(**sections) -> Config:
    base = {
        "data": {"row_length": 8},
        "model": {"num_encoder_layers": 1, "num_decoder_layers": 1, "embed_dim": 12, "num_heads": 2, "mlp_dim": 17,
                  "max_length": 8, "dropout_rate": 0.0},
        "optimizer": {"warmup_steps": 4, "peak_lr": 0.01},
        "training": {"tokens_per_batch": 48, "num_steps": 12},
    }  # fmt: skip
    for name, section in sections.items():
        base[name] = base[name] | section
    return Config.model_validate(base)


@pytest.fixture
def batch():
    """Six rows with pairs of different lengths, so that parts of a batch hold different numbers of tokens."""
    rng = np.random.default_rng(3)
    sides = [
        [[*rng.integers(4, 19, size=n).tolist(), 1] for n in lengths]
        for lengths in ((5, 2, 7, 1, 4, 3), (7, 1, 2, 6, 3, 1))
    ]
    return unpacked_batch(*sides, rows=6, length=8)


def fresh_params(config):
    """Compiled: op by op the same takes seconds."""
    return jax.jit(lambda key: initial_params(config.model, 19, 19, key))(jax.random.key(0))


def take_steps(config, batch, count, params=None):
    network = structure(config.model, 19, 19)
    if params is None:
        params = fresh_params(config)
    state = initial_state(jax.tree.map(jnp.array, params), config)
    step = make_train_step(network, config, config.training.num_steps, make_mesh(MeshConfig()))
    metrics = None
    for _ in range(count):
        state, metrics = step(state, jax.tree.map(jnp.asarray, batch))
    return state, metrics


def optax_steps(optimizer, loss, params):
    """Three steps with nothing but optax."""

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for _ in range(3):
        params, state = step(params, state)
    return params


def largest_difference(a, b):
    a, b = jax.device_get((a, b))
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


def test_a_step_equals_optax_by_itself(batch):
    config = tiny_config(optimizer={"clip_norm": 0.05})
    network = structure(config.model, 19, 19)
    params = fresh_params(config)

    def mean_loss(params):
        logits, _ = nnx.merge(network.graphdef, params)(jnp.asarray(batch.source), jnp.asarray(batch.target_in))
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(batch.target_out, 19), 0.1))
        return losses[batch.target_out != 0].mean()

    optimizer = optax.chain(
        optax.clip_by_global_norm(0.05), optax.adam(lambda count: 0.01 * (count + 1) / 4, b1=0.9, b2=0.98, eps=1e-9)
    )
    expected = optax_steps(optimizer, mean_loss, params)
    state, metrics = take_steps(config, batch, 3)
    assert largest_difference(state.params, expected) < 2e-5
    assert metrics.tokens == 26
    np.testing.assert_allclose(metrics.learning_rate, 0.0075, rtol=1e-6)


def test_accumulation_equals_the_big_batch(batch):
    whole, metrics = take_steps(tiny_config(), batch, 1)
    for parts in (2, 6):
        accumulated, same = take_steps(tiny_config(training={"accumulation_steps": parts}), batch, 1)
        np.testing.assert_allclose(same.loss, metrics.loss, rtol=1e-6)
        np.testing.assert_allclose(same.gradient_norm, metrics.gradient_norm, rtol=1e-5)
        moments = (accumulated.optimizer[1].mu, whole.optimizer[1].mu)
        assert largest_difference(*moments) < 1e-7


def test_adamw_decays_matrices_only(batch):
    plain, _ = take_steps(tiny_config(), batch, 1)
    decayed, _ = take_steps(tiny_config(optimizer={"name": "adamw", "weight_decay": 0.5}), batch, 1)
    start = fresh_params(tiny_config())
    rate = 0.01 / 4
    np.testing.assert_allclose(
        decayed.params["target_embedding"], plain.params["target_embedding"] - rate * 0.5 * start["target_embedding"],
        atol=1e-7,
    )  # fmt: skip
    np.testing.assert_array_equal(decayed.params["encoder_norm"]["scale"], plain.params["encoder_norm"]["scale"])


def test_a_step_that_is_not_finite_is_skipped_and_counted(batch):
    config = tiny_config()
    params = fresh_params(config)
    broken = params | {"target_embedding": params["target_embedding"].at[5, 0].set(jnp.nan)}
    state, metrics = take_steps(config, batch, 2, broken)
    assert state.step == 2
    assert state.skipped == state.skipped_in_a_row == metrics.skipped_in_a_row == 2
    np.testing.assert_array_equal(state.params["encoder_norm"]["scale"], params["encoder_norm"]["scale"])
    assert not np.isfinite(metrics.loss)
    sound, metrics = take_steps(config, batch, 2, params)
    assert sound.skipped == metrics.skipped_in_a_row == 0


def test_the_moving_average_by_hand():
    """Decays (1 + n) / (10 + n) = 2/11, 3/12, ..., but at most the one that is set."""
    old, new = {"a": jnp.array([1.0, 8.0])}, {"a": jnp.array([12.0, -3.0])}
    np.testing.assert_allclose(update_average(old, new, 0.999, jnp.float32(1))["a"], [10.0, -1.0], rtol=1e-6)
    np.testing.assert_allclose(update_average(old, new, 0.999, jnp.float32(2))["a"], [9.25, -0.25], rtol=1e-6)
    np.testing.assert_allclose(update_average(old, new, 0.5, jnp.float32(100))["a"], [6.5, 2.5], rtol=1e-6)


def test_the_average_follows_the_parameters_and_changes_nothing_else(batch):
    """Against the parameters after each step; a step that is skipped does not count."""
    config = tiny_config(training={"ema_decay": 0.3})
    network = structure(config.model, 19, 19)
    params = fresh_params(config)
    broken = params | {"target_embedding": params["target_embedding"].at[5, 0].set(jnp.nan)}
    step = make_train_step(network, config, 12, make_mesh(MeshConfig()))
    state, average = initial_state(jax.tree.map(jnp.array, params), config), params
    for count in range(1, 5):
        state, _ = step(state, jax.tree.map(jnp.asarray, batch))
        decay = min(0.3, (1 + count) / (10 + count))
        average = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, average, state.params)
        assert largest_difference(state.average, average) < 1e-6
        assert state.params_to_use is state.average
    plain, _ = take_steps(tiny_config(), batch, 4)
    assert largest_difference(state.params, plain.params) == 0.0
    assert plain.average is None
    skipped = initial_state(jax.tree.map(jnp.array, broken), config)
    for _ in range(2):
        skipped, _ = step(skipped, jax.tree.map(jnp.asarray, batch))
    np.testing.assert_array_equal(skipped.average["encoder_norm"]["scale"], params["encoder_norm"]["scale"])
    copies = [jax.tree.map(jnp.array, params) for _ in range(2)]  # the step consumes what it is given
    recovered, _ = step(skipped._replace(params=copies[0], average=copies[1]), jax.tree.map(jnp.asarray, batch))
    expected = jax.tree.map(lambda old, new: 2 / 11 * old + 9 / 11 * new, params, recovered.params)
    assert largest_difference(recovered.average, expected) < 1e-6  # the first update, though the third step


def test_adafactor_equals_optax_and_keeps_rows_and_columns_only(batch):
    config = tiny_config(optimizer={"name": "adafactor", "clip_norm": 0.0}, model={"mlp_dim": 256, "embed_dim": 128})
    network = structure(config.model, 19, 19)
    params = fresh_params(config)
    optimizer = optax.adafactor(lambda count: 0.01 * (count + 1) / 4, multiply_by_parameter_scale=False)

    def mean_loss(params):
        model = nnx.merge(network.graphdef, params)
        x, _ = model.hidden_states(jnp.asarray(batch.source), jnp.asarray(batch.target_in))
        total, count = cross_entropy(x, model.output_table, batch.target_out, 0.1)
        return total / count

    expected = optax_steps(optimizer, mean_loss, params)
    state, _ = take_steps(config, batch, 3)
    assert largest_difference(state.params, expected) < 1e-4
    assert largest_difference(state.params, params) > 1e-2
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (state.optimizer, state.params)]
    assert sizes[0] < 0.05 * sizes[1]


def test_dropout_is_a_function_of_seed_and_step(batch):
    config = tiny_config(model={"dropout_rate": 0.3})
    first, _ = take_steps(config, batch, 2)
    again, _ = take_steps(config, batch, 2)
    other, _ = take_steps(tiny_config(model={"dropout_rate": 0.3}, training={"seed": 2}), batch, 2)
    assert largest_difference(first.params, again.params) == 0.0
    assert largest_difference(first.params, other.params) > 1e-4


def murmur(words):
    """MurmurHash3's 32-bit finalizer in Python's integers."""
    words = (words ^ (words >> 16)) * 0x85EBCA6B % 2**32
    words = (words ^ (words >> 13)) * 0xC2B2AE35 % 2**32
    return words ^ (words >> 16)


def test_the_digest_of_a_batch_is_two_sums_of_hashes(batch):
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


def test_the_digest_tells_batches_apart(batch):
    """Other rows, another order of rows, another place of a token, another segment."""
    changed = [
        batch,
        batch._replace(source=batch.source[::-1], source_segments=batch.source_segments[::-1]),
        batch._replace(target_out=np.roll(batch.target_out, 1, axis=1)),
        batch._replace(target_segments=2 * batch.target_segments),
        batch._replace(source=batch.target_out, target_out=batch.source),
    ]
    assert len({tuple(jax.jit(batch_digest)(each).tolist()) for each in changed}) == len(changed)
