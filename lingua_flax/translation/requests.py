"""From lines of text to the sentences that are decoded together: parts of lines, with prefixes and limits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import PAD_ID, UNK_ID
from lingua_flax.translation.decoding import DecodingRequest, length_limit
from lingua_flax.translation.line_splitting import Piece

PREFIX_LENGTH_MULTIPLE = 8  # prefixes are padded to a multiple of this, so that fewer programs are compiled
MAX_LINES_IN_WARNING = 5
log = logging.getLogger(__name__)


class Part(NamedTuple):
    """A sentence of a line, or a part of one that is too long, translated by itself."""

    line: int  # its number
    part: int  # its number within the line, counted from 0
    text: str
    source: list[int]
    prefix: Sequence[int]  # with which its translation begins
    limit: int  # the maximum number of tokens of its translation
    after: str = ""  # what stands between its translation and the next one
    is_kept: bool = False  # not translated
    masked: Sequence[int] = ()  # positions of the source that no layer attends to


def parts_of(
    lines: Sequence[Sequence[Piece]],
    prefixes: Sequence[str] | None,
    tokenizer: Tokenizer,
    options: DecodingOptions,
    max_length: int,
    first_line: int = 1,
) -> list[Part]:
    """Returns the parts to translate of lines that are divided into pieces: none of a piece without tokens.

    Lines are numbered from `first_line`, and a prefix is that of a line's first piece. Raises UserError if a prefix has
    a character without a token, or is as long as its translation may be.
    """
    parts: list[Part] = []
    encoded: list[list[int]] = [[] for _ in lines]
    if prefixes:
        first = [tokenizer.protect(pieces[0].text) for pieces in lines]
        placed = [own.placed(prefix) for own, prefix in zip(first, prefixes, strict=True)]
        encoded = [ids[:-1] for ids in tokenizer.encode_target(placed)]
        if unknown := next((prefix for prefix, ids in zip(placed, encoded, strict=True) if UNK_ID in ids), None):
            raise UserError(f'prefix "{unknown}": the model has no token for one of its characters')
    for line, (pieces, prefix) in enumerate(zip(lines, encoded, strict=True), first_line):
        own: list[Part] = []
        for number, piece in enumerate([piece for piece in pieces if len(piece.ids) > 1] or pieces):
            part_prefix = [] if number else prefix
            limit = length_limit(len(piece.ids), len(part_prefix), options, max_length)
            if len(part_prefix) >= limit:
                raise UserError(
                    f"line {line}: its prefix has {len(part_prefix)} tokens, but the translation is limited to "
                    f"{limit}, end token included; shorten the prefix"
                )
            if len(piece.ids) > 1:
                part = Part(line, 0, piece.text, piece.ids, part_prefix, limit, piece.after, piece.is_kept)
                fits = piece.is_kept or tokenizer.protect(piece.text).has_placeholders
                own += [part] if fits else around_spans(part, tokenizer, options, max_length)
        parts += [part._replace(part=number) for number, part in enumerate(own)]
    return parts


def around_spans(part: Part, tokenizer: Tokenizer, options: DecodingOptions, max_length: int) -> list[Part]:
    """Returns a part as several: what it must contain, which is kept, and what stands around it, to be translated."""
    parts: list[Part] = []
    for text, space, is_kept in tokenizer.protect(part.text).chunks():
        (ids,), prefix = tokenizer.encode_source([text]), [] if parts else part.prefix
        limit = length_limit(len(ids), len(prefix), options, max_length)
        parts.append(Part(part.line, part.part, text, ids, prefix, limit, space, is_kept))
    return [*parts[:-1], parts[-1]._replace(after=part.after)]


def request_of(parts: Sequence[Part], options: DecodingOptions, rows: int, length: int) -> DecodingRequest:
    """Returns the parts as a batch of `rows` sentences, of which the search finishes unused ones immediately."""
    source = pad_rows([part.source for part in parts], rows, length)
    visible = (source != PAD_ID).astype(np.int32)
    for row, part in zip(visible, parts, strict=False):
        row[list(part.masked)] = 0
    limits = np.ones(rows, np.int32)
    limits[: len(parts)] = [part.limit for part in parts]
    prefix_length = -(-max(len(part.prefix) for part in parts) // PREFIX_LENGTH_MULTIPLE) * PREFIX_LENGTH_MULTIPLE
    return DecodingRequest(
        source=source,
        visible=visible,
        max_lengths=limits,
        min_lengths=np.minimum(limits, options.min_decoding_length),
        prefixes=pad_rows([part.prefix for part in parts], rows, prefix_length),
        numbers=pad_rows([(part.line, part.part) for part in parts], rows, 2),
    )


def warn_about_cut_sentences(lines: Sequence[Sequence[Piece]], first_line: int, longest: int) -> None:
    """Logs each line with a sentence that is translated in several parts."""
    for line, pieces in enumerate(lines, first_line):
        if count := sum(piece.is_cut for piece in pieces):
            limit = f"more than {longest - 1} tokens, which the model takes at a time"
            log.warning("line %d has a sentence of %s: cut into %d parts", line, limit, count)


def warn_about(what: str, lines: set[int]) -> None:
    """Logs the numbers of the lines to which something happened, the first few of many."""
    if lines:
        numbers = ", ".join(map(str, sorted(lines)[:MAX_LINES_IN_WARNING]))
        rest = f" and {len(lines) - MAX_LINES_IN_WARNING:,} more" if len(lines) > MAX_LINES_IN_WARNING else ""
        log.warning("%s: line %s%s", what, numbers, rest)
