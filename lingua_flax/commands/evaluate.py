"""The command evaluate: workdir -> translations -> BLEU and chrF, or log-probabilities of references."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from lingua_flax.commands.translator_command import TranslatorCommand, open_translator
from lingua_flax.data.corpora.pair_files import format_of, read_pairs
from lingua_flax.data.text_files import check_aligned, is_gzip, read_lines, write_lines
from lingua_flax.host.errors import UserError
from lingua_flax.host.files import check_distinct_files, check_writable
from lingua_flax.host.terminal import progress_bar
from lingua_flax.host.wording import counted
from lingua_flax.options import schema
from lingua_flax.options.command_line import Flag, Given, check_languages, refuse
from lingua_flax.options.config_files import read_workdir_config, with_absolute_paths

if TYPE_CHECKING:
    from lingua_flax.evaluation.evaluate import EvaluationSet
    from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


class EvaluateCommand(TranslatorCommand):
    """Translates a split of the run's corpus, or any text file, and scores the translations with sacreBLEU."""

    split: str = "test"
    """Split of the run's corpus to translate and score."""
    source: Path | None = None
    """Text file to translate and score instead of a split, one sentence per line, plain or .gz; needs --reference. A
    .tsv or .jsonl file has sentence pairs, like data.train_source, and needs none."""
    reference: tuple[Path, ...] = ()
    """Text files with one or more reference translations of each line of --source."""
    ter: Flag = False
    """Also compute TER, which takes seconds for 1,000 short sentences and longer for long ones."""
    perturb: Flag = False
    """Also translate the sources in upper case, in title case and without final punctuation, which takes four times as
    long, and print scores that ignore case and final punctuation."""
    score: Flag = False
    """Translate nothing: write the log-probability of each reference as a translation of its source, one per line."""
    output: Path | None = None
    """File for the translations, one per source line; next to hyps.txt, the sources and references are written in the
    same order to hyps.source.txt and hyps.reference.txt (hyps.reference2.txt, ...). With --score: file for the
    log-probabilities. A file whose name ends in .gz is compressed."""
    json_file: Annotated[Path | None, Field(alias="json")] = None
    """File for all scores, as one JSON object."""
    data: schema.DataConfig = schema.DataConfig()
    evaluation: schema.EvaluationConfig = schema.EvaluationConfig()

    @classmethod
    def resolve(cls, given: Given) -> Self:
        options = super().resolve(given)
        return options.model_copy(update={"data": with_absolute_paths(options.data)})

    def check(self, given: Given) -> None:
        if bool(self.reference) != (self.source is not None and format_of(self.source) == "lines"):
            both = "files with the same number of lines; a .tsv or .jsonl file holds both sides"
            raise UserError(f"--source and --reference go together: {both}")
        if self.source:
            refuse(given, ["split"], "with --source; leave it out")
        check_languages(self.data, read_workdir_config(self.workdir).data, self.workdir)
        if self.score:
            if len(self.reference) > 1:
                raise UserError("--score takes one --reference: it writes one log-probability per line")
            decoding = (name for name in schema.DecodingOptions.model_fields if name != "batch_size")
            of_translations = ["ter", "perturb", "evaluation.tokenize", *decoding]
            refuse(given, of_translations, "with --score, which translates nothing")
        written = (*output_files(self), self.json_file)
        check_distinct_files(read=(self.source, *self.reference), written=written)


def output_files(options: EvaluateCommand) -> list[Path]:
    """Returns the files that --output produces: translations, sources and references, or only one with --score."""
    if not options.output or options.score:
        return [options.output] if options.output else []
    output = options.output
    plain, gzip_suffix = (output.with_suffix(""), output.suffix) if is_gzip(output) else (output, "")
    more = (f"reference{number}" for number in range(2, len(options.reference) + 1))
    names = (f"{plain.stem}.{side}{plain.suffix}{gzip_suffix}" for side in ("source", "reference", *more))
    return [output, *map(output.with_name, names)]


