"""Learning-rate schedules and optimizers; the training step applies the learning rate."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
import optax

from lingua_flax.options.schema import OptimizerConfig


def num_warmup_steps(config: OptimizerConfig, num_steps: int) -> int:
    """Returns the number of warm-up steps in a run of num_steps; a share never covers all of them."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    assert config.warmup_share is not None  # exactly one of the two has a value
    return min(num_steps - 1, round(config.warmup_share * num_steps))


def learning_rate(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step, counted from 1: linear warm-up to the peak, then a schedule.

    "inverse_sqrt" decays with the inverse square root of the step (Vaswani et al. 2017, section 5.3, rescaled to the
    peak), "cosine" decays to 0 at step `num_steps`, and "constant" stays at the peak. So does "wsd" (Hu et al. 2024),
    whose rates are to be multiplied by `decay_factor`.
    """
    warmup = num_warmup_steps(config, num_steps)

    def inverse_sqrt(steps_after_warmup: jax.typing.ArrayLike) -> jax.Array:
        peak_step = max(1, warmup)
        return config.peak_lr * jnp.sqrt(peak_step / jnp.maximum(peak_step, warmup + steps_after_warmup))

    after_warmup = {
        "inverse_sqrt": inverse_sqrt,
        "cosine": optax.cosine_decay_schedule(config.peak_lr, max(1, num_steps - warmup)),
        "constant": optax.constant_schedule(config.peak_lr),
        "wsd": optax.constant_schedule(config.peak_lr),
    }[config.schedule]
    return optax.join_schedules([optax.linear_schedule(0.0, config.peak_lr, max(1, warmup)), after_warmup], [warmup])


class Decay(NamedTuple):
    """The final decay of the "wsd" schedule: from `start`, the last step at the peak, to 0 at `end`, the last step."""

    start: int
    end: int

    @classmethod
    def scheduled(cls, config: OptimizerConfig, num_steps: int) -> Decay:
        """Returns the decay of a run that takes all its steps."""
        return cls(num_steps - max(1, round(config.decay_share * num_steps)), num_steps)

    @classmethod
    def after(cls, config: OptimizerConfig, step: int) -> Decay:
        """Returns the decay of a run that has trained long enough after `step` steps."""
        return cls(step, step + max(1, round(step * config.decay_share / (1.0 - config.decay_share))))


def decay_factor(decay: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the factor of the learning rate of a step, which falls linearly from 1 to 0.

    `decay` is a Decay as an array, int32 [2]; steps are counted from 1.
    """
    start, end = decay
    return jnp.clip((end - step) / (end - start), 0.0, 1.0)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns gradient clipping followed by the optimizer; its updates are to be multiplied by -learning_rate."""
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay, mask=_is_matrix) if config.weight_decay else optax.identity()
    match config.name:
        case "adafactor":
            # Factored second moments and update clipping of Shazeer and Stern (2018). The relative step sizes of their
            # section 8, scaled by the size of each parameter, are left out, so that a learning rate means the same as
            # for Adam.
            return optax.chain(clip, optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
        case "adam" | "adamw":
            adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
            return optax.chain(clip, adam, decay)
        case unknown:
            assert_never(unknown)


def _is_matrix(params: optax.Params) -> optax.Params:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)
