"""TPUs that are not attached: what their compiler reports about a step, and what it refuses."""

import importlib.util
import json
import os
import re

import pytest

from lingua_flax.commands.train import train
from lingua_flax.devices.mesh import make_mesh
from lingua_flax.devices.topology import CHIPS, chip_in_topology, topology_devices, with_compiler
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.model.flops import training_flops
from lingua_flax.options.config_files import read_config
from lingua_flax.options.schema import Config, MeshConfig
from lingua_flax.training.reports import compiled_step
from lingua_flax.training.reports.compiled_step import sent_bytes_of
from tests.conftest import ROOT
from tests.helpers.commands import succeed
from tests.helpers.dry_run import JSON_KEYS, table_rows

needs_libtpu = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
DROPOUT = ("--model.dropout-rate", "0.1")  # which the config does without
TINY = ("--config", "configs/tiny.toml", "--dry-run", "--devices.topology", "v5e:1x1")
TOPOLOGIES = {
    "v5e:16x16": (256, "TPU v5 lite", 63),
    "v4:2x2x2": (8, "TPU v4", 1),
    "v5p:1x1x1": (1, "TPU v5", 0),
    "v6e:2x2": (4, "TPU v6 lite", 0),
}
REFUSED = [
    ({"topology": "v5e:3x3"}, {}, "devices.topology v5e:3x3: the compiler refuses it"),
    ({"topology": "v5e:1x1", "mesh": {"data": 2}}, {}, "needs 2 devices; available: 1"),
    ({"topology": "v5e:2x4", "mesh": {"tensor": 8}}, {}, "devices.mesh.tensor 8 does not divide model.num_heads 4"),
    (
        {"topology": "v5e:1x1"},
        {"attention": "fused", "num_heads": 1, "embed_dim": 96},
        "needs a head width that divides 128",
    ),
]


def compiler_results() -> tuple[dict, list[str]]:
    """Returns the number and kind of each topology's devices and the process of the last one, and error messages."""
    found, refusals = {}, []
    for topology in TOPOLOGIES:
        devices = topology_devices(topology)
        size = make_mesh(MeshConfig(), devices).size
        found[topology] = size, devices[0].device_kind, devices[-1].process_index
    for devices_options, model, _ in REFUSED:
        try:
            compiled_step._compiled(Config.model_validate({"devices": devices_options, "model": model}), (64, 64))
        except UserError as error:
            refusals.append(str(error))
    return found, refusals


@needs_libtpu
def test_topologies_and_what_does_not_fit_them_are_known_to_the_compiler():
    before = dict(os.environ)
    found, refusals = with_compiler(compiler_results)
    assert os.environ == before
    assert found == TOPOLOGIES
    for actual, (*_, message) in zip(refusals, REFUSED, strict=True):
        assert message in actual
    chips = [chip_in_topology(topology) for topology in TOPOLOGIES]
    assert chips == [CHIPS[kind] for kind in ("v5e", "v4", "v5p", "v6e")]
    with pytest.raises(RunError, match=r"the compiler of devices[.]topology has failed and ended its process"):
        with_compiler(os.abort)


@pytest.mark.slow
@needs_libtpu
def test_training_step_is_compiled_for_v5e(run, tmp_path):
    config = read_config(ROOT / "configs" / "tiny.toml")
    least = config.rows_per_batch * training_flops(config.model, 2500, 64, 64)
    figures = []
    for topology, attention in (("v5e:1x1", "auto"), ("v5e:1x1", "fused"), ("v5e:2x4", "auto")):
        options = (*TINY[:4], topology, "--model.attention", attention, *DROPOUT, "--json", tmp_path / "f.json")
        done = succeed(run, "train", *options, process=True)
        assert done.stderr == ""  # libtpu is silent
        figures.append(json.loads((tmp_path / "f.json").read_text()))
        assert figures[-1]["compiled_for"] == topology
    one, fused, eight = figures
    assert set(one) == set(fused) == JSON_KEYS
    assert (one["attention"], fused["attention"]) == ("plain", "fused")
    assert fused["bytes_accessed"] < one["bytes_accessed"]
    assert (one["fits"], one["device_memory_bytes"]) == (True, 16 * 2**30)
    assert least < one["flops"] < 1.5 * least
    assert one["flops"] / 8 < eight["flops"] < one["flops"] / 2  # each device updates all parameters
    numbers = 1_243_136
    memory = one["memory_by_use"]
    assert 3 * 4 * numbers < memory["parameters"] + memory["optimizer"] + memory["batch"] < 3 * 4 * numbers + 2e5
    assert 0 < memory["activations and gradients"] < 50e6
    assert 6 * 4 * numbers < one["bytes_accessed"] < 1e9  # parameters and moments are read and written once
    shown = table_rows(done.stdout)
    assert shown["operations"] == f"{eight['flops']:.3g}: {eight['flops'] / 197e9:.3g} ms at 197 TFLOP/s"
    assert shown["the device has"] == "17.2 GB: this fits"
    assert shown["bytes sent to others"].endswith("ms at 400 GB/s in and out")
    large = ("--model.embed-dim", 8192, "--model.mlp-dim", 32768)  # of large activations the compiler recomputes some
    done = run("train", *TINY, *large, "--json", tmp_path / "f.json", process=True)
    assert "17.2 GB: Ran out of memory on HBM" in done.stdout
    figures = json.loads((tmp_path / "f.json").read_text())
    assert (figures["fits"], figures["flops"]) == (False, None)


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


def test_missing_libtpu_is_reported(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name != "libtpu" and find(name, *rest))
    message = "devices.topology needs libtpu, the TPU's compiler: pip install -e '.[tpu]'; it needs no TPU"
    with pytest.raises(UserError, match=re.escape(message)):
        train(TINY)


@needs_libtpu
def test_libtpu_is_silent_on_a_machine_without_a_tpu(run, tmp_path):
    program = "from lingua_flax.devices.platform import initialize_devices; print(initialize_devices('auto'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_PLATFORMS"))}
    environment["TMPDIR"] = str(tmp_path)  # for its logs
    assert succeed(run, "-c", program, env=environment).stderr == ""
    assert list(tmp_path.iterdir()) == []
