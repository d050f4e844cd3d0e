"""Translates text with a trained run: lines in -> lines out. See --help for every option."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs.command import main
from configs.errors import UserError
from configs.loading import parse, read_workdir_config, workdir_of
from configs.schema import ComputeConfig, DecodingOptions, PositiveInt
from runtime.interruption import Interruption
from runtime.memory import keep_freed_memory
from runtime.workdir import check_writable

CHUNK = 1024  # lines translated together; sorted by length, so that batches hold little padding


class TranslateCommand(DecodingOptions):
    """Options of translate.py."""

    workdir: Path
    """Folder of the run."""
    input: Path | None = None
    """Text to translate, a sentence a line, plain or .gz; standard input by default."""
    output: Path | None = None
    """Where the translations go, a line for each line; standard output by default."""
    checkpoint: str = "best"
    """Parameters to use: best (by validation BLEU), last, or the number of a step."""
    num_hypotheses: PositiveInt = 1
    """Translations to write for each line, at most beam_size; above 1 as line number, score and text, with tabs."""
    json_lines: bool = False
    """Write one JSON object for each line, with the source and every hypothesis's text and score."""
    target_language: str | None = None
    """Language to translate into, of a model trained with data.tag_target; by default its data.target_language."""
    devices: ComputeConfig = ComputeConfig()


DESCRIPTION = "Translates each line of the input, in order; an empty line stays one."


def read_options(argv: Sequence[str]) -> TranslateCommand:
    """The command's options over what the workdir's config says of devices."""
    workdir = workdir_of(argv, TranslateCommand, description=DESCRIPTION, flags=True)
    default = TranslateCommand(workdir=workdir, devices=read_workdir_config(workdir).devices.compute)
    options = parse(TranslateCommand, argv, default=default, description=DESCRIPTION, flags=True)
    if options.num_hypotheses > options.beam_size:
        raise UserError(f"--num-hypotheses {options.num_hypotheses} exceeds --beam-size {options.beam_size}")
    return options


def translate(argv: Sequence[str]) -> None:
    """Runs the command."""
    Interruption().install()
    options = read_options(argv)
    keep_freed_memory()
    from data.lines import chunks, decode_lines, read_lines  # after the arguments: a wrong one is answered at once
    from runtime.compilation import set_up_compilation
    from runtime.devices import select_platform
    from translation.translator import Translation, Translator

    def written(number: int, found: Translation) -> Iterator[str]:
        if options.json_lines:
            hypotheses = [{"text": hypothesis.text, "score": hypothesis.score} for hypothesis in found.hypotheses]
            yield json.dumps({"source": found.source, "hypotheses": hypotheses}, ensure_ascii=False)
        elif options.num_hypotheses > 1:
            yield from (f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}" for hypothesis in found.hypotheses)
        else:
            yield found.text

    if options.input:
        lines = iter(list(read_lines(options.input)))  # a bad line is found before anything is written
    elif sys.stdin is None:
        raise UserError("standard input is closed; give the text with --input")
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    if options.output:
        check_writable(options.output)
    select_platform(options.devices.platform)
    set_up_compilation()
    translator = Translator.load(options.workdir, options.checkpoint, options.devices, options.target_language)
    translator.check(options, options.num_hypotheses)
    at_a_terminal = not options.input and sys.stdin.isatty()
    todo = chunks(lines, 1 if at_a_terminal else CHUNK)
    first = next(todo, [])  # a mistake in the first lines leaves an old output as it was
    done = 0
    with open(options.output or os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n") as out:
        for chunk in itertools.chain([first], todo):
            found = translator.translate(chunk, options, num_hypotheses=options.num_hypotheses, first_line=done + 1)
            for number, translation in enumerate(found, done + 1):
                out.writelines(text + "\n" for text in written(number, translation))
            done += len(found)
            out.flush()


if __name__ == "__main__":
    sys.exit(main(translate))
