"""The size of a run, as reported by --dry-run and by a run that is out of memory."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lingua_flax.data.batch import unpacked_batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.processes import gather_to_host
from lingua_flax.model.flops import forward_flops, training_flops
from lingua_flax.model.transformer import initial_params, structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import MeshConfig, ModelConfig
from lingua_flax.training.device_memory import compile_step, format_bytes, memory_between_steps
from lingua_flax.training.reports.compiled_step import _flops, model_flops
from lingua_flax.training.reports.dry_run import parameters_by_module
from lingua_flax.training.state import initial_state
from lingua_flax.training.step import LOSS_BLOCKS, make_train_step
from tests.conftest import ROOT
from tests.processes import metrics

# By hand: embedding V D; encoder layer 4 D^2 + 2 D F + F + D + 2 * 2 D; decoder layer 8 D^2 + 2 D F + F + D +
# 3 * 2 D; post-norm, so no norm after the layers.
PAPER = {
    "wmt14_en_de_base": (37000 * 512 + 6 * 3_150_336 + 6 * 4_199_936, 63_045_632, 65e6),
    "wmt14_en_de_big": (37000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 214_171_648, 213e6),
    "wmt14_en_fr_big": (32000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 209_051_648, 213e6),
}
COSTS = {"flops", "bytes_accessed", "argument_bytes", "temporary_bytes"}
JSON_KEYS = {*COSTS, "device_memory_bytes", "fits", "kernels", "compile_seconds", "compiled_for", "attention"}


@pytest.mark.parametrize("name", PAPER)
def test_paper_configs_have_the_published_sizes(name):
    by_parts, total, published = PAPER[name]
    config = read_config(ROOT / "configs" / f"{name}.toml")
    size = config.tokenizer.vocab_size
    counts = parameters_by_module(structure(config.model, size, size))
    assert sum(counts.values()) == by_parts == total
    assert total == pytest.approx(published, rel=0.04)
    assert counts["target_embedding"] == size * config.model.embed_dim
    assert counts["decoder cross_attention"] == 6 * 4 * config.model.embed_dim**2
    assert 0.9 * 25000 < 0.95 * config.rows_per_batch * config.data.row_length < 1.1 * 25000


def test_deep_encoder_moves_the_layers_of_the_base_model():
    config = read_config(ROOT / "configs" / "wmt14_en_de_deep_encoder.toml")
    counts = parameters_by_module(structure(config.model, 37000, 37000))
    norms_after_layers = 2 * 2 * 512  # pre-norm
    assert sum(counts.values()) == 37000 * 512 + 12 * 3_150_336 + 4_199_936 + norms_after_layers


def test_flops_match_a_count_by_hand():
    """D = 2, F = 3, V = 5, S = 2, T = 1, one layer each; products: encoder 48 + 24, decoder 20 + 32 + 12, output 10."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=2, num_heads=1, mlp_dim=3)
    assert forward_flops(config, 5, 2, 1) == 2 * (48 + 24 + 20 + 32 + 12 + 10)
    assert training_flops(config, 5, 2, 1) == 3 * 292


