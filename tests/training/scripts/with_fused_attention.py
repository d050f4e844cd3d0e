"""Runs a command with the attention of `planted_attention` whose name is the first argument, as if CPUs supported it.

With processes, only process 1 has it, and the others have `Interpreted`.
"""

import sys

from lingua_flax.__main__ import main
from lingua_flax.training.kernels import fast_attention
from tests.training import planted_attention

if __name__ == "__main__":
    name = sys.argv.pop(1)
    if "--process-id" in sys.argv and sys.argv[sys.argv.index("--process-id") + 1] != "1":
        name = "Interpreted"
    fast_attention._why_not_fused = lambda config, mesh: None
    fast_attention.FusedAttention = getattr(planted_attention, name)
    sys.exit(main())
