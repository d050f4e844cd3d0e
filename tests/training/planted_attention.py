"""Fast attention that is run as plain JAX, and others that have something wrong planted into them.

As a script, it runs a command with the one whose name is the first argument, as if CPUs supported it. With processes,
only process 1 has it, and the others have `Interpreted`.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp

from lingua_flax.__main__ import main
from lingua_flax.training.kernels import fast_attention
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


if __name__ == "__main__":
    name = sys.argv.pop(1)
    if "--process-id" in sys.argv and sys.argv[sys.argv.index("--process-id") + 1] != "1":
        name = "Interpreted"
    fast_attention._why_not_fused = lambda config, mesh: None
    fast_attention.FusedAttention = globals()[name]
    sys.exit(main())
