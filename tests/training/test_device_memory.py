"""The size of a run, as reported by --dry-run and by a run that is out of memory."""

import json
from typing import get_args

import jax
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.model.flops import training_flops
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import DataConfig, MeshConfig, ModelConfig
from lingua_flax.training import device_memory
from lingua_flax.training.device_memory import compile_step, format_bytes, memory_between_steps
from lingua_flax.training.reports import dry_run
from lingua_flax.training.reports.compiled_step import CompiledStep, _flops, model_flops
from lingua_flax.training.reports.dry_run import parameters_by_module
from lingua_flax.training.step import LOSS_BLOCKS
from lingua_flax.training.trainer import Trainer
from tests.command_server import run_here
from tests.conftest import ROOT
from tests.helpers.commands import succeed
from tests.helpers.dry_run import JSON_KEYS, megabytes, table_rows
from tests.processes import metrics

# Parameters by hand, and as published. Embedding V D; encoder layer 4 D^2 + 2 D F + F + D + 2 * 2 D; decoder layer
# 8 D^2 + 2 D F + F + D + 3 * 2 D. Pre-norm, there is a norm after the layers of each side.
PAPER = {
    "wmt14_en_de_base": (37000 * 512 + 6 * 3_150_336 + 6 * 4_199_936, 65e6),
    "wmt14_en_de_big": (37000 * 1024 + 6 * 12_592_128 + 6 * 16_788_480, 213e6),
}


def test_paper_configs_have_the_published_sizes():
    configs = {path.stem: read_config(path) for path in (ROOT / "configs").glob("wmt14_*.toml")}
    for name, (by_hand, published) in PAPER.items():
        config = configs[name]
        size, width = config.tokenizer.vocab_size, config.model.embed_dim
        counts = parameters_by_module(structure(config.model, size, size))
        assert sum(counts.values()) == by_hand
        assert by_hand == pytest.approx(published, rel=0.04)
        assert counts["target_embedding"] == size * width
        assert counts["decoder cross_attention"] == config.model.num_decoder_layers * 4 * width**2
    deep = configs["wmt14_en_de_base"].model.model_copy(
        update={"num_encoder_layers": 12, "num_decoder_layers": 1, "norm": "pre"}
    )
    counts = parameters_by_module(structure(deep, 37000, 37000))
    assert sum(counts.values()) == 37000 * 512 + 12 * 3_150_336 + 1 * 4_199_936 + 2 * 2 * 512
    for config in configs.values():
        assert 0.9 * 25000 < 0.95 * config.rows_per_batch * config.data.row_length < 1.1 * 25000


