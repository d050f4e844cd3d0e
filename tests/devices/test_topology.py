"""TPUs that are not attached: what their compiler reports about a step, and what it refuses."""

import importlib.util
import json
import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lingua_flax.data.batch import Batch
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.topology import CHIPS, chip_in_topology, topology_devices, with_compiler
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.model.attention import scaled_dot_product_attention
from lingua_flax.model.flops import training_flops
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.transformer import structure
from lingua_flax.options.config_files import read_config
from lingua_flax.options.precision import BFLOAT16
from lingua_flax.options.schema import Config, DecodingOptions, MeshConfig
from lingua_flax.training.kernels.fast_attention import FusedAttention
from lingua_flax.training.reports import compiled_step
from lingua_flax.training.reports.compiled_step import sent_bytes_of
from lingua_flax.training.validation import loss_sum
from lingua_flax.translation.decoding import DecodingRequest, Network, decoding_of, search_or_sample
from lingua_flax.translation.translator import BATCH_SIZE
from tests.conftest import HUNG_AFTER, PROMPTLY, ROOT
from tests.helpers.dry_run import JSON_KEYS, table_rows
from tests.processes import start_command, wait_for

needs_libtpu = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
TINY = ("--config", "configs/tiny.toml", "--dry-run", "--devices.topology", "v5e:1x1")
TOPOLOGIES = {
    "v5e:16x16": (256, "TPU v5 lite", 63),
    "v4:2x2x2": (8, "TPU v4", 1),
    "v5p:1x1x1": (1, "TPU v5", 0),
    "v6e:2x2": (4, "TPU v6 lite", 0),
}
REFUSED = [
    ({"devices": {"topology": "v5e:1x1", "mesh": {"data": 2}}}, "needs 2 devices; available: 1"),
    (
        {"devices": {"topology": "v5e:2x4", "mesh": {"data": 3}}, "training": {"tokens_per_batch": 32 * 128}},
        "devices.mesh.data 3 does not divide the 32 rows",
    ),
    (
        {"devices": {"topology": "v5e:1x1"}, "model": {"attention": "fused", "attention_dropout_rate": 0.1}},
        'model.attention "fused" does not support attention dropout',
    ),
]


# One attention layer.

ROWS, LENGTH, WIDTH, HEADS = 8, 512, 256, 4
SCORES = 4 * ROWS * HEADS * LENGTH * LENGTH  # bytes in float32


def attention_costs(fused: bool) -> tuple[float, float]:
    """Returns operations and bytes accessed of one layer's attention and its gradients on a v5e, in bfloat16."""
    mesh = make_mesh(MeshConfig(), topology_devices("v5e:1x1"))
    place = NamedSharding(mesh, PartitionSpec())

    def plain(query, keys, values, num_heads, mask):
        heads = [jnp.swapaxes(x.reshape(*x.shape[:2], num_heads, -1), 1, 2) for x in (query, keys, values)]
        return jnp.swapaxes(scaled_dot_product_attention(*heads, mask.dense())[0], 1, 2).reshape(query.shape)

    def loss(inputs, segments):
        attend = FusedAttention(mesh, "tpu") if fused else plain
        return jnp.sum(attend(*inputs, HEADS, SegmentMask(segments, segments)).astype(jnp.float32))

    inputs = [jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.bfloat16)] * 3
    program = jax.jit(jax.grad(loss), in_shardings=place, out_shardings=place)
    compiled = program.lower(inputs, jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)).compile()
    costs = compiled.cost_analysis()
    return costs["flops"], costs["bytes accessed"]


def devices_of(topology: str) -> tuple[int, str, int]:
    """Returns the number and the kind of a topology's devices, and the process of the last one."""
    devices = topology_devices(topology)
    mesh = make_mesh(MeshConfig(), devices)
    return mesh.size, devices[0].device_kind, devices[-1].process_index


def refusal(options: dict) -> str:
    """Returns the error message for a config that a topology does not support."""
    try:
        compiled_step._compiled(Config.model_validate(options), (64, 64))
    except UserError as error:
        return str(error)
    return "not refused"