def test_flops_match_the_compiled_program():
    """XLA also counts operations other than matrix products: a few percent at these sizes."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=2, embed_dim=192, mlp_dim=576, dropout_rate=0.0)
    network = structure(config, 1000, 1000)
    source, target = (jax.ShapeDtypeStruct((3, length), jnp.int32) for length in (48, 32))

    def forward(params, source, target):
        return nnx.merge(network.graphdef, params)(source, target)[0]

    flops = jax.jit(forward).lower(network.params, source, target).compile().cost_analysis()["flops"]
    assert flops == pytest.approx(3 * forward_flops(config, 1000, 48, 32), rel=0.05)


def test_operations_in_loops_count_as_often_as_they_are_run(monkeypatch, toy):
    """XLA counts a loop once: here over four blocks of the loss, in each of two parts of a batch. By its own account,
    the same step without loops has as many operations."""
    config = read_config(toy)
    in_parts = config.model_copy(update={"training": config.training.model_copy(update={"accumulation_steps": 2})})
    network, mesh, flops = structure(config.model, 1000, 1000), make_mesh(MeshConfig(data=1)), []
    for block_size, each in ((None, config), (64, in_parts)):
        monkeypatch.setitem(LOSS_BLOCKS, "cpu", block_size)
        flops.append(_flops(compile_step(network, each, mesh), each, 1000, mesh))
    assert flops[0] > 1.1 * model_flops(config, 1000)
    assert flops[1] == pytest.approx(flops[0], rel=0.05)


def test_memory_between_steps_matches_the_arguments_of_the_compiled_step(toy):
    config = read_config(toy)
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": 0.9})})
    network, mesh = structure(config.model, 45, 45), make_mesh(MeshConfig(data=1))
    memory = memory_between_steps(network, config, mesh)
    params = jax.eval_shape(lambda: initial_params(config.model, 45, 45, jax.random.key(0)))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert memory["parameters"] == memory["moving average"] == 4 * numbers
    assert memory["optimizer"] == 2 * 4 * numbers + 4  # two moments and a counter
    assert memory["batch"] == 7 * 4 * 512
    analysis = compile_step(network, config, mesh).memory_analysis()
    assert analysis.argument_size_in_bytes == sum(memory.values()) + 3 * 4  # the state has three more counters


def test_byte_counts_have_decimal_units():
    sizes = {12: "12 bytes", 1234: "1.2 kB", 1_234_567: "1.2 MB", 12_345_678_901: "12.3 GB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


def table_rows(printed: str) -> dict[str, str]:
    """Returns the names and values in the printed tables."""
    return dict(re.findall(r"^│ ([^│]+?) +│ +([^│]+?) +│", printed, re.MULTILINE))


def megabytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]


# configs/tiny.toml with one layer on each side; the parameters by hand, as above, but with the norms after the layers.
SMALL = ("--config", ROOT / "configs" / "tiny.toml", "--model.num-encoder-layers", 1, "--model.num-decoder-layers", 1)
WIDTH, INNER = 128, 512
SMALL_SIZE = 2500 * WIDTH + 12 * WIDTH**2 + 2 * (2 * WIDTH * INNER + INNER + WIDTH) + 5 * 2 * WIDTH + 2 * 2 * WIDTH


@pytest.mark.slow
def test_dry_run_simulates_devices_that_are_not_available(run, tmp_path):
    """Expected sizes by hand: fsdp 4 and tensor 2 together divide everything but norms and biases by 8."""
    mesh = ["--devices.mesh.data", 1, "--devices.mesh.fsdp", 4, "--devices.mesh.tensor", 2]
    options = [*SMALL, *mesh, "--training.ema-decay", 0.9, "--tokens-per-second", 2000, "--json", "figures.json"]
    done = run("train", "--dry-run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    shown = table_rows(done.stdout)
    assert shown["total"] == f"{SMALL_SIZE:,}"
    assert shown["encoder feed forward"] == f"{2 * WIDTH * INNER + INNER + WIDTH:,}"
    norms, downs, ups = 7 * 2 * WIDTH, 2 * WIDTH, 2 * INNER  # norms, and biases, which only one axis shards
    on_each = norms + downs / 4 + ups / 2 + (SMALL_SIZE - norms - downs - ups) / 8
    assert shown["parameters"] == shown["moving average"] == format_bytes(4 * on_each)
    assert shown["optimizer"] == format_bytes(8 * on_each)
    assert shown["compiled for"] == "8 x cpu (simulated), float32"
    assert shown["rows"] == "32 of 64 source and 64 target positions"
    one_layer = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    flops = training_flops(read_config(SMALL[1]).model.model_copy(update=one_layer), 2500, 64, 64)
    assert shown["model FLOPs"].startswith(f"{32 * flops:.3g},")
    assert shown["real tokens"] == "95.0% of the target positions (assumed)"
    assert shown["time"] == "0.59 hours at 2,000 tokens/s"  # 0.95 * 2,200 * 2,048 / 2,000 / 3600
    assert shown["model FLOP/s"] == f"{flops / 64 * 2000 / 0.95 / 8:.3g} on each device"
    parts = [
        shown[name] for name in ("parameters", "moving average", "optimizer", "batch", "activations and gradients")
    ]
    assert float(shown["in all"].removesuffix(" MB")) == pytest.approx(sum(map(megabytes, parts)), abs=0.3)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == JSON_KEYS | {"other_attention"}
    assert figures["compiled_for"] == "8 x cpu (simulated)"
    assert (figures["attention"], figures["other_attention"]) == ("plain", None)
    assert figures["fits"] is figures["device_memory_bytes"] is None
    assert 4 * 4 * on_each < figures["argument_bytes"] < 4 * 4 * on_each + 2e4  # and the batch


@pytest.fixture(scope="module")
def by_axis(run) -> dict[str, dict[str, str]]:
    """Dry runs on eight devices along one axis each; both runs are shorter than the warm-up of the config's own run."""
    lengths = {"data": ["--training.num-steps", 200], "fsdp": ["--training.num-epochs", 0.5]}
    tables = {}
    for axis, length in lengths.items():
        mesh = [f"--devices.mesh.{axis}", 8, *([] if axis == "data" else ["--devices.mesh.data", 1])]
        done = run("train", *SMALL, "--dry-run", *mesh, *length)
        assert done.returncode == 0, done.stderr
        tables[axis] = table_rows(done.stdout)
    return tables


