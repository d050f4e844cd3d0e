"""The recipe of CONTRIBUTING.md for a new optimizer, applied to a copy of the project."""

import re
import shutil

from tests.conftest import ROOT
from tests.helpers.commands import succeed

CHECK = """
import sys
import jax, jax.numpy as jnp, optax

for name in [name for name in sys.modules if name.partition(".")[0] == "lingua_flax"]:
    del sys.modules[name]  # this process is forked from one that has imported the project itself
sys.path.insert(0, ".")
from lingua_flax.__main__ import run
from lingua_flax.options.schema import OptimizerConfig
from lingua_flax.training.optimizer import make_optimizer

params = {"matrix": jnp.array([[1.0, -2.0], [3.0, 0.5]]), "bias": jnp.array([4.0, -5.0])}
ours = make_optimizer(OptimizerConfig(name="lion", beta2=0.99, weight_decay=0.25, clip_norm=0.0))
theirs = optax.lion(1.0, b1=0.9, b2=0.99, weight_decay=0.25, mask={"matrix": True, "bias": False})
mine, other = (optimizer.update(params, optimizer.init(params), params)[0] for optimizer in (ours, theirs))
assert jax.tree.all(jax.tree.map(lambda own, its: (own == -its).all() & (own != 0).all(), mine, other))
train = ["train", *sys.argv[1:], "--optimizer.name", "lion", "--optimizer.weight-decay", "0.1"]
assert run(train) == 0
assert run([*train, "--optimizer.epsilon", "1e-3"]) == 2
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


def test_lion_trains_with_weight_decay(toy, run, tmp_path):
    for name in ("lingua_flax", "model", "data", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    apply(diff, tmp_path)
    (tmp_path / "check.py").write_text(CHECK)
    options = ("--config", toy, "--workdir", tmp_path / "w", "--training.num-steps", 3, "--training.eval-every", 0)
    done = succeed(run, tmp_path / "check.py", *options, cwd=tmp_path)
    assert "3 of 3" in done.stdout
    assert "epsilon 0.001 has no effect" in done.stderr