def compiler_results() -> dict:
    """Returns what the TPU's compiler reports for all default tests; runs in its process."""
    return {
        "fused": attention_costs(fused=True),
        "plain": attention_costs(fused=False),
        "devices": {topology: devices_of(topology) for topology in TOPOLOGIES},
        "refusals": [refusal(options) for options, _ in REFUSED],
    }


@pytest.fixture(scope="module")
def results() -> dict:
    """The `compiler_results`, from a single process, which takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
        return with_compiler(compiler_results)


@pytest.mark.slow
@needs_libtpu
def test_fused_attention_never_writes_scores_to_memory_on_a_v5e(results):
    """By hand: the forward and backward passes take 2 and 5 products of all queries with all keys, of which XLA needs
    at least the 5, because these gradients do not depend on the output. The arrays that must be read and written are 3
    inputs and 3 gradients; the scores and what is computed from them are several times as large."""
    (flops, accessed), (plain_flops, plain_accessed) = results["fused"], results["plain"]
    one_product = 2 * ROWS * LENGTH * LENGTH * WIDTH
    arrays = 6 * 2 * ROWS * LENGTH * WIDTH
    assert 5 * one_product <= flops < 9 * one_product
    assert arrays <= accessed < 4 * arrays
    assert plain_flops > 4 * one_product
    assert plain_accessed > arrays + 3 * SCORES


def compile_fused_attention(rows, length, width, heads, dtype) -> None:
    mesh = make_mesh(MeshConfig(), topology_devices("v5e:1x1"))
    place = NamedSharding(mesh, PartitionSpec())

    def loss(inputs, segments):
        return jnp.sum(FusedAttention(mesh, "tpu")(*inputs, heads, SegmentMask(segments, segments, causal=True)))

    inputs, segments = (
        [jax.ShapeDtypeStruct((rows, length, width), dtype)] * 3,
        jax.ShapeDtypeStruct((rows, length), int),
    )
    jax.jit(jax.grad(loss), in_shardings=place, out_shardings=place).lower(inputs, segments).compile()


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "length", "width", "heads"),
    [(8, 512, 256, 4), (4, 500, 128, 16), (7, 100, 128, 2), (1, 33, 128, 8), (5, 256, 1024, 16)],
)
def test_fused_attention_fits_on_a_chip(rows, length, width, heads, dtype):
    """Eight rows of 512 positions per program did not fit."""
    with_compiler(compile_fused_attention, rows, length, width, heads, dtype)


# The training step.


@needs_libtpu
@pytest.mark.slow
def test_training_step_is_compiled_for_v5e(run, tmp_path):
    config = read_config(ROOT / "configs" / "tiny.toml")
    least = config.rows_per_batch * training_flops(config.model, 2500, 64, 64)
    figures = []
    for topology in ("v5e:1x1", "v5e:2x4"):
        done = run("train", *TINY[:4], topology, "--json", tmp_path / "f.json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # libtpu is silent
        figures.append(json.loads((tmp_path / "f.json").read_text()))
    one, eight = figures
    assert set(one) == JSON_KEYS | {"other_attention"}
    assert set(one["other_attention"]) == JSON_KEYS
    assert (one["attention"], one["other_attention"]["attention"]) == ("plain", "fused")
    assert one["other_attention"]["bytes_accessed"] < one["bytes_accessed"]
    assert (one["compiled_for"], eight["compiled_for"]) == ("v5e:1x1", "v5e:2x4")
    assert (one["fits"], one["device_memory_bytes"]) == (True, 16 * 2**30)
    assert least < one["flops"] < 1.5 * least
    assert one["flops"] / 8 < eight["flops"] < one["flops"] / 2  # each device updates all parameters
    numbers = 1_243_136
    assert 3 * 4 * numbers < one["argument_bytes"] < 3 * 4 * numbers + 2e5  # parameters, moments and the batch
    assert 0 < one["temporary_bytes"] < 50e6
    assert 6 * 4 * numbers < one["bytes_accessed"] < 1e9  # parameters and moments are read and written once
    shown = table_rows(done.stdout)
    assert f"{eight['other_attention']['flops']:.3g}" in done.stdout.partition("fused")[2]
    assert shown["mesh"] == "data 8, fsdp 1, tensor 1"
    assert shown["compiled for"] == "v5e:2x4, bfloat16"
    assert shown["operations"] == f"{eight['flops']:.3g}: {eight['flops'] / 197e9:.3g} ms at 197 TFLOP/s"
    assert shown["the device has"] == "17.2 GB: this fits"
    assert shown["bytes sent to others"].endswith("ms at 400 GB/s in and out")


@needs_libtpu
@pytest.mark.slow
def test_step_that_does_not_fit_on_a_v5e_is_reported(run, tmp_path):
    large = ("--training.tokens-per-batch", 2**24, "--model.attention", "plain")
    done = run("train", *TINY, *large, "--json", tmp_path / "f.json")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "f.json").read_text())
    assert set(figures) == JSON_KEYS | {"other_attention"}
    assert figures["fits"] is False
    assert figures["other_attention"] is None
    assert figures["flops"] is figures["bytes_accessed"] is figures["temporary_bytes"] is None
    assert table_rows(done.stdout)["activations and gradients"] == "not known"
    assert "17.2 GB: Ran out of memory on HBM" in done.stdout


@pytest.mark.slow
@needs_libtpu
def test_ctrl_c_also_ends_the_compiler():
    """Otherwise its process would continue to compile the base model for minutes."""
    process = start_command("train", "--config", "configs/wmt14_en_de_base.toml", *TINY[2:])

    def children() -> list[int]:
        return [int(pid) for pid in os.popen(f"pgrep --parent {process.pid}").read().split()]

    def is_compiler(pid: int) -> bool:
        try:
            return "libtpu" in Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it has ended
            return False

    wait_for(process, lambda: any(map(is_compiler, children())))
    started = children()
    process.send_signal(signal.SIGINT)
    assert process.wait(HUNG_AFTER) == 130
    until = time.monotonic() + PROMPTLY
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in started):
        assert time.monotonic() < until
        time.sleep(0.1)


# What the notebook runs, apart from the training step.


def memory_of_programs(topology: str) -> dict[str, int]:
    """Returns the temporary bytes of the programs that validate, evaluate and translate with multi30k_en_de.toml."""
    config = read_config(ROOT / "configs" / "multi30k_en_de.toml")
    place = NamedSharding(make_mesh(MeshConfig(), topology_devices(topology)), PartitionSpec())
    network = structure(config.model, 5000, 5000, BFLOAT16)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), network.params)
    length = config.model.max_length

    def ids(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)

    def temporary_bytes(lowered: jax.stages.Lowered) -> int:
        return lowered.compile().memory_analysis().temp_size_in_bytes

    def search(rows: int, beams: int) -> int:
        request = DecodingRequest(
            ids(rows, length), ids(rows, length), ids(rows), ids(rows), ids(rows, 0), ids(rows, 2)
        )
        how = decoding_of(DecodingOptions(beam_size=beams), request, length, 1, keeps_full_batches=True)
        return temporary_bytes(search_or_sample.lower([Network(network.graphdef, params)], request, how))

    batch = Batch(*[ids(BATCH_SIZE, length)] * len(Batch._fields))
    loss = loss_sum.lower(params, batch, graphdef=network.graphdef)
    programs = {"loss": temporary_bytes(loss), "greedy": search(BATCH_SIZE, 1)}
    return programs | {"beams": search(BATCH_SIZE, 5), "one line": search(1, 5)}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:1x1", "v6e:1x1"])
def test_validation_evaluation_and_translation_are_compiled(topology):
    memory = with_compiler(memory_of_programs, topology)
    assert max(memory.values()) < 0.2 * chip_in_topology(topology).memory
    assert memory["one line"] < 20e6


# Refusals.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TINY[:2] + TINY[3:] + ("--workdir", "w"), "devices.topology has no effect without --dry-run"),
        ((*TINY[:2], "--workdir", "w", "--json", "f"), "--json has no effect without --dry-run"),
        ((*TINY[:3], "--json", "no/such/folder/f"), "no/such/folder"),
        ((*TINY[:4], "v5:1x1"), "a kind of TPU (v4, v5e, v5p, v6e) and a shape, such as v5e:2x4, or a kind of GPU"),
        ((*TINY[:4], "v5e"), 'such as h100:8, got "v5e"'),
        ((*TINY[:4], "h100:0"), 'such as h100:8, got "h100:0"'),
    ],
)
def test_invalid_options_of_a_dry_run_for_tpus_are_refused(run, tmp_path, options, message):
    done = run("train", "--config", ROOT / "configs" / "tiny.toml", *options[2:], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_topology_in_a_config_needs_a_dry_run(run, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[devices]\ntopology = "v5e"\n')
    trained = run("train", "--config", config, "--workdir", tmp_path / "w")
    assert trained.returncode == 2
    assert "error: devices.topology has no effect without --dry-run" in trained.stderr
    dry = run("train", "--config", config, "--dry-run")
    assert "such as v5e:2x4" in dry.stderr  # it was read


@needs_libtpu
def test_topology_that_the_compiler_does_not_support_is_refused(run):
    done = run("train", *TINY[:4], "v5e:3x3")
    assert done.returncode == 2
    assert "devices.topology v5e:3x3: the compiler refuses it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@needs_libtpu
def test_config_that_does_not_fit_the_topology_is_refused(results):
    for actual, (_, message) in zip(results["refusals"], REFUSED, strict=True):
        assert message in actual


def test_missing_libtpu_is_reported(run):
    """The script hides the package, as if the extra were not installed."""
    done = run(Path(__file__).parent / "scripts" / "without_libtpu.py", "train", *TINY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: devices.topology needs libtpu, the TPU's compiler: pip install -e '.[tpu]'; it needs no TPU"
    ]


@needs_libtpu
def test_libtpu_is_silent_on_a_machine_without_a_tpu(run, tmp_path):
    """It would print six lines; once installed for --dry-run, it is present for every command."""
    program = "from lingua_flax.devices.platform import initialize_devices; print(initialize_devices('auto'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_PLATFORMS"))}
    environment["TMPDIR"] = str(tmp_path)  # for its logs
    done = run("-c", program, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@needs_libtpu
def test_death_of_the_compiler_process_is_an_error():
    with pytest.raises(RunError, match=r"the compiler of devices[.]topology has failed and ended its process"):
        with_compiler(os.abort)


@needs_libtpu
def test_topologies_have_the_expected_devices(results):
    assert results["devices"] == TOPOLOGIES
    assert [chip_in_topology(topology) for topology in TOPOLOGIES] == [
        CHIPS[kind] for kind in ("v5e", "v4", "v5p", "v6e")
    ]


# The bytes that devices send to each other, computed from the text of a program.


def test_bytes_sent_by_ring_algorithms_match_a_count_by_hand():
    """On 8 devices: 7/4 of what is summed, 7/8 of what is gathered, and 7 times the result of a reduce-scatter. An
    operation that the compiler lists twice counts once, and one within a device does not count."""
    text = """
  %all-reduce.1 = (f32[]{:T(128)}, bf16[128,512]{1,0:T(8,128)}) all-reduce(%a, %b), channel_id=1, replica_groups={}
  %all-gather.2 = f32[16]{0} all-gather(%c), channel_id=2, dimensions={0}
  ROOT %all-gather.3 = f32[16]{0} all-gather(%d), channel_id=2, dimensions={0}
  %reduce-scatter.4 = u32[4]{0} reduce-scatter(%e), channel_id=3
  %reduce.5 = f32[7]{0} reduce(%f, %g)
"""
    assert sent_bytes_of(text, 8) == 7 / 4 * (4 + 2 * 128 * 512) + 7 / 8 * 4 * 16 + 7 * 4 * 4
