"""Meshes of devices: training, evaluation and translation on eight simulated devices compared with one."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.platform import DETERMINISTIC, compute_precision
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import CONFIG_NAME, read_workdir_config
from lingua_flax.options.schema import Config, DecodingOptions, MeshConfig
from lingua_flax.training.state import state_shardings
from lingua_flax.translation.translator import Translator
from tests.processes import metrics, simulated_devices

SCRIPTS = Path(__file__).parent / "scripts"
MESHES = {
    "data": ["--devices.mesh.data", 8],
    "fsdp": ["--devices.mesh.fsdp", -1, "--devices.mesh.data", 1],
    "tensor": ["--devices.mesh.tensor", 8],
    "mixed": ["--devices.mesh.data", 2, "--devices.mesh.fsdp", 2, "--devices.mesh.tensor", 2],
}
RESUMED_ON = {"fsdp": "tensor", "data": "mixed"}  # runs that are resumed from their checkpoint, on another mesh
FIRST_STEPS, ALL_STEPS = 6, 8  # before and after such a run is resumed
# Sizes that eight divides; a moving average, the parts of an accumulated batch, and rotated and normalized heads are
# sharded.
OPTIONS = ["--tokenizer.vocab-size", 40, "--training.ema-decay", 0.9, "--optimizer.warmup-steps", 3]
OPTIONS += ["--model.num-heads", 8, "--model.positions", "rotary", "--model.qk-norm", "True"]
OPTIONS += ["--training.accumulation-steps", 2, "--training.tokens-per-batch", 1024]
OPTIONS += ["--training.checkpoint-every", FIRST_STEPS, "--training.eval-every", FIRST_STEPS]


def losses(workdir) -> list[float]:
    return [line["loss"] for line in metrics(workdir) if "loss" in line]


@pytest.fixture(scope="module")
def one_device(toy, run, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("devices") / "one"
    done = run("train", "--config", toy, "--workdir", workdir, *OPTIONS, "--training.num-steps", ALL_STEPS)
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", ["mixed", *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in MESHES if mesh != "mixed")]
)
def test_every_mesh_has_the_losses_of_one_device(one_device, toy, run, tmp_path, mesh):
    """The runs on two of the meshes are resumed on another one."""
    workdir = tmp_path / "w"
    parts = [(mesh, FIRST_STEPS)]
    if mesh in RESUMED_ON:
        parts.append((RESUMED_ON[mesh], ALL_STEPS))
    for name, steps in parts:
        options = [*OPTIONS, *MESHES[name], "--training.num-steps", steps]
        done = run("train", "--config", toy, "--workdir", workdir, *options, env=simulated_devices(8))
        assert done.returncode == 0, done.stderr
    assert len(losses(workdir)) == steps
    assert losses(workdir) == pytest.approx(losses(one_device)[:steps], rel=1e-4)
    expected, actual = (
        next(line["validation_loss"] for line in metrics(each) if "validation_loss" in line)
        for each in (one_device, workdir)
    )
    assert actual == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_bfloat16_has_the_losses_of_one_device(toy, run, tmp_path):
    options = [*OPTIONS, "--training.num-steps", 2, "--devices.precision", "bfloat16"]
    for count, mesh in ((1, []), (8, MESHES["mixed"])):
        workdir = tmp_path / f"{count}"
        done = run("train", "--config", toy, "--workdir", workdir, *options, *mesh, env=simulated_devices(count))
        assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "8") == pytest.approx(losses(tmp_path / "1"), rel=1e-3)


@pytest.mark.slow
def test_evaluation_and_translation_use_all_devices_and_keep_order(trained, run, toy, tmp_path):
    lines = (toy.parent / "test.en").read_text(encoding="utf-8").splitlines()
    source = tmp_path / "in.en"
    source.write_text("\n".join([*lines, "", *reversed(lines)]) + "\n", encoding="utf-8")
    for count in (1, 8):
        name = tmp_path / f"{count}"
        env = simulated_devices(count)
        evaluated = run("evaluate", "--workdir", trained[0], "--output", f"{name}.test", env=env)
        files = ["--input", source, "--output", f"{name}.out"]
        translated = run("translate", "--workdir", trained[0], *files, "--batch-size", 13, env=env)
        scored = run("evaluate", "--workdir", trained[0], "--score", "--output", f"{name}.score", env=env)
        for done in (evaluated, translated, scored):
            assert done.returncode == 0, done.stderr
    for ending in ("test", "out"):
        one, eight = ((tmp_path / f"{name}.{ending}").read_text(encoding="utf-8") for name in (1, 8))
        assert one == eight
    assert len(one.splitlines()) == 2 * len(lines) + 1
    one, eight = (np.loadtxt(tmp_path / f"{name}.score") for name in (1, 8))
    np.testing.assert_allclose(one, eight, atol=2e-3)


REFUSED = [
    ({"data": 16}, {}, "devices.mesh data 16, fsdp 1, tensor 1 needs 16 devices; available: 8"),
    ({"tensor": 3}, {}, "devices.mesh data -1, fsdp 1, tensor 3: 3 does not divide the 8 devices"),
    ({}, {"training": {"tokens_per_batch": 12 * 128}}, "devices.mesh.data 8 does not divide the 12 rows per batch"),
    (
        {},
        {"training": {"tokens_per_batch": 2048, "accumulation_steps": 4}},
        "does not divide the 4 rows per accumulation step .*training.accumulation_steps",
    ),
    (
        {"data": 2, "fsdp": 4},
        {"training": {"tokens_per_batch": 12 * 128}},
        "devices.mesh.data 2 times devices.mesh.fsdp 4 does not divide the 12 rows",
    ),
    ({"data": 1, "fsdp": 8}, {"model": {"embed_dim": 20}}, "devices.mesh.fsdp 8 does not divide model.embed_dim 20"),
    ({"tensor": 8}, {}, "devices.mesh.tensor 8 does not divide model.num_heads 4"),
    ({"tensor": 4}, {"model": {"mlp_dim": 1022}}, "devices.mesh.tensor 4 does not divide model.mlp_dim 1022"),
    (
        {"tensor": 4},
        {"tokenizer": {"vocab_size": 8001}},
        "devices.mesh.tensor 4 does not divide the 8001 pieces of tokenizer.vocab_size",
    ),
]


def test_mesh_that_does_not_divide_a_dimension_is_refused(run):
    configs = json.dumps([{"devices": {"mesh": mesh}} | options for mesh, options, _ in REFUSED])
    done = run(SCRIPTS / "refused_meshes.py", configs, env=simulated_devices(8))
    assert done.returncode == 0, done.stderr
    for line, (_, _, message) in zip(done.stdout.splitlines(), REFUSED, strict=True):
        assert re.search(message, line), line


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor"])
def test_optimizer_state_is_sharded_like_its_parameters(name):
    """By hand: [D, F] matrices are sharded along both axes, norms and counters are on every device."""
    options = {"name": name, "weight_decay": 0.1 if name == "adamw" else 0.0}
    config = Config.model_validate({"optimizer": options, "training": {"ema_decay": 0.9}})
    places = state_shardings(structure(config.model, 64, 64), config, make_mesh(MeshConfig()))
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="."): place.spec
        for path, place in jax.tree_util.tree_leaves_with_path(places)
    }
    up = "encoder.0.feed_forward.up.kernel"
    matrix, whole = PartitionSpec("fsdp", "tensor"), PartitionSpec()
    moments = {"1.mu": matrix, "1.nu": matrix}
    if name == "adafactor":
        moments = {"1.v_row": whole, "1.v_col": whole, "1.v": whole}
    assert {specs[f"{tree}.{up}"] for tree in ("params", "ema_params")} == {matrix}
    assert {part: specs[f"optimizer.{part}.{up}"] for part in moments} == moments
    assert specs["params.target_embedding"] == PartitionSpec("tensor", "fsdp")
    assert specs["params.encoder_norm.scale"] == specs["step"] == specs["optimizer.1.count"] == whole


@pytest.mark.parametrize(
    ("platform", "capability", "precision", "expected"),
    [
        ("cpu", None, "auto", ("float32", "float32")),
        ("cpu", None, "bfloat16", ("float32", "bfloat16")),
        ("tpu", None, "auto", ("bfloat16", "bfloat16")),
        ("gpu", "9.0", "auto", ("bfloat16", "bfloat16")),
        ("gpu", "7.5", "auto", ("float32", "float32")),
        ("gpu", "7.5", "bfloat16", ("bfloat16", "bfloat16")),
        ("tpu", None, "float32", ("float32", "float32")),
    ],
)
def test_precision_depends_on_the_device(platform, capability, precision, expected):
    device = SimpleNamespace(platform=platform, **({"compute_capability": capability} if capability else {}))
    assert compute_precision(precision, SimpleNamespace(devices=np.array([device]))) == expected


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ([], f"{DETERMINISTIC} --xla_gpu_autotune_level=4"),  # the user's flags follow, and so prevail
        (["--devices.deterministic", "false"], "--xla_gpu_autotune_level=4"),
    ],
)
def test_gpus_compute_the_same_bits_unless_the_option_is_false(trained, run, option, expected):
    environment = os.environ | {"XLA_FLAGS": "--xla_gpu_autotune_level=4"}
    program = (
        "import os, sys; from lingua_flax.commands.main import exit_status\n"
        "from lingua_flax.commands.translate import translate\n"
        "assert exit_status(translate, sys.argv[1:]) == 0; print(os.environ['XLA_FLAGS'])"
    )
    done = run("-c", program, "--workdir", trained[0], *option, env=environment, input="")
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_translator_is_placed_on_the_requested_platform(trained, run):
    """Of two CPUs, the first stands for JAX's default devices and the second for those of another platform."""
    done = run(SCRIPTS / "place_translator.py", trained[0], env=simulated_devices(2))
    assert done.returncode == 0, done.stderr
    *translations, refusal = done.stdout.splitlines()
    assert translations == ["deux un !"] * 2
    assert refusal.startswith("devices.platform tpu: JAX finds none on this machine")


