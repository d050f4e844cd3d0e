"""Contrast pairs: whether the translation of an ambiguous word depends on the word that disambiguates it.

The two sentences of a pair differ in a single word, the deciding word, which determines the sense of another, ambiguous
word. If the keys of the deciding word are masked in every layer (encoder self-attention and cross-attention), the
inputs for both sentences are identical except for the number of masked tokens. If both translations were right before,
one of them must then take the other reading, or show neither. As a control, hiding another word should change neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingua_flax.data.batch import cut, pad_rows
from lingua_flax.data.corpora.corpus import FindReadings, Readings
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import Word, group_pieces


@dataclasses.dataclass(frozen=True)
class FlipCounts:
    """Counts of pairs in which hiding a word changes a translation to the other reading.

    Attributes:
      pairs: number of pairs examined; both translations of each are right while no word is masked.
      flipped: pairs of which one or both sentences take the other reading when the deciding word is masked.
      flipped_control: the same when the longest word other than the deciding and the ambiguous one is masked.
    """

    pairs: int
    flipped: int
    flipped_control: int


class _Pair(NamedTuple):
    """A pair to translate again: its sentences, their senses, and the token positions to hide in each sentence."""

    sentences: tuple[str, str]
    readings: Readings
    senses: tuple[int, int]
    deciding: tuple[tuple[int, ...], ...]
    control: tuple[tuple[int, ...], ...]


def count_contrast_pairs(translations: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Returns the number of pairs (lines 2i and 2i + 1) and how many have both translations equal to the references."""
    right = _right_pairs(translations, references)
    return len(right), sum(right)


def count_contrast_flips(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    find_readings: FindReadings,
    options: DecodingOptions,
) -> FlipCounts:
    """Translates the right pairs again, greedily and with a word masked, and counts the flipped readings.

    Lines 2i and 2i + 1 form a pair. `find_readings` finds the ambiguous word of a pair and its readings; pairs for
    which it returns None are skipped. Of `options`, only the length limits and the batch size are used.
    """
    first_lines = [2 * pair for pair, right in enumerate(_right_pairs(translations, references)) if right]
    texts = [((sources[i], sources[i + 1]), (references[i], references[i + 1])) for i in first_lines]
    pairs = [pair for text in texts if (pair := _contrast_pair(translator, *text, find_readings))]
    lines = [line for pair in pairs for line in pair.sentences]

    def flipped(masked: Sequence[Sequence[int]]) -> int:
        translated = translate_with_masked_tokens(translator, lines, masked, options)
        return sum(
            any(pair.readings.of(translated[2 * i + side]) == 1 - pair.senses[side] for side in (0, 1))
            for i, pair in enumerate(pairs)
        )

    return FlipCounts(
        pairs=len(pairs),
        flipped=flipped([positions for pair in pairs for positions in pair.deciding]),
        flipped_control=flipped([positions for pair in pairs for positions in pair.control]),
    )


def differing_word_index(first: Sequence[Word], second: Sequence[Word]) -> int | None:
    """Returns the index of the only word in which two sentences differ, or None if they do not differ in just one."""
    if len(first) != len(second):
        return None
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.text != b.text]
    return differing[0] if len(differing) == 1 else None


def source_words(translator: Translator, line: str) -> list[Word]:
    """Returns the words of a source line with the positions of their tokens."""
    (ids,) = translator.tokenizer.encode_source([line])
    return group_pieces(translator.tokenizer.source_pieces(ids))


def translate_with_masked_tokens(
    translator: Translator, lines: Sequence[str], masked: Sequence[Sequence[int]], options: DecodingOptions
) -> list[str]:
    """Translates lines greedily while no layer attends to the tokens at the masked positions of each line.

    Tokens beyond max_length are cut off. Of `options`, only the length limits and the batch size are used.
    """
    max_length = translator.max_length
    ids = [cut(line, max_length) for line in translator.tokenizer.encode_source(lines)]
    lengths = [len(line) for line in ids]
    rows = options.batch_size or translator.decoding_batch_size(max(lengths, default=1), beams=1)
    greedy = DecodingOptions(
        beam_size=1,
        min_decoding_length=options.min_decoding_length,
        max_decoding_length=options.max_decoding_length,
        batch_size=rows,
    )
    translations = [""] * len(lines)
    for group, length in translator.length_batches(lengths, rows):
        source = pad_rows([ids[i] for i in group], rows, length)
        mask = np.zeros(source.shape, bool)
        for row, i in enumerate(group):
            mask[row, [position for position in masked[i] if position < length]] = True
        tokens = translator.decode_ids(source, greedy, mask).tokens[: len(group), 0]
        for i, text in zip(group, translator.tokenizer.decode_target(tokens.tolist()), strict=True):
            translations[i] = text
    return translations


def _contrast_pair(
    translator: Translator, sources: tuple[str, str], references: tuple[str, str], find_readings: FindReadings
) -> _Pair | None:
    """Returns the pair, or None if its deciding word or its readings are unknown."""
    known = find_readings(sources, references)
    words = [source_words(translator, line) for line in sources]
    index = differing_word_index(words[0], words[1])
    if known is None or index is None:
        return None
    readings, senses = known

    def longest_other(line: list[Word]) -> tuple[int, ...]:
        others = (word for i, word in enumerate(line) if i != index and not readings.word.search(word.text))
        candidates = [word for word in others if word.text.isalnum()]
        return max(candidates, key=lambda word: len(word.text), default=Word("", ())).positions

    deciding = tuple(line[index].positions for line in words)
    return _Pair(sources, readings, senses, deciding, tuple(longest_other(line) for line in words))


def _right_pairs(translations: Sequence[str], references: Sequence[str]) -> list[bool]:
    right = [translation == reference for translation, reference in zip(translations, references, strict=True)]
    return [first and second for first, second in zip(right[::2], right[1::2], strict=True)]
