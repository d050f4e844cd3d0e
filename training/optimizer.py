"""Learning-rate schedules and the optax chain; the learning rate is applied by the training step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from options.schema import OptimizerConfig


def learning_rate(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """The learning rate of a step, counted from 1: linear warm-up to the peak, then the schedule.

    inverse_sqrt falls with the square root of the step (Vaswani et al. 2017, section 5.3, scaled to the peak), cosine
    to 0 at num_steps, constant not at all.
    """
    warmup = config.num_warmup_steps(num_steps)

    def inverse_sqrt(after: jax.typing.ArrayLike) -> jax.Array:
        first = max(1, warmup)
        return config.peak_lr * jnp.sqrt(first / jnp.maximum(first, warmup + after))

    falling = {
        "inverse_sqrt": inverse_sqrt,
        "cosine": optax.cosine_decay_schedule(config.peak_lr, max(1, num_steps - warmup)),
        "constant": optax.constant_schedule(config.peak_lr),
    }[config.schedule]
    return optax.join_schedules([optax.linear_schedule(0.0, config.peak_lr, max(1, warmup)), falling], [warmup])


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clipping and the optimizer's direction, to be multiplied by minus the learning rate."""
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    if config.name == "adafactor":
        # Sections 4 to 6 of the paper. Its section 8 scales each rate by the parameters' size: left out, so that a
        # learning rate means what it means for adam.
        return optax.chain(clip, optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
    adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
    decay = optax.add_decayed_weights(config.weight_decay, mask=_is_matrix)
    return optax.chain(clip, adam, decay if config.weight_decay else optax.identity())


def _is_matrix(params: optax.Params) -> optax.Params:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)
