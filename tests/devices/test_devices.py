"""Meshes of devices: training, evaluation and translation on eight simulated devices compared with one."""

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from lingua_flax.devices.compilation import set_up_compilation
from lingua_flax.devices.mesh import check_divides, make_mesh
from lingua_flax.devices.platform import DETERMINISTIC, compute_precision, computing
from lingua_flax.host.errors import UserError
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config
from lingua_flax.options.schema import ComputeConfig, Config, DecodingOptions, MeshConfig, ProcessOptions
from lingua_flax.training import state
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
from tests.processes import metrics, simulated_devices

MESHES = {
    "data": ["--devices.mesh.data", 8],
    "fsdp": ["--devices.mesh.fsdp", -1, "--devices.mesh.data", 1],
    "tensor": ["--devices.mesh.tensor", 8],
    "mixed": ["--devices.mesh.data", 2, "--devices.mesh.fsdp", 2, "--devices.mesh.tensor", 2],
}
FIRST_STEPS, ALL_STEPS = 6, 8  # before and after a run is resumed from its checkpoint on another mesh
# Sizes that eight divides; a moving average, the parts of an accumulated batch, and rotated and normalized heads are
# sharded.
OPTIONS = ["--tokenizer.vocab-size", 40, "--training.ema-decay", 0.9, "--optimizer.warmup-steps", 3]
OPTIONS += ["--model.num-heads", 8, "--model.positions", "rotary", "--model.qk-norm", "True"]
OPTIONS += ["--training.accumulation-steps", 2, "--training.tokens-per-batch", 1024]
OPTIONS += ["--training.checkpoint-every", FIRST_STEPS, "--training.eval-every", FIRST_STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("meshes", [("data", "mixed"), ("fsdp", "tensor")])
def test_every_mesh_has_the_losses_of_one_device(toy, run, tmp_path, meshes):
    def train(name, steps, *options, devices=8):
        options = (*OPTIONS, *options, "--training.num-steps", steps)
        succeed(run, "train", "--config", toy, "--workdir", tmp_path / name, *options, env=simulated_devices(devices))

    for name, steps in zip(meshes, (FIRST_STEPS, ALL_STEPS), strict=True):
        train("eight", steps, *MESHES[name])
    train("one", ALL_STEPS, devices=1)
    for name in ("loss", "validation_loss"):
        eight, one = (
            [line[name] for line in metrics(tmp_path / devices) if name in line] for devices in ("eight", "one")
        )
        assert eight == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_evaluation_and_translation_use_all_devices_and_keep_order(trained, run, toy, tmp_path):
    lines = (toy.parent / "test.en").read_text(encoding="utf-8").splitlines()
    (tmp_path / "in.en").write_text("\n".join([*lines, "", *reversed(lines)]) + "\n", encoding="utf-8")
    for count in (1, 8):
        for command, ending in (
            (["evaluate"], "test"),
            (["translate", "--input", tmp_path / "in.en", "--batch-size", 13], "out"),
            (["evaluate", "--score"], "score"),
        ):
            output = ("--output", tmp_path / f"{count}.{ending}")
            succeed(run, *command, "--workdir", trained[0], *output, env=simulated_devices(count))
    for ending in ("test", "out"):
        one, eight = ((tmp_path / f"{name}.{ending}").read_text(encoding="utf-8") for name in (1, 8))
        assert one == eight
    assert len(one.splitlines()) == 2 * len(lines) + 1
    one, eight = (np.loadtxt(tmp_path / f"{name}.score") for name in (1, 8))
    np.testing.assert_allclose(one, eight, atol=2e-3)


def test_mesh_that_does_not_divide_a_dimension_is_refused():
    twelve_rows, four_rows = {"tokens_per_batch": 12 * 128}, {"tokens_per_batch": 2048, "accumulation_steps": 4}
    for sizes, options, message in (
        ({"data": 16}, {}, "devices.mesh data 16, fsdp 1, tensor 1 needs 16 devices; available: 8"),
        ({"tensor": 3}, {}, "devices.mesh data -1, fsdp 1, tensor 3: 3 does not divide the 8 devices"),
        ({}, {"training": four_rows}, "the 4 rows per accumulation step .*training.accumulation_steps"),
        ({"data": 2, "fsdp": 4}, {"training": twelve_rows}, "data 2 times .*fsdp 4 does not divide the 12 rows"),
        ({"data": 1, "fsdp": 8}, {"model": {"embed_dim": 20}}, "mesh.fsdp 8 does not divide model.embed_dim 20"),
        ({"tensor": 8}, {}, "devices.mesh.tensor 8 does not divide model.num_heads 4"),
        ({"tensor": 4}, {"model": {"mlp_dim": 1022}}, "devices.mesh.tensor 4 does not divide model.mlp_dim 1022"),
        ({"tensor": 4}, {"tokenizer": {"vocab_size": 8001}}, "tensor 4 does not divide the 8001 pieces of tokenizer"),
    ):
        config = Config.model_validate({"devices": {"mesh": sizes}} | options)
        with pytest.raises(UserError, match=message):
            check_divides(make_mesh(config.devices.mesh, jax.devices()[:1] * 8), config, [config.tokenizer.vocab_size])


@pytest.mark.parametrize("name", ["adam", "adafactor", "muon"])
def test_optimizer_state_is_sharded_like_its_parameters(name, monkeypatch):
    """By hand: [D, F] matrices are sharded along both axes, norms and counters are on every device."""
    matrix, whole = PartitionSpec("fsdp", "tensor"), PartitionSpec()
    moments = {"optimizer.1.mu": matrix, "optimizer.1.nu": matrix}
    if name == "adafactor":
        moments = dict.fromkeys(("optimizer.1.v_row", "optimizer.1.v_col", "optimizer.1.v"), whole)
    if name == "muon":  # its states have no leaves for the parameters of the other part
        monkeypatch.setattr(state, "make_optimizer", lambda _: optax.contrib.muon(1.0))
        moments = {"optimizer.inner_states.muon.inner_state.0.mu": matrix}
    config = Config.model_validate(
        {"optimizer": {"name": name.replace("muon", "adam")}, "training": {"ema_decay": 0.9}}
    )
    places = state.state_shardings(structure(config.model, 64, 64), config, make_mesh(MeshConfig()))
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="."): place.spec
        for path, place in jax.tree_util.tree_leaves_with_path(places)
    }
    for tree, expected in ({"params": matrix, "ema_params": matrix} | moments).items():
        assert specs[f"{tree}.encoder.0.feed_forward.up.kernel"] == expected
    assert specs["params.target_embedding"] == PartitionSpec("tensor", "fsdp")
    assert specs["params.encoder_norm.scale"] == specs["step"] == whole
    assert {spec for path, spec in specs.items() if path.endswith("count")} == {whole}


