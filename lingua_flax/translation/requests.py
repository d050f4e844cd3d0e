"""From lines of text to the sentences that are decoded together: parts of lines, with prefixes and limits."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import PAD_ID, UNK_ID
from lingua_flax.translation.decoding import DecodingRequest, length_limit

PREFIX_LENGTH_MULTIPLE = 8  # prefixes are padded to a multiple of this, so that fewer programs are compiled
MAX_IN_WARNING = 5
log = logging.getLogger(__name__)


class Part(NamedTuple):
    """A sentence of a line, or a part of one that is too long, translated by itself."""

    text: str
    source: list[int]
    after: str = ""  # what stands between its translation and the next one
    space: str = ""  # what stands between words of its translation
    is_cut: bool = False  # a part of a sentence that is too long
    is_kept: bool = False  # not translated: it has no words, or the network has never seen most of its characters
    unknown: tuple[str, ...] = ()  # words that the training text never had
    is_guess: bool = False  # most of its words are unknown
    line: int = 1  # its number
    part: int = 0  # its number within the line, counted from 0
    prefix: Sequence[int] = ()  # with which its translation begins
    limit: int = 1  # the maximum number of tokens of its translation
    num_hypotheses: int = 1  # that are needed
    masked: Sequence[int] = ()  # positions of the source that no layer attends to


def parts_of(
    lines: Sequence[Sequence[Part]],
    prefixes: Sequence[str] | None,
    tokenizer: Tokenizer,
    options: DecodingOptions,
    max_length: int,
    first_line: int = 1,
) -> list[Part]:
    """Returns the parts to translate of divided lines, with numbers, prefixes and limits: only those with tokens.

    Lines are numbered from `first_line`, and a prefix is that of the first part that is not kept. Raises UserError if a
    prefix has a character without a token, or is as long as its translation may be.
    """
    parts: list[Part] = []
    encoded: list[list[int]] = [[] for _ in lines]
    if prefixes:
        begun = [next((part for part in divided if not part.is_kept), divided[0]) for divided in lines]
        placed = [tokenizer.protect(part.text).placed(prefix) for part, prefix in zip(begun, prefixes, strict=True)]
        encoded = [ids[:-1] for ids in tokenizer.encode_target(placed)]
        if unknown := next((prefix for prefix, ids in zip(placed, encoded, strict=True) if UNK_ID in ids), None):
            raise UserError(f'prefix "{unknown}": the model has no token for one of its characters')
    for line, (divided, prefix) in enumerate(zip(lines, encoded, strict=True), first_line):
        own: list[Part] = []
        for part in [part for part in divided if len(part.source) > 1] or divided:
            part_prefix, prefix = ([], prefix) if part.is_kept else (prefix, [])
            limit = length_limit(len(part.source), len(part_prefix), options, max_length)
            if len(part_prefix) >= limit:
                raise UserError(
                    f"line {line}: its prefix has {len(part_prefix)} tokens, but the translation is limited to "
                    f"{limit}, end token included; shorten the prefix"
                )
            if len(part.source) > 1:
                part = part._replace(line=line, prefix=part_prefix, limit=limit)
                fits = part.is_kept or tokenizer.protect(part.text).has_placeholders
                own += [part] if fits else around_spans(part, tokenizer, options, max_length)
        parts += [part._replace(part=number) for number, part in enumerate(own)]
    return parts


def around_spans(part: Part, tokenizer: Tokenizer, options: DecodingOptions, max_length: int) -> list[Part]:
    """Returns a part as several: what it must contain, which is kept, and what stands around it, to be translated."""
    parts, unused = [], part.prefix
    for text, space, is_kept in tokenizer.protect(part.text).chunks(part.space):
        (ids,) = tokenizer.encode_source([text])
        prefix, unused = ([], unused) if is_kept else (unused, [])
        limit = length_limit(len(ids), len(prefix), options, max_length)
        parts.append(part._replace(text=text, source=ids, after=space, is_kept=is_kept, prefix=prefix, limit=limit))
    return [*parts[:-1], parts[-1]._replace(after=part.after)]


def request_of(parts: Sequence[Part], options: DecodingOptions, rows: int, length: int) -> DecodingRequest:
    """Returns the parts as a batch of `rows` sentences, of which the search finishes unused ones immediately."""
    source = pad_rows([part.source for part in parts], rows, length)
    visible = (source != PAD_ID).astype(np.int32)
    for row, part in zip(visible, parts, strict=False):
        row[list(part.masked)] = 0
    limits, needed = np.ones(rows, np.int32), np.ones(rows, np.int32)
    limits[: len(parts)] = [part.limit for part in parts]
    needed[: len(parts)] = [part.num_hypotheses for part in parts]
    prefix_length = -(-max(len(part.prefix) for part in parts) // PREFIX_LENGTH_MULTIPLE) * PREFIX_LENGTH_MULTIPLE
    return DecodingRequest(
        source=source,
        visible=visible,
        max_lengths=limits,
        min_lengths=np.minimum(limits, options.min_decoding_length),
        num_hypotheses=needed,
        prefixes=pad_rows([part.prefix for part in parts], rows, prefix_length),
        numbers=pad_rows([(part.line, part.part) for part in parts], rows, 2),
    )


def warn_about_cut_sentences(lines: Sequence[Sequence[Part]], first_line: int, longest: int) -> None:
    """Logs each line with a sentence that is translated in several parts."""
    for line, divided in enumerate(lines, first_line):
        if count := sum(part.is_cut for part in divided):
            limit = f"more than {longest - 1} tokens, which the model takes at a time"
            log.warning("line %d has a sentence of %s: cut into %d parts", line, limit, count)


def warn_about(what: str, lines: Collection[int], name: Callable[[int], str] = str) -> None:
    """Logs the numbers of the lines to which something happened, or what names them, the first few of many."""
    if lines:
        log.warning("%s: line %s", what, first_few(list(map(name, sorted(lines)))))


def first_few(items: Sequence[str]) -> str:
    """Returns the first few items, and how many more there are."""
    rest = f" and {len(items) - MAX_IN_WARNING:,} more" if len(items) > MAX_IN_WARNING else ""
    return ", ".join(items[:MAX_IN_WARNING]) + rest
