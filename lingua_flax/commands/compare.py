"""The command compare: runs, or translations, of a system and of a baseline -> scores, and whether they differ."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lingua_flax.commands.evaluate import EvaluateCommand, read_lines_to_score
from lingua_flax.data.text_files import check_aligned, read_lines
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import FORMATS, save_figure
from lingua_flax.host.files import check_distinct_files, check_writable
from lingua_flax.host.terminal import progress_bar
from lingua_flax.host.wording import counted
from lingua_flax.options import schema
from lingua_flax.options.command_line import NO_NAME, Given, build, parse, refuse
from lingua_flax.options.config_files import differing_options, read_workdir_config

if TYPE_CHECKING:
    from lingua_flax.evaluation.comparison import Report
    from lingua_flax.evaluation.evaluate import EvaluationSet

log = logging.getLogger(__name__)


class CompareCommand(schema.CheckpointOptions, schema.DecodingOptions):
    """Options of the command compare."""

    runs: Annotated[tuple[schema.Run, ...], NO_NAME]
    """Workdirs of the runs of a system, which differ in their seed; or text files with translations by it."""
    baseline: tuple[schema.Run, ...] = ()
    """The same of another system, to compare with."""
    baseline_beam_size: schema.PositiveInt | None = None
    """Beam size of the runs of the baseline; by default beam_size."""
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


DESCRIPTION = "Compares the runs of two systems over seeds and sentences, or summarizes those of one."
OWN = ("runs", "baseline", "baseline_beam_size", "names", "split", "csv", "json", "plot")  # not those of evaluate
FEW_RUNS = 5  # a rule of thumb: the mean of fewer is known to no better than half a standard deviation

Member = EvaluateCommand | Path  # of a system: a run, and how it translates; or a file of translations
Systems = Mapping[str, Sequence[Member]]  # by name


def read_options(argv: Sequence[str]) -> tuple[CompareCommand, Systems]:
    """Parses the command line, as `EvaluateCommand.read` does."""
    given = parse(CompareCommand, argv, DESCRIPTION)
    paths = [schema.run_folder(Path(name)) for name in [*given["runs"], *given.get("baseline", ())]]
    if missing := next((path for path in paths if not path.exists()), None):
        raise UserError(f"{missing}: no such file or folder; give workdirs of runs, or text files of translations")
    workdirs = [path for path in paths if not path.is_file()]
    if not workdirs:
        remedy = "one system must be the workdir of a run, whose corpus is scored"
        raise UserError(f"{paths[0]} is a file of translations; {remedy}")
    config = read_workdir_config(workdirs[0])
    sections = {"data": config.data, "evaluation": config.evaluation, "devices": config.devices.compute}
    options = build(CompareCommand, given, **sections)
    _check(options, given, set(paths).difference(workdirs))
    shared = {name: value for name, value in given.items() if name not in OWN}

    def member(path: Path, beam_size: int) -> Member:
        run = {"workdir": str(path), "beam_size": beam_size}
        return EvaluateCommand.resolve(shared | run) if path in workdirs else path

    beam_sizes = (options.beam_size, options.baseline_beam_size or options.beam_size)
    sides = zip(options.names, (options.runs, options.baseline), beam_sizes, strict=False)
    return options, {name: [member(path, beam_size) for path in side] for name, side, beam_size in sides if side}


def _check(options: CompareCommand, given: Given, files: Collection[Path]) -> None:
    """Raises UserError if options contradict each other, or the translations in files."""
    sides = (options.runs, options.baseline)
    for distinct in sides if options.baseline_beam_size else (sum(sides, ()),):
        resolved = [path.resolve() for path in distinct]
        if repeated := next((path for path in distinct if resolved.count(path.resolve()) > 1), None):
            raise UserError(f"{repeated} is given twice; each run counts once")
    wanted = 2 if options.baseline else 1
    if "names" in given and not len(options.names) == len(set(options.names)) == wanted:
        raise UserError(f"--names: there must be {wanted}, all different, got {', '.join(options.names)}")
    if options.plot and options.plot.suffix.lower() not in FORMATS:
        raise UserError(f"--plot {options.plot}: the name must end in {' or '.join(FORMATS)}")
    if options.source:
        refuse(given, ["split"], "with --source; leave it out")
    if not set(options.baseline).difference(files):
        refuse(given, ["baseline_beam_size"], "without a run as --baseline")
    if files and len(options.split) > 1:
        raise UserError("--split must be one, since a file has the translations of one split")
    written = (options.csv_file, options.json_file, options.plot)
    check_distinct_files(read=(options.source, *options.reference, *files), written=written)


def compare(argv: Sequence[str]) -> None:
    """Runs the command."""
    options, systems = read_options(argv)
    for path in filter(None, (options.csv_file, options.json_file, options.plot)):
        check_writable(path)
    report = evaluate_systems(options, systems)
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

        runs = {name: own for name, members in systems.items() if (own := _runs(members))}
        curves = {name: [Curves(Workdir(run.workdir).read_metrics()) for run in own] for name, own in runs.items()}
        save_figure(draw_curves(curves), options.plot)


def _runs(members: Iterable[Member]) -> list[EvaluateCommand]:
    return [member for member in members if isinstance(member, EvaluateCommand)]


def evaluate_systems(options: CompareCommand, systems: Systems) -> Report:
    """Scores all translations; raises UserError if a checkpoint is missing, or lines differ."""
    # Imported here so that invalid options are reported at once.
    from lingua_flax.data.tokenizer import load_tokenizer, model_paths
    from lingua_flax.devices.platform import computing
    from lingua_flax.evaluation.bleu import bleu_tokenizer
    from lingua_flax.evaluation.comparison import Report, score_systems

    members = [member for own in systems.values() for member in own]
    configs = {run.workdir: read_workdir_config(run.workdir) for run in _runs(members)}
    differing = differing_options({name: [configs[run.workdir] for run in _runs(own)] for name, own in systems.items()})
    if options.baseline_beam_size not in (None, options.beam_size):
        beam_sizes = zip(systems, ([options.beam_size], [options.baseline_beam_size]), strict=True)
        differing["beam_size"] = dict(beam_sizes)
    described = {name: list(map(_description, own)) for name, own in systems.items()}
    _warn_about_mistakes(described, differing)
    data = _read_data(options.split, members)
    with computing(options.devices, schema.ProcessOptions()):
        texts = {name: [_translations(member, data) for member in own] for name, own in systems.items()}
    tokenizers = (load_tokenizer(model_paths(path, joint=each.tokenizer.joint)) for path, each in configs.items())
    lowercase = any(tokenizer.lowercase for tokenizer in tokenizers)
    scores = {}
    for number, lines in enumerate(data):
        tokenize = bleu_tokenizer(options.evaluation.tokenize, options.data.target_language, lines.references)
        of_lines = {name: [each[number] for each in own] for name, own in texts.items()}
        scores[lines.title] = score_systems(of_lines, lines, tokenize=tokenize, lowercase=lowercase)
    return Report(described, scores, {lines.title: _note(lines) for lines in data}, differing)


def _description(member: Member) -> dict[str, Any]:
    if isinstance(member, Path):
        return {"workdir": str(member), "seed": None, "checkpoint_step": None, "beam_size": None}
    seed = read_workdir_config(member.workdir).training.seed
    run = {"workdir": str(member.workdir), "seed": seed, "checkpoint_step": _checkpoint(member)[0]}
    return run | {"beam_size": member.beam_size}


def _checkpoint(run: EvaluateCommand) -> tuple[int, str]:
    """Returns the step and the digest of a run's checkpoint; raises UserError if it is missing or damaged."""
    from lingua_flax.runs.checkpoint import identify
    from lingua_flax.runs.workdir import Workdir

    return identify(Workdir(run.workdir).checkpoints, run.checkpoint)


