"""The command translate: lines in -> lines out."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lingua_flax.commands.prompt import prompt_lines
from lingua_flax.data.glossary import read_glossary
from lingua_flax.data.text_files import check_aligned, chunks, decode_lines, encode_lines, read_lines
from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import FORMATS
from lingua_flax.host.files import check_distinct_files, check_writable
from lingua_flax.options import schema
from lingua_flax.options.command_line import Flag, build, parse, refuse, required_workdir
from lingua_flax.options.config_files import read_workdir_config

if TYPE_CHECKING:
    from lingua_flax.data.tokenizer import Tokenizer
    from lingua_flax.translation.translator import Hypothesis, Translation, Translator

log = logging.getLogger(__name__)

CHUNK = 1024  # lines translated together; sorting them by length keeps padding low


class TranslateCommand(schema.NetworkOptions, schema.DecodingOptions, schema.AlignmentOptions, schema.ProcessOptions):
    """Options of the command translate."""

    workdir: Path
    """Folder of the run."""
    input: Path | None = None
    """Text file to translate, one sentence per line, plain or .gz; by default standard input."""
    output: Path | None = None
    """File for the translations, one per input line, plain or .gz; by default standard output."""
    format: Literal["text", "html"] | None = None
    """html: translate the text of a document or a fragment, around which its tags stay; by default, if the name of the
    input or of the output ends in .html or .htm."""
    prefix: str | None = None
    """Text with which the translation of every line must begin."""
    prefix_file: Path | None = None
    """Text file with a separate prefix for each input line; an empty line means no prefix."""
    num_hypotheses: schema.PositiveInt = 1
    """Number of translations to write for each input line, at most beam_size unless they are sampled (temperature).
    Above 1, each is written as line number, score and text, separated by tabs."""
    one_sentence_per_line: Flag = False
    """Take each input line as a single sentence, rather than translate each of its sentences by itself."""
    translate_unknown: Flag = False
    """Also translate sentences that consist mostly of characters the network has never seen, instead of copying them;
    the result is invented."""
    glossary: Path | None = None
    """Text file with a term and its translation on each line, separated by a tab. Terms are found as whole words, the
    longest at a place. For a model trained with tokenizer.placeholders."""
    match_case: Flag = False
    """Find only those terms of the glossary that stand in the text in upper and lower case as they stand there."""
    json_lines: Flag = False
    """Write one JSON object per input line, with the source, the text and score of every hypothesis, and all tokens."""
    alignments: Path | None = None
    """File for word alignments, plain or .gz: one line per input line, with the pairs of words of the input and of its
    best translation in Pharaoh format (0-0 1-2); words are what spaces separate."""
    attention: Path | None = None
    """File for the attention weights of a single input line: all weights (.json), a map of each head (.png, .svg or
    .pdf), or an interactive page that opens without a server (.html)."""
    positions: Path | None = None
    """File for a picture of the run's position encodings (.png, .svg or .pdf); nothing is translated."""
    target_language: str | None = None
    """Language to translate into, for a model trained with data.tag_target; by default its data.target_language."""
    devices: schema.ComputeConfig = schema.ComputeConfig()

    @property
    def is_html(self) -> bool:
        """Whether HTML is translated rather than lines."""
        names = [path.name.lower().removesuffix(".gz") for path in (self.input, self.output) if path]
        return self.format == "html" or (not self.format and any(name.endswith((".html", ".htm")) for name in names))


# Options that have no effect on HTML.
ONLY_FOR_LINES = ("prefix", "prefix_file", "num_hypotheses", "json_lines", "alignments", "attention")
DESCRIPTION = "Translates each line of the input, in order; an empty line stays empty."


