"""What the commands have in common that translate with trained networks: their options, and how these are loaded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lingua_flax.options import schema
from lingua_flax.options.command_line import Command, Flag, Given, required_workdir
from lingua_flax.options.config_files import read_workdir_config

if TYPE_CHECKING:
    from lingua_flax.devices.compilation import Compilations
    from lingua_flax.translation.translator import Translator


class TranslatorCommand(Command, schema.NetworkOptions, schema.DecodingOptions, schema.ProcessOptions):
    """Options of a command that translates with the networks of runs; its sections are those of the first run."""

    workdir: schema.Run
    """Folder of the run, or of a build for its student."""
    devices: schema.ComputeConfig = schema.ComputeConfig()

    @classmethod
    def defaults(cls, given: Given) -> Mapping[str, Any]:
        config = read_workdir_config(required_workdir(given))
        sections = dict(config) | dict(config.decoding) | {"devices": config.devices.compute}
        return {name: section for name, section in sections.items() if name in cls.model_fields}

    def prepared(self, translator: Translator) -> Translator:
        """Returns the translator with what the options change; raises UserError if it cannot do what they ask for."""
        translator.check(self)
        return translator


class LineOptions(schema.Section):
    """How the lines of a text are translated."""

    one_sentence_per_line: Flag = False
    """Take each line as a single sentence, rather than translate each of its sentences by itself."""
    translate_unknown: Flag = False
    """Also translate sentences that consist mostly of characters the network has never seen, instead of copying them;
    the result is invented."""

    def applied_to(self, translator: Translator) -> Translator:
        """Returns the translator that does so."""
        one_sentence = self.one_sentence_per_line or translator.one_sentence_per_line
        unknown = self.translate_unknown
        return dataclasses.replace(translator, one_sentence_per_line=one_sentence, translate_unknown=unknown)


@contextlib.contextmanager
def open_translator(
    options: TranslatorCommand, language: str | None, only_one: str = ""
) -> Iterator[tuple[Translator, Compilations]]:
    """Yields the translator of a command into a language, and the count of the programs that are compiled; see `load`.

    Devices and processes are set up for the block; `only_one` as in `computing`.
    """
    from lingua_flax.devices.platform import computing  # late, so that invalid options are reported at once

    with computing(options.devices, options, only_one) as compilations:
        yield load_translator(options, language), compilations


def load_translator(options: TranslatorCommand, language: str | None) -> Translator:
    """Returns the translator of a command into a language, once devices and processes are set up."""
    from lingua_flax.devices.processes import in_all_processes
    from lingua_flax.translation.translator import Translator

    networks = (options.workdir, options.checkpoint, options.devices, language, options.ensemble)
    return in_all_processes(lambda: options.prepared(Translator.load(*networks)))
