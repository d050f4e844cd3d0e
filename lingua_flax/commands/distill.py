"""The command distill, for sequence-level knowledge distillation (Kim and Rush 2016): a training split, translated."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lingua_flax.commands.translator_command import TranslatorCommand, load_translator
from lingua_flax.data.corpora.pair_files import format_of, json_keys
from lingua_flax.data.text_files import encode_lines
from lingua_flax.host.digests import json_digest
from lingua_flax.host.errors import UserError
from lingua_flax.host.files import write_atomically
from lingua_flax.host.locks import lock_until_exit
from lingua_flax.host.terminal import progress_bar
from lingua_flax.host.wording import counted
from lingua_flax.options.command_line import Given, check_languages, check_new
from lingua_flax.options.config_files import read_workdir_config, with_absolute_paths
from lingua_flax.options.schema import DataConfig, DecodingOptions

if TYPE_CHECKING:
    from lingua_flax.data.corpora.corpus import Corpus, PairSource
    from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)

CHUNK = 1024  # pairs written together; sorting them by length keeps padding low


class DistillCommand(TranslatorCommand):
    """Translates the training split of the run's corpus, for a student to be trained on."""

    output: Path
    """File for the pairs, one JSON object per line (.jsonl, or .jsonl.gz to compress it), for train_source of an entry
    [[data.mixture]]. If the command is interrupted, the same command continues where it was."""
    data: DataConfig = DataConfig()

    def check(self, given: Given) -> None:
        if format_of(self.output) != ".jsonl":
            raise UserError(f"--output {self.output}: the name must end in .jsonl or .jsonl.gz")
        check_new(self.output)
        check_languages(self.data, read_workdir_config(self.workdir).data, self.workdir)


def distill(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = DistillCommand.read(argv)
    from lingua_flax.devices.platform import computing  # late, so that invalid options are reported at once
    from lingua_flax.devices.processes import in_all_processes, on_first_process

    with computing(options.devices, options):
        on_first_process(functools.partial(_lock, options.output))
        translator = load_translator(options, options.data.tagged_language)
        corpus = in_all_processes(functools.partial(_open_corpus, options, translator.step))
        unfinished = UnfinishedOutput(options.output, _identity(translator, corpus.digest, options))
        _translate(translator, corpus.split("train"), options, unfinished)


def _lock(output: Path) -> None:
    """Raises UserError if another process is writing to the same output, or has just finished it."""
    refusal = "is writing it; wait until it ends, stop it, or choose another --output"
    lock_until_exit(output.with_name(f"{output.name}.lock"), f"--output {output}", refusal)
    check_new(output)


def _open_corpus(options: DistillCommand, step: int) -> Corpus:
    from lingua_flax.data.corpora import open_corpus
    from lingua_flax.runs.checkpoint import check_corpus

    data, trained_on = map(with_absolute_paths, (options.data, read_workdir_config(options.workdir).data))
    corpus = open_corpus(data)
    if data == trained_on:
        check_corpus(options.workdir, step, corpus.digest, "train")
    return corpus


def _identity(translator: Translator, corpus_digest: str, options: DistillCommand) -> str:
    from lingua_flax.devices.platform import compute_precision
    from lingua_flax.runs.checkpoint import digests

    networks = [digests("params", network.params) for network in translator.members]
    tokenizer = (translator.tokenizer.digest, translator.tokenizer.source_tags)
    precision = compute_precision(options.devices.precision, translator.mesh)
    decoding = {name: getattr(options, name) for name in DecodingOptions.model_fields if name != "batch_size"}
    return json_digest([networks, tokenizer, precision, corpus_digest, decoding])


class UnfinishedOutput:
    """The part of the output written so far, with its length in a record, from which the same command continues."""

    def __init__(self, output: Path, identity: str):
        """Finds what an interrupted command has written; raises UserError if its identity differs or it is damaged."""
        self._output = output
        self._part, self._file = (output.with_name(f"{output.name}.{ending}") for ending in ("part", "part.json"))
        self._record: dict[str, Any] = {"identity": identity, "pairs": 0, "bytes": 0}
        if self._file.exists():
            self._record = json.loads(self._file.read_text(encoding="utf-8"))
            if self._record["identity"] != identity:
                raise UserError(
                    f"{self._part} was begun with other networks, data, precision or decoding options; delete it and "
                    f"{self._file.name}, or choose another --output"
                )
            if not self._part.exists() or self._part.stat().st_size < self._record["bytes"]:
                raise UserError(
                    f"{self._part} is missing or shorter than {self._file.name} says; delete both to start again"
                )
        self.pairs: int = self._record["pairs"]

    def append(self, lines: Sequence[str]) -> None:
        """Appends the lines of the next pairs; a kill at any moment leaves all earlier ones usable."""
        with open(self._part, "r+b" if self.pairs else "wb") as part:
            part.seek(self._record["bytes"])
            part.write(encode_lines(lines, self._output))
            part.truncate()
            part.flush()
            os.fsync(part.fileno())
            self.pairs += len(lines)
            self._record |= {"pairs": self.pairs, "bytes": part.tell()}
        write_atomically(self._file, json.dumps(self._record).encode())

    def finish(self) -> None:
        """Gives the output its name."""
        self._part.replace(self._output)
        self._file.unlink()


def _translate(translator: Translator, pairs: PairSource, options: DistillCommand, output: UnfinishedOutput) -> None:
    from lingua_flax.devices.processes import is_first_process, on_first_process, process_max

    done = int(process_max(output.pairs if is_first_process() else 0))
    if done:
        log.info("continuing after %s of %s sentences", f"{done:,}", f"{len(pairs):,}")
    source, target = json_keys((options.data.source_language, options.data.target_language))
    with progress_bar(len(pairs), "sentences") as advance:
        advance(done)
        for start in range(done, len(pairs), CHUNK):
            chunk = [pairs[index] for index in range(start, min(start + CHUNK, len(pairs)))]
            sources = [pair.source for pair in chunk]
            translated = translator.translate_sentences(sources, options, first_line=start + 1, after_batch=advance)
            lines = [json.dumps({source: own.source, target: own.text}, ensure_ascii=False) for own in translated]
            on_first_process(functools.partial(output.append, lines))
    on_first_process(output.finish)
    log.info("%s translated: %s", counted(len(pairs), "sentence"), options.output)