def read_lines_to_score(steps: Sequence[int], options: EvaluateCommand) -> EvaluationSet:
    """Reads sources and references from the files or from the split; `steps` are those of the networks' checkpoints.

    Raises UserError if a file cannot be read, the files are empty or not aligned, there is no such split, or it was
    held out of other pairs than those that the networks were trained on.
    """
    from lingua_flax.evaluation.evaluate import EvaluationSet

    if options.source:
        languages = (options.data.source_language, options.data.target_language)
        pairs = list(read_pairs((options.source, *options.reference[:1]), languages))
        if not pairs:
            raise UserError(f"{options.source}: has no lines to score")
        sources, references = map(list, zip(*pairs, strict=True))
        more = [list(read_lines(path)) for path in options.reference[1:]]
        for path, lines in zip(options.reference[1:], more, strict=True):
            check_aligned(options.source, sources, path, lines)
        return EvaluationSet(str(options.source), sources, references, more_references=more)
    from lingua_flax.data.corpora import open_corpus
    from lingua_flax.runs.checkpoint import check_corpus

    if options.data.name == "text" and not options.data.train_source:
        raise UserError(f"{options.workdir}: it has no corpus of its own; give --source FILE and --reference FILE")
    corpus = open_corpus(options.data)
    for workdir, step in zip((options.workdir, *options.ensemble), steps, strict=True):
        check_corpus(workdir, step, corpus.digest, options.split, corpus.held_out)
    return EvaluationSet.from_split(corpus, options.split)


def score_references(translator: Translator, options: EvaluateCommand) -> None:
    """Writes the references' log-probabilities to --output or stdout, and their sum to the log and to --json."""
    from lingua_flax.devices.processes import in_all_processes, is_first_process
    from lingua_flax.translation.translator import SCORING_BATCH_SIZE

    data = in_all_processes(lambda: read_lines_to_score(translator.steps, options))
    try:
        with progress_bar(len(data.sources), "sentences") as advance:
            rows = options.batch_size or SCORING_BATCH_SIZE
            scores = translator.score(data.sources, data.references, batch_size=rows, after_batch=advance)
    except UserError as error:
        raise UserError(f"{options.source or options.split}, {error}") from error
    if not is_first_process():
        return
    lines = [f"{score.log_probability:.4f}" for score in scores]
    if options.output:
        write_lines(options.output, lines)
    else:
        print("\n".join(lines))
    total, tokens = sum(score.log_probability for score in scores), sum(score.tokens for score in scores)
    mean, perplexity = total / tokens, math.exp(-total / tokens)
    summary = f"log-probability {total:.2f}, {mean:.4f} a token, perplexity {perplexity:.2f}"
    log.info("%s, %s: %s", counted(len(scores), "sentence"), counted(tokens, "token"), summary)
    if options.json_file:
        content: dict[str, Any] = {"log_probability": total, "tokens": tokens, "perplexity": perplexity}
        content |= {"sentences": len(scores), "checkpoint_step": translator.step, "checkpoint": options.checkpoint}
        options.json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def score_translations(
    translator: Translator, options: EvaluateCommand
) -> tuple[EvaluationSet, list[str], dict[str, Any]]:
    """Returns the lines of the options, their translations, and the scores; writes the output files.

    The scores are those that --json writes, by the names in docs/reference/formats.md.
    """
    from lingua_flax.devices.processes import in_all_processes, is_first_process
    from lingua_flax.evaluation.bleu import bleu_tokenizer
    from lingua_flax.evaluation.evaluate import evaluate, perturbed_scores

    def read() -> tuple[EvaluationSet, str]:
        data = read_lines_to_score(translator.steps, options)
        return data, bleu_tokenizer(options.evaluation.tokenize, options.data.target_language, data.references)

    data, tokenize = in_all_processes(read)
    with progress_bar(len(data.sources), "sentences") as advance:
        translations, scores = evaluate(
            translator, data, options, tokenize=tokenize, with_ter=options.ter, after_batch=advance
        )
    scores["checkpoint"] = options.checkpoint
    if options.ensemble:
        scores["networks"] = 1 + len(options.ensemble)
    if options.perturb:
        scores["perturbed"] = perturbed_scores(translator, data, options, tokenize, translations)
    if is_first_process():
        contents = (translations, data.sources, data.references, *data.more_references)
        for path, content in zip(output_files(options), contents, strict=False):
            write_lines(path, content)
        if options.json_file:
            options.json_file.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return data, translations, scores


@contextlib.contextmanager
def loaded(options: EvaluateCommand) -> Iterator[Translator]:
    """Yields the networks of the options, ready to compute; raises UserError if an output cannot be written."""
    for path in filter(None, [*output_files(options), options.json_file]):
        check_writable(path)
    with open_translator(options, options.data.tagged_language) as (translator, compilations):
        yield translator
    log.info("compiled %s", compilations)


def evaluate(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = EvaluateCommand.read(argv)
    with loaded(options) as translator:
        if options.score:
            score_references(translator, options)
        else:
            from lingua_flax.evaluation.evaluate import print_evaluation

            workdirs = " + ".join(map(str, (options.workdir, *options.ensemble)))
            print_evaluation(workdirs, *score_translations(translator, options))
