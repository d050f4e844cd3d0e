"""Contrast pairs: whether the translation of an ambiguous word depends on the word that disambiguates it.

The two sentences of a pair differ in a single word, the deciding word, which determines the sense of another, ambiguous
word. If the keys of the deciding word are masked in every layer (encoder self-attention and cross-attention), the
inputs for both sentences are identical except for the number of masked tokens. If both translations were right before,
one of them must then take the other reading, or show neither. As a control, hiding another word should change neither.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingua_flax.data.batch import cut
from lingua_flax.data.corpora.corpus import FindReadings, Readings
from lingua_flax.data.tokenizer import Tokenizer
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.batched_search import search_parts
from lingua_flax.translation.decoding import length_limit
from lingua_flax.translation.requests import Part
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.words import Word, group_pieces


class _Sentence(NamedTuple):
    """A sentence of a right pair: which of the readings its translation has, and the token positions to hide."""

    text: str
    readings: Readings
    sense: int
    deciding: tuple[int, ...]
    control: tuple[int, ...]


def count_contrast(
    translator: Translator,
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    find_readings: FindReadings,
    options: DecodingOptions,
) -> dict[str, int]:
    """Counts the right pairs, translates them again, greedily and with a word masked, and counts the flipped readings.

    Lines 2i and 2i + 1 form a pair; it is right if both translations equal their references. `find_readings` finds the
    ambiguous word of a pair and its readings; pairs for which it returns None are not translated again. The other word
    that is masked as a control is the longest one. Of `options`, only the length limits and the batch size are used.
    """
    right = right_pairs(translations, references)
    found: list[_Sentence] = []
    for i in (2 * pair for pair, is_right in enumerate(right) if is_right):
        texts = (sources[i], sources[i + 1]), (references[i], references[i + 1])
        found += _sentences(translator.tokenizer, *texts, find_readings)

    def flipped(masked: Sequence[Sequence[int]]) -> int:
        translated = translate_with_masked_tokens(translator, [each.text for each in found], masked, options)
        flips = [each.readings.of(text) == 1 - each.sense for each, text in zip(found, translated, strict=True)]
        return sum(map(any, zip(flips[::2], flips[1::2], strict=True)))

    return {
        "contrast_pairs": len(right),
        "contrast_right": sum(right),
        "contrast_masked_pairs": len(found) // 2,
        "contrast_flipped": flipped([each.deciding for each in found]),
        "contrast_flipped_control": flipped([each.control for each in found]),
    }


def right_pairs(translations: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Returns for each pair, lines 2i and 2i + 1, whether both translations equal their references."""
    right = [translation == reference for translation, reference in zip(translations, references, strict=True)]
    return [first and second for first, second in zip(right[::2], right[1::2], strict=True)]


def differing_word_index(first: Sequence[Word], second: Sequence[Word]) -> int | None:
    """Returns the index of the only word in which two sentences differ, or None if they do not differ in just one."""
    if len(first) != len(second):
        return None
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.text != b.text]
    return differing[0] if len(differing) == 1 else None


def translate_with_masked_tokens(
    translator: Translator, lines: Sequence[str], masked: Sequence[Sequence[int]], options: DecodingOptions
) -> list[str]:
    """Translates lines greedily while no layer attends to the tokens at the masked positions of each line.

    Tokens beyond max_length are cut off. Of `options`, only the length limits and the batch size are used.
    """
    max_length = translator.max_length
    used = {"min_decoding_length", "max_decoding_length", "batch_size"}
    greedy = DecodingOptions(beam_size=1, **options.model_dump(include=used))
    parts = []
    protected = list(map(translator.tokenizer.protect, lines))
    for number, ids in enumerate(translator.tokenizer.encode_protected(protected)):
        source = cut(ids, max_length)
        limit = length_limit(len(source), 0, greedy, max_length)
        hidden = [position for position in masked[number] if position < len(source)]
        parts.append(Part(protected[number], source, limit=limit, masked=hidden))
    return [best.text for best, *_ in search_parts(translator, parts, greedy)]


def _sentences(
    tokenizer: Tokenizer, sources: tuple[str, str], references: tuple[str, str], find_readings: FindReadings
) -> Iterator[_Sentence]:
    """Yields both sentences of a pair, or none if its deciding word or its readings are unknown."""
    known = find_readings(sources, references)
    words = [group_pieces(tokenizer.source_pieces(ids)) for ids in tokenizer.encode_source(sources)]
    index = differing_word_index(words[0], words[1])
    if known is None or index is None:
        return
    readings, senses = known
    for text, sense, line in zip(sources, senses, words, strict=True):
        others = (word for i, word in enumerate(line) if i != index and not readings.word.search(word.text))
        candidates = [word for word in others if word.text.isalnum()]
        control = max(candidates, key=lambda word: len(word.text), default=Word("", ()))
        yield _Sentence(text, readings, sense, line[index].positions, control.positions)
