"""Scores a trained translator: workdir -> translations -> BLEU and chrF. See --help for every option."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from configs.command import main
from configs.errors import UserError
from configs.loading import parse, read_workdir_config, workdir_of
from configs.schema import ComputeConfig, DataConfig, DecodingOptions
from runtime.interruption import Interruption
from runtime.memory import keep_freed_memory
from runtime.workdir import check_writable


class EvaluateCommand(DecodingOptions):
    """Options of evaluate.py."""

    workdir: Path
    """Folder of the run."""
    split: str = "test"
    """Split of the run's corpus."""
    checkpoint: str = "best"
    """Parameters to use: best (by validation BLEU), last, or the number of a step."""
    source: Path | None = None
    """Score this text file's translations instead of a split; needs --reference. Plain or .gz, a sentence a line."""
    reference: Path | None = None
    """The right translations of --source, line by line."""
    output: Path | None = None
    """Where to write the translations, a line for each source line."""
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Where to write all scores as one JSON object."""
    data: DataConfig = DataConfig()
    devices: ComputeConfig = ComputeConfig()


DESCRIPTION = "Translates a split of the run's corpus, or any two files, and scores it with sacreBLEU."


def read_options(argv: Sequence[str]) -> EvaluateCommand:
    """The command's options over what the workdir's config says of data and devices."""
    workdir = workdir_of(argv, EvaluateCommand, description=DESCRIPTION)
    config = read_workdir_config(workdir)
    default = EvaluateCommand(workdir=workdir, data=config.data, devices=config.devices.compute)
    options = parse(EvaluateCommand, argv, default=default, description=DESCRIPTION)
    if (options.source is None) != (options.reference is None):
        raise UserError("--source and --reference go together: two files with the same number of lines")
    files = [path.absolute() for path in (options.source, options.reference, options.output, options.json_file) if path]
    if twice := next((path for path in files if files.count(path) > 1 and path != options.source), None):
        raise UserError(f"{twice}: named for two things at once; --output and --json need files of their own")
    return options


def read_lines_to_score(options: EvaluateCommand) -> tuple[list[str], list[str]]:
    """Sources and references, of the two files or of the split."""
    if options.source and options.reference:
        from data.lines import read_lines

        sources, references = list(read_lines(options.source)), list(read_lines(options.reference))
        if len(sources) != len(references):
            raise UserError(
                f"{options.source} has {len(sources):,} lines, but {options.reference} has {len(references):,}; "
                "they must be aligned"
            )
        if not sources:
            raise UserError(f"{options.source}: has no lines to score")
        return sources, references
    from data.corpora import open_corpus

    pairs = list(open_corpus(options.data).split(options.split))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def evaluate_command(argv: Sequence[str]) -> None:
    """Runs the command."""
    Interruption().install()
    options = read_options(argv)
    keep_freed_memory()
    from runtime.compilation import set_up_compilation  # after the arguments: a wrong one is answered at once
    from runtime.devices import select_platform
    from runtime.terminal import progress_bar
    from translation.evaluation import evaluate
    from translation.report import show_evaluation
    from translation.translator import Translator

    for path in filter(None, [options.output, options.json_file]):
        check_writable(path)
    select_platform(options.devices.platform)
    set_up_compilation()
    target_language = options.data.target_language if options.data.tag_target else None
    translator = Translator.load(options.workdir, options.checkpoint, options.devices, target_language)
    translator.check(options)
    sources, references = read_lines_to_score(options)
    title = str(options.source or f"{options.data.name}, {options.split}")
    with progress_bar(len(sources), "sentences") as advance:
        contrast = options.split == "contrast" and options.source is None
        found = evaluate(translator, sources, references, options, contrast=contrast, after_batch=advance)
    if options.output:
        options.output.write_text("".join(line + "\n" for line in found.translations), encoding="utf-8", newline="")
    if options.json_file:
        options.json_file.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    show_evaluation(f"{options.workdir}: {title}", found, sources, references)


if __name__ == "__main__":
    sys.exit(main(evaluate_command))
