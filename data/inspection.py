"""What is in a corpus: exact counts of every split, in one pass over each.

Of a pair it keeps two digests of 8 bytes, and of the text only a few lines, so that a corpus of any size fits. Two
different texts have the same digest once in some hundred thousand corpora of ten million pairs.

A word is what stands between whitespace. A sentence's tokens include the </s> that ends it and the tag that a source
may begin with, as data.row_length and model.max_length count them; its pieces do not.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from data.corpora.corpus import Corpus
from data.lines import chunks
from data.tokenizer import Tokenizer

CHUNK = 4096  # pairs looked at together
LISTED = 3  # pairs shown as the longest of a split, and as the most lopsided
LOPSIDED = 3.0  # a pair is lopsided where one side has more than so many times the tokens of the other


class Lengths:
    """How many sentences there are of each length."""

    def __init__(self, counts: Counter[int]):
        self.values = np.array(sorted(counts), np.int64)
        self.counts = np.array([counts[value] for value in sorted(counts)], np.int64)

    @property
    def sentences(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """All sentences together."""
        return int(self.values @ self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.sentences

    @property
    def longest(self) -> int:
        return int(self.values[-1])

    def percentile(self, percent: float) -> int:
        """The smallest length that at least `percent` of the sentences do not exceed; the median is that of 50."""
        return int(self.values[np.searchsorted(np.cumsum(self.counts), percent / 100 * self.sentences)])

    def above(self, length: int) -> int:
        """Sentences that are longer."""
        return int(self.counts[self.values > length].sum())


@dataclass(frozen=True)
class SideFound:
    """One side of a split. words, tokens: of each sentence; pieces: tokens without tags and </s>; empty: sentences
    without a word; fallbacks: pieces that are <unk>, or bytes where the tokenizer spells unknown characters as such
    (spells_bytes)."""

    words: Lengths
    tokens: Lengths
    pieces: int
    empty: int
    fallbacks: int
    spells_bytes: bool


@dataclass(frozen=True)
class PairFound:
    """A pair worth a look. line: counted from 1 in its split; words, tokens: of source and target."""

    line: int
    source: str
    target: str
    words: tuple[int, int]
    tokens: tuple[int, int]

    @property
    def longer(self) -> int:
        """Tokens of the longer side."""
        return max(self.tokens)

    @property
    def ratio(self) -> float:
        """Tokens of the longer side for each one of the other."""
        return max(self.tokens) / min(self.tokens)


@dataclass(frozen=True)
class SplitFound:
    """One split.

    languages: of source and target. longer: tokens of each pair's longer side. repeated_pairs, repeated_sources: those
    that an earlier line has word for word. in_train, sources_in_train: pairs and sources that are trained on too; None
    for a train split itself. identical: pairs whose target is their source. longest, most_lopsided: at most LISTED
    pairs, the worst first.
    """

    languages: tuple[str, str]
    source: SideFound
    target: SideFound
    longer: Lengths
    repeated_pairs: int
    repeated_sources: int
    in_train: int | None
    sources_in_train: int | None
    identical: int
    lopsided: int
    longest: Sequence[PairFound]
    most_lopsided: Sequence[PairFound]

    @property
    def pairs(self) -> int:
        return self.longer.sentences


def inspect_corpora(
    corpora: Mapping[str, Corpus], tokenizer: Tokenizer, after_chunk: Callable[[int], None] = lambda pairs: None
) -> dict[str, SplitFound]:
    """Looks at every pair of every split of the first corpus, and of train of the others, which are trained on too.

    Args:
      corpora: by name; that of the first one is not used, its splits have their own.
      tokenizer: with a source_tag where sources have one, whichever it is.
      after_chunk: is told now and then how many more pairs are done.

    Returns: what is in each split, those trained on first.
    """
    found: dict[str, SplitFound] = {}
    train = _Digests()
    for name, corpus, split in splits_looked_at(corpora):
        is_train = split == "train"
        found[name], digests = _inspect_split(corpus, split, tokenizer, None if is_train else train, after_chunk)
        if is_train:
            train.extend(digests)
    return found


def splits_looked_at(corpora: Mapping[str, Corpus]) -> list[tuple[str, Corpus, str]]:
    """The splits of inspect_corpora in its order, each as the name it goes by, its corpus and its name in that."""
    main, *others = corpora
    own = sorted(corpora[main].splits, key=lambda split: split != "train")
    more = [(name, corpora[name], "train") for name in others]
    return [("train", corpora[main], "train"), *more, *((name, corpora[main], name) for name in own if name != "train")]


def _inspect_split(
    corpus: Corpus, split: str, tokenizer: Tokenizer, train: _Digests | None, after_chunk: Callable[[int], None]
) -> tuple[SplitFound, _Digests]:
    source = _Side(tokenizer.source, control_tokens=1 if tokenizer.source_tag is None else 2)
    target = _Side(tokenizer.target, control_tokens=1)
    longer: Counter[int] = Counter()
    identical = lopsided = 0
    longest: list[PairFound] = []
    most_lopsided: list[PairFound] = []
    digests = _Digests()
    for chunk in chunks(corpus.splits[split], CHUNK):
        sources, targets = [pair.source for pair in chunk], [pair.target for pair in chunk]
        words, tokens = zip(source.add(sources), target.add(targets), strict=True)
        lines = range(len(digests.pairs) + 1, len(digests.pairs) + len(chunk) + 1)
        columns = (lines, sources, targets, zip(*words, strict=True), zip(*tokens, strict=True))
        looked_at = list(map(PairFound, *columns))
        longer.update(pair.longer for pair in looked_at)
        identical += sum(pair.source == pair.target for pair in looked_at)
        lopsided += sum(pair.ratio > LOPSIDED for pair in looked_at)
        # nlargest keeps the order of what is equal: the earlier line comes first.
        longest = heapq.nlargest(LISTED, longest + looked_at, key=lambda pair: pair.longer)
        most_lopsided = heapq.nlargest(LISTED, most_lopsided + looked_at, key=lambda pair: pair.ratio)
        digests.add(sources, targets)
        after_chunk(len(chunk))
    found = SplitFound(
        languages=(corpus.source_language, corpus.target_language),
        source=source.found(),
        target=target.found(),
        longer=Lengths(longer),
        repeated_pairs=_repeated(digests.pairs),
        repeated_sources=_repeated(digests.sources),
        in_train=_shared(digests.pairs, train.pairs) if train else None,
        sources_in_train=_shared(digests.sources, train.sources) if train else None,
        identical=identical,
        lopsided=lopsided,
        longest=longest,
        most_lopsided=[pair for pair in most_lopsided if pair.ratio > LOPSIDED],
    )
    return found, digests


class _Side:
    """The counts of one side of a split while it is read."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, control_tokens: int):
        every_id = range(processor.get_piece_size())
        self._processor = processor
        self._control_tokens = control_tokens
        self._spells_bytes = any(map(processor.is_byte, every_id))
        self._is_fallback = np.array([processor.is_unknown(i) or processor.is_byte(i) for i in every_id])
        self._words: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()
        self._pieces = 0
        self._fallbacks = 0

    def add(self, lines: list[str]) -> tuple[list[int], list[int]]:
        """Counts the lines; returns the words and the tokens of each."""
        words = [len(line.split()) for line in lines]
        sentences = self._processor.encode(lines)
        tokens = [len(ids) + self._control_tokens for ids in sentences]
        pieces = np.fromiter(itertools.chain.from_iterable(sentences), np.int64)
        self._words.update(words)
        self._tokens.update(tokens)
        self._pieces += len(pieces)
        self._fallbacks += int(self._is_fallback[pieces].sum())
        return words, tokens

    def found(self) -> SideFound:
        return SideFound(
            Lengths(self._words),
            Lengths(self._tokens),
            self._pieces,
            self._words[0],
            self._fallbacks,
            self._spells_bytes,
        )


class _Digests:
    """A number of 64 bits for each source and for each pair of a split."""

    def __init__(self) -> None:
        self.sources = array("Q")
        self.pairs = array("Q")

    def add(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self.sources.extend(map(_digest, sources))
        self.pairs.extend(_digest(f"{source}\n{target}") for source, target in zip(sources, targets, strict=True))

    def extend(self, others: _Digests) -> None:
        self.sources.extend(others.sources)
        self.pairs.extend(others.pairs)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _repeated(digests: array[int]) -> int:
    return len(digests) - len(np.unique(np.frombuffer(digests, np.uint64)))


def _shared(digests: array[int], others: array[int]) -> int:
    return int(np.isin(np.frombuffer(digests, np.uint64), np.frombuffer(others, np.uint64)).sum())
