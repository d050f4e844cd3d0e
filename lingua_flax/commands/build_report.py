"""The report of a build: what was cleaned, how well and how fast its networks translate, and how to use them."""

import json
from pathlib import Path
from typing import Any

import jax

from lingua_flax.evaluation.comparison_report import markdown_table
from lingua_flax.host.files import write_atomically
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.runs.checkpoint import read_item, saved_steps
from lingua_flax.runs.workdir import Workdir

TEMPLATE = Path(__file__).parent / "build_templates" / "report.md"
COLUMNS = ("", "parameters", "BLEU", "95% interval", "chrF", "sentences a second")


def write_report(workdir: Path) -> None:
    """Writes report.md into the folder of a build."""
    names = ("clean/report.json", "baseline_scores/scores.json", "student_scores/scores.json")
    clean, *scores = (json.loads((workdir / name).read_text(encoding="utf-8")) for name in names)
    reasons = {f"left out, {name}": found["pairs"] for name, found in clean["left_out"].items()}
    reasons |= {f"mended, {name}": found["pairs"] for name, found in clean["mended"].items()}
    networks = [_network(workdir / name, each) for name, each in zip(("baseline", "student"), scores, strict=True)]
    data = read_workdir_config(workdir / "student").data
    report = TEMPLATE.read_text(encoding="utf-8").format(
        **clean | scores[-1],
        source=data.source_language,
        target=data.target_language,
        cleaned="\n".join(markdown_table(["", "pairs"], [[name, f"{pairs:,}"] for name, pairs in reasons.items()])),
        networks="\n".join(markdown_table(COLUMNS, networks)),
    )
    write_atomically(workdir / "report.md", report.encode())


def _network(workdir: Path, scores: dict[str, Any]) -> list[str]:
    checkpoints = Workdir(workdir).checkpoints
    params = jax.tree.leaves(read_item(checkpoints, saved_steps(checkpoints)[-1], "params"))
    interval, speed = f"{scores['bleu_low']:.2f} to {scores['bleu_high']:.2f}", f"{scores['sentences_per_second']:.1f}"
    numbers = [f"{scores['bleu']:.2f}", interval, f"{scores['chrf']:.2f}", speed]
    return [workdir.name, f"{sum(each.size for each in params):,}", *numbers]
