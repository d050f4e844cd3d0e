"""What a run needs, told by --dry-run before it starts, and by a run that has not enough of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from data.batch import unpacked_batch
from devices.mesh import make_mesh
from devices.processes import gather_to_host
from model.flops import forward_flops, training_flops
from model.transformer import initial_params, structure
from options.config_files import read_config
from options.schema import MeshConfig, ModelConfig
from reports.dry_run import parameters_by_module
from tests.conftest import ROOT
from tests.processes import metrics
from training.device_memory import format_bytes, memory_between_steps
from training.step import initial_state, make_train_step

# By hand: embedding V D; encoder layer 4 D^2 + 2 D F + F + D + 2 * 2 D; decoder layer 8 D^2 + 2 D F + F + D +
# 3 * 2 D; post-norm, so no norm behind the layers.
PAPER = {
    "wmt14_en_de_base": (37000 * 512 + 6 * 3_150_336 + 6 * 4_199_936, 63_045_632, 65e6),
    "wmt14_en_de_big": (37000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 214_171_648, 213e6),
    "wmt14_en_fr_big": (32000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 209_051_648, 213e6),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_systems_have_the_papers_sizes(name):
    by_parts, total, published = PAPER[name]
    config = read_config(ROOT / "configs" / f"{name}.toml")
    size = config.tokenizer.vocab_size
    counts = parameters_by_module(structure(config.model, size, size))
    assert sum(counts.values()) == by_parts == total
    assert total == pytest.approx(published, rel=0.04)
    assert counts["target_embedding"] == size * config.model.embed_dim
    assert counts["decoder cross_attention"] == 6 * 4 * config.model.embed_dim**2
    assert 0.9 * 25000 < 0.95 * config.rows_per_batch * config.data.row_length < 1.1 * 25000


def test_flops_by_hand():
    """D = 2, F = 3, V = 5, S = 2, T = 1, a layer each; products: encoder 48 + 24, decoder 20 + 32 + 12, output 10."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=2, num_heads=1, mlp_dim=3)
    assert forward_flops(config, 5, 2, 1) == 2 * (48 + 24 + 20 + 32 + 12 + 10)
    assert training_flops(config, 5, 2, 1) == 3 * 292


def test_flops_are_those_of_the_compiled_program():
    """XLA counts what is not a matrix product as well: a few percent at these sizes."""
    config = ModelConfig(num_encoder_layers=2, num_decoder_layers=3, embed_dim=192, mlp_dim=576, dropout_rate=0.0)
    network = structure(config, 1000, 1000)
    source, target = jnp.zeros((3, 48), jnp.int32), jnp.zeros((3, 32), jnp.int32)

    def forward(params, source, target):
        return nnx.merge(network.graphdef, params)(source, target)[0]

    counted = jax.jit(forward).lower(network.params, source, target).compile().cost_analysis()["flops"]
    assert counted == pytest.approx(3 * forward_flops(config, 1000, 48, 32), rel=0.05)


def test_memory_is_what_the_compiled_program_takes_in(toy):
    config = read_config(toy)
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": 0.9})})
    network, mesh = structure(config.model, 45, 45), make_mesh(MeshConfig(data=1))
    found = memory_between_steps(network, config, mesh)
    state = initial_state(initial_params(config.model, 45, 45, jax.random.key(0)), config)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert (found.parameters, found.average, found.batch) == (4 * numbers, 4 * numbers, 7 * 4 * 512)
    assert found.optimizer == 2 * 4 * numbers + 4  # two moments and a counter
    batch = unpacked_batch([[5, 1]], [[6, 1]], rows=16, length=32)
    analysis = make_train_step(network, config, 240, mesh).lower(state, batch).compile().memory_analysis()
    assert analysis.argument_size_in_bytes == found.total + 3 * 4  # and the state's counters


