"""From lines of text to the sentences that are decoded together, with prefixes and limits, and back to lines."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.data.batch import pad_rows
from lingua_flax.data.placeholders import Protected
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.options.special_ids import EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import DecodingRequest, length_limit
from lingua_flax.translation.hypotheses import Hypothesis, Translation
from lingua_flax.translation.minimum_risk import by_expected_chrf

PREFIX_LENGTH_MULTIPLE = 8  # prefixes are padded to a multiple of this, so that fewer programs are compiled


class Part(NamedTuple):
    """A sentence of a line, or a part of one that is too long, translated by itself."""

    protected: Protected
    source: list[int]
    after: str = ""  # what stands between its translation and the next one
    space: str = ""  # what stands between words of its translation
    is_cut: bool = False  # a part of a sentence that is too long
    is_unknown: bool = False  # the network has never seen most of its characters
    is_kept: bool = False  # not translated, as is what is unknown or has no letters
    unknown: tuple[str, ...] = ()  # words that the training text never had
    is_guess: bool = False  # most of its words are unknown
    line: int = 1  # its number
    part: int = 0  # its number within the line, counted from 0
    prefix: Sequence[int] = ()  # with which its translation begins
    limit: int = 1  # the maximum number of tokens of its translation
    masked: Sequence[int] = ()  # positions of the source that no layer attends to
    num_hypotheses: int = 1  # of which the search makes certain
    hypotheses: tuple[Hypothesis, ...] = ()  # as soon as they are known; of what is kept, from the beginning

    @property
    def text(self) -> str:
        """The part as it is in the line."""
        return self.protected.source


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for: from lines that are divided to parts, twice what a search has found, and the translations.

    The best `num_hypotheses` of each line are wanted, and lines are numbered from `first_line`.
    """

    tokenizer: Tokenizer
    max_length: int
    options: DecodingOptions
    num_hypotheses: int = 1
    first_line: int = 1

    def parts(self, lines: Sequence[Sequence[Part]], prefixes: Sequence[str] = ()) -> list[Part]:
        """Returns the parts of divided lines, with numbers, prefixes and limits: only those with tokens.

        A prefix is that of the first part that is not kept. Raises UserError if a prefix has a character without a
        token, or is as long as its translation may be.
        """
        parts: list[Part] = []
        texts = prefixes or [""] * len(lines)
        for line, (divided, text) in enumerate(zip(lines, texts, strict=True), self.first_line):
            own: list[Part] = []
            with_tokens = [part._replace(line=line) for part in divided if len(part.source) > 1]
            begun = next((part for part in with_tokens if not part.is_kept), None)
            for part in with_tokens:
                limited = self._limited(part, self._prefix(part, text) if text and part is begun else ())
                is_together = part.is_kept or part.protected.has_placeholders
                own += [limited] if is_together else self._around_spans(limited)
            parts += [part._replace(part=number) for number, part in enumerate(own)]
        return parts

    def restored(self, parts: Sequence[Part], found: Sequence[tuple[Hypothesis, ...]]) -> list[Part]:
        """Returns the parts with what was found for those that are `to_search`, and with what must stay in its place.

        Where no hypothesis has all of that, there are several parts instead, of which those around it are `to_search`.
        """
        left, done = iter(found), []
        for part in parts:
            if part.hypotheses:
                done.append(part)
                continue
            source = part.protected
            hypotheses = [
                dataclasses.replace(own, text=source.restored(own.text), protected=source)
                for own in next(left)
                if source.is_complete(own.text)
            ]
            if self.options.mbr_samples and hypotheses:
                hypotheses = [hypotheses[i] for i in by_expected_chrf([own.text for own in hypotheses])]
            hypotheses = hypotheses[: self.num_hypotheses]
            done += [part._replace(hypotheses=tuple(hypotheses))] if hypotheses else self._around_spans(part)
        return done

    def joined(self, lines: Sequence[str], parts: Sequence[Part]) -> list[Translation]:
        """Returns the translations of lines, given the hypotheses of all parts."""
        by_line = {line: list(own) for line, own in itertools.groupby(parts, lambda part: part.line)}
        return [_translation(text, by_line.get(line, [])) for line, text in enumerate(lines, self.first_line)]

    def _prefix(self, part: Part, text: str) -> list[int]:
        ids = self.tokenizer.encode_target([part.protected.placed(text)])[0][:-1]
        if UNK_ID in ids:
            raise UserError(f'prefix "{text}": the model has no token for one of its characters')
        if len(ids) >= (limit := self._limited(part, ids).limit):
            raise UserError(
                f"line {part.line}: its prefix has {len(ids)} tokens, but the translation is limited to {limit}, end "
                "token included; shorten the prefix"
            )
        return ids

    def _limited(self, part: Part, prefix: Sequence[int]) -> Part:
        """Returns a part with its prefix, its limit, and how many hypotheses are searched for.

        Where the best hypothesis lacks something that must stay, another one of the beam may have it.
        """
        is_any_wanted = part.protected.spans and not self.options.temperature
        count = self.options.beam_size if is_any_wanted else self.options.mbr_samples or self.num_hypotheses
        limit = length_limit(len(part.source), len(prefix), self.options, self.max_length)
        kept = (Hypothesis(part.protected.untranslated, 0.0),) * self.num_hypotheses if part.is_kept else ()
        return part._replace(prefix=prefix, limit=limit, num_hypotheses=count, hypotheses=kept)

    def _around_spans(self, part: Part) -> list[Part]:
        """Returns a part as several: what it must contain, which is kept, and what stands around it."""
        parts, unused = [], part.prefix
        for text, space, is_kept in part.protected.chunks(part.space):
            (ids,) = self.tokenizer.encode_protected([text])
            prefix, unused = ([], unused) if is_kept else (unused, [])
            own = part._replace(protected=text, source=ids, after=space, is_kept=is_kept)
            parts.append(self._limited(own, prefix))
        return [*parts[:-1], parts[-1]._replace(after=part.after)]


def to_search(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts whose hypotheses are to be searched."""
    return [part for part in parts if not part.hypotheses]


def _translation(line: str, parts: Sequence[Part]) -> Translation:
    unknown = tuple(dict.fromkeys(word for part in parts for word in part.unknown))
    if len(parts) == 1:
        return Translation(line, parts[0].hypotheses, unknown)
    # Parts can have different numbers of hypotheses.
    ranked = zip(*(part.hypotheses for part in parts), strict=False) if parts else [()]
    return Translation(line, tuple(_joined(parts, own) for own in ranked), unknown)


def _joined(parts: Sequence[Part], hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Joins a hypothesis of each part, with what stands between them; nothing stands beside an empty one."""
    text, space = "", ""
    for part, own in zip(parts, hypotheses, strict=True):
        if own.text:
            text += (space if text else "") + own.text
            space = part.after
    tokens = [token for own in hypotheses for token in own.tokens if token != EOS_ID]
    return Hypothesis(
        text=text,
        score=sum(own.score for own in hypotheses),
        tokens=(*tokens, EOS_ID) if parts else (),
        parts=tuple((part.text, own) for part, own in zip(parts, hypotheses, strict=True)),
    )


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
