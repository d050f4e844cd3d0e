"""The contents of a corpus: exact counts for every split, in one pass over each.

No text is kept: a pair takes 32 bytes, for the numbers of words and tokens of both sides and two digests of 8 bytes.
The tokens of a sentence include </s> and tags, as in data.row_length and model.max_length; its pieces do not.
"""

import itertools
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
      words, tokens: the numbers of each sentence, [pairs] int32.
      fallbacks: the number of pieces that are <unk> or a byte; `spells_bytes` tells which.
      normalized: the number of sentences in which the tokenizer changes more than white space and case.
    """

    def __init__(self, language: str, processor: sentencepiece.SentencePieceProcessor, pairs: int):
        ids = range(processor.get_piece_size())
        self.language, self._processor = language, processor
        self.spells_bytes = any(map(processor.is_byte, ids))
        self._is_fallback = np.array([processor.is_unknown(i) or processor.is_byte(i) for i in ids])
        self._is_piece = np.array([not processor.is_control(i) for i in ids])
        self.words, self.tokens = np.zeros((2, pairs), np.int32)
        self.pieces = self.fallbacks = self.normalized = 0

    def add(self, begin: int, lines: Sequence[str], sentences: Sequence[Sequence[int]]) -> None:
        """Counts the lines from number `begin` on, which have these tokens."""
        tokens = np.fromiter(itertools.chain.from_iterable(sentences), np.int64)
        self.words[begin : begin + len(lines)] = [len(line.split()) for line in lines]
        self.tokens[begin : begin + len(lines)] = [len(ids) for ids in sentences]
        self.pieces += int(self._is_piece[tokens].sum())
        self.fallbacks += int(self._is_fallback[tokens].sum())
        normalized = zip(self._processor.normalize(list(lines)), lines, strict=True)
        self.normalized += sum(_words(new.replace(SPACE, " ")) != _words(old) for new, old in normalized)


@dataclass(frozen=True)
class SplitCounts:
    """The counts of a split, and of its pairs and sources that are also trained on; None for a train split."""

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

    The tokenizers put the tags of their corpora before the sources. `after_chunk` is told numbers of pairs.
    """
    inspected: dict[str, SplitCounts] = {}
    trained: list[np.ndarray] = []  # digests of pairs and of sources, [2, pairs]
    main = next(iter(corpora))
    for name, corpus, split in inspected_splits(corpora):
        tokenizer = tokenizers.get(name, tokenizers[main])
        count = len(corpus.splits[split])
        source = SideCounts(corpus.source_language, tokenizer.source, count)
        target = SideCounts(corpus.target_language, tokenizer.target, count)
        digests = np.zeros((2, count), np.uint64)
        for begin, chunk in zip(itertools.count(0, CHUNK), chunks(corpus.splits[split], CHUNK), strict=False):
            source_ids, target_ids = tokenizer.encode_pairs(chunk)  # as in training
            source.add(begin, [pair.source for pair in chunk], source_ids)
            target.add(begin, [pair.target for pair in chunk], target_ids)
            for row, texts in zip(digests, (map("\n".join, chunk), (pair.source for pair in chunk)), strict=True):
                row[begin : begin + len(chunk)] = [np.uint64(short_digest(text.encode())) for text in texts]
            after_chunk(len(chunk))
        if split == "train":
            trained.append(digests)
            inspected[name] = SplitCounts(source, target, None, None)
        else:
            of_train = np.concatenate(trained, axis=1)
            in_train, sources_in_train = (int(np.isin(digests[i], of_train[i]).sum()) for i in range(2))
            inspected[name] = SplitCounts(source, target, in_train, sources_in_train)
    return inspected


def inspected_splits(corpora: Mapping[str, Corpus]) -> list[tuple[str, Corpus, str]]:
    """Returns what `inspect_corpora` inspects, in its order: name in the report, corpus, and name in the corpus."""
    main, *others = corpora
    other_train = [(name, corpora[name], "train") for name in others]
    not_train = [(name, corpora[main], name) for name in corpora[main].splits if name != "train"]
    return [("train", corpora[main], "train"), *other_train, *not_train]


def _words(text: str) -> list[str]:
    return text.casefold().split()
