"""What is in a corpus: exact counts of every split, in one pass over each.

No text is kept: a pair takes 32 bytes, the words and tokens of both sides and two digests of 8 bytes. Two different
texts have the same digest once in some hundred thousand corpora of ten million pairs.

A word is what stands between whitespace. A sentence's tokens include the </s> that ends it and the tag that a source
may begin with, as data.row_length and model.max_length count them; its pieces do not.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from data.corpora.corpus import Corpus, PairSource
from data.text_files import chunks
from data.tokenizer import Tokenizer

CHUNK = 4096  # pairs looked at together


@dataclass(frozen=True)
class InspectedSide:
    """One side of a split. words, tokens: of each sentence, [pairs] int32; pieces: all tokens without tags and </s>;
    fallbacks: pieces that are <unk>, or bytes where the tokenizer spells unknown characters as such (spells_bytes)."""

    language: str
    words: np.ndarray
    tokens: np.ndarray
    pieces: int
    fallbacks: int
    spells_bytes: bool


@dataclass(frozen=True)
class InspectedSplit:
    """One split.

    pairs: those of the split. repeated_pairs, repeated_sources: those that an earlier line has word for word. in_train,
    sources_in_train: pairs and sources that are trained on too; None for a train split itself. identical: pairs whose
    target is their source.
    """

    pairs: PairSource
    source: InspectedSide
    target: InspectedSide
    repeated_pairs: int
    repeated_sources: int
    in_train: int | None
    sources_in_train: int | None
    identical: int

    @functools.cached_property
    def longer(self) -> np.ndarray:
        """Tokens of each pair's longer side, [pairs]."""
        return np.maximum(self.source.tokens, self.target.tokens)

    @functools.cached_property
    def ratio(self) -> np.ndarray:
        """Tokens of each pair's longer side for each one of the other, [pairs]."""
        return self.longer / np.minimum(self.source.tokens, self.target.tokens)


def inspect_corpora(
    corpora: Mapping[str, Corpus], tokenizer: Tokenizer, after_chunk: Callable[[int], None] = lambda pairs: None
) -> dict[str, InspectedSplit]:
    """Looks at every pair of every split of the first corpus, and of train of the others, which are trained on too.

    Args:
      corpora: by name; that of the first one is not used, its splits have their own.
      tokenizer: with a source_tag where sources have one, whichever it is.
      after_chunk: is told now and then how many more pairs are done.

    Returns: what is in each split, those trained on first.
    """
    found: dict[str, InspectedSplit] = {}
    train_sources, train_pairs = array("Q"), array("Q")
    for name, corpus, split in inspected_splits(corpora):
        source = _Side(tokenizer.source, control_tokens=1 if tokenizer.source_tag is None else 2)
        target = _Side(tokenizer.target, control_tokens=1)
        sources, pairs = array("Q"), array("Q")  # digests
        identical = 0
        for chunk in chunks(corpus.splits[split], CHUNK):
            source.add([pair.source for pair in chunk])
            target.add([pair.target for pair in chunk])
            sources.extend(_digest(pair.source) for pair in chunk)
            pairs.extend(_digest("\n".join(pair)) for pair in chunk)
            identical += sum(pair.source == pair.target for pair in chunk)
            after_chunk(len(chunk))
        is_train = split == "train"
        if is_train:
            train_sources.extend(sources)
            train_pairs.extend(pairs)
        found[name] = InspectedSplit(
            pairs=corpus.splits[split],
            source=source.inspected(corpus.source_language),
            target=target.inspected(corpus.target_language),
            repeated_pairs=_repeated(pairs),
            repeated_sources=_repeated(sources),
            in_train=None if is_train else _shared(pairs, train_pairs),
            sources_in_train=None if is_train else _shared(sources, train_sources),
            identical=identical,
        )
    return found


def inspected_splits(corpora: Mapping[str, Corpus]) -> list[tuple[str, Corpus, str]]:
    """The splits of inspect_corpora in its order, each as the name it goes by, its corpus and its name in that."""
    main, *others = corpora
    more = [(name, corpora[name], "train") for name in others]
    own = [(name, corpora[main], name) for name in corpora[main].splits if name != "train"]
    return [("train", corpora[main], "train"), *more, *own]


class _Side:
    """The counts of one side of a split while it is read."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, control_tokens: int):
        every_id = range(processor.get_piece_size())
        self._processor = processor
        self._control_tokens = control_tokens
        self._spells_bytes = any(map(processor.is_byte, every_id))
        self._is_fallback = np.array([processor.is_unknown(i) or processor.is_byte(i) for i in every_id])
        self._words, self._pieces = array("i"), array("i")  # of each sentence
        self._fallbacks = 0

    def add(self, lines: Sequence[str]) -> None:
        sentences = self._processor.encode(lines)
        self._words.extend(len(line.split()) for line in lines)
        self._pieces.extend(map(len, sentences))
        self._fallbacks += int(self._is_fallback[np.fromiter(itertools.chain.from_iterable(sentences), np.int64)].sum())

    def inspected(self, language: str) -> InspectedSide:
        words, pieces = np.array(self._words, np.int32), np.array(self._pieces, np.int32)
        tokens = pieces + self._control_tokens
        return InspectedSide(language, words, tokens, int(pieces.sum()), self._fallbacks, self._spells_bytes)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _shared(digests: array[int], others: array[int]) -> int:
    return int(np.isin(np.frombuffer(digests, np.uint64), np.frombuffer(others, np.uint64)).sum())


def _repeated(digests: array[int]) -> int:
    return len(digests) - len(np.unique(np.frombuffer(digests, np.uint64)))