def test_precision_depends_on_the_device():
    for platform, capability, precision, expected in (
        ("cpu", None, "auto", ("float32", "float32")),
        ("cpu", None, "bfloat16", ("float32", "bfloat16")),
        ("tpu", None, "auto", ("bfloat16", "bfloat16")),
        ("gpu", "9.0", "auto", ("bfloat16", "bfloat16")),
        ("gpu", "7.5", "auto", ("float32", "float32")),
        ("gpu", "7.5", "bfloat16", ("bfloat16", "bfloat16")),
        ("tpu", None, "float32", ("float32", "float32")),
    ):
        device = SimpleNamespace(platform=platform, **({"compute_capability": capability} if capability else {}))
        assert compute_precision(precision, SimpleNamespace(devices=np.array([device]))) == expected


def test_gpus_compute_the_same_bits_unless_the_option_is_false(monkeypatch):
    own = "--xla_gpu_autotune_level=4"  # the user's flags follow, and so prevail
    for option, expected in ((True, f"{DETERMINISTIC} {own}"), (False, own)):
        monkeypatch.setenv("XLA_FLAGS", own)
        with computing(ComputeConfig(deterministic=option), ProcessOptions()):
            assert os.environ["XLA_FLAGS"] == expected


def test_compilation_cache_that_is_chosen_already_stays(monkeypatch, tmp_path):
    chosen = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where the default one would be
    set_up_compilation()
    assert jax.config.jax_compilation_cache_dir == chosen


def test_translator_is_placed_on_the_requested_platform(trained, run):
    """Of two CPUs, the first stands for JAX's default devices and the second for those of another platform."""
    script = Path(__file__).parent / "scripts" / "place_translator.py"
    assert succeed(run, script, trained[0], env=simulated_devices(2)).stdout == "deux un !\n" * 2
    with pytest.raises(UserError, match="platform tpu: JAX finds none on this machine"):
        Translator.load(trained[0], devices=ComputeConfig(platform="tpu"))


def test_model_trained_on_a_tpu_translates_on_a_cpu(trained, run, tmp_path):
    """It computes in float32, exactly like a model trained on a CPU."""
    workdir = shutil.copytree(trained[0], tmp_path / "w")
    config = workdir / CONFIG_NAME
    config.write_text(re.sub('platform = ".*"', 'platform = "tpu"', config.read_text(encoding="utf-8")))
    assert read_workdir_config(workdir).devices.platform == "tpu"
    source = tmp_path / "in.en"
    source.write_text("nine eight seven six.\n")
    expected = Translator.load(trained[0]).translate(["nine eight seven six."], DecodingOptions(beam_size=2))
    done = succeed(run, "translate", "--workdir", workdir, "--input", source, "--beam-size", 2)
    assert done.stdout == f"{expected[0].text}\n"
    assert f"{workdir}: trained on tpu, computing on cpu" in done.stderr
