"""The contents of a corpus: exact counts for every split, in one pass over each.

No text is kept: a pair takes 32 bytes, for the numbers of words and tokens of both sides and two digests of 8 bytes.
Two different texts share a digest in about one in a hundred thousand corpora of ten million pairs.

Words are separated by whitespace. The tokens of a sentence include the </s> that ends it and the tags that a source may
begin with, as in data.row_length and model.max_length; its pieces do not.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from lingua_flax.data.corpora.corpus import Corpus
from lingua_flax.data.text_files import chunks
from lingua_flax.data.tokenizer import SPACE, Tokenizer
from lingua_flax.host.digests import short_digest

CHUNK = 4096  # pairs processed together


class SideCounts:
    """The counts of one side of a split, to which its lines are added.

    Attributes:
      pieces: the number of all tokens without tags and </s>.
      fallbacks: the number of pieces that are <unk> or a byte.
      normalized: the number of sentences in which the tokenizer changes more than white space and case.
      spells_bytes: whether the tokenizer spells unknown characters as bytes.
    """

    def __init__(self, language: str, processor: sentencepiece.SentencePieceProcessor, control_tokens: int):
        ids = range(processor.get_piece_size())
        self.language, self._processor, self._control_tokens = language, processor, control_tokens
        self.spells_bytes = any(map(processor.is_byte, ids))
        self._is_fallback = np.array([processor.is_unknown(i) or processor.is_byte(i) for i in ids])
        self._words, self._tokens = array("i"), array("i")  # numbers for each sentence
        self.pieces = self.fallbacks = self.normalized = 0

    def add(self, lines: Sequence[str]) -> None:
        """Counts more lines; not possible while an array of counts is in use."""
        sentences = self._processor.encode(lines)
        pieces = np.fromiter(itertools.chain.from_iterable(sentences), np.int64)
        self._words.extend(len(line.split()) for line in lines)
        self._tokens.extend(len(ids) + self._control_tokens for ids in sentences)
        self.pieces += len(pieces)
        self.fallbacks += int(self._is_fallback[pieces].sum())
        normalized = zip(self._processor.normalize(list(lines)), lines, strict=True)
        self.normalized += sum(_words(new.replace(SPACE, " ")) != _words(old) for new, old in normalized)

    @property
    def words(self) -> np.ndarray:
        """The number of words in each sentence, [pairs] int32."""
        return np.frombuffer(self._words, np.int32)

    @property
    def tokens(self) -> np.ndarray:
        """The number of tokens in each sentence, [pairs] int32."""
        return np.frombuffer(self._tokens, np.int32)


@dataclass(frozen=True)
class SplitCounts:
    """The counts of a split.

    Attributes:
      in_train, sources_in_train: the numbers of pairs and of sources that are also trained on; None for a train split.
    """

    source: SideCounts
    target: SideCounts
    in_train: int | None
    sources_in_train: int | None


def inspect_corpora(
    corpora: Mapping[str, Corpus],
    tokenizers: Mapping[str, Tokenizer],
    after_chunk: Callable[[int], None] = lambda pairs: None,
) -> dict[str, SplitCounts]:
    """Returns the counts of all splits of the first corpus and of the train splits of the others, train splits first.

    The name of the first corpus is not used, since its splits keep their own names. The tokenizers put the tags of
    their corpora before the sources. `after_chunk` is called after each chunk with its number of pairs.
    """
    inspected: dict[str, SplitCounts] = {}
    train_sources, train_pairs = array("Q"), array("Q")
    main = next(iter(corpora))
    for name, corpus, split in inspected_splits(corpora):
        tokenizer = tokenizers.get(name, tokenizers[main])
        source = SideCounts(corpus.source_language, tokenizer.source, control_tokens=1 + len(tokenizer.source_tags))
        target = SideCounts(corpus.target_language, tokenizer.target, control_tokens=1)
        sources, pairs = array("Q"), array("Q")  # digests
        for chunk in chunks(corpus.splits[split], CHUNK):
            source.add([pair.source for pair in chunk])
            target.add([pair.target for pair in chunk])
            sources.extend(short_digest(pair.source.encode()) for pair in chunk)
            pairs.extend(short_digest("\n".join(pair).encode()) for pair in chunk)
            after_chunk(len(chunk))
        in_train: tuple[int | None, int | None] = (None, None)
        if split == "train":
            train_sources.extend(sources)
            train_pairs.extend(pairs)
        else:
            in_train = (_count_shared(pairs, train_pairs), _count_shared(sources, train_sources))
        inspected[name] = SplitCounts(source, target, *in_train)
    return inspected


def inspected_splits(corpora: Mapping[str, Corpus]) -> list[tuple[str, Corpus, str]]:
    """Returns what `inspect_corpora` inspects, in its order: name in the report, corpus, and name in the corpus."""
    main, *others = corpora
    other_train = [(name, corpora[name], "train") for name in others]
    not_train = [(name, corpora[main], name) for name in corpora[main].splits if name != "train"]
    return [("train", corpora[main], "train"), *other_train, *not_train]


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _count_shared(digests: array[int], others: array[int]) -> int:
    """Returns how many of the digests are among the others."""
    return int(np.isin(np.frombuffer(digests, np.uint64), np.frombuffer(others, np.uint64)).sum())
