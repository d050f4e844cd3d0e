"""Scores runs on all available test sets of Multi30k, with sacreBLEU and in the protocol of published results.

Run from the repository root:
  python benchmarks/multi30k.py checkpoints/en_de checkpoints/en_de_seed2 ... [--baseline WORKDIR] [--split test ...] \
      [--ensemble]

Other options go to lingua-flax evaluate, such as --checkpoint, --beam-size and --data.directory. Runs that differ
only in their seed are summarized in one row of means. With --baseline, a paired bootstrap test compares each run with
the translations of this workdir. With --ensemble, another row has the ensemble of all workdirs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lingua_flax.commands.evaluate import read_options
from lingua_flax.commands.main import exit_status
from lingua_flax.data.corpora import open_corpus
from lingua_flax.evaluation.multi30k_protocol import comparability_note
from lingua_flax.host.errors import UserError
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.schema import Config

ROOT = Path(__file__).parent.parent

COLUMNS = (
    "workdir",
    "seed",
    "split",
    "BLEU (95%)",
    "lower case",
    "chrF",
    "published protocol",
    "reference tokens",
    "p",
)


class Row(NamedTuple):
    """Scores of a run, or of an ensemble of several, on one split.

    Attributes:
      workdirs: the workdir of the run, or those of the networks of the ensemble.
      config: of the first workdir.
      language: the language translated into.
      scores: what lingua-flax evaluate writes with --json.
    """

    workdirs: Sequence[Path]
    config: Config
    language: str
    split: str
    scores: dict[str, Any]

    @property
    def group(self) -> tuple[str, str]:
        """A key that runs share if they differ only in the seed: config and split."""
        training = self.config.training.model_copy(update={"seed": 0})
        return self.config.model_copy(update={"training": training}).model_dump_json(), self.split


def evaluate(
    workdirs: Sequence[Path], split: str, folder: Path, evaluate_options: Sequence[str], baseline: Path | None
) -> Row:
    """Runs lingua-flax evaluate on a split; translations and scores are written to the folder.

    Args:
      workdirs: of one run, or of several as an ensemble.
      baseline: a folder with the translations of the run to compare with, if any.

    Raises:
      UserError: lingua-flax evaluate failed.
    """
    workdir, *others = workdirs
    config = read_workdir_config(workdir)
    hypotheses, scores = folder / f"{split}.txt", folder / f"{split}.json"
    command = [sys.executable, "evaluate.py", "--workdir", str(workdir), "--split", split, *evaluate_options]
    command += ["--ensemble", *map(str, others)] if others else []
    command += ["--output", str(hypotheses), "--json", str(scores)]
    if baseline:
        command += ["--compare", str(baseline / f"{split}.txt")]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        raise UserError(f"{workdir}, {split}: evaluation failed: {process.stderr.strip().removeprefix('error: ')}")
    language = read_options(["--workdir", str(workdir), *evaluate_options]).data.target_language
    return Row(workdirs, config, language, split, json.loads(scores.read_text(encoding="utf-8")))


def splits_of(workdir: Path, requested: Sequence[str] | None, evaluate_options: Sequence[str]) -> list[str]:
    """Returns the requested splits, or all test sets that are available.

    Raises:
      UserError: the workdir or an option of lingua-flax evaluate is invalid, or Multi30k has no such split.
    """
    corpus = open_corpus(read_options(["--workdir", str(workdir), *evaluate_options]).data)
    if corpus.name != "multi30k":
        raise UserError(f"{workdir}: its corpus is {corpus.name}, not multi30k")
    for split in requested or []:
        corpus.split(split)
    return list(requested or [split for split in corpus.splits if split.startswith("test")])


def format_row(row: Row) -> str:
    """Formats a row of scores as a row of the Markdown table."""
    bleu = "{bleu:.2f} ({bleu_low:.2f} to {bleu_high:.2f})".format(**row.scores)
    lower_case_and_chrf = [f"{row.scores[name]:.2f}" for name in ("bleu_lowercase", "chrf")]
    p = f"{row.scores['bleu_p_value']:.3f}" if "bleu_p_value" in row.scores else ""
    networks = len(row.workdirs)
    seed = row.config.training.seed if networks == 1 else f"{networks} networks"
    cells = [" + ".join(map(str, row.workdirs)), seed, row.split, bleu, *lower_case_and_chrf]
    cells += [f"{row.scores['published_bleu']:.2f}", f"{row.scores['published_reference_length']:,}", p]
    return "| " + " | ".join(map(str, cells)) + " |"


def shown_means(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a table row of means and standard deviations for each group of runs with two or more seeds.

    Ensembles are left out, and so are repetitions of a seed.
    """
    single = [row for row in rows if len(row.workdirs) == 1]
    for group in dict.fromkeys(row.group for row in single):
        runs = list({row.config.training.seed: row for row in single if row.group == group}.values())
        if len(runs) < 2:
            continue
        names = ("bleu", "bleu_lowercase", "chrf", "published_bleu")
        columns = [[row.scores[name] for row in runs] for name in names]
        means = [f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in columns]
        cells = [*runs[0].workdirs, f"n = {len(runs)}", runs[0].split, *means, "", ""]
        yield "| " + " | ".join(map(str, cells)) + " |"


