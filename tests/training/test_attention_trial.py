"""The trial of fused attention before the first step, on CPUs: of a kernel that is right, and of wrong ones."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.devices import processes
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.precision import BFLOAT16
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.training.kernels import fused_attention as kernels
from lingua_flax.training.kernels import trial
from lingua_flax.training.kernels.fused_attention import FusedAttention, rows_per_program
from tests.command_server import run_here
from tests.helpers.commands import succeed
from tests.processes import metrics

CONFIG = Config.model_validate(
    {"model": {"embed_dim": 32, "num_heads": 2}, "data": {"row_length": 24}, "training": {"tokens_per_batch": 96}}
)
WARNING = "attention is plain instead of fused, which "
OF_ENCODER = "is wrong: the {} of the self-attention of the encoder deviates from float32 by "


@dataclasses.dataclass(frozen=True)
class Interpreted(FusedAttention):
    interpret: bool = True


class WrongSign(Interpreted):
    def __call__(self, *arguments):
        return -super().__call__(*arguments)


class WrongGradient(Interpreted):
    """The gradient of the keys is 2% too large."""

    def __call__(self, query, keys, *others):
        return super().__call__(query, 1.02 * keys - jax.lax.stop_gradient(0.02 * keys), *others)


class WithoutCausalMask(Interpreted):
    def __call__(self, query, keys, values, mask):
        return super().__call__(query, keys, values, mask._replace(causal=False))


class NotANumber(Interpreted):
    def __call__(self, *arguments):
        return super().__call__(*arguments).at[0, 0, 0].set(jnp.nan)


class NotCompiled(Interpreted):
    def __call__(self, *_):
        raise NotImplementedError("no lowering for this\non this device")


@pytest.mark.parametrize(
    ("kernel", "precision", "failure"),
    [
        (Interpreted, "float32", None),
        (Interpreted, "bfloat16", None),
        (WrongSign, "float32", OF_ENCODER.format("output")),
        (WrongGradient, "bfloat16", OF_ENCODER.format("gradient of the keys")),
        (WithoutCausalMask, "float32", "is wrong: the output of the self-attention of the decoder"),
        (NotANumber, "float32", OF_ENCODER.format("output") + "nan"),
        (NotCompiled, "float32", "could not be compiled or run (NotImplementedError: no lowering for this)"),
    ],
)
def test_wrong_kernel_is_replaced_with_a_warning(monkeypatch, caplog, kernel, precision, failure):
    """In bfloat16 it computes as on an accelerator, activations included."""
    if precision == "bfloat16":
        monkeypatch.setattr(trial, "compute_precision", lambda *_: BFLOAT16)
    candidate = kernel(make_mesh(MeshConfig(data=1)), "gpu")
    proven = trial.proven(candidate, CONFIG)
    if failure is None:
        assert (proven, caplog.messages) == (candidate, [])
        return
    assert proven is None
    (message,) = caplog.messages
    assert message.startswith(WARNING + failure)
    if failure.startswith("is wrong"):
        assert re.search(rf", that of plain attention in {precision} by [\d.e-]+$", message)


def test_batch_of_the_trial_is_like_that_of_a_device():
    """That is, of 176 / 2 / 4 = 22 rows in a part of a step, two in each program of the kernel, with half of the heads;
    with fewer than 10 rows, several programs would have another number of rows each."""
    mesh = SimpleNamespace(shape={"data": 2, "fsdp": 2, "tensor": 2})
    sections = {"data": {"row_length": 256}, "training": {"tokens_per_batch": 176 * 256, "accumulation_steps": 2}}
    config = Config.model_validate({"model": {"embed_dim": 64, "num_heads": 4}, **sections})
    batch = trial._small_batch(SimpleNamespace(mesh=mesh, platform="tpu"), config)
    assert [array.shape for array in batch.operands] == [(10, 256, 32)] * 4
    assert [rows_per_program(rows, 256, "tpu") for rows in (22, 10, 8, 6, 4)] == [2, 2, 4, 3, 4]
    for segments in batch[1:]:
        assert np.all(segments[:, -12:] == 0)
        assert np.mean(segments.max(axis=1)) > 3
    assert np.any(batch.source_segments != batch.target_segments)


def stored_attention(workdir) -> str:
    return read_metadata(workdir / "checkpoints", saved_steps(workdir / "checkpoints")[-1])["attention"]


def test_run_is_plain_until_it_is_resumed_with_a_kernel_that_passes(toy, trained, tmp_path, monkeypatch):
    """It always has the losses of a run with plain attention."""
    monkeypatch.setattr(kernels, "_why_not_fused", lambda config, mesh: None)
    for kernel, used, steps in ((WrongSign, "plain", 3), (Interpreted, "fused", 6)):
        monkeypatch.setattr(kernels, "FusedAttention", kernel)
        options = ("--config", toy, "--workdir", tmp_path, "--training.eval-every", 0, "--training.num-steps", steps)
        said = succeed(run_here, "train", *options).stderr
        assert said.count(WARNING) == (used == "plain")
        assert f"float32, attention: {used}\n" in said
        assert stored_attention(tmp_path) == used
    assert "attention was plain until this checkpoint and is now fused: the next losses differ" in said
    actual, expected = ([line["loss"] for line in metrics(workdir)[:6]] for workdir in (tmp_path, trained[0]))
    assert actual == pytest.approx(expected, rel=1e-5)


def test_processes_agree_on_plain_attention_if_it_fails_in_one(monkeypatch, caplog):
    candidate = Interpreted(make_mesh(MeshConfig(data=1)), "gpu")
    monkeypatch.setattr(processes.jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "gather_texts", lambda text: [text, "could not be compiled or run"])
    assert trial.proven(candidate, CONFIG) is None
    assert caplog.messages == [WARNING + "could not be compiled or run (process 1)"]
