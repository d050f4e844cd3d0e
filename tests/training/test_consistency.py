"""Consistency training against optax, and its passes and cuts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.model.transformer import Transformer, initial_params, structure
from lingua_flax.options.schema import Config, MeshConfig, ModelConfig, TrainingConfig
from lingua_flax.options.special_ids import PAD_ID
from lingua_flax.training.consistency import consistent_cross_entropy, draw_keep_masks, two_passes
from lingua_flax.training.state import initial_state
from lingua_flax.training.step import make_train_step

NETWORK = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=8, num_heads=2, mlp_dim=16, max_length=12)
VOCAB_SIZE = 11


def random_batch(rows: int, length: int = 8) -> Batch:
    """Returns rows of one sentence each, the last two positions padding."""
    generator = np.random.default_rng(0)
    batch = Batch.zeros(rows, length)
    for ids in (batch.source, batch.target_in, batch.target_out):
        ids[:, :-2] = generator.integers(1, VOCAB_SIZE, (rows, length - 2))
    for segments in (batch.source_segments, batch.target_segments):
        segments[:, :-2] = 1
    for positions in (batch.source_positions, batch.target_positions):
        positions[:, :-2] = np.arange(length - 2)
    return batch


def reference(x, table, targets, config: TrainingConfig) -> jax.Array:
    """Returns the papers' objectives from whole logits and optax's losses, R-Drop's divided by two."""
    logits = (x @ table.T).reshape(-1, 2, *x.shape[1:-1], len(table))
    first, second = logits[:, 0], logits[:, 1]
    labels = optax.smooth_labels(jax.nn.one_hot(targets[::2], len(table)), config.label_smoothing)
    cross_entropy = [optax.losses.softmax_cross_entropy(side, labels) for side in (first, second)]
    forward, backward = (
        optax.losses.kl_divergence(jax.nn.log_softmax(other), jax.nn.softmax(own))
        for own, other in ((first, second), (second, first))
    )
    weight = config.consistency_weight
    if config.consistency == "simcut":
        losses = cross_entropy[0] + weight * forward
    else:
        losses = (cross_entropy[0] + cross_entropy[1] + weight * (forward + backward) / 2) / 2
    return jnp.sum(jnp.where(targets[::2] != PAD_ID, losses, 0.0))


@pytest.mark.parametrize("consistency", ["rdrop", "simcut"])
@pytest.mark.parametrize("block_size", [None, 6])
def test_objective_and_gradients_equal_optax(consistency, block_size):
    config = TrainingConfig(consistency=consistency, consistency_weight=2.5)
    generator = np.random.default_rng(1)
    x = jnp.asarray(generator.normal(size=(6, 8, 5)), jnp.float32)
    table = jnp.asarray(generator.normal(size=(VOCAB_SIZE, 5)), jnp.float32)
    targets = two_passes(random_batch(3)).target_out

    def objective(x, table):
        return consistent_cross_entropy(x, table, targets, config, block_size).objective

    actual = jax.jit(jax.value_and_grad(objective, (0, 1)))(x, table)
    expected = jax.jit(jax.value_and_grad(lambda x, table: reference(x, table, targets, config), (0, 1)))(x, table)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), actual, expected)


def test_equal_predictions_have_no_divergence():
    x = jnp.repeat(jnp.asarray(np.random.default_rng(2).normal(size=(3, 8, 5)), jnp.float32), 2, axis=0)
    table = jnp.eye(VOCAB_SIZE, 5)
    targets = two_passes(random_batch(3)).target_out
    sums = consistent_cross_entropy(x, table, targets, TrainingConfig(consistency="rdrop"))
    assert sums.divergence == 0
    assert sums.objective == sums.cross_entropy
    assert sums.tokens == 3 * 6


def test_only_the_second_pass_is_cut_and_sentence_boundaries_are_kept():
    batch = two_passes(random_batch(400))
    for ids, kept in zip((batch.source, batch.target_in), draw_keep_masks(jax.random.key(3), batch, 0.2), strict=True):
        assert kept[::2].all()
        assert kept[ids <= 2].all()
        cut_share = 1 - np.mean(kept[1::2][ids[1::2] > 2])
        assert cut_share == pytest.approx(0.2, abs=0.04)


