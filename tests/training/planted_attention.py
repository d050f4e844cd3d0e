"""Fast attention that is run as plain JAX, and others that have something wrong planted into them."""

import dataclasses

import jax
import jax.numpy as jnp

from lingua_flax.training.kernels.fast_attention import FusedAttention


@dataclasses.dataclass(frozen=True)
class Interpreted(FusedAttention):
    """Nothing is wrong with it."""

    interpret: bool = True


class WrongSign(Interpreted):
    def __call__(self, *arguments):
        return -super().__call__(*arguments)


class WrongGradient(Interpreted):
    """The gradient of the keys is 2% too large."""

    def __call__(self, query, keys, *others):
        return super().__call__(query, 1.02 * keys - jax.lax.stop_gradient(0.02 * keys), *others)


class WithoutCausalMask(Interpreted):
    def __call__(self, query, keys, values, num_heads, mask):
        return super().__call__(query, keys, values, num_heads, mask._replace(causal=False))


class NotANumber(Interpreted):
    def __call__(self, *arguments):
        return super().__call__(*arguments).at[0, 0, 0].set(jnp.nan)


class NotCompiled(Interpreted):
    def __call__(self, *_):
        raise NotImplementedError("no lowering for this\non this device")