def shown_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the signatures of the scores, and whether they are comparable with published scores."""
    yield f"BLEU: {rows[0].scores['bleu_signature']}"
    yield f"lower case: {rows[0].scores['bleu_lowercase_signature']}"
    yield f"chrF: {rows[0].scores['chrf_signature']}"
    yield f"published protocol: {rows[0].scores['published_signature']}, lower case, tokenized with sacremoses"
    if any("bleu_p_value" in row.scores for row in rows):
        signature = rows[0].scores["bleu_signature"]
        yield f"p, compared with the baseline, the first row of the same split: {signature}, paired bootstrap"
    for (language, split), row in {(row.language, row.split): row for row in rows}.items():
        yield f"{language}, {split}: {comparability_note(row.scores['published_reference_length'], language, split)}"


def command(argv: Sequence[str]) -> None:
    """Evaluates all workdirs and prints the table of their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdirs", type=Path, nargs="+")
    parser.add_argument("--baseline", type=Path, help="workdir with whose translations the others are compared")
    parser.add_argument("--split", nargs="+", help="by default all test sets that are available")
    parser.add_argument("--ensemble", action="store_true", help="also score the ensemble of all workdirs")
    options, evaluate_options = parser.parse_known_args(argv)
    members = list(dict.fromkeys(options.workdirs))
    if options.ensemble and len(members) < 2:
        parser.error("--ensemble needs two or more different workdirs")
    for name in ("workdir", "output", "json", "compare", "score", "source", "reference"):
        if f"--{name}" in {argument.split("=")[0] for argument in evaluate_options}:
            parser.error(f"--{name} has no effect here; use it with lingua-flax evaluate")
    workdirs = list(dict.fromkeys([*filter(None, [options.baseline]), *members]))
    # Checks the options of all workdirs before the first evaluation, which takes minutes.
    splits = {workdir: splits_of(workdir, options.split, evaluate_options) for workdir in workdirs}
    rows = []
    with tempfile.TemporaryDirectory() as parent:
        baseline = Path(parent, str(workdirs.index(options.baseline))) if options.baseline else None
        ensembles = [tuple(members)] if options.ensemble else []
        for number, group in enumerate([*((workdir,) for workdir in workdirs), *ensembles]):
            folder = Path(parent, str(number))
            folder.mkdir()
            for split in splits[group[0]]:
                rows.append(evaluate(group, split, folder, evaluate_options, baseline if folder != baseline else None))
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for line in (*map(format_row, rows), *shown_means(rows), "", *shown_notes(rows)):
        print(line)


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