def test_tags_are_kept():
    """Without the tag of the target language, the second pass would predict a mixture of languages."""
    batch = two_passes(random_batch(400))
    source, target = draw_keep_masks(jax.random.key(3), batch, 0.2, num_tags=2)
    assert source[:, :2].all()
    assert not source[1::2, 2].all()
    assert not target[1::2, 0].all()


def test_cut_token_does_not_influence_predictions_but_its_position_does():
    model = Transformer(NETWORK, VOCAB_SIZE, VOCAB_SIZE, rngs=nnx.Rngs(0))
    batch = random_batch(1)
    kept = jnp.ones(batch.source.shape, bool).at[0, 2].set(False)

    source, target, positions = jnp.asarray(batch.source), jnp.asarray(batch.target_in), jnp.arange(8)[None]

    @jax.jit
    def predict(source, kept, positions):
        return model.hidden_states(source, target, source_keep_mask=kept, source_positions=positions)[0]

    other, moved = source.at[0, 2].set(4 + source[0, 2] % 5), positions.at[0, 2].set(9)
    np.testing.assert_array_equal(predict(source, kept, positions), predict(other, kept, positions))
    assert not np.array_equal(predict(source, kept | True, positions), predict(other, kept | True, positions))
    assert not np.array_equal(predict(source, kept, positions), predict(source, kept, moved))


@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("consistency", ["rdrop", "simcut"])
def test_step_can_be_repeated_and_reports_divergence(consistency, parts):
    options = {"consistency": consistency, "accumulation_steps": parts, "tokens_per_batch": 64}
    config = Config(model=NETWORK, training=TrainingConfig(**options), data={"row_length": 8})
    network = structure(config.model, VOCAB_SIZE, VOCAB_SIZE)
    step = make_train_step(network, config, 10, make_mesh(MeshConfig()))

    initial = jax.jit(lambda key: initial_state(initial_params(NETWORK, VOCAB_SIZE, VOCAB_SIZE, key), config))

    def first_step():
        return step(initial(jax.random.key(0)), random_batch(8))

    (state, metrics), (again, _) = first_step(), first_step()
    assert metrics.divergence > 0
    assert metrics.tokens == 8 * 6
    jax.tree.map(np.testing.assert_array_equal, state, again)


def test_other_tokens_are_cut_in_every_step_and_with_every_seed():
    model = NETWORK.model_copy(update={"dropout_rate": 0.0})
    network = structure(model, VOCAB_SIZE, VOCAB_SIZE)
    params = jax.jit(lambda key: initial_params(model, VOCAB_SIZE, VOCAB_SIZE, key))(jax.random.key(0))

    def divergence(seed: int, number: int) -> float:
        training = TrainingConfig(consistency="simcut", tokens_per_batch=64, seed=seed)
        config = Config(
            model=NETWORK.model_copy(update={"dropout_rate": 0.0}), training=training, data={"row_length": 8}
        )
        step = make_train_step(network, config, 10, make_mesh(MeshConfig()))
        state = initial_state(jax.tree.map(jnp.array, params), config)
        return float(step(state._replace(step=jnp.asarray(number, state.step.dtype)), random_batch(8))[1].divergence)

    assert len({divergence(1, 0), divergence(1, 1), divergence(2, 0)}) == 3


def test_number_of_passes_is_the_ratio_of_operations():
    def operations(consistency):
        training = TrainingConfig(consistency=consistency, tokens_per_batch=512)
        network = NETWORK.model_copy(update={"embed_dim": 64, "mlp_dim": 128})
        config = Config(model=network, training=training, data={"row_length": 8})
        shapes = structure(network, 300, 300)
        step = make_train_step(shapes, config, 10, make_mesh(MeshConfig()))
        state = jax.eval_shape(lambda params: initial_state(params, config), shapes.params)
        return step.lower(state, random_batch(64)).cost_analysis()["flops"], training.num_passes

    (single, one), (double, two) = operations("none"), operations("rdrop")
    assert (one, two) == (1, 2)
    assert double / single == pytest.approx(2, rel=0.1)
