"""The command translate: lines in -> lines out, or documents."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lingua_flax.commands.translator_command import LineOptions, TranslatorCommand, open_translator
from lingua_flax.data.glossary import read_glossary
from lingua_flax.data.text_files import (
    check_aligned,
    chunks,
    decode_lines,
    encode_lines,
    is_gzip,
    open_binary,
    read_lines,
    unreadable_as_user_error,
)
from lingua_flax.documents import DOCUMENTS
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import FORMATS
from lingua_flax.host.files import check_distinct_files, check_writable, write_atomically
from lingua_flax.host.installation import has_package, install_command
from lingua_flax.host.prompt import prompt_lines
from lingua_flax.options import schema
from lingua_flax.options.command_line import Flag, Given, refuse

if TYPE_CHECKING:
    from lingua_flax.data.tokenizer import Tokenizer
    from lingua_flax.documents.document import Document
    from lingua_flax.translation.hypotheses import Hypothesis, Translation
    from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)

CHUNK = 1024  # lines translated together; sorting them by length keeps padding low


class TranslateCommand(TranslatorCommand, LineOptions, schema.AlignmentOptions):
    """Translates each line of the input, in order; an empty line stays empty. Or the text of a document."""

    input: Path | None = None
    """File to translate: text, one sentence per line, plain or .gz, or a document, by its name: .docx, .odt, .pptx,
    .odp, .epub, .html, .srt, .vtt, .po, .xliff. By default standard input."""
    output: Path | None = None
    """File for the translations, one per input line, plain or .gz, or for the document; by default standard output."""
    format: Literal["text", "html"] | None = None
    """text: take a document for lines of text. html: translate the text of a page or a fragment, around which its tags
    stay; by default, if the name of the input or of the output ends in .html or .htm. It is read in the encoding that
    it declares and written in UTF-8."""
    prefix: str | None = None
    """Text with which the translation of every line must begin."""
    prefix_file: Path | None = None
    """Text file with a separate prefix for each input line; an empty line means no prefix."""
    num_hypotheses: schema.PositiveInt = 1
    """Number of translations to write for each input line, at most beam_size unless they are sampled (temperature).
    Above 1, each is written as line number, score and text, separated by tabs."""
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

    @property
    def document(self) -> str:
        """The suffix of the kind of documents to translate, or "" for lines."""
        if self.format:
            return ".html" if self.format == "html" else ""
        names = [path.name.lower().removesuffix(".gz") for path in (self.input, self.output) if path]
        return next((suffix for name in names if (suffix := Path(name).suffix) in DOCUMENTS), "")

    def check(self, given: Given) -> None:
        self.check_num_hypotheses(self.num_hypotheses)
        if self.prefix_file:
            refuse(given, ["prefix"], "with --prefix-file, which has a prefix for each line")
        if self.ensemble:
            refuse(given, ["attention", "positions"], "with --ensemble: they show one network")
        if self.positions:
            refuse(given, ["input", "output", "attention", "alignments"], "with --positions, which translates nothing")
        if not self.alignments:
            refuse(given, schema.AlignmentOptions.model_fields, "without --alignments FILE")
        if not self.glossary:
            refuse(given, ["match_case"], "without --glossary FILE")
        if self.document:
            only_for_lines = ("prefix", "prefix_file", "num_hypotheses", "json_lines", "alignments", "attention")
            refuse(given, only_for_lines, "with HTML and other documents, which are translated as a whole")
            suffixes = [path.suffix.lower() if path else "" for path in (self.input, self.output)]
            if self.document not in (".html", ".htm") and suffixes != [self.document] * 2:
                raise UserError(f"a document needs --input and --output, both with names that end in {self.document}")
        for name, endings in {"attention": [".json", *FORMATS, ".html"], "positions": FORMATS}.items():
            path = getattr(self, name)
            if path and path.suffix.lower() not in endings:
                raise UserError(f"--{name} {path}: the name must end in {' or '.join(endings)}")
        if sys.stdout is None and not (self.output or self.positions):
            raise UserError("standard output is closed; write to a file with --output")
        written = (self.output, self.attention, self.alignments, self.positions)
        check_distinct_files(read=(self.input, self.prefix_file, self.glossary), written=written)
        for path in filter(None, written):
            check_writable(path)

    def prepared(self, translator: Translator) -> Translator:
        from lingua_flax.translation.word_alignment import check_alignment

        check_alignment(super().prepared(translator), self)
        if self.glossary:
            translator = translator.with_glossary(read_glossary(self.glossary, match_case=self.match_case))
        return self.applied_to(translator)


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
        lines = prompt_lines("> ")
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    if not options.attention:
        return lines
    line = next(lines, "")
    if not at_a_terminal(options) and next(lines, None) is not None:
        raise UserError(f"{options.input or 'standard input'}: --attention shows a single sentence; give only one line")
    return iter([line])


def open_document(options: TranslateCommand) -> Document:
    """Returns the document to translate."""
    if not all(map(has_package, ("lxml", "polib", "selectolax"))):
        raise UserError(f"translating documents needs the extra text: {install_command('text')}")
    from lingua_flax.documents.formats import MAX_BYTES, read_document

    if sys.stdin is None and not options.input:
        raise UserError("standard input is closed; give the document with --input")
    path = options.input or Path("standard input")
    with unreadable_as_user_error(path), open_binary(path) if options.input else sys.stdin.buffer as stream:
        return read_document(stream.read(MAX_BYTES + 1), options.document, str(path))


def at_a_terminal(options: TranslateCommand) -> bool:
    """Returns whether lines are typed at a terminal, so that each must be translated at once."""
    return not (options.input or options.positions or options.prefix_file) and sys.stdin.isatty()


def translate(argv: Sequence[str]) -> None:
    """Runs the command."""
    options = TranslateCommand.read(argv)
    document = open_document(options) if options.document else None
    pairs = iter(()) if options.positions or document else open_input(options)
    remedy = "give the text with --input, a file that all of them can read"
    only_one = "" if options.input or options.positions else f"standard input reaches only one of them: {remedy}"
    with open_translator(options, options.target_language, only_one) as (translator, _):
        if options.positions:
            from lingua_flax.inspection.attention_files import draw_positions

            draw_positions(translator, options.positions)
        elif document:
            _translate_document(translator, document, options)
        else:
            _translate(translator, pairs, options)


def _translate(translator: Translator, pairs: Iterator[tuple[str, str]], options: TranslateCommand) -> None:
    from lingua_flax.devices.processes import is_first_process
    from lingua_flax.translation.line_splitting import divide_text
    from lingua_flax.translation.word_alignment import align_translations, pharaoh, word_links

    if options.prefix_file:  # all lines are known: a mistake in any of them must not erase an old output
        pairs = iter(known := list(pairs))
        lines, prefixes = [line for line, _ in known], [prefix for _, prefix in known]
        translator.request(options).parts(divide_text(translator, lines), prefixes)
    # Only the first process of a run writes to its files.
    output, alignments = (options.output, options.alignments) if is_first_process() else (os.devnull, os.devnull)
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


def _translate_document(translator: Translator, document: Document, options: TranslateCommand) -> None:
    from lingua_flax.devices.processes import is_first_process
    from lingua_flax.documents.formats import translate_document

    content = translate_document(translator, document, options)
    if not is_first_process():
        return
    if not options.output:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        write_atomically(options.output, gzip.compress(content, mtime=0) if is_gzip(options.output) else content)


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
            remedy = "give one short sentence, or add --one-sentence-per-line or --translate-unknown"
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