def test_flops_match_a_count_by_hand():
    """D = 2, F = 3, V = 5, S = 2, T = 1; products: encoder layer 48 + 24, decoder layer 20 + 32 + 12, output 10."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=2, embed_dim=2, num_heads=1, mlp_dim=3)
    assert training_flops(config, 5, 2, 1) == 3 * 2 * (48 + 24 + 2 * (20 + 32 + 12) + 10)


@pytest.mark.parametrize("activation", get_args(ModelConfig.model_fields["activation"].annotation))
def test_flops_count_all_kernels(activation):
    """At one position on each side: each kernel once, the output embedding, and two products of width 2 with heads."""
    config = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, embed_dim=2, num_heads=1, activation=activation)
    sizes = {name: leaf.size for name, leaf in params_by_name(structure(config, 5, 5).params).items()}
    kernels = sum(size for name, size in sizes.items() if name.endswith("kernel"))
    assert training_flops(config, 5, 1, 1) == 3 * 2 * (kernels + 5 * 2 + 3 * 2 * 2)


def test_all_parameters_are_counted_by_module():
    config = ModelConfig(embed_dim=4, num_heads=1, mlp_dim=4, output_bias=True, positions="learned", max_length=8)
    network = structure(config, 5, 5)
    counts = parameters_by_module(network)
    assert sum(counts.values()) == sum(leaf.size for leaf in jax.tree.leaves(network.params))
    assert counts["output_bias"] == 5


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


@pytest.mark.parametrize(("activations", "first_remedy"), [(199, "shard"), (200, "lower training.tokens_per_batch")])
def test_out_of_memory_reports_what_is_needed_and_what_to_lower(toy, tmp_path, monkeypatch, activations, first_remedy):
    """Activations of less than twice the state are mainly gradients, for which fewer tokens are no remedy."""

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: as XLA says")

    needed = {"parameters": 40, "optimizer": 60, "batch": 5000, device_memory.ACTIVATIONS: activations}
    monkeypatch.setattr(Trainer, "_take_step", fail)
    monkeypatch.setattr(device_memory, "compile_step", lambda *_: None)
    monkeypatch.setattr(device_memory, "memory_of_step", lambda *_: needed)
    done = run_here("train", "--config", toy, "--workdir", tmp_path / "w", "--training.eval-every", 0)
    sizes = f"parameters 40 bytes, optimizer 60 bytes, batch 5.0 kB, activations and gradients {activations} bytes"
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"error: out of memory: a step needs 5.3 kB on each device ({sizes}); {first_remedy} ")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


# By hand, as above, of the network of tests/toy.py, with a norm after the layers of each side.
WIDTH, INNER = 32, 64
TOY_SIZE = 45 * WIDTH + 12 * WIDTH**2 + 2 * (2 * WIDTH * INNER + INNER + WIDTH) + 7 * 2 * WIDTH


def test_dry_run_simulates_devices_that_are_not_available(toy, run, tmp_path):
    """Expected sizes by hand: fsdp 4 and tensor 2 together divide everything but norms and biases by 8."""
    mesh = ["--devices.mesh.data", 1, "--devices.mesh.fsdp", 4, "--devices.mesh.tensor", 2]
    options = [*mesh, "--tokenizer.vocab-size", 48, "--training.ema-decay", 0.9, "--tokens-per-second", 20]
    options += ["--devices.platform", "tpu", "--json", "figures.json"]
    done = succeed(run, "train", "--config", toy, "--dry-run", *options, cwd=tmp_path, process=True)
    assert "the data were not checked: tokenizer.vocab_size 48 is larger than the corpus supports" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    shown, size = table_rows(done.stdout), TOY_SIZE + 3 * WIDTH
    assert shown["total"] == f"{size:,}"
    norms, downs, ups = 7 * 2 * WIDTH, 2 * WIDTH, 2 * INNER  # norms, and biases, which only one axis shards
    on_each = norms + downs / 4 + ups / 2 + (size - norms - downs - ups) / 8
    assert shown["parameters"] == shown["moving average"] == format_bytes(4 * on_each)
    assert shown["optimizer"] == format_bytes(8 * on_each)
    assert shown["compiled for"] == "8 x cpu (simulated), bfloat16"
    assert shown["rows"] == "16 of 32 source and 32 target positions"
    flops = training_flops(read_config(toy).model, 48, 32, 32)
    assert shown["model FLOPs"].startswith(f"{16 * flops:.3g},")
    assert shown["real tokens"] == "95.0% of the target positions (assumed)"
    assert shown["time"] == "1.62 hours at 20 tokens/s"  # 0.95 * 240 * 512 / 20 / 3600
    parts = ("parameters", "moving average", "optimizer", "batch", "activations and gradients")
    assert megabytes(shown["in all"]) == pytest.approx(sum(megabytes(shown[name]) for name in parts), rel=0.05)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == JSON_KEYS
    assert figures["fits"] is figures["device_memory_bytes"] is None
    bytes_of = figures["memory_by_use"]
    assert sum(bytes_of.values()) - bytes_of["activations and gradients"] - bytes_of["batch"] == 4 * 4 * on_each + 4


@pytest.fixture
def dry_run_of(trained, monkeypatch, capsys):
    """Returns a function that returns the names and values in the tables of the trained run, with other options."""
    memory = {"parameters": 12_345_678_901}
    step = CompiledStep("2 x gpu", "plain", {"data": 2}, "float32", memory, None, compile_seconds=1.0)
    monkeypatch.setattr(dry_run, "compiled_step", lambda config, sizes: step)

    def run(tokens_per_second=None, **options):
        config = read_config(trained[0] / "config.toml")
        changed = {name: getattr(config, name).model_copy(update=section) for name, section in options.items()}
        dry_run.show_dry_run(config.model_copy(update=changed), trained[0], tokens_per_second, None)
        return table_rows(capsys.readouterr().out)

    return run


def test_size_and_length_are_those_of_the_tokenizer_and_the_measured_tokens_of_a_workdir(trained, dry_run_of):
    """A given tokenizer may have another vocabulary size than the config; the tokens of a run are in its metrics."""
    shown = dry_run_of(10, tokenizer={"vocab_size": 99})
    assert shown["embedding of source, target and output"] == f"{45 * WIDTH:,}"
    assert shown["in all"] == "12.3 GB"
    tokens = [line["tokens"] for line in metrics(trained[0]) if "tokens" in line]
    assert shown["time"] == f"{sum(tokens) / 10 / 3600:.2f} hours at 10 tokens/s"
    share = sum(tokens) / (240 * 512)
    assert share < 0.995
    assert shown["real tokens"] == f"{share:.1%} of the target positions (metrics.jsonl)"
    flops = training_flops(read_config(trained[0] / "config.toml").model, 45, 32, 32) / 32 * 10 / share
    assert shown["model FLOP/s"] == f"{flops / 2:.3g} on each device"


def test_data_are_checked_and_epochs_become_steps_if_the_corpus_is_there(trained, dry_run_of, caplog, tmp_path):
    caplog.set_level("INFO")
    epoch = {"num_steps": None, "num_epochs": 1.0}
    shown = dry_run_of(training=epoch)
    assert "kept 700 of 700 pairs, 0 longer than 32 tokens; 99% have at most 7 and 26" in caplog.text
    assert "sentences of test are also trained on" in caplog.text
    assert int(shown["steps"]) == next(line["step"] for line in metrics(trained[0]) if line.get("epoch", 0) >= 1)
    assert shown["time"].startswith("give --tokens-per-second N")
    other = dict(DataConfig(name="multi30k", target_language="de", cache_directory=tmp_path))
    for elsewhere in ({"data": other}, {"devices": {"topology": "v5e:1x1"}}):
        assert dry_run_of(training=epoch, **elsewhere)["length"].startswith("1 epochs")
    assert caplog.messages[-1].startswith("the data were not checked: multi30k could not be downloaded")


@pytest.mark.slow
def test_fsdp_shards_parameters_but_not_activations(run):
    """Without a constraint, XLA gathers activations and needs three times as much memory for them."""
    memory = {}
    for axis, others in (("data", []), ("fsdp", ["--devices.mesh.data", 1])):
        options = ["--model.num-encoder-layers", 1, "--model.num-decoder-layers", 1, f"--devices.mesh.{axis}", 8]
        shown = table_rows(succeed(run, "train", "--config", "tiny", "--dry-run", *options, *others).stdout)
        memory[axis] = [megabytes(shown[name]) for name in ("parameters", "activations and gradients")]
    assert memory["fsdp"][0] < memory["data"][0] / 7
    assert memory["fsdp"][1] < 1.3 * memory["data"][1]
