"""What a short run computes, to the last bit: whoever changes numbers sees it here, and marks the results that change.

`JAX_PLATFORMS=cpu python -m tests.training.test_golden_run` stores the numbers of this machine in golden_runs.json.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jax
import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.schema import DataConfig
from tests.processes import digests, finish, start_command

STORED = Path(__file__).with_name("golden_runs.json")
DROPOUT = ("--model.dropout-rate", "0.1")  # which the config does without
OPTIONS = ("--training.num-steps", "50", "--training.eval-every", "0", "--devices.platform", "cpu", *DROPOUT)


def machine() -> str:
    """Returns what the numbers depend on: the version of JAX, and the instructions and cores that XLA compiles for."""
    facts = dict(re.findall(r"^(\w+)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    instructions = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in facts["flags"].split()]
    return f"jax {jax.__version__}, {facts['vendor_id']} {' '.join(instructions)}, {os.cpu_count()} cores"


def golden_run(folder: Path) -> dict[str, object]:
    """Trains configs/tiny.toml for 50 steps. Returns a digest of the parameters, and translations of 20 lines."""
    quicker_to_compile = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # in the default run
    environment = {name: value for name, value in os.environ.items() if name not in quicker_to_compile}
    workdir, lines, output = (folder / name for name in ("w", "lines.en", "lines.fr"))
    pairs = open_corpus(DataConfig(name="phrasebook")).split("test")
    lines.write_text("".join(f"{pair.source}\n" for pair, _ in zip(pairs, range(20), strict=False)), encoding="utf-8")
    for command in (
        ("train", "--config", "tiny", "--workdir", workdir, *OPTIONS),
        ("translate", "--workdir", workdir, "--input", lines, "--output", output),
    ):
        ((status, _, errors),) = finish([start_command(*command, env=environment)])
        assert status == 0, errors
    _, arrays = digests(workdir)
    params = "".join(digest for name, digest in sorted(arrays.items()) if name.startswith("params"))
    return {"parameters": hashlib.sha256(params.encode()).hexdigest(), "translations": output.read_text().splitlines()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="numbers are stored by kind of CPU, which is read from /proc")
def test_run_computes_the_stored_numbers(tmp_path):
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    if machine() not in stored:
        pytest.skip(f"no numbers are stored for {machine()}; python -m tests.training.test_golden_run stores them")
    assert golden_run(tmp_path) == stored[machine()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        known = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
        known[machine()] = golden_run(Path(scratch))
        STORED.write_text(json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
