"""The account of a compiled program, compared with numbers counted by hand."""

import json
import subprocess
import sys

import pytest

from lingua_flax.training.reports.hlo_text import read_program
from tests.conftest import ROOT

PROGRAM = """HloModule step

%fused_add (p.1: f32[100,8], p.2: f32[4,8]) -> f32[4,8] {
  %p.1 = f32[100,8]{1,0} parameter(0)
  %p.2 = f32[4,8]{1,0} parameter(1)
  %slice.1 = f32[4,8]{1,0} slice(%p.1), slice={[0:4], [0:8]}
  ROOT %add.1 = f32[4,8]{1,0} add(%slice.1, %p.2)
}

%body (state: (s32[], bf16[16])) -> (s32[], bf16[16]) {
  %state = (s32[], bf16[16]{0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %values = bf16[16]{0} get-tuple-element(%state), index=1
  %copy.1 = bf16[16]{0} copy(%values)
  ROOT %next = (s32[], bf16[16]{0}) tuple(%count, %copy.1)
}

%less (state: (s32[], bf16[16])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %state = (s32[], bf16[16]{0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  ROOT %is_less = pred[] compare(%count, %limit), direction=LT
}

ENTRY %main (table: f32[100,8], x: f32[4,8], state: (s32[], bf16[16])) -> f32[4,8] {
  %table = f32[100,8]{1,0} parameter(0)
  %x = f32[4,8]{1,0} parameter(1)
  %start = (s32[], bf16[16]{0}) parameter(2)
  %sum = f32[4,8]{1,0} fusion(%table, %x), kind=kLoop, calls=%fused_add
  %loop = (s32[], bf16[16]{0}) while(%start), condition=%less, body=%body, LOOP
  %product = (f32[4,4]{1,0}, s8[1024]{0}) custom-call(%sum, %sum), custom_call_target="__cublas$lt$matmul"
  ROOT %result = f32[4,4]{1,0} get-tuple-element(%product), index=0
}
"""


@pytest.mark.parametrize(
    ("attributes", "times"), [('backend_config={"known_trip_count":{"n":"3"}}', 3), ("metadata={}", 5)]
)
def test_kernels_and_bytes_match_numbers_counted_by_hand(attributes, times):
    """One fused kernel reads four rows of the table and x, and writes four rows: 3 * 128 bytes. A loop, whose counter
    is compared with 5, copies 32 bytes, reading and writing them. A product reads 128 bytes once and writes 64, besides
    its work space."""
    kernels, accessed = read_program(PROGRAM.replace("LOOP", attributes))
    assert kernels == 1 + times + 1
    assert accessed == 3 * 128 + times * 2 * 32 + 128 + 64


ON_CHIP = """HloModule step

%fused_add (p.1: f32[64], p.2: f32[64]) -> f32[64] {
  %p.1 = f32[64]{0:T(128)S(1)} parameter(0)
  %p.2 = f32[64]{0:T(128)} parameter(1)
  ROOT %add.1 = f32[64]{0:T(128)} add(%p.1, %p.2)
}

ENTRY %main (table: f32[100,64], x: f32[64]) -> f32[64] {
  %table = f32[100,64]{1,0:T(8,128)} parameter(0)
  %x = f32[64]{0:T(128)} parameter(1)
  %start.1 = (f32[64]{0:T(128)S(1)}, f32[64]{0:T(128)}, u32[]{:S(2)}) copy-start(%x)
  %x_on_chip = f32[64]{0:T(128)S(1)} copy-done(%start.1)
  %start.2 = ((f32[100,64]{1,0:T(8,128)}), f32[8,64]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%table), slice={[0:8]}
  %rows = f32[8,64]{1,0:T(8,128)S(1)} slice-done(%start.2)
  %sum = f32[64]{0:T(128)} fusion(%x_on_chip, %x), kind=kLoop, calls=%fused_add
  ROOT %hit = f32[64]{0:T(128)} custom-call(%rows, %sum), backend_config={"cost_estimate":{"bytes_accessed":"2860"}}
}
"""


def test_memory_on_the_chip_is_not_main_memory():
    """x of 256 bytes is copied to the chip, and 8 rows of the table, 2,048 bytes. The sum reads x in both memories and
    writes 256 bytes. The kernel reads the sum and writes 256 bytes; of its 2,860 bytes, 300 are read once more."""
    _, accessed = read_program(ON_CHIP)
    assert accessed == 256 + 2048 + (256 + 256) + (256 + 256 + 300)


@pytest.mark.slow
def test_step_is_compiled_for_gpus_that_are_not_there(tmp_path):
    """Installs the compiler, 5.6 GB. A step of tiny needed 110.7 MB of temporaries on an H200, of the same
    architecture as an H100 (commit 83187a8)."""
    python, figures = tmp_path / "environment" / "bin" / "python", {}
    install = ["-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "--editable", ".[cuda]"]
    for command in ([sys.executable, "-m", "venv", tmp_path / "environment"], [python, *install]):
        subprocess.run(command, check=True, cwd=ROOT)
    for topology in ("h100:1", "h100:8", "t4:1"):
        options = ["--config", "tiny", "--dry-run", "--devices.topology", topology, "--json", tmp_path / "f.json"]
        subprocess.run([python, "-m", "lingua_flax", "train", *options], cwd=ROOT, check=True)
        figures[topology] = json.loads((tmp_path / "f.json").read_text())
        assert figures[topology]["fits"]
    assert figures["h100:1"]["memory_by_use"]["activations and gradients"] == pytest.approx(110.7e6, rel=0.01)
    assert 400 < figures["h100:1"]["kernels"] < 600
    assert figures["h100:8"]["bytes_accessed"] < figures["h100:1"]["bytes_accessed"] < figures["t4:1"]["bytes_accessed"]