def test_sizes_for_people():
    sizes = {12: "12 bytes", 1234: "1.2 kB", 1_234_567: "1.2 MB", 12_345_678_901: "12.3 GB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


def rows(printed: str) -> dict[str, str]:
    """The names and values of the tables that were printed."""
    return dict(re.findall(r"^│ ([^│]+?) +│ +([^│]+?) +│", printed, re.MULTILINE))


def test_dry_run_of_a_mesh_that_is_not_here(run, tmp_path):
    """Shared out by hand: fsdp 4 and tensor 2 halve and quarter all but the norms."""
    options = [
        "--config",
        ROOT / "configs" / "tiny.toml",
        "--dry-run",
        "--tokens-per-second",
        2000,
        "--training.ema-decay",
        0.9,
        "--devices.mesh.data",
        1,
        "--devices.mesh.fsdp",
        4,
        "--devices.mesh.tensor",
        2,
    ]
    done = run(ROOT / "train.py", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    shown = rows(done.stdout)
    assert shown["total"] == "1,243,136"
    assert shown["encoder feed forward"] == f"{2 * (2 * 128 * 512 + 512 + 128):,}"
    norms, downs, ups = 1280 + 1792, 4 * 128, 4 * 512  # norms and the biases, shared out by one axis only
    on_each = norms + downs / 4 + ups / 2 + (1_243_136 - norms - downs - ups) / 8
    assert shown["parameters"] == shown["moving average"] == format_bytes(4 * on_each)
    assert shown["optimizer"] == format_bytes(8 * on_each)
    assert shown["compiled for"] == "8 x cpu (simulated), float32"
    assert shown["rows"] == "32 of 64 source and 64 target positions"
    model = read_config(ROOT / "configs" / "tiny.toml").model
    assert shown["model FLOPs"].startswith(f"{32 * training_flops(model, 2500, 64, 64):.3g},")
    assert shown["real tokens"] == "95.0% of the target positions (assumed)"
    assert shown["time"] == "0.59 hours at 2,000 tokens/s"  # 0.95 * 2,200 * 2,048 / 2,000 / 3600
    assert shown["model FLOP/s"] == f"{training_flops(model, 2500, 64, 64) / 64 * 2000 / 0.95 / 8:.3g} on each device"
    parts = [
        shown[name] for name in ("parameters", "moving average", "optimizer", "batch", "activations and gradients")
    ]
    assert float(shown["in all"].removesuffix(" MB")) == pytest.approx(sum(map(megabytes, parts)), abs=0.3)


def test_fsdp_shares_out_parameters_and_not_activations(run):
    """Left to itself XLA gathers activations: 97 MB, where it takes 29 with `data` and 32 with `fsdp`."""
    needed = {}
    for axis in ("data", "fsdp"):
        mesh = ["--devices.mesh.data", 1, f"--devices.mesh.{axis}", 8]
        shown = rows(run("train.py", "--config", "configs/tiny.toml", "--dry-run", *mesh).stdout)
        needed[axis] = [megabytes(shown[name]) for name in ("parameters", "activations and gradients")]
    assert needed["fsdp"][0] < needed["data"][0] / 7
    assert needed["fsdp"][1] < 1.3 * needed["data"][1]


def megabytes(shown: str) -> float:
    number, unit = shown.split()
    return float(number) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]


def test_dry_run_of_a_workdir_has_its_vocabulary(trained, run):
    """The config may ask for another number of pieces than a given tokenizer has."""
    done = run("train.py", "--workdir", trained[0], "--dry-run", "--devices.platform", "tpu")
    assert done.returncode == 0, done.stderr
    shown = rows(done.stdout)
    assert shown["embedding of source, target and output"] == f"{45 * 32:,}"
    assert shown["compiled for"] == "1 x cpu, bfloat16"
    assert "give --tokens-per-second N" in shown["time"]


def test_a_dry_run_reckons_with_the_real_tokens_of_the_run(trained, run):
    """The whole run's tokens are in its metrics: what they take at this rate is the time."""
    taken = [line["tokens"] for line in metrics(trained[0]) if "tokens" in line]
    done = run("train.py", "--workdir", trained[0], "--dry-run", "--tokens-per-second", 10)
    assert done.returncode == 0, done.stderr
    shown = rows(done.stdout)
    assert len(taken) == 240
    assert shown["time"] == f"{sum(taken) / 10 / 3600:.2f} hours at 10 tokens/s"
    share = sum(taken) / (240 * 512)
    assert share < 0.995
    assert shown["real tokens"] == f"{share:.1%} of the target positions (metrics.jsonl)"
    model = read_config(trained[0] / "config.toml").model
    assert shown["model FLOP/s"] == f"{training_flops(model, 45, 32, 32) / 32 * 10 / share:.3g} on each device"


@pytest.mark.parametrize(
    ("length", "shown"),
    [(["--training.num-steps", 300], {"steps": "300"}), (["--training.num-epochs", 0.5], {"length": "0.5 epochs"})],
)
def test_dry_run_of_a_shorter_try_than_the_configs_warm_up(run, length, shown):
    done = run("train.py", "--config", "configs/multi30k_en_de.toml", "--dry-run", *length)
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert all(found[name].startswith(value) for name, value in shown.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--devices.mesh.tensor", 3], "devices.mesh.tensor 3 does not divide model.num_heads 4"),
        (["--dry-run", "--devices.mesh.data", 3],
         "devices.mesh.data 3 does not divide the 32 rows per batch (training.tokens_per_batch / data.row_length)"),
        (["--dry-run", "--inspect-data"], "--inspect-data and --dry-run are mutually exclusive"),
        (["--tokens-per-second", 5, "--workdir", "w"], "--tokens-per-second has no effect without --dry-run"),
        (["--dry-run", "--tokens-per-second", 0], "tokens_per_second: input should be greater than 0, got 0"),
    ],
)  # fmt: skip
def test_dry_runs_that_cannot_be(run, options, message):
    done = run("train.py", "--config", "configs/tiny.toml", *options)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("w").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wmt14_en_de_base", "wmt14_en_de_big", "wmt14_en_fr_big"])