def read_options(argv: Sequence[str]) -> TranslateCommand:
    """Parses the command line; raises UserError if an option is invalid or contradicts another one."""
    given = parse(TranslateCommand, argv, DESCRIPTION)
    config = read_workdir_config(required_workdir(given))
    options = build(TranslateCommand, given, devices=config.devices.compute)
    options.check_num_hypotheses(options.num_hypotheses)
    if options.prefix is not None and options.prefix_file:
        raise UserError("--prefix and --prefix-file are mutually exclusive: one prefix for all lines, or one per line")
    if options.ensemble and (options.attention or options.positions):
        raise UserError("--attention and --positions show one network; leave out --ensemble")
    for name, endings in {"attention": [".json", *FORMATS, ".html"], "positions": [*FORMATS]}.items():
        path = getattr(options, name)
        if path and path.suffix.lower() not in endings:
            raise UserError(f"--{name} {path}: the name must end in {' or '.join(endings)}")
    if options.positions and (options.input or options.output or options.attention or options.alignments):
        raise UserError("--positions translates nothing: leave out --input, --output, --attention and --alignments")
    fields = schema.AlignmentOptions.model_fields
    chosen = [name for name, field in fields.items() if getattr(options, name) != field.default]
    if chosen and not options.alignments:
        raise UserError(f"--{chosen[0].replace('_', '-')} has no effect without --alignments FILE")
    if options.is_html:
        refuse(given, ONLY_FOR_LINES, "with HTML, which is translated as a whole")
    if options.match_case and not options.glossary:
        raise UserError("--match-case has no effect without --glossary FILE")
    if sys.stdout is None and not (options.output or options.positions):
        raise UserError("standard output is closed; write to a file with --output")
    written = (options.output, options.attention, options.alignments)
    check_distinct_files(read=(options.input, options.prefix_file, options.glossary), written=written)
    return options


def open_input(options: TranslateCommand) -> Iterator[tuple[str, str]]:
    """Returns the lines to translate, each with the prefix of its translation, "" for none."""
    if not options.prefix_file:
        return zip(open_lines(options), itertools.repeat(options.prefix or ""), strict=False)
    lines, prefixes = list(open_lines(options)), list(read_lines(options.prefix_file))
    check_aligned(options.prefix_file, prefixes, options.input or "standard input", lines)
    return zip(lines, prefixes, strict=True)


def open_lines(options: TranslateCommand) -> Iterator[str]:
    """Returns the lines to translate; with --attention, the only one."""
    if options.input:
        lines = iter(list(read_lines(options.input)))  # all, to find an invalid one before anything is written
    elif sys.stdin is None:
        raise UserError("standard input is closed; give the text with --input")
    elif at_a_terminal(options) and sys.stdout.isatty():
        lines = prompt_lines("> ", cache_directory() / "translate_history")
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    if not options.attention:
        return lines
    line = next(lines, "")
    if not at_a_terminal(options) and next(lines, None) is not None:
        raise UserError(f"{options.input or 'standard input'}: --attention shows a single sentence; give only one line")
    return iter([line])


def at_a_terminal(options: TranslateCommand) -> bool:
    """Returns whether lines are typed at a terminal, so that each must be translated at once."""
    return not (options.input or options.positions or options.prefix_file) and sys.stdin.isatty()


