"""Schedules by hand, and Adafactor as optax has it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lingua_flax.options.schema import OptimizerConfig
from lingua_flax.training.optimizer import Decay, decay_factor, learning_rate, make_optimizer


def test_learning_rates_match_hand_calculation():
    def check(expected, steps, **options):
        rate = jax.jit(learning_rate(OptimizerConfig(peak_lr=0.5, **options), 12))
        np.testing.assert_allclose(rate(jnp.array(steps)), expected, rtol=1e-6, atol=1e-7)

    check([0.125, 0.25, 0.5, 0.25, 0.125], [1, 2, 4, 16, 64], warmup_steps=4, schedule="inverse_sqrt")
    check([0.125, 0.5, 0.25, 0.0, 0.0], [1, 4, 8, 12, 13], warmup_steps=4, schedule="cosine")
    check([0.5, 0.5], [1, 4], warmup_steps=0, schedule="constant")
    check([0.125, 0.5, 0.5], [1, 4, 5], warmup_share=1 / 3, schedule="constant")


def test_decay_of_the_wsd_schedule_matches_hand_calculation():
    config = OptimizerConfig(schedule="wsd", decay_share=0.25)
    assert Decay.scheduled(config, 16) == (12, 16)
    assert Decay.after(config, 6) == (6, 8)
    assert Decay.after(config, 1) == (1, 2)  # at least one step
    factors = [float(decay_factor(jnp.array([12, 16]), jnp.int32(step))) for step in (1, 12, 13, 15, 16, 17)]
    assert factors == [1, 1, 0.75, 0.25, 0, 0]


def test_adafactor_matches_optax_and_stores_rows_and_columns_only():
    random = np.random.default_rng(0)
    shapes = {"up": (256, 128), "embedding": (19, 128), "scale": (128,)}
    params, *gradients = (
        {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(4)
    )
    ours = make_optimizer(OptimizerConfig(name="adafactor", clip_norm=0.0))
    theirs = optax.adafactor(1.0, multiply_by_parameter_scale=False)
    update, reference = jax.jit(ours.update), jax.jit(theirs.update)
    state, reference_state = ours.init(params), theirs.init(params)
    for gradient in gradients:
        actual, state = update(gradient, state, params)
        expected, reference_state = reference(gradient, reference_state, params)
        for name in shapes:
            np.testing.assert_allclose(-actual[name], expected[name], atol=1e-5)
    sizes = [leaf.size for leaf in jax.tree.leaves(state)]
    assert max(sizes) == 19 * 128  # too small to be factored
    assert sum(sizes) < 0.1 * 256 * 128