def _warn_about_mistakes(runs: Mapping[str, Sequence[Mapping[str, Any]]], differing: Mapping[str, Any]) -> None:
    """Logs where a system has few runs, or runs that differ in more than their seed, or not even in that."""
    trained = {system: own for system, own in runs.items() if any(run["seed"] is not None for run in own)}
    if few := ", ".join(f"{system}: {len(own)}" for system, own in trained.items() if len(own) < FEW_RUNS):
        advice = f"below {FEW_RUNS}, means and standard deviations over seeds say little; train with more seeds"
        log.warning("few runs (%s): %s", few, advice)
    for system, own in runs.items():
        seeds = [run["seed"] for run in own if run["seed"] is not None]
        if len(set(seeds)) < len(seeds):
            log.warning("%s: its runs should differ in training.seed, but some have the same", system)
        for option, values in differing.items():
            if len(values[system]) > 1:
                found = " and ".join(map(str, values[system]))
                log.warning("%s: its runs should differ in nothing but the seed, but %s is %s", system, option, found)


def _read_data(splits: Sequence[str], members: Sequence[Member]) -> list[EvaluationSet]:
    """Reads the splits or --source; raises UserError unless all runs have the same, and files as many lines."""
    expected: list[EvaluationSet] = []
    runs = _runs(members)
    if len(into := {run.data.target_language for run in runs}) > 1:
        raise UserError(f"the runs translate into {' and '.join(sorted(into))}; scores are comparable only within one")
    for run in runs:
        step, _ = _checkpoint(run)
        own = [run.model_copy(update={"split": split}) for split in dict.fromkeys(splits)]
        read = [read_lines_to_score([step], options) for options in own]
        expected = expected or read
        for wanted, found in zip(expected, read, strict=True):
            if (wanted.sources, wanted.references) != (found.sources, found.references):
                remedy = "with --source and --reference, all runs translate the same lines"
                raise UserError(f"{run.workdir}: {found.title} is not that of {runs[0].workdir}; {remedy}")
    for file in (member for member in members if isinstance(member, Path)):
        check_aligned(expected[0].title, expected[0].sources, file, list(read_lines(file)))
    return expected


def _note(lines: EvaluationSet) -> str:
    from lingua_flax.evaluation.multi30k_protocol import PublishedBLEU, comparability_note

    note = counted(len(lines.sources), "sentence")
    if lines.multi30k:
        length = PublishedBLEU(lines.multi30k[0]).corpus_score(lines.references, [lines.references]).ref_len
        note += f"; {comparability_note(length, *lines.multi30k)}"
    return note


def _translations(member: Member, data: Sequence[EvaluationSet]) -> list[list[str]]:
    """Returns the translations of each split; the network is loaded only if some of them are not kept yet."""
    if isinstance(member, Path):
        return [list(read_lines(member))]
    from lingua_flax.devices.mesh import make_mesh
    from lingua_flax.devices.platform import available_devices, compute_precision
    from lingua_flax.evaluation.kept_translations import keep
    from lingua_flax.translation.translator import Translator

    options, (step, checkpoint) = member, _checkpoint(member)
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
        log.info("%s: translating %s, %s", options.workdir, lines.title, counted(len(lines.sources), "sentence"))
        with progress_bar(len(lines.sources), "sentences") as advance:
            found = translator().translate_sentences(lines.sources, options, after_batch=advance)
        return [line.text for line in found]

    return [
        keep(options.workdir, [*depends_on, lines.sources], len(lines.sources), functools.partial(translate, lines))
        for lines in data
    ]