def test_model_trained_on_a_tpu_translates_on_a_cpu(trained, run, tmp_path, caplog):
    """It computes in float32, exactly like a model trained on a CPU; a requested platform must be available."""
    workdir = tmp_path / "w"
    shutil.copytree(trained[0], workdir)
    config = workdir / CONFIG_NAME
    config.write_text(re.sub('platform = ".*"', 'platform = "tpu"', config.read_text(encoding="utf-8")))
    assert read_workdir_config(workdir).devices.platform == "tpu"
    line = "nine eight seven six."
    options = DecodingOptions(beam_size=2)
    expected = Translator.load(trained[0]).translate([line], options)
    with caplog.at_level("INFO"):
        assert Translator.load(workdir).translate([line], options) == expected
    assert f"{workdir}: trained on tpu, computing on cpu" in caplog.messages
    source, output = tmp_path / "in.en", tmp_path / "out.fr"
    source.write_text(f"{line}\n")
    for program, files in [
        ("translate", ["--input", source]),
        ("evaluate", ["--source", source, "--reference", source]),
    ]:
        command = [program, "--workdir", workdir, *files, "--beam-size", 2, "--output", output]
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert output.read_text(encoding="utf-8") == f"{expected[0].text}\n"
        assert "trained on tpu, computing on cpu" in done.stderr
        refused = run(*command, "--devices.platform", "tpu")
        assert refused.returncode == 2
        assert "devices.platform tpu: JAX finds none on this machine" in refused.stderr