def translate(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = read_options(argv)
    # Imported here so that invalid options are reported at once.
    from lingua_flax.devices.platform import computing

    pairs = iter(()) if options.positions else open_input(options)
    for path in filter(None, [options.output, options.attention, options.alignments, options.positions]):
        check_writable(path)
    remedy = "give the text with --input, a file that all of them can read"
    only_one = "" if options.input or options.positions else f"standard input reaches only one of them: {remedy}"
    with computing(options.devices, options, only_one):
        _translate(options, pairs)


def _translate(options: TranslateCommand, pairs: Iterator[tuple[str, str]]) -> None:
    from lingua_flax.devices.processes import in_all_processes, is_first_process
    from lingua_flax.translation.requests import parts_of
    from lingua_flax.translation.translator import Translator
    from lingua_flax.translation.word_alignment import align_translations, check_alignment, pharaoh, word_links

    def loaded() -> Translator:
        network = (options.workdir, options.checkpoint, options.devices, options.target_language, options.ensemble)
        translator = Translator.load(*network)
        translator.check(options, options.num_hypotheses)
        check_alignment(translator, options)
        if options.glossary:
            translator = translator.with_glossary(read_glossary(options.glossary, match_case=options.match_case))
        one_sentence = options.one_sentence_per_line or translator.one_sentence_per_line
        unknown = options.translate_unknown
        return dataclasses.replace(translator, one_sentence_per_line=one_sentence, translate_unknown=unknown)

    translator = in_all_processes(loaded)
    if options.positions:
        from lingua_flax.inspection.attention_files import draw_positions

        if is_first_process():
            draw_positions(translator, options.positions)
        return
    if options.prefix_file:  # all lines are known: a mistake in any of them must not erase an old output
        pairs = iter(known := list(pairs))
        divided = translator.divided([line for line, _ in known])
        parts_of(divided, [prefix for _, prefix in known], translator.tokenizer, options, translator.max_length)
    # Only the first process of a run writes to its files.
    output, alignments = (options.output, options.alignments) if is_first_process() else (os.devnull, os.devnull)
    if options.is_html:
        html = translator.translate_html("\n".join(line for line, _ in pairs), options)
        with open(output or os.dup(sys.stdout.fileno()), "wb") as out:
            out.write(encode_lines([html], options.output or ""))
        return
    translated = _translated_chunks(translator, pairs, options)
    first = next(translated, [])  # before the output is opened: a mistake in these lines must not erase an old file
    numbers = itertools.count(1)
    with open(output or os.dup(sys.stdout.fileno()), "wb") as out, open(alignments or os.devnull, "wb") as links_out:
        for translations in itertools.chain([first], translated):
            texts = (output_lines(next(numbers), each, translator.tokenizer, options) for each in translations)
            out.write(encode_lines(itertools.chain.from_iterable(texts), options.output or ""))
            out.flush()
            if options.alignments:
                links = zip(translations, align_translations(translator, translations, options), strict=True)
                words = (pharaoh(word_links(own, line.source, line.text)) for line, own in links)
                links_out.write(encode_lines(words, options.alignments))
                links_out.flush()
            if options.attention:
                from lingua_flax.inspection.attention_files import write_attention

                write_attention(translator, translations[0], options.attention)


def _translated_chunks(
    translator: Translator, pairs: Iterator[tuple[str, str]], options: TranslateCommand
) -> Iterator[list[Translation]]:
    """Yields the translations of some lines at a time; raises UserError if one cannot be translated or shown."""
    first = 1
    for chunk in chunks(pairs, 1 if at_a_terminal(options) else CHUNK):
        lines, prefixes = map(list, zip(*chunk, strict=True))
        count = options.num_hypotheses
        translations = translator.translate(lines, options, num_hypotheses=count, prefixes=prefixes, first_line=first)
        best = translations[0].hypotheses[0]
        if options.attention and (best.parts or not best.tokens):
            how = f"is translated in {len(best.parts)} parts" if best.parts else "stays as it is"
            remedy = "give one short sentence, or add --one-sentence-per-line"
            raise UserError(f"--attention shows one pass of the network, but the line {how}: {remedy}")
        yield translations
        first += len(chunk)


def _as_json(hypothesis: Hypothesis, tokenizer: Tokenizer) -> dict[str, Any]:
    pieces = tokenizer.target_pieces(hypothesis.tokens)
    fields = {"text": hypothesis.text, "score": hypothesis.score, "tokens": pieces}
    if hypothesis.parts:
        fields["sentences"] = [{"source": text} | _as_json(part, tokenizer) for text, part in hypothesis.parts]
    return fields


def output_lines(
    number: int, translation: Translation, tokenizer: Tokenizer, options: TranslateCommand
) -> Iterator[str]:
    """Yields the lines to write for an input line: one for each translation, or a single JSON object."""
    if options.json_lines:
        (source,) = tokenizer.encode_source([translation.source])
        fields: dict[str, Any] = {"source": translation.source, "source_tokens": tokenizer.source_pieces(source)}
        fields["unknown_words"] = translation.unknown_words
        fields["hypotheses"] = [_as_json(own, tokenizer) for own in translation.hypotheses]
        yield json.dumps(fields, ensure_ascii=False)
    elif options.num_hypotheses > 1:
        yield from (f"{number}\t{own.score:.4f}\t{own.text}" for own in translation.hypotheses)
    else:
        yield translation.text
