"""The recipe of CONTRIBUTING.md for a new optimizer, applied to a copy of the project."""

import re
import shutil
import subprocess
import sys

from tests.conftest import HUNG_AFTER, ROOT

COMPARE = """
import jax, jax.numpy as jnp, optax
from lingua_flax.options.schema import OptimizerConfig
from lingua_flax.training.optimizer import make_optimizer

params = {"matrix": jnp.array([[1.0, -2.0], [3.0, 0.5]]), "bias": jnp.array([4.0, -5.0])}
config = OptimizerConfig(name="lion", beta2=0.99, weight_decay=0.25, clip_norm=0.0)
is_matrix = {"matrix": True, "bias": False}
ours, theirs = make_optimizer(config), optax.lion(1.0, b1=0.9, b2=0.99, weight_decay=0.25, mask=is_matrix)
states = [optimizer.init(params) for optimizer in (ours, theirs)]
for step in range(1, 4):
    gradients = jax.tree.map(lambda leaf: jnp.sin(step * leaf), params)
    mine, states[0] = ours.update(gradients, states[0], params)
    other, states[1] = theirs.update(gradients, states[1], params)
    assert jax.tree.all(jax.tree.map(lambda own, its: (own == -its).all(), mine, other)), step
print(mine["matrix"][0, 1])
"""


def apply(diff, folder):
    """Applies the hunks of each file, which have no line numbers: what they replace must be there once."""
    for text in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"\n@@.*\n", text.rstrip("\n"))
        content = (folder / name).read_text()
        for hunk in hunks:
            old, new = (
                "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] in kept) for kept in (" -", " +")
            )
            assert content.count(old) == 1, old
            content = content.replace(old, new)
        (folder / name).write_text(content)


def test_lion_trains_with_weight_decay(toy, tmp_path):
    for name in ("lingua_flax", "model", "data", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))

    def python(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HUNG_AFTER)

    train = ("-m", "lingua_flax", "train", "--config", toy, "--workdir", tmp_path / "w", "--training.num-steps", 3)
    lion = ("--training.eval-every", 0, "--optimizer.name", "lion", "--optimizer.weight-decay", 0.1)
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    apply(diff, tmp_path)
    done = python("-c", COMPARE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) != 0.0
    done = python(*train, *lion)
    assert done.returncode == 0, done.stderr
    assert "3 of 3" in done.stdout
    refused = python(*train, *lion, "--optimizer.epsilon", 1e-3)
    assert refused.returncode == 2
    assert "epsilon 0.001 has no effect" in refused.stderr
