"""The command export: workdir -> a folder or a file that translates elsewhere, compared with the run itself."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lingua_flax.host.errors import UserError
from lingua_flax.host.files import new_file, new_folder
from lingua_flax.host.installation import install_command
from lingua_flax.host.interruption import interruption
from lingua_flax.options.command_line import Command, Given, new_output, refuse, required_workdir
from lingua_flax.options.config_files import read_workdir_config
from lingua_flax.options.export_formats import FORMATS, ExportFormat
from lingua_flax.options.schema import CheckpointOptions, ComputeConfig, PositiveInt, Quantization, Run

log = logging.getLogger(__name__)


class ExportCommand(Command, CheckpointOptions):
    """Exports the network of a run, and checks that the export translates as the run does."""

    workdir: Run
    """Folder of the run, or of a build for its student."""
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

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        required_workdir(given)
        new_output(given, "the folder to write, for example --output exported")
        return {}

    def check(self, given: Given) -> None:
        own = FORMATS[self.format]
        if own.is_file:
            refuse(given, ["scores"], f"with --format {self.format}, which has no README.md")
        if self.quantization not in (None, *own.quantizations):
            known = " and ".join(own.quantizations)
            raise UserError(f"--quantization {self.quantization}: --format {self.format} has {known}")
        if own.package and not importlib.util.find_spec(own.package):
            raise UserError(f"--format {self.format} needs the extra export: {install_command('export')}")


def export(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = ExportCommand.read(argv)
    scores = read_scores(options.scores) if options.scores else None
    # Imported here so that invalid options are reported at once.
    from lingua_flax.devices.compilation import set_up_compilation
    from lingua_flax.devices.platform import initialize_devices
    from lingua_flax.export.description import Export, write_description
    from lingua_flax.export.parity import check_parity, lines_to_verify
    from lingua_flax.translation.translator import Translator

    initialize_devices("cpu")
    set_up_compilation()
    own = FORMATS[options.format]
    module = importlib.import_module(f"lingua_flax.export.{own.module}")
    data = read_workdir_config(options.workdir).data
    devices = ComputeConfig(platform="cpu", precision="float32")
    translator = Translator.load(options.workdir, options.checkpoint, devices, options.target_language)
    quantization = options.quantization or own.quantizations[0]
    exported = Export(translator, options.format, quantization, options.beam_size, options.workdir)
    lines = lines_to_verify(translator, data, options.verify)
    with interruption.deferred(), (new_file if own.is_file else new_folder)(options.output) as new:
        path = new if isinstance(new, Path) else Path(new.name)
        usage = module.write(exported, path)
        if not own.is_file:
            write_description(path, exported, usage, scores, lines)
        interruption.check()
        if lines:
            check_parity(exported, functools.partial(module.translate, exported, path), lines)
    if own.is_file:
        log.info("exported to %s, %.2f MB; %s", options.output, options.output.stat().st_size / 1e6, usage)
    else:
        log.info("exported to %s; its README.md shows how to translate a sentence", options.output)


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
