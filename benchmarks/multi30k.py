"""Scores runs on Multi30k: every test set that is present, by sacreBLEU and as papers on Multi30k do.

Run from the repository's root:
  python benchmarks/multi30k.py checkpoints/en_de checkpoints/en_de_seed2 ... [--baseline WORKDIR] [--split test ...] \
      [--ensemble]

Further options are those of evaluate.py, such as --checkpoint, --beam-size, --data.directory. Workdirs whose configs
differ in nothing but the seed make one row of means. --baseline: a paired bootstrap test tells whether the differences
to this workdir's translations may be chance. --ensemble: one row more, of all workdirs' networks together.
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

from commands.evaluate import read_options
from commands.main import main
from data.corpora import open_corpus
from evaluation.published_protocol import comparability
from host.errors import UserError
from options.command_line import is_given
from options.config_files import read_workdir_config
from options.schema import Config

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
    """Scores on one split of a run, or of an ensemble of several; config: that of the first."""

    workdirs: Sequence[Path]
    config: Config
    split: str
    scores: dict[str, Any]

    @property
    def group(self) -> tuple[str, str]:
        """What it shares with runs that differ in the seed alone."""
        training = self.config.training.model_copy(update={"seed": 0})
        return self.config.model_copy(update={"training": training}).model_dump_json(), self.split


def evaluate(workdirs: Sequence[Path], split: str, folder: Path, more: Sequence[str], baseline: Path | None) -> Row:
    """Has evaluate.py translate the split into the folder, and scores the translations."""
    workdir, *others = workdirs
    config = read_workdir_config(workdir)
    hypotheses, scores = folder / f"{split}.txt", folder / f"{split}.json"
    command = [sys.executable, "evaluate.py", "--workdir", str(workdir), "--split", split, *more]
    command += ["--ensemble", *map(str, others)] if others else []
    command += ["--output", str(hypotheses), "--json", str(scores)]
    if baseline:
        command += ["--compare", str(baseline / f"{split}.txt")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"{workdir}, {split}: evaluate.py says: {done.stderr.strip().removeprefix('error: ')}")
    return Row(workdirs, config, split, json.loads(scores.read_text(encoding="utf-8")))


def splits_of(workdir: Path, wanted: Sequence[str] | None, more: Sequence[str]) -> list[str]:
    """The splits that are wanted, or all test sets that are present.

    Raises:
        UserError: the workdir or an option of evaluate.py is wrong, or there is no such split of Multi30k.
    """
    corpus = open_corpus(read_options(["--workdir", str(workdir), *more]).data)
    if corpus.name != "multi30k":
        raise UserError(f"{workdir}: its corpus is {corpus.name}, not multi30k")
    for split in wanted or []:
        corpus.split(split)
    return list(wanted or [split for split in corpus.splits if split.startswith("test")])


def shown(row: Row) -> str:
    """A run or an ensemble on one split, as a row of the table."""
    bleu = "{bleu:.2f} ({bleu_low:.2f} to {bleu_high:.2f})".format(**row.scores)
    others = [f"{row.scores[name]:.2f}" for name in ("bleu_lowercase", "chrf")]
    p = f"{row.scores['bleu_p_value']:.3f}" if "bleu_p_value" in row.scores else ""
    networks = len(row.workdirs)
    seed = row.config.training.seed if networks == 1 else f"{networks} networks"
    cells = [" + ".join(map(str, row.workdirs)), seed, row.split, bleu, *others, f"{row.scores['published_bleu']:.2f}"]
    return "| " + " | ".join(map(str, [*cells, f"{row.scores['published_reference_length']:,}", p])) + " |"


def shown_means(rows: Sequence[Row]) -> Iterator[str]:
    """Means and standard deviations of runs that differ in the seed alone, where there are two or more."""
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
    """Signatures, and what is comparable with published scores."""
    yield f"BLEU: {rows[0].scores['bleu_signature']}"
    yield f"lower case: {rows[0].scores['bleu_lowercase_signature']}"
    yield f"chrF: {rows[0].scores['chrf_signature']}"
    yield f"published protocol: {rows[0].scores['published_signature']}, lower case, tokens by sacremoses"
    if any("bleu_p_value" in row.scores for row in rows):
        yield f"p, against the first row of the same split: {rows[0].scores['bleu_signature']}, paired bootstrap"
    for (language, split), row in {(row.config.data.target_language, row.split): row for row in rows}.items():
        yield f"{language}, {split}: {comparability(row.scores['published_reference_length'], language, split)}"


def command(argv: Sequence[str]) -> None:
    """Evaluates and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdirs", type=Path, nargs="+")
    parser.add_argument("--baseline", type=Path, help="a workdir whose translations the others are compared with")
    parser.add_argument("--split", nargs="+", help="by default all test sets that are present")
    parser.add_argument("--ensemble", action="store_true", help="all workdirs' networks together as well")
    options, more = parser.parse_known_args(argv)
    named = list(dict.fromkeys(options.workdirs))
    if options.ensemble and len(named) < 2:
        parser.error("--ensemble needs two or more different workdirs")
    for name in ("output", "json", "compare"):
        if is_given(more, name):
            parser.error(f"--{name} has no effect here; evaluate.py takes it")
    workdirs = list(dict.fromkeys([*filter(None, [options.baseline]), *named]))
    splits = {workdir: splits_of(workdir, options.split, more) for workdir in workdirs}  # before minutes of work
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        baseline = Path(folder, str(workdirs.index(options.baseline))) if options.baseline else None
        together = [tuple(named)] if options.ensemble else []
        for number, group in enumerate([*((workdir,) for workdir in workdirs), *together]):
            place = Path(folder, str(number))
            place.mkdir()
            for split in splits[group[0]]:
                rows.append(evaluate(group, split, place, more, baseline if place != baseline else None))
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for line in (*map(shown, rows), *shown_means(rows), "", *shown_notes(rows)):
        print(line)


if __name__ == "__main__":
    sys.exit(main(command))
