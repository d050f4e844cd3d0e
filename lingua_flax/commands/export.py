"""The command export: workdir -> a folder or a file that translates elsewhere, compared with the run itself."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lingua_flax.data.text_files import read_lines
from lingua_flax.host.errors import RunError, UserError
from lingua_flax.host.files import new_folder
from lingua_flax.host.installation import install_command
from lingua_flax.host.interruption import interruption
from lingua_flax.options.command_line import build, new_output, output_exists, parse, refuse, required_workdir
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.exportable import ExportFormat
from lingua_flax.options.schema import CheckpointOptions, ComputeConfig, DataConfig, PositiveInt, Quantization

if TYPE_CHECKING:
    from lingua_flax.export.parity import Engine
    from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)

PACKAGES = {"ctranslate2": "ctranslate2", "workdir": "jax"}  # the others: safetensors


class ExportCommand(CheckpointOptions):
    """Options of the command export."""

    workdir: Path
    """Folder of the run."""
    format: ExportFormat
    """ctranslate2: for CTranslate2, a fast engine in C++; safetensors: the parameters by name, with the network in
    NumPy; transformers: a model of that library, for the Hugging Face hub; html: one file that translates in any
    browser, without a network connection; workdir: the network alone, for other users of this program, who can also
    begin with it (--init-from)."""
    output: Path
    """Folder to write, or file of html; it must not exist yet."""
    target_language: str | None = None
    """Language to translate into, for a model trained with data.tag_target; by default its data.target_language."""
    quantization: Quantization | None = None
    """Type of the matrices of ctranslate2 (by default float32), of html (int8, or float32), or of all parameters of
    workdir (bfloat16, or float32). Translations in another type than float32 are compared, but not judged."""
    beam_size: PositiveInt = 5
    """Number of beams of the comparison, and of the beam search of html."""
    scores: Path | None = None
    """File that lingua-flax evaluate --json has written; the scores become part of the exported README.md."""
    verify: Path | None = None
    """Text file whose first 100 lines are translated by both, to compare the export with the run; by default the
    validation split of the run's corpus, if it is on this machine."""

    @property
    def matrix_type(self) -> Quantization:
        """The type of the matrices."""
        return self.quantization or TYPES.get(self.format, ("float32",))[0]


DESCRIPTION = "Exports the network of a run, and checks that the export translates as the run does."
TYPES: dict[ExportFormat, tuple[Quantization, ...]] = {"html": ("int8", "float32"), "workdir": ("bfloat16", "float32")}
ONLY_WITH: dict[str, list[ExportFormat]] = {
    "quantization": ["ctranslate2", "html", "workdir"],
    "scores": ["ctranslate2", "safetensors", "transformers", "workdir"],
}


def read_options(argv: Sequence[str]) -> ExportCommand:
    """Parses the command line; raises UserError, also if the output exists or a package is missing."""
    given = parse(ExportCommand, argv, DESCRIPTION)
    required_workdir(given)
    new_output(given, "the folder to write, for example --output exported")
    options = build(ExportCommand, given)
    for name, owners in ONLY_WITH.items():
        if options.format not in owners:
            refuse(given, [name], f"with --format {options.format}, only with {' and '.join(owners)}")
    types = TYPES.get(options.format, (options.matrix_type,))
    if options.matrix_type not in types:
        raise UserError(f"--quantization {options.quantization}: {options.format} has {' and '.join(types)}")
    if not importlib.util.find_spec(PACKAGES.get(options.format, "safetensors")):
        raise UserError(f"--format {options.format} needs the extra export: {install_command('export')}")
    return options


