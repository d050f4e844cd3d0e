"""The trial of fast attention before the first step, on CPUs: of a kernel that is right, and of others that are not."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.precision import BFLOAT16
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.runs.checkpoint import read_metadata, saved_steps
from lingua_flax.training.kernels import fast_attention, trial
from lingua_flax.training.kernels.fast_attention import rows_per_program
from tests.helpers.several import run_together
from tests.processes import digests, metrics
from tests.training import planted_attention

CONFIG = Config.model_validate(
    {"model": {"embed_dim": 32, "num_heads": 2}, "data": {"row_length": 24}, "training": {"tokens_per_batch": 96}}
)
WARNING = "attention is plain instead of fused, which "
OF_ENCODER = "is wrong: the {} of the self-attention of the encoder deviates from float32 by "


@pytest.mark.parametrize(
    ("name", "precision", "failure"),
    [
        ("Interpreted", "float32", None),
        ("Interpreted", "bfloat16", None),
        ("WrongSign", "float32", OF_ENCODER.format("output")),
        ("WrongGradient", "bfloat16", OF_ENCODER.format("gradient of the keys")),
        ("WithoutCausalMask", "float32", "is wrong: the output of the self-attention of the decoder"),
        ("NotANumber", "float32", OF_ENCODER.format("output") + "nan"),
        ("NotCompiled", "float32", "could not be compiled or run (NotImplementedError: no lowering for this)"),
    ],
)
def test_wrong_kernel_is_replaced_with_a_warning(monkeypatch, caplog, name, precision, failure):
    """In bfloat16 it computes as on an accelerator, activations included."""
    if precision == "bfloat16":
        monkeypatch.setattr(trial, "compute_precision", lambda *_: BFLOAT16)
    candidate = getattr(planted_attention, name)(make_mesh(MeshConfig(data=1)), "gpu")
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
    """A device has 176 / 2 / 4 = 22 rows in a part of a step, and half of the heads. Each program of the kernel has two
    of them; with fewer than 10 rows, several programs would have another number of rows each."""
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


# Without validations.
OPTIONS = ("--training.eval-every", 0, "--training.checkpoint-every", 4, "--training.log-every", 1)


def stored_attention(workdir) -> str:
    return read_metadata(workdir / "checkpoints", saved_steps(workdir / "checkpoints")[-1])["attention"]


def test_run_whose_kernel_was_replaced_is_plain_and_resumes_bit_for_bit(toy, run, tmp_path, monkeypatch):
    """Until it is resumed with a kernel that passes, which is said, and computes the same losses."""
    monkeypatch.setattr(fast_attention, "_why_not_fused", lambda config, mesh: None)

    def train(attention, workdir, steps, *options):
        monkeypatch.setattr(fast_attention, "FusedAttention", getattr(planted_attention, attention))
        options = ("--config", toy, "--workdir", workdir, *OPTIONS, *options)
        done = run("train", *options, "--training.num-steps", steps)
        assert done.returncode == 0, done.stderr
        return done.stderr

    resumed, plain = tmp_path / "resumed", tmp_path / "plain"
    for steps in (6, 9):
        said = train("WrongSign", resumed, steps)
        assert said.count(WARNING) == 1
        assert "float32, attention: plain\n" in said
        assert "attention was" not in said
    assert "resuming from step 6" in said
    assert WARNING not in train("WrongSign", plain, 9, "--model.attention", "plain")
    assert metrics(resumed) == metrics(plain)
    assert digests(resumed) == digests(plain)
    assert stored_attention(resumed) == "plain"
    said = train("Interpreted", resumed, 12)
    assert "float32, attention: fused\n" in said
    assert "attention was plain until this checkpoint and is now fused: the next losses differ" in said
    assert stored_attention(resumed) == "fused"
    train("WrongSign", plain, 12, "--model.attention", "plain")
    losses = [[line["loss"] for line in metrics(workdir)[9:]] for workdir in (resumed, plain)]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_processes_agree_on_plain_attention_if_it_fails_in_one(toy, run, tmp_path):
    options = ("--config", toy, "--workdir", tmp_path / "w", *OPTIONS, "--training.num-steps", 2)
    first, second = run_together(run, 2, planted_attention.__file__, "NotCompiled", "train", *options)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    reason = "could not be compiled or run (NotImplementedError: no lowering for this) (process 1)"
    assert f"{WARNING}{reason}\n" in first.stderr
    assert "float32, attention: plain\n" in first.stderr
    assert stored_attention(tmp_path / "w") == "plain"