@pytest.mark.slow
def test_fsdp_shards_parameters_but_not_activations(by_axis):
    """Without a constraint, XLA gathers activations and needs three times as much memory for them."""
    memory = {
        axis: [megabytes(shown[name]) for name in ("parameters", "activations and gradients")]
        for axis, shown in by_axis.items()
    }
    assert memory["fsdp"][0] < memory["data"][0] / 7
    assert memory["fsdp"][1] < 1.3 * memory["data"][1]


def test_dry_run_may_be_shorter_than_the_warmup_of_the_config(by_axis):
    assert by_axis["data"]["steps"] == "200"
    assert by_axis["data"]["time"] == "give --tokens-per-second N, as reported by a run, for an estimate"
    assert by_axis["fsdp"]["length"].startswith("0.5 epochs")


@pytest.mark.slow
def test_dry_run_uses_the_tokenizer_and_the_measured_tokens_of_a_workdir(trained, run):
    """A given tokenizer may have another vocabulary size than the config; the tokens of a run are in its metrics."""
    options = ["--tokens-per-second", 10, "--devices.platform", "tpu"]
    done = run("train", "--workdir", trained[0], "--dry-run", *options)
    assert done.returncode == 0, done.stderr
    shown = table_rows(done.stdout)
    assert shown["embedding of source, target and output"] == f"{45 * 32:,}"
    assert shown["compiled for"] == "1 x cpu, bfloat16"
    tokens = [line["tokens"] for line in metrics(trained[0]) if "tokens" in line]
    assert len(tokens) == 240
    assert shown["time"] == f"{sum(tokens) / 10 / 3600:.2f} hours at 10 tokens/s"
    share = sum(tokens) / (240 * 512)
    assert share < 0.995
    assert shown["real tokens"] == f"{share:.1%} of the target positions (metrics.jsonl)"
    model = read_config(trained[0] / "config.toml").model
    assert shown["model FLOP/s"] == f"{training_flops(model, 45, 32, 32) / 32 * 10 / share:.3g} on each device"


ROWS_PER_BATCH = "32 rows per batch (training.tokens_per_batch / data.row_length)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run", "--devices.mesh.tensor", 3], "devices.mesh.tensor 3 does not divide model.num_heads 4"),
        (["--dry-run", "--devices.mesh.data", 3], f"devices.mesh.data 3 does not divide the {ROWS_PER_BATCH}"),
        (["--dry-run", "--inspect-data"], "--inspect-data and --dry-run are mutually exclusive"),
        (["--tokens-per-second", 5, "--workdir", "w"], "--tokens-per-second has no effect without --dry-run"),
        (["--dry-run", "--tokens-per-second", 0], "tokens_per_second: input should be greater than 0, got 0"),
    ],
)
def test_invalid_options_of_a_dry_run_are_refused(run, options, message):
    done = run("train", "--config", "configs/tiny.toml", *options)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not Path("w").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wmt14_en_de_base", "wmt14_en_de_big", "wmt14_en_fr_big"])
def test_paper_configs_compile_for_eight_devices(run, name):
    done = run("train", "--config", f"configs/{name}.toml", "--dry-run", "--devices.mesh.data", 8)
    assert done.returncode == 0, done.stderr
    shown = table_rows(done.stdout)
    assert shown["compiled for"] == "8 x cpu (simulated), float32"
    assert shown["total"] == f"{PAPER[name][1]:,}"
    assert shown["parameters"] == format_bytes(4 * PAPER[name][1])


@pytest.mark.slow
def test_base_model_takes_a_step():
    """With 1,024 target positions, the loss is about that of a uniform guess, and the parameters change."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "first_remedy"),
    [
        (["--model.embed-dim", 2048, "--model.mlp-dim", 3000000], "shard parameters and optimizer with"),
        (["--training.tokens-per-batch", 200000, "--model.num-heads", 32], "lower training.tokens_per_batch"),
    ],
)
def test_out_of_memory_reports_what_is_needed_and_what_to_lower(toy, run, tmp_path, options, first_remedy):
    script = Path(__file__).parent / "scripts" / "with_little_memory.py"
    command = ["train", "--config", toy, "--workdir", tmp_path / "w", "--training.eval-every", 0]
    done = run(script, *command, *options)
    assert done.returncode == 1, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.match(
        r"error: out of memory: a step needs [\d.]+ GB on each device \(parameters .*, optimizer .*, batch .*, "
        rf"activations and gradients .*\); {first_remedy}",
        message,
    )
    assert "Traceback" not in done.stderr
