"""The command compare: the runs of a system and of a baseline -> means over seeds, and whether they differ."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lingua_flax.commands.evaluate import EvaluateCommand, read_lines_to_score
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import FORMATS, save_figure
from lingua_flax.host.files import check_distinct_files, check_writable
from lingua_flax.host.terminal import progress_bar
from lingua_flax.options import schema
from lingua_flax.options.command_line import Positional, build, parse, refuse
from lingua_flax.options.config_files import differing_options, read_workdir_config

if TYPE_CHECKING:
    from lingua_flax.evaluation.comparison import Report
    from lingua_flax.evaluation.evaluate import EvaluationSet

log = logging.getLogger(__name__)


class CompareCommand(schema.CheckpointOptions, schema.DecodingOptions):
    """Options of the command compare."""

    runs: Positional
    """Workdirs of the runs of a system, which differ in their seed."""
    baseline: tuple[Path, ...] = ()
    """Workdirs of the runs of another system, to compare with."""
    names: tuple[str, ...] = ("system", "baseline")
    """What to call the two systems."""
    split: tuple[str, ...] = ("test",)
    """Splits of the runs' corpus to translate and score."""
    source: Path | None = None
    """File to translate and score instead of a split, as for lingua-flax evaluate."""
    reference: tuple[Path, ...] = ()
    """Text files with one or more reference translations of each line of --source."""
    csv_file: Annotated[Path | None, Field(alias="csv")] = None
    """File for the scores of each run, as CSV."""
    json_file: Annotated[Path | None, Field(alias="json")] = None
    """File for all results, as one JSON object."""
    plot: Path | None = None
    """Picture (.png, .svg or .pdf) of the learning curves of all runs."""
    data: schema.DataConfig = schema.DataConfig()
    evaluation: schema.EvaluationConfig = schema.EvaluationConfig()
    devices: schema.ComputeConfig = schema.ComputeConfig()

    @property
    def systems(self) -> dict[str, tuple[Path, ...]]:
        """The workdirs of each system, by its name."""
        return dict(zip(self.names, filter(None, (self.runs, self.baseline)), strict=False))


DESCRIPTION = "Compares the runs of two systems over seeds and sentences, or summarizes those of one."
OWN = ("runs", "baseline", "names", "split", "csv", "json", "plot")  # not options of lingua-flax evaluate
FEW_RUNS = 5  # a rule of thumb: the mean of fewer is known to no better than half a standard deviation
Evaluations = Mapping[Path, EvaluateCommand]  # by workdir: how its splits, or --source, are evaluated


def read_options(argv: Sequence[str]) -> tuple[CompareCommand, Evaluations]:
    """Parses the command line, as `EvaluateCommand.read` does."""
    given = parse(CompareCommand, argv, DESCRIPTION)
    config = read_workdir_config(Path(given["runs"][0]))
    sections = {"data": config.data, "evaluation": config.evaluation, "devices": config.devices.compute}
    options = build(CompareCommand, given, **sections)
    workdirs = [*options.runs, *options.baseline]
    resolved = [workdir.resolve() for workdir in workdirs]
    if repeated := next((workdir for workdir in workdirs if resolved.count(workdir.resolve()) > 1), None):
        raise UserError(f"{repeated} is given twice; each run counts once")
    wanted = 2 if options.baseline else 1
    if "names" in given and not len(options.names) == len(set(options.names)) == wanted:
        raise UserError(f"--names: there must be {wanted}, all different, got {', '.join(options.names)}")
    if options.plot and options.plot.suffix.lower() not in FORMATS:
        raise UserError(f"--plot {options.plot}: the name must end in {' or '.join(FORMATS)}")
    if options.source:
        refuse(given, ["split"], "with --source; leave it out")
    written = (options.csv_file, options.json_file, options.plot)
    check_distinct_files(read=(options.source, *options.reference), written=written)
    shared = {name: value for name, value in given.items() if name not in OWN}
    return options, {workdir: EvaluateCommand.resolve(shared | {"workdir": str(workdir)}) for workdir in workdirs}


def compare(argv: Sequence[str]) -> None:
    """Runs the command."""
    options, evaluations = read_options(argv)
    for path in filter(None, (options.csv_file, options.json_file, options.plot)):
        check_writable(path)
    report = evaluate_systems(options, evaluations)
    print("\n".join(report.markdown()))
    if options.csv_file:
        rows = list(report.rows())
        with options.csv_file.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if options.json_file:
        options.json_file.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")
    if options.plot:
        from lingua_flax.runs.learning_curves import Curves, draw_curves
        from lingua_flax.runs.workdir import Workdir

        systems = options.systems.items()
        curves = {name: [Curves(Workdir(path).read_metrics()) for path in paths] for name, paths in systems}
        save_figure(draw_curves(curves), options.plot)


