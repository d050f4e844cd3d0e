"""Compares training speed with a PyTorch loop: the same data, sizes and options, in alternation.

Run from the repository root with the extra `bench` installed (pip install -e '.[bench]'):
  python benchmarks/pytorch_comparison.py --directory MULTI30K [--device gpu] [--rounds 5] [--steps N]

Each round runs lingua-flax train as a user would, then benchmarks/pytorch_training.py, each in a new process. Speeds
are in target tokens per second, end to end; padding and the first steps are not counted. Other options are passed to
lingua-flax train, for example --model.attention plain.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from machine import MATRICES
from training_runs import DEVICES, run, run_lingua_flax, run_pytorch, write_tokens

from lingua_flax.model.flops import training_flops
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.schema import Config

CONFIGS = Path("benchmarks/configs")
PROGRAMS = ("Lingua Flax", "PyTorch")
GPU_PROBES = {
    "JAX": "import jax; jax.config.update('jax_platforms', 'cuda'); jax.devices()",
    "PyTorch": "import torch; assert torch.cuda.is_available()",
}


class Results(NamedTuple):
    """The measurements of one config.

    Attributes:
      config: the config of the runs.
      vocab_size: the number of pieces.
      cold: of a first run of lingua-flax train, which trained the tokenizer and compiled everything.
      rates: of a matrix product on the device, in operations per second, by round.
      rounds: by round and program.
    """

    config: Config
    vocab_size: int
    cold: dict[str, float]
    rates: list[float]
    rounds: list[dict[str, dict[str, float]]]

    def median(self, program: str, quantity: str) -> float:
        """Returns the median of a quantity over all rounds."""
        return statistics.median(measurements[program][quantity] for measurements in self.rounds)

    def speed_ratio(self) -> str:
        """Returns the median and the range of the ratios of the programs' speeds in the same round."""
        speeds = [[measurements[program]["tokens_per_second"] for program in PROGRAMS] for measurements in self.rounds]
        values = sorted(own / other for own, other in speeds)
        return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"


def measure(config: Path, options: argparse.Namespace) -> Results:
    """Runs all rounds of one config."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = run_lingua_flax(config, folder, options)
        (workdir,) = folder.glob("*/run")
        tokens = folder / "tokens.npz"
        vocab_size = write_tokens(workdir, tokens)
        results = Results(read_workdir_config(workdir), vocab_size, cold, [], [])
        for number in range(1, options.rounds + 1):
            rate, _, _ = run([sys.executable, "benchmarks/machine.py", "--device", options.device])
            measurements = {
                "Lingua Flax": run_lingua_flax(config, folder, options, workdir / "tokenizer.model"),
                "PyTorch": run_pytorch(config, tokens, vocab_size, options),
            }
            results.rates.append(float(rate))
            results.rounds.append(measurements)
            speeds = ", ".join(f"{k} {v['tokens_per_second']:,.0f}" for k, v in measurements.items())
            print(f"{config.stem}, round {number}: {speeds} target tokens/s", file=sys.stderr)
    return results


def show(config: Path, options: argparse.Namespace, results: Results) -> None:
    """Prints a table of the medians of one config."""
    is_gpu = options.device == "gpu"
    print(f"\n{config} ({options.rounds} rounds of {options.steps} steps, {results.vocab_size:,} pieces)\n")
    print("| | Lingua Flax | PyTorch |\n|---|---|---|")
    for title, quantity, number_format in (
        ("target tokens/s, without padding", "tokens_per_second", "{:,.0f}"),
        ("seconds per step", "step_seconds", "{:.5f}" if is_gpu else "{:.3f}"),
        ("share of positions that are not padding, both sides", "real", "{:.1%}"),
        ("peak memory of the host, MB" if is_gpu else "peak memory, MB", "memory", "{:,.0f}"),
        ("start to first step, s (compiled programs in the cache)", "first_step_seconds", "{:.1f}"),
    ):
        scale = 1e-6 if quantity == "memory" else 1.0
        cells = [number_format.format(scale * results.median(program, quantity)) for program in PROGRAMS]
        print(f"| {title} | " + " | ".join(cells) + " |")
    cold = results.cold
    print(f"| start to first step, s (tokenizer training, empty cache) | {cold['first_step_seconds']:.1f} | |")
    print(f"| device idle, upper bound | {results.median('Lingua Flax', 'idle'):.2%} | |")
    print(f"| programs compiled, compile time in s | {cold['programs']:.0f}, {cold['compile_seconds']:.1f} | |")
    print(f"\nSpeed ratio {results.speed_ratio()}.")
    show_utilization(results, options.device)


def show_utilization(results: Results, device: str) -> None:
    """Prints the operations per token, and the share of a matrix product's rate that a training step reaches."""
    config, length = results.config, results.config.data.row_length
    flops_per_step = training_flops(config.model, results.vocab_size, length, length) * config.rows_per_batch
    flops_per_token = flops_per_step / results.median("Lingua Flax", "tokens_per_step")
    utilization = statistics.median(
        flops_per_step / measurements["Lingua Flax"]["step_seconds"] / rate
        for measurements, rate in zip(results.rounds, results.rates, strict=True)
    )
    size, rate = MATRICES[device][0], statistics.median(results.rates)
    print(f"{flops_per_token / 1e6:.1f} MFLOPs per target token; a step reaches {utilization:.0%} of the")
    print(f"rate of a {size} x {size} matrix product on this machine ({rate / 1e9:.0f} GFLOP/s).")


def check_gpu(parser: argparse.ArgumentParser) -> None:
    """Ends the program with an error if JAX or PyTorch finds no GPU, before anything is measured."""
    missing = [
        library
        for library, probe in GPU_PROBES.items()
        if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode
    ]
    if missing:
        parser.error(
            f"--device gpu: no GPU that {' and '.join(missing)} can use; JAX needs the extra cuda "
            "(pip install -e '.[cuda]'), and PyTorch a build with CUDA"
        )


def main() -> None:
    """Prints a table for each config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", help="by default those in benchmarks/configs for the device")
    parser.add_argument("--directory", type=Path, required=True, help="folder with the files of Multi30k")
    parser.add_argument("--device", choices=tuple(DEVICES), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="by default 60 on a CPU, 600 on a GPU")
    options, train_options = parser.parse_known_args()
    options.train_options = train_options
    device = DEVICES[options.device]
    options.steps = options.steps or device.steps
    options.config = options.config or [CONFIGS / f"{name}.toml" for name in device.configs]
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch is not installed: pip install -e '.[bench]'")
    if not options.directory.is_dir():
        parser.error(f"--directory {options.directory}: no such folder")
    if missing := [str(config) for config in options.config if not config.is_file()]:
        parser.error(f"--config {', '.join(missing)}: no such file")
    if options.steps <= device.warm_up:
        parser.error(f"--steps {options.steps}: the first {device.warm_up} are not measured, so it must be larger")
    if options.device == "gpu":
        check_gpu(parser)
    for config in options.config:
        show(config, options, measure(config, options))


if __name__ == "__main__":
    main()
