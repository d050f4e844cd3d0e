"""The command evaluate.py: workdir -> translations -> BLEU and chrF."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from data.text_files import is_gzip, read_lines, write_lines
from host.errors import UserError
from host.files import check_distinct_files, check_writable
from host.malloc import keep_freed_memory
from options.command_line import BareFlag, is_given, parse, take_workdir
from options.config_files import read_workdir_config
from options.schema import ComputeConfig, DataConfig, DecodingOptions, ProcessOptions

if TYPE_CHECKING:
    from evaluation.evaluate import EvaluationSet
    from translation.translator import Translator

log = logging.getLogger(__name__)


class EvaluateCommand(DecodingOptions, ProcessOptions):
    """Options of evaluate.py."""

    workdir: Path
    """Folder of the run."""
    split: str = "test"
    """Split of the run's corpus."""
    checkpoint: str = "best"
    """Parameters to use: best (by validation BLEU), last, the number of a step, or average:N for the mean of the last
    N."""
    ensemble: tuple[Path, ...] = ()
    """More workdirs with the same tokenizer: the mean of all networks' probabilities decides."""
    source: Path | None = None
    """Score this text file's translations instead of a split; needs --reference. Plain or .gz, a sentence a line."""
    reference: Path | None = None
    """The right translations of --source, line by line."""
    compare: Path | None = None
    """Another system's translations of the same lines: tells whether the difference to them may be chance."""
    score: BareFlag = False
    """Translate nothing: write the log-probability of each reference as the translation of its source, a line each."""
    output: Path | None = None
    """Where to write the translations, a line for each source line; beside hyps.txt go the sources and references in
    the same order, as hyps.source.txt and hyps.reference.txt. With --score: where to write the log-probabilities. A
    name in .gz is written as gzip."""
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Where to write all scores as one JSON object."""
    data: DataConfig = DataConfig()
    devices: ComputeConfig = ComputeConfig()


DESCRIPTION = "Translates a split of the run's corpus, or any two files, and scores it with sacreBLEU."


def read_options(argv: Sequence[str]) -> EvaluateCommand:
    """The command's options over what the workdir's config says of data and devices."""
    workdir, argv = take_workdir(argv, EvaluateCommand, description=DESCRIPTION)
    config = read_workdir_config(workdir)
    default = EvaluateCommand(workdir=workdir, data=config.data, devices=config.devices.compute)
    options = parse(EvaluateCommand, argv, default=default, description=DESCRIPTION)
    if (options.source is None) != (options.reference is None):
        raise UserError("--source and --reference go together: two files with the same number of lines")
    if options.score:
        meaningless = ["compare", *(name for name in DecodingOptions.model_fields if name != "batch_size")]
        if given := next((name for name in meaningless if is_given(argv, name)), None):
            raise UserError(f"--{given.replace('_', '-')} has no effect with --score, which translates nothing")
    check_distinct_files(
        read=(options.source, options.reference, options.compare),
        written=(*output_files(options), options.json_file),
    )
    return options


def output_files(options: EvaluateCommand) -> list[Path]:
    """Where --output writes: translations, sources, references; with --score the one file."""
    if not options.output or options.score:
        return [options.output] if options.output else []
    output = options.output
    plain, packed = (output.with_suffix(""), output.suffix) if is_gzip(output) else (output, "")
    names = (f"{plain.stem}.{what}{plain.suffix}{packed}" for what in ("source", "reference"))
    return [output, *map(output.with_name, names)]


def read_lines_to_score(options: EvaluateCommand) -> EvaluationSet:
    """Sources and references, of the two files or of the split."""
    from evaluation.evaluate import EvaluationSet

    if options.source and options.reference:
        sources, references = list(read_lines(options.source)), list(read_lines(options.reference))
        if len(sources) != len(references):
            raise UserError(
                f"{options.source} has {len(sources):,} lines, but {options.reference} has {len(references):,}; "
                "they must be aligned"
            )
        if not sources:
            raise UserError(f"{options.source}: has no lines to score")
        return EvaluationSet(str(options.source), sources, references)
    from data.corpora import open_corpus

    return EvaluationSet.of_split(open_corpus(options.data), options.split)


def read_baseline(options: EvaluateCommand, lines: int) -> list[str] | None:
    """The translations to compare with, one for each of so many lines."""
    if not options.compare:
        return None
    baseline = list(read_lines(options.compare))
    if len(baseline) != lines:
        raise UserError(f"{options.compare} has {len(baseline):,} lines, but there are {lines:,} to translate")
    return baseline


def score_references(translator: Translator, options: EvaluateCommand) -> None:
    """Log-probabilities on stdout, or in --output; their sum in the log and in --json."""
    from devices.processes import is_first_process
    from host.terminal import progress_bar
    from translation.translator import SCORED_TOGETHER

    data = read_lines_to_score(options)
    try:
        with progress_bar(len(data.sources), "sentences") as advance:
            rows = options.batch_size or SCORED_TOGETHER
            found = translator.score(data.sources, data.references, batch_size=rows, after_batch=advance)
    except UserError as error:
        raise UserError(f"{options.source or options.split}, {error}") from error
    total, tokens = sum(each.log_probability for each in found), sum(each.tokens for each in found)
    lines = [f"{each.log_probability:.4f}" for each in found]
    if not is_first_process():
        return
    if options.output:
        write_lines(options.output, lines)
    else:
        print("\n".join(lines))
    log.info(
        "%s sentences, %s tokens: log-probability %.2f, %.4f a token, perplexity %.2f",
        f"{len(found):,}", f"{tokens:,}", total, total / tokens, math.exp(-total / tokens),
    )  # fmt: skip
    if options.json_file:
        totals = {
            "log_probability": total,
            "tokens": tokens,
            "perplexity": math.exp(-total / tokens),
            "sentences": len(found),
            "checkpoint_step": translator.step,
            "checkpoint": options.checkpoint,
        }
        options.json_file.write_text(json.dumps(totals, indent=1) + "\n", encoding="utf-8")


def score_translations(translator: Translator, options: EvaluateCommand) -> None:
    """BLEU and chrF as a table on stdout, in --json, and the translations in --output."""
    from devices.processes import is_first_process
    from evaluation.evaluate import evaluate
    from evaluation.table import show_evaluation
    from host.terminal import progress_bar

    translator.check(options)
    data = read_lines_to_score(options)
    baseline = read_baseline(options, len(data.sources))
    with progress_bar(len(data.sources), "sentences") as advance:
        found = evaluate(translator, data, options, baseline=baseline, after_batch=advance)
    if not is_first_process():
        return
    for path, lines in zip(output_files(options), (found.translations, data.sources, data.references), strict=False):
        write_lines(path, lines)
    if options.json_file:
        scores = found.as_json() | {"checkpoint": options.checkpoint}
        if options.ensemble:
            scores["networks"] = 1 + len(options.ensemble)
        options.json_file.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    workdirs = " + ".join(map(str, (options.workdir, *options.ensemble)))
    show_evaluation(workdirs, data, found)


def evaluate_command(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = read_options(argv)
    keep_freed_memory()
    from devices.compilation import set_up_compilation  # after the arguments: a wrong one is answered at once
    from devices.platform import initialize_devices
    from devices.processes import distributed_session
    from translation.translator import Translator

    for path in filter(None, [*output_files(options), options.json_file]):
        check_writable(path)
    initialize_devices(options.devices.platform, options)
    compilations = set_up_compilation()
    target_language = options.data.target_language if options.data.tag_target else None
    with distributed_session():
        translator = Translator.load(
            options.workdir, options.checkpoint, options.devices, target_language, options.ensemble
        )
        (score_references if options.score else score_translations)(translator, options)
    log.info("compiled %s", compilations)
