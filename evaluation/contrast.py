"""The contrast split: is it the deciding word that decides? Counted by hiding it from every layer.

Two sentences of a pair differ in one word, the deciding one, and in the sense of another, the ambiguous one. With the
deciding word's keys hidden in every layer (encoder self-attention and cross-attention) the network is given the same
for both of them, but for the number of hidden tokens. Where both translations were right, one of the two must then
take the other one's reading, or the reading is lost. Hiding another word instead, as a control, should change neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.batch import cut, pad_rows
from data.corpora.corpus import FindReadings, Readings
from options.schema import DecodingOptions
from translation.translator import Translator
from translation.words import Word, words_of


@dataclasses.dataclass(frozen=True)
class Flips:
    """Of `pairs` pairs, both translated right, those in which a hidden word turned a translation to the other reading.

    flipped: one of the two sentences, or both, took the other reading with its deciding word hidden.
    flipped_control: the same with the longest other word hidden (neither the deciding nor the ambiguous one).
    """

    pairs: int
    flipped: int
    flipped_control: int


class _Pair(NamedTuple):
    """A pair to be translated again: its sentences, their senses, and the token positions to hide in each."""

    sentences: tuple[str, str]
    readings: Readings
    senses: tuple[int, int]
    deciding: tuple[tuple[int, ...], ...]
    control: tuple[tuple[int, ...], ...]


def contrast_pairs(translations: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """How many pairs there are, lines 2 i and 2 i + 1, and how many of them have both translations exactly right."""
    right = _right_pairs(translations, references)
    return len(right), sum(right)


def contrast_flips(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    find_readings: FindReadings,
    options: DecodingOptions,
) -> Flips:
    """Translates the pairs that are right again, greedily, with a word hidden, and counts the flipped readings."""
    right = [2 * pair for pair, right in enumerate(_right_pairs(translations, references)) if right]
    sides = [((sources[i], sources[i + 1]), (references[i], references[i + 1])) for i in right]
    pairs = [pair for side in sides if (pair := _read(translator, *side, find_readings))]
    lines = [line for pair in pairs for line in pair.sentences]

    def flipped(hidden: Sequence[Sequence[int]]) -> int:
        texts = translate_hiding(translator, lines, hidden, options)
        return sum(
            any(pair.readings.of(texts[2 * i + side]) == 1 - pair.senses[side] for side in (0, 1))
            for i, pair in enumerate(pairs)
        )

    return Flips(
        pairs=len(pairs),
        flipped=flipped([positions for pair in pairs for positions in pair.deciding]),
        flipped_control=flipped([positions for pair in pairs for positions in pair.control]),
    )


def differing_word(first: Sequence[Word], second: Sequence[Word]) -> int | None:
    """The index of the one word in which two sentences differ; None where they differ otherwise."""
    if len(first) != len(second):
        return None
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.text != b.text]
    return differing[0] if len(differing) == 1 else None


def source_words(translator: Translator, line: str) -> list[Word]:
    """The words of a source line with the positions of their tokens."""
    (ids,) = translator.tokenizer.encode_source([line])
    return words_of(translator.tokenizer.source_pieces(ids))


def translate_hiding(
    translator: Translator, lines: Sequence[str], hidden: Sequence[Sequence[int]], options: DecodingOptions
) -> list[str]:
    """Greedy translations of the lines, in order, where no layer may look at the given token positions of a line."""
    longest = translator.max_length
    ids = [cut(line, longest) for line in translator.tokenizer.encode_source(lines)]
    lengths = [len(line) for line in ids]
    rows = options.batch_size or translator.search_batch_size(max(lengths, default=1), beams=1)
    greedy = DecodingOptions(
        beam_size=1,
        min_decoding_length=options.min_decoding_length,
        max_decoding_length=options.max_decoding_length,
        batch_size=rows,
    )
    found = [""] * len(lines)
    for group, length in translator.length_batches(lengths, rows):
        source = pad_rows([ids[i] for i in group], rows, length)
        mask = np.zeros(source.shape, bool)
        for row, i in enumerate(group):
            mask[row, [position for position in hidden[i] if position < length]] = True
        tokens = translator.search(source, greedy, mask).tokens[: len(group), 0]
        for i, text in zip(group, translator.tokenizer.decode_target(tokens.tolist()), strict=True):
            found[i] = text
    return found


def _read(
    translator: Translator, sources: tuple[str, str], references: tuple[str, str], find_readings: FindReadings
) -> _Pair | None:
    """None where it is not known which word decides, or how the senses read."""
    known = find_readings(sources, references)
    words = [source_words(translator, line) for line in sources]
    index = differing_word(words[0], words[1])
    if known is None or index is None:
        return None
    readings, senses = known

    def longest_other(line: list[Word]) -> tuple[int, ...]:
        others = (word for i, word in enumerate(line) if i != index and not readings.word.search(word.text))
        words = [word for word in others if word.text.isalnum()]
        return max(words, key=lambda word: len(word.text), default=Word("", ())).positions

    deciding = tuple(line[index].positions for line in words)
    return _Pair(sources, readings, senses, deciding, tuple(longest_other(line) for line in words))


def _right_pairs(translations: Sequence[str], references: Sequence[str]) -> list[bool]:
    right = [translation == reference for translation, reference in zip(translations, references, strict=True)]
    return [first and second for first, second in zip(right[::2], right[1::2], strict=True)]