def evaluate_systems(options: CompareCommand, evaluations: Evaluations) -> Report:
    """Scores the translations of all runs; raises UserError if a checkpoint is missing or lines differ."""
    # Imported here so that invalid options are reported at once.
    from lingua_flax.data.tokenizer import load_tokenizer, model_paths
    from lingua_flax.devices.platform import computing
    from lingua_flax.evaluation.bleu import bleu_tokenizer
    from lingua_flax.evaluation.comparison import Report, score_systems
    from lingua_flax.runs.checkpoint import identify
    from lingua_flax.runs.workdir import Workdir

    configs = {path: read_workdir_config(path) for path in evaluations}
    checkpoints = {path: identify(Workdir(path).checkpoints, options.checkpoint) for path in evaluations}
    steps = {path: step for path, (step, _) in checkpoints.items()}
    differing = differing_options({name: [configs[path] for path in paths] for name, paths in options.systems.items()})
    runs = {
        name: [{"workdir": str(p), "seed": configs[p].training.seed, "checkpoint_step": steps[p]} for p in paths]
        for name, paths in options.systems.items()
    }
    _warn_about_mistakes(runs, differing)
    data = _read_data(options.split, evaluations, steps)
    with computing(options.devices, schema.ProcessOptions()):
        texts = {path: _translations(each, data, *checkpoints[path]) for path, each in evaluations.items()}
    tokenizers = (load_tokenizer(model_paths(path, joint=each.tokenizer.joint)) for path, each in configs.items())
    lowercase = any(tokenizer.lowercase for tokenizer in tokenizers)
    scores = {}
    for number, lines in enumerate(data):
        tokenize = bleu_tokenizer(options.evaluation.tokenize, options.data.target_language, lines.references)
        of_lines = {name: [texts[path][number] for path in paths] for name, paths in options.systems.items()}
        scores[lines.title] = score_systems(of_lines, lines, tokenize=tokenize, lowercase=lowercase)
    return Report(runs, scores, {lines.title: _note(lines) for lines in data}, differing)


def _warn_about_mistakes(runs: Mapping[str, Sequence[Mapping[str, Any]]], differing: Mapping[str, Any]) -> None:
    """Logs where a system has few runs, or runs that differ in more than their seed, or not even in that."""
    if few := ", ".join(f"{system}: {len(own)}" for system, own in runs.items() if len(own) < FEW_RUNS):
        advice = f"below {FEW_RUNS}, means and standard deviations over seeds say little; train with more seeds"
        log.warning("few runs (%s): %s", few, advice)
    for system, own in runs.items():
        if len({run["seed"] for run in own}) < len(own):
            log.warning("%s: its runs should differ in training.seed, but some have the same", system)
        for option, values in differing.items():
            if len(values[system]) > 1:
                found = " and ".join(map(str, values[system]))
                log.warning("%s: its runs should differ in nothing but the seed, but %s is %s", system, option, found)


def _read_data(splits: Sequence[str], evaluations: Evaluations, steps: Mapping[Path, int]) -> list[EvaluationSet]:
    """Reads the splits or the file; raises UserError if they are not the same for all runs, or cannot be read."""
    expected: list[EvaluationSet] = []
    first, *_ = evaluations
    if len(into := {each.data.target_language for each in evaluations.values()}) > 1:
        raise UserError(f"the runs translate into {' and '.join(sorted(into))}; scores are comparable only within one")
    for path, each in evaluations.items():
        own = [each.model_copy(update={"split": split}) for split in dict.fromkeys(splits)]
        read = [read_lines_to_score([steps[path]], options) for options in own]
        expected = expected or read
        for wanted, found in zip(expected, read, strict=True):
            if (wanted.sources, wanted.references) != (found.sources, found.references):
                remedy = "with --source and --reference, all runs translate the same lines"
                raise UserError(f"{path}: {found.title} is not that of {first}; {remedy}")
    return expected


def _note(lines: EvaluationSet) -> str:
    from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU, comparability_note

    note = f"{len(lines.sources):,} sentences"
    if lines.multi30k:
        length = PublishedBLEU(lines.multi30k[0]).corpus_score(lines.references, [lines.references]).ref_len
        note += f"; {comparability_note(length, *lines.multi30k)}"
    return note


def _translations(
    options: EvaluateCommand, data: Sequence[EvaluationSet], step: int, checkpoint: str
) -> list[list[str]]:
    """Returns a run's translations of each split; its network is loaded only if some of them are not kept yet."""
    from lingua_flax.devices.mesh import make_mesh
    from lingua_flax.devices.platform import available_devices, compute_precision
    from lingua_flax.evaluation.kept_translations import keep
    from lingua_flax.translation.translator import Translator

    language = options.data.target_language if options.data.tag_target else None
    which = options.checkpoint if options.checkpoint.startswith("average") else str(step)
    mesh = make_mesh(schema.MeshConfig(), available_devices(options.devices.platform))
    decoding = {name: getattr(options, name) for name in schema.DecodingOptions.model_fields if name != "batch_size"}
    depends_on = [checkpoint, which, language, decoding, compute_precision(options.devices.precision, mesh)]

    @functools.cache
    def translator() -> Translator:
        loaded = Translator.load(options.workdir, which, options.devices, language)
        loaded.check(options)
        return loaded

    def translate(lines: EvaluationSet) -> list[str]:
        translator().warm_up(lines.sources, options)
        log.info("%s: translating %s, %s sentences", options.workdir, lines.title, f"{len(lines.sources):,}")
        with progress_bar(len(lines.sources), "sentences") as advance:
            found = translator().translate_sentences(lines.sources, options, after_batch=advance)
        return [line.text for line in found]

    return [
        keep(options.workdir, [*depends_on, lines.sources], len(lines.sources), functools.partial(translate, lines))
        for lines in data
    ]