def export(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = read_options(argv)
    scores = read_scores(options.scores) if options.scores else None
    # Imported here so that invalid options are reported at once.
    from lingua_flax.devices.compilation import set_up_compilation
    from lingua_flax.devices.platform import initialize_devices
    from lingua_flax.export.description import model_card, write_manifest, write_readme, write_tokenizers
    from lingua_flax.translation.translator import Translator

    initialize_devices("cpu")
    set_up_compilation()
    config = read_workdir_config(options.workdir)
    devices = ComputeConfig(platform="cpu", precision="float32")
    translator = Translator.load(options.workdir, options.checkpoint, devices, options.target_language)
    languages = zip(("source_language", "target_language"), translator.languages, strict=True)
    data = config.data.model_copy(update=dict(languages))
    lines = lines_to_verify(translator, config.data, options)
    if options.format == "html":
        write_page(translator, data, options, lines)
        return
    try:
        with interruption.deferred(), new_folder(options.output) as folder:
            usage, load_engine = write_format(translator, data, options, folder, lines)
            usage = with_example(usage, translator, lines)
            interruption.check()
            is_for_hub = options.format == "transformers"
            if not is_for_hub:  # which has files of its own for its tokenizer
                write_tokenizers(translator, folder)
            write_readme(folder, translator, data, usage, scores, model_card(data, scores) if is_for_hub else "")
            write_manifest(folder, options.format, options.matrix_type, translator.step)
            check_parity(translator, options, load_engine, lines)
    except FileExistsError as error:  # the folder was created in the meantime
        raise output_exists(options.output) from error
    log.info("exported to %s; its README.md shows how to translate a sentence", options.output)


def write_page(translator: Translator, data: DataConfig, options: ExportCommand, lines: Sequence[str]) -> None:
    """Writes the file of --format html, and compares the translations of its weights with those of the run."""
    from lingua_flax.export.html_file import html_document, html_engine
    from lingua_flax.host.files import write_atomically
    from lingua_flax.inspection.run_report import RunReport, example_sentences

    is_quantized = options.matrix_type == "int8"
    run = RunReport(options.workdir).read() | {"checkpoints": [translator.step], "seconds_since_change": None}
    language = {"code": data.source_language, "name": data.source_language, "targets": [data.target_language]}
    answers = {"run": run, "examples": example_sentences(options.workdir), "languages": [language]}
    document = html_document(translator, data, answers, quantized=is_quantized, beam_size=options.beam_size)
    load_engine = functools.partial(html_engine, translator, lines, quantized=is_quantized)
    check_parity(translator, options, load_engine, lines)
    write_atomically(options.output, document.encode())
    log.info("exported to %s, %.2f MB; open it in a browser", options.output, len(document) / 1e6)


def read_scores(path: Path) -> dict[str, Any]:
    """Reads the JSON object of an evaluation; raises UserError unless lingua-flax evaluate --json wrote the file."""
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
        if {"bleu", "bleu_signature", "sentences", "checkpoint_step"} <= scores.keys():
            return scores
    except OSError as error:
        raise UserError(f"--scores {path}: {error.strerror}") from error
    except (ValueError, AttributeError):
        pass
    raise UserError(f"--scores {path}: not a file that lingua-flax evaluate --json has written")


def lines_to_verify(translator: Translator, data: DataConfig, options: ExportCommand) -> list[str]:
    """Returns the lines for the comparison, or none if there are none on this machine, which the log says."""
    from lingua_flax.data.corpora import open_corpus
    from lingua_flax.data.corpora.downloads import offline
    from lingua_flax.export.parity import lines_to_compare

    longest = translator.max_length
    if options.verify:
        lines = lines_to_compare(read_lines(options.verify), translator.tokenizer, longest)
        if not lines:
            raise UserError(f"--verify {options.verify}: has no lines of at most {longest} tokens")
        return lines
    try:
        with offline():
            sides, language = (data.source_language, data.target_language), translator.languages[0]
            if language not in sides:
                raise UserError(f"the validation split is not in {language}")
            sources = (pair[sides.index(language)] for pair in open_corpus(data).split("validation"))
            if lines := lines_to_compare(sources, translator.tokenizer, longest):
                return lines
            reason = f"the validation split has no lines of at most {longest} tokens"
    except UserError as error:
        reason = str(error)
    log.warning("the export is not compared with the run: %s; or give lines with --verify FILE", reason)
    return []


def with_example(usage: str, translator: Translator, lines: Sequence[str]) -> str:
    """Returns the usage with a sentence of the lines as its example, and with its translation."""
    from lingua_flax.export.description import EXAMPLE

    plain = (line for line in lines if not set(line) & set('"\\$`'))  # which are not quoted in code and shells
    if not (example := next(plain, None)):
        return usage
    (translation,) = translator.translate_sentences([example], beam_size=5, warn=False)
    return f"{usage.replace(EXAMPLE, example).rstrip()}\n\nLingua Flax, with 5 beams, translates it: {translation.text}"


def write_format(
    translator: Translator, data: DataConfig, options: ExportCommand, folder: Path, lines: Sequence[str]
) -> tuple[str, Callable[[], Engine]]:
    """Writes the files of the format; returns how they are used, as Markdown, and what loads them for the lines."""
    if options.format == "workdir":
        from lingua_flax.export.network_workdir import write_workdir

        return write_workdir(translator, options.workdir, folder, options.matrix_type, lines)
    if options.format == "ctranslate2":
        from lingua_flax.export.ctranslate2_model import ctranslate2_engine, write_ctranslate2

        usage = write_ctranslate2(translator, folder, options.matrix_type)
        return usage, functools.partial(ctranslate2_engine, folder, translator)
    if options.format == "transformers":
        from lingua_flax.export.transformers_model import transformers_engine, write_transformers

        return write_transformers(translator, data, folder), functools.partial(transformers_engine, folder, translator)
    from lingua_flax.export.safetensors_model import safetensors_engine, write_safetensors

    return write_safetensors(translator, data, folder), functools.partial(safetensors_engine, folder)


def check_parity(
    translator: Translator, options: ExportCommand, load_engine: Callable[[], Engine], lines: Sequence[str]
) -> None:
    """Compares the export with the run, and prints a table; raises RunError if too much differs, in float32."""
    if not lines:
        return
    try:
        engine = load_engine()
    except ImportError as error:
        log.warning("the export is not compared with the run: %s; install that package beside Lingua Flax", error)
        return
    from lingua_flax.export.parity import compare, print_parity
    from lingua_flax.host.terminal import progress_bar

    beam_sizes = dict.fromkeys((1, options.beam_size))
    with progress_bar(len(beam_sizes) * len(lines), "lines compared") as advance:
        results = [compare(engine, translator, lines, beam_size, advance) for beam_size in beam_sizes]
    print_parity(f"{options.format}, {options.matrix_type}", results)
    if not any(result.lines for result in results):
        log.warning("the export is not compared with the run: all translations reach the length limit")
    if options.matrix_type == "float32" and not all(result.holds for result in results):
        raise RunError(f"the export does not translate as {options.workdir} does, so nothing was written")
