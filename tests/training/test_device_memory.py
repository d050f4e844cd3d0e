"""The size of a run, as reported by --dry-run and by a run that is out of memory."""

import json
import re

import jax
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.model.flops import forward_flops, training_flops
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config, MeshConfig, ModelConfig
from lingua_flax.training.device_memory import compile_step, format_bytes, memory_between_steps
from lingua_flax.training.loop import Run
from lingua_flax.training.reports.compiled_step import _flops, model_flops
from lingua_flax.training.reports.dry_run import _show_length, parameters_by_module
from lingua_flax.training.step import LOSS_BLOCKS
from tests.conftest import ROOT
from tests.helpers.dry_run import JSON_KEYS, megabytes, table_rows
from tests.processes import metrics

# Parameters by hand, and as published. Embedding V D; encoder layer 4 D^2 + 2 D F + F + D + 2 * 2 D; decoder layer
# 8 D^2 + 2 D F + F + D + 3 * 2 D. Only the deep encoder is pre-norm, with a norm after the layers of each side.
PAPER = {
    "wmt14_en_de_base": (37000 * 512 + 6 * 3_150_336 + 6 * 4_199_936, 65e6),
    "wmt14_en_de_big": (37000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 213e6),
    "wmt14_en_fr_big": (32000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 213e6),
    "wmt14_en_de_deep_encoder": (37000 * 512 + 12 * 3_150_336 + 1 * 4_199_936 + 2 * 2 * 512, None),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_configs_have_the_published_sizes(name):
    by_hand, published = PAPER[name]
    config = read_config(ROOT / "configs" / f"{name}.toml")
    size, width = config.tokenizer.vocab_size, config.model.embed_dim
    counts = parameters_by_module(structure(config.model, size, size))
    assert sum(counts.values()) == by_hand
    assert published is None or by_hand == pytest.approx(published, rel=0.04)
    assert counts["target_embedding"] == size * width
    assert counts["decoder cross_attention"] == config.model.num_decoder_layers * 4 * width**2
    assert 0.9 * 25000 < 0.95 * config.rows_per_batch * config.data.row_length < 1.1 * 25000


def test_flops_match_a_count_by_hand():
    """D = 2, F = 3, V = 5, S = 2, T = 1; products: encoder layer 48 + 24, decoder layer 20 + 32 + 12, output 10."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=2, embed_dim=2, num_heads=1, mlp_dim=3)
    assert forward_flops(config, 5, 2, 1) == 2 * (48 + 24 + 2 * (20 + 32 + 12) + 10)
    assert training_flops(config, 5, 2, 1) == 3 * 420


def test_operations_and_memory_match_the_compiled_step(monkeypatch, toy):
    """XLA counts a loop once: here over four blocks of the loss, in each of two parts of a batch. By its own account,
    the same step without loops has as many operations."""
    config = read_config(toy)
    config = config.model_copy(update={"training": config.training.model_copy(update={"ema_decay": 0.9})})
    in_parts = config.model_copy(update={"training": config.training.model_copy(update={"accumulation_steps": 2})})
    network, mesh, flops = structure(config.model, 1000, 1000), make_mesh(MeshConfig(data=1)), []
    for block_size, each in ((None, config), (64, in_parts)):
        monkeypatch.setitem(LOSS_BLOCKS, "cpu", block_size)
        compiled = compile_step(network, each, mesh)
        flops.append(_flops(compiled, each, 1000, mesh))
    assert flops[0] > 1.1 * model_flops(config, 1000)
    assert flops[1] == pytest.approx(flops[0], rel=0.05)
    memory = memory_between_steps(network, config, mesh)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(network.params))
    assert memory["parameters"] == memory["moving average"] == 4 * numbers
    assert memory["optimizer"] == 2 * 4 * numbers + 4  # two moments and a counter
    assert memory["batch"] == 7 * 4 * 512
    arguments = compiled.memory_analysis().argument_size_in_bytes
    assert arguments == sum(memory.values()) + 3 * 4  # the state has three more counters


def test_byte_counts_have_decimal_units():
    sizes = {12: "12 bytes", 1234: "1.2 kB", 1_234_567: "1.2 MB", 12_345_678_901: "12.3 GB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    ("tokens", "first_remedy"),
    [(32, "shard parameters and optimizer with"), (4096, "lower training.tokens_per_batch")],
)
def test_out_of_memory_reports_what_is_needed_and_what_to_lower(toy, run, tmp_path, monkeypatch, tokens, first_remedy):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: as XLA says")

    monkeypatch.setattr(Run, "_take_step", fail)
    options = ["--training.eval-every", 0, "--training.tokens-per-batch", tokens]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 1, done.stderr
    sizes = r"parameters .*, optimizer .*, batch .*, activations and gradients .*"
    message = rf"error: out of memory: a step needs [\d.]+ .B on each device \({sizes}\); {first_remedy}"
    assert re.search(rf"^{message}.*$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


# By hand, as above, of the network of tests/toy.py, with a norm after the layers of each side.
WIDTH, INNER = 32, 64
TOY_SIZE = 45 * WIDTH + 12 * WIDTH**2 + 2 * (2 * WIDTH * INNER + INNER + WIDTH) + 7 * 2 * WIDTH


def test_dry_run_simulates_devices_that_are_not_available(toy, run, tmp_path):
    """Expected sizes by hand: fsdp 4 and tensor 2 together divide everything but norms and biases by 8."""
    mesh = ["--devices.mesh.data", 1, "--devices.mesh.fsdp", 4, "--devices.mesh.tensor", 2]
    options = [*mesh, "--tokenizer.vocab-size", 48, "--training.ema-decay", 0.9, "--tokens-per-second", 20]
    command = ["train", "--config", toy, "--dry-run", *options, "--json", "figures.json"]
    done = run(*command, cwd=tmp_path, process=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    shown, size = table_rows(done.stdout), TOY_SIZE + 3 * WIDTH
    assert shown["total"] == f"{size:,}"
    assert shown["encoder feed forward"] == f"{2 * WIDTH * INNER + INNER + WIDTH:,}"
    norms, downs, ups = 7 * 2 * WIDTH, 2 * WIDTH, 2 * INNER  # norms, and biases, which only one axis shards
    on_each = norms + downs / 4 + ups / 2 + (size - norms - downs - ups) / 8
    assert shown["parameters"] == shown["moving average"] == format_bytes(4 * on_each)
    assert shown["optimizer"] == format_bytes(8 * on_each)
    assert shown["compiled for"] == "8 x cpu (simulated), float32"
    assert shown["rows"] == "16 of 32 source and 32 target positions"
    flops = training_flops(read_config(toy).model, 48, 32, 32)
    assert shown["model FLOPs"].startswith(f"{16 * flops:.3g},")
    assert shown["real tokens"] == "95.0% of the target positions (assumed)"
    assert shown["time"] == "1.62 hours at 20 tokens/s"  # 0.95 * 240 * 512 / 20 / 3600
    assert shown["model FLOP/s"] == f"{flops / 32 * 20 / 0.95 / 8:.3g} on each device"
    parts = ("parameters", "moving average", "optimizer", "batch", "activations and gradients")
    assert megabytes(shown["in all"]) == pytest.approx(sum(megabytes(shown[name]) for name in parts), rel=0.02)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == JSON_KEYS | {"other_attention"}
    assert figures["compiled_for"] == "8 x cpu (simulated)"
    assert (figures["attention"], figures["other_attention"]) == ("plain", None)
    assert figures["fits"] is figures["device_memory_bytes"] is None
    assert 4 * 4 * on_each < figures["argument_bytes"] < 4 * 4 * on_each + 5e3  # and the batch


def test_dry_run_uses_the_tokenizer_and_the_measured_tokens_of_a_workdir(trained, run):
    """A given tokenizer may have another vocabulary size than the config; the tokens of a run are in its metrics."""
    options = ["--tokens-per-second", 10, "--devices.platform", "tpu"]
    done = run("train", "--workdir", trained[0], "--dry-run", *options, process=True)
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


def test_length_of_a_run_without_a_known_pace(capsys):
    """Also of one that is shorter than the warm-up of its config."""
    for length in ({"num_steps": 200}, {"num_steps": None, "num_epochs": 0.5}):
        config = Config.model_validate({"training": length})
        _show_length(config, 45, 1, None, None)
    shown = capsys.readouterr().out
    assert table_rows(shown)["steps"] == "200"
    assert table_rows(shown)["time"] == "give --tokens-per-second N, as reported by a run, for an estimate"
    assert table_rows(shown)["length"].startswith("0.5 epochs")


def test_mesh_that_does_not_fit_is_refused_by_a_dry_run(run):
    done = run("train", "--config", "tiny", "--dry-run", "--devices.mesh.tensor", 3, process=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr == "error: devices.mesh.tensor 3 does not divide model.num_heads 4\n"


@pytest.mark.slow
def test_fsdp_shards_parameters_but_not_activations(run):
    """Without a constraint, XLA gathers activations and needs three times as much memory for them."""
    memory = {}
    for axis, others in (("data", []), ("fsdp", ["--devices.mesh.data", 1])):
        options = ["--model.num-encoder-layers", 1, "--model.num-decoder-layers", 1, f"--devices.mesh.{axis}", 8]
        done = run("train", "--config", "tiny", "--dry-run", *options, *others)
        assert done.returncode == 0, done.stderr
        shown = table_rows(done.stdout)
        memory[axis] = [megabytes(shown[name]) for name in ("parameters", "activations and gradients")]
    assert memory["fsdp"][0] < memory["data"][0] / 7
    assert memory["fsdp"][1] < 1.3 * memory["data"][1]
