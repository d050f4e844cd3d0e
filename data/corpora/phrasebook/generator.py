"""The generator: holds combinations out of training, draws sentences and divides them among the splits."""

from collections import Counter
from itertools import accumulate
from random import Random
from typing import NamedTuple

from lingua_flax.data.corpora.phrasebook.ambiguous_words import PUZZLES
from lingua_flax.data.corpora.phrasebook.contrast_templates import Contrast
from lingua_flax.data.corpora.phrasebook.lexicon import ADJECTIVES, TRANSITIVES, nouns, read_translations
from lingua_flax.data.corpora.phrasebook.phrases import Combination, Pair, Text
from lingua_flax.data.corpora.phrasebook.random_draws import Draw
from lingua_flax.data.corpora.phrasebook.templates import TEMPLATES

TRAIN_SIZE = 50_000
EVALUATION_SIZE = 1_000  # each of validation and test
UNSEEN_SHARE = 0.55  # of validation and test: sentences with a held-out combination
CONTRASTS_PER_WORD = 18
HELD_OUT_SHARE = 0.09  # of all combinations that the lexicon allows
MAX_HELD_OUT_SHARE = 0.14  # of the combinations of any one word

# Sentences with a lemma that is behind schedule for TARGET_LEMMA_COUNT training sentences are always kept; only
# KEPT_SHARE of the others are kept.
TARGET_LEMMA_COUNT = 110
KEPT_SHARE = 0.4

FIXED_TEST_PAIRS: tuple[Pair, ...] = tuple(read_translations("fixed_test_pairs")["test"].items())


class Phrasebook(NamedTuple):
    """All splits, and facts about them that the tests check.

    Attributes:
      held_out: (verb, object noun) and (adjective, noun) combinations that train never contains.
      combinations: English sentence of train, validation or test -> its combinations.
    """

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    contrasts: list[Contrast]
    held_out: frozenset[Combination]
    combinations: dict[str, tuple[Combination, ...]]


def draw_held_out(rng: Random) -> frozenset[Combination]:
    """Returns the combinations to hold out of training; every word keeps most of its combinations."""
    pairs = [(verb.key, noun.key) for verb in TRANSITIVES.values() for noun in nouns(*verb.objects)]
    pairs += [(item.key, noun.key) for item in ADJECTIVES.values() for noun in nouns(*item.classes)]
    allowance = {word: MAX_HELD_OUT_SHARE * count for word, count in Counter(w for pair in pairs for w in pair).items()}
    total = int(HELD_OUT_SHARE * len(pairs))
    rng.shuffle(pairs)
    chosen: list[Combination] = []
    for pair in pairs:
        if len(chosen) < total and all(allowance[word] >= 1 for word in pair):
            chosen.append(pair)
            for word in pair:
                allowance[word] -= 1
    return frozenset(chosen)


class Collected(dict[str, str]):
    """Distinct pairs, in which every English sentence has a single translation."""

    def take(self, pair: Pair) -> bool:
        """Adds a pair and returns whether it is new; raises ValueError if the sentence has another translation."""
        is_new = pair[0] not in self
        if self.setdefault(*pair) != pair[1]:
            raise ValueError(f"two translations of {pair[0]!r}: {self[pair[0]]!r} and {pair[1]!r}")
        return is_new


def deciding_tokens(first: str, second: str) -> tuple[str, str] | None:
    """Returns the only token in which two sentences differ, without punctuation; None if they differ in more."""
    left, right = first.split(), second.split()
    differing = [(a, b) for a, b in zip(left, right, strict=False) if a != b]
    if len(left) != len(right) or len(differing) != 1:
        return None
    return differing[0][0].strip(".?"), differing[0][1].strip(".?")


def draw_contrasts(draw: Draw, held_out: frozenset[Combination], collected: Collected) -> list[Contrast]:
    """Returns the contrast pairs of every ambiguous word, without any held-out combination."""
    contrasts: list[Contrast] = []
    words = Counter(puzzle.word for puzzle in PUZZLES)
    for puzzle in PUZZLES:
        missing = CONTRASTS_PER_WORD // words[puzzle.word]
        while missing:
            sides = puzzle.contrast(draw)
            deciding = deciding_tokens(sides[0].english, sides[1].english)
            if deciding is None or any(not held_out.isdisjoint(side.combinations) for side in sides):
                continue
            if any(side.english in collected for side in sides):
                continue
            for side in sides:
                collected.take(side.pair)
            contrasts.append(Contrast(puzzle.word, sides[0].pair, sides[1].pair, deciding))
            missing -= 1
    return contrasts


def draw_sentences(
    draw: Draw, held_out: frozenset[Combination], collected: Collected, plain_size: int, unseen_size: int
) -> tuple[list[Text], list[Text]]:
    """Returns `plain_size` new sentences without and `unseen_size` with held-out combinations, in the order drawn."""
    plain: list[Text] = []
    unseen: list[Text] = []
    counts: Counter[str] = Counter()
    templates = [template for template, _ in TEMPLATES]
    weights = list(accumulate(weight for _, weight in TEMPLATES))
    while len(plain) < plain_size or len(unseen) < unseen_size:
        sentence = draw.rng.choices(templates, cum_weights=weights)[0](draw)
        scheduled = TARGET_LEMMA_COUNT * len(plain) / plain_size
        is_behind = any(counts[lemma] <= scheduled for lemma in sentence.lemmas)
        if not is_behind and not draw.chance(KEPT_SHARE):
            continue
        if not collected.take(sentence.pair):
            continue
        if not held_out.isdisjoint(sentence.combinations):
            if len(unseen) < unseen_size:
                unseen.append(sentence)
        elif len(plain) < plain_size:
            plain.append(sentence)
            counts.update(set(sentence.lemmas))
    return plain, unseen


def begin(seed: int = 0) -> tuple[Draw, frozenset[Combination], Collected, list[Contrast]]:
    """Draws the contrasts; returns what the other splits are drawn with, too."""
    draw = Draw(Random(seed))
    held_out, collected = draw_held_out(draw.rng), Collected(FIXED_TEST_PAIRS)
    return draw, held_out, collected, draw_contrasts(draw, held_out, collected)


def generate(seed: int = 0) -> Phrasebook:
    """Returns all splits; the same seed gives the same phrasebook on every machine."""
    draw, held_out, collected, contrasts = begin(seed)
    unseen_size = int(UNSEEN_SHARE * EVALUATION_SIZE)
    plain_size = TRAIN_SIZE + 2 * (EVALUATION_SIZE - unseen_size) - len(FIXED_TEST_PAIRS)
    plain, unseen = draw_sentences(draw, held_out, collected, plain_size, 2 * unseen_size)
    train = plain[:TRAIN_SIZE]
    validation_end = TRAIN_SIZE + EVALUATION_SIZE - unseen_size
    validation = plain[TRAIN_SIZE:validation_end] + unseen[:unseen_size]
    test = plain[validation_end:] + unseen[unseen_size:]
    test_pairs = [*FIXED_TEST_PAIRS, *(sentence.pair for sentence in test)]
    validation_pairs = [sentence.pair for sentence in validation]
    draw.rng.shuffle(test_pairs)
    draw.rng.shuffle(validation_pairs)
    combinations = {sentence.english: sentence.combinations for sentence in (*plain, *unseen)}
    combinations |= {english: () for english, _ in FIXED_TEST_PAIRS}
    return Phrasebook(
        train=[sentence.pair for sentence in train],
        validation=validation_pairs,
        test=test_pairs,
        contrasts=contrasts,
        held_out=held_out,
        combinations=combinations,
    )
