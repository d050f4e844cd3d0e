"""The command clean: parallel text as people have it -> pairs to train on, and those left out with the reason."""

import dataclasses
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lingua_flax.data.cleaning import is_installed
from lingua_flax.data.corpora.pair_files import format_of
from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_distinct_files, check_writable, write_atomically
from lingua_flax.host.installation import install_command
from lingua_flax.host.interruption import interruption
from lingua_flax.host.terminal import progress_bar
from lingua_flax.host.workers import usable_cores
from lingua_flax.options.command_line import Command, Flag, Given, Positional, new_output, refuse
from lingua_flax.options.config_files import read_section
from lingua_flax.options.schema import CleaningOptions, PositiveInt

log = logging.getLogger(__name__)


class CleanCommand(Command, CleaningOptions):
    """Mends parallel text, and leaves out the pairs that do not match; nothing in the files is changed."""

    files: Positional
    """Two text files, source and target, or one file with both sides: .tsv, .csv, .xlsx, .jsonl, .tmx, .xliff or .po.
    Each may be compressed (gzip, bzip2, xz, zstandard)."""
    output: Path | None = None
    """File for the pairs: .jsonl or .tsv, or either of them with .gz; required without --dry-run."""
    rejected: Path | None = None
    """File for what is left out, as .jsonl or .jsonl.gz: both sides, the file, the line and the reason."""
    columns: tuple[str, ...] = ()
    """Columns of source and target: by name in a file with a header, or by number; the names are keys in .jsonl."""
    source_language: str | None = None
    """Language of the source side, such as en; by default the two languages of a .tmx file, or what py3langid finds."""
    target_language: str | None = None
    """Language of the target side, such as de."""
    encoding: str | None = None
    """Encoding of text that is not UTF-8; by default that of Windows for the language, such as windows-1252. A .tmx
    file is read in the one that it names."""
    config: Path | None = None
    """TOML file with cleaning options, such as max_length = 500, that differ from the defaults."""
    dry_run: Flag = False
    """Write no pairs: only report."""
    json_file: Annotated[Path | None, Field(alias="json")] = None
    """File for the report as one JSON object."""
    processes: PositiveInt | None = None
    """Number of processes that clean; by default as many as there are cores. The result does not depend on it."""

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        return dict(read_section(Path(given["config"]), CleaningOptions)) if given.get("config") else {}

    def check(self, given: Given) -> None:
        if not is_installed():
            raise UserError(f"clean needs the extra clean: {install_command('clean')}")
        if self.dry_run:
            refuse(given, ["output", "rejected"], "with --dry-run, which writes no pairs")
        else:
            new_output(given, "the file for the pairs, for example --output clean.jsonl")
        if self.output and format_of(self.output) == "lines":
            raise UserError(f"--output {self.output}: the name must end in .jsonl or .tsv, or in .jsonl.gz or .tsv.gz")
        if self.output and format_of(self.output) == ".tsv" and not self.whitespace:
            raise UserError("--whitespace False: tabs and line breaks would not fit into .tsv; choose .jsonl")
        if self.rejected and format_of(self.rejected) != ".jsonl":
            raise UserError(f"--rejected {self.rejected}: the name must end in .jsonl or .jsonl.gz")
        if len(self.columns) not in (0, 2):
            raise UserError(f"--columns must be two, for example --columns English German, got {len(self.columns)}")
        if bool(self.source_language) != bool(self.target_language):
            raise UserError("--source-language and --target-language go together: both, or none")
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding or "utf-8")  # codecs.lookup also finds what is none of text
        except LookupError as error:
            raise UserError(f'--encoding: unknown encoding "{self.encoding}"; try windows-1252') from error
        written = (self.output, self.rejected, self.json_file)
        check_distinct_files(self.files, written)
        for path in filter(None, written):
            check_writable(path)


def clean(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = CleanCommand.read(argv)
    # Imported here so that invalid options are reported at once.
    from lingua_flax.data.cleaning import pipeline, readers

    kind = readers.format_of(options.files)
    if options.columns and kind not in readers.WITH_COLUMNS:
        with_columns = ", ".join(readers.WITH_COLUMNS)
        raise UserError(f"--columns has no effect with {kind or 'two text files'}, only with {with_columns}")
    languages = (options.source_language or "", options.target_language or "")
    if not any(languages) and kind == ".tmx":
        languages = readers.tmx_languages(options.files[0])
    size = sum(path.stat().st_size for path in options.files if path.exists())
    with interruption.deferred(), progress_bar(2 * size, "pairs") as bar:

        def advance(count: float) -> None:
            interruption.check()
            bar(int(count))

        report = pipeline.clean(
            readers.read_rows(options.files, languages, options.columns, options.encoding, advance),
            options,
            languages,
            file=str(options.files[0]),
            output=options.output,
            rejected=options.rejected,
            advance=lambda share: advance(size * share),
            processes=options.processes or usable_cores(),
        )
    report.show()
    for note in report.notes:
        log.info("%s", note)
    for warning in report.warnings():
        log.warning("%s", warning)
    if options.json_file:
        found = dataclasses.asdict(report) | {"warnings": list(report.warnings())}
        write_atomically(options.json_file, json.dumps(found, ensure_ascii=False, indent=2).encode())