def test_the_papers_systems_compile_for_eight_devices(run, name):
    done = run("train.py", "--config", f"configs/{name}.toml", "--dry-run", "--devices.mesh.data", 8)
    assert done.returncode == 0, done.stderr
    shown = rows(done.stdout)
    assert shown["compiled for"] == "8 x cpu (simulated), float32"
    assert shown["total"] == f"{PAPER[name][1]:,}"
    assert shown["parameters"] == format_bytes(4 * PAPER[name][1])


@pytest.mark.slow
def test_a_step_of_the_base_model():
    """1,024 target positions, really taken: the loss is about that of a uniform guess, and the parameters move."""
    config = read_config(ROOT / "configs" / "wmt14_en_de_base.toml")
    config = config.model_copy(update={"training": config.training.model_copy(update={"tokens_per_batch": 1024})})
    network, mesh = structure(config.model, 37000, 37000), make_mesh(MeshConfig(data=1))
    random = np.random.default_rng(0)
    sides = [[random.integers(4, 37000, 128).tolist() for _ in range(8)] for _ in range(2)]
    state = initial_state(initial_params(config.model, 37000, 37000, jax.random.key(0)), config)
    before = np.asarray(state.params["encoder"][0]["feed_forward"]["up"]["kernel"])
    state, metrics = make_train_step(network, config, 100000, mesh)(state, unpacked_batch(*sides, rows=8, length=128))
    assert metrics.tokens == 1024
    assert float(metrics.loss) == pytest.approx(np.log(37000), rel=0.1)
    assert np.any(gather_to_host(state.params["encoder"][0]["feed_forward"]["up"]["kernel"]) != before)


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (8_000_000_000,) * 2)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("options", "first_remedy"),
    [
        (["--model.embed-dim", "2048", "--model.mlp-dim", "3000000"], "shard parameters and optimizer with"),
        pytest.param(["--training.tokens-per-batch", "200000", "--model.num-heads", "32"],
                     "lower training.tokens_per_batch", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_out_of_memory_says_what_is_needed_and_what_to_lower(toy, tmp_path, options, first_remedy):
    command = [sys.executable, "-c", LIMITED, "train.py", "--config", str(toy), "--workdir", str(tmp_path / "w"),
               "--training.eval-every", "0", *options]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.match(
        r"error: out of memory: a step needs [\d.]+ GB on each device \(parameters .*, optimizer .*, batch .*, "
        rf"activations and gradients .*\); {first_remedy}",
        message,
    )
    assert "Traceback" not in done.stderr
