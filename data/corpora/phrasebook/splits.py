"""From sentences to splits: what is held out of training, and how many sentences of what go where."""

from collections import Counter
from itertools import accumulate
from random import Random
from typing import NamedTuple

from .ambiguity import PUZZLES
from .draw import Draw
from .grammar import TEMPLATES
from .lexicon import load_lexicon
from .phrases import Combination, Pair, Sentence
from .puzzles import Contrast

TRAIN_SIZE = 50_000
EVALUATION_SIZE = 1_000  # each of validation and test
UNSEEN_SHARE = 0.55  # of validation and test: sentences with a held-out combination
CONTRASTS_PER_WORD = 18
HELD_OUT_RATE = 0.09  # of all combinations the lexicon allows
MOST_HELD_OUT = 0.14  # of the combinations of any one word

FLOOR = 110  # training sentences aimed at for every lemma; sentences with a word that lags behind are always kept
COMMON_KEPT = 0.4  # share kept of the other sentences

# Sentences that must stand in the test split.
LANDMARKS: tuple[Pair, ...] = (
    ("The cat eats fish.", "Le chat mange du poisson."),
    ("She ate an apple.", "Elle a mangé une pomme."),
    ("The cat sits on the mat.", "Le chat est assis sur le tapis."),
    ("The cat sat on the mat because it was tired.", "Le chat s'est assis sur le tapis parce qu'il était fatigué."),
    ("I deposited my paycheck at the bank yesterday.", "J'ai déposé mon chèque de paie à la banque hier."),
    (
        "I swam across the river to get to the other bank.",
        "J'ai traversé la rivière à la nage pour atteindre l'autre rive.",
    ),
)


class Phrasebook(NamedTuple):
    """All splits, with what the tests need to know about them."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    contrasts: list[Contrast]
    held_out: frozenset[Combination]  # (verb, object noun) and (adjective, noun) that train never contains
    combinations: dict[str, tuple[Combination, ...]]  # English sentence of any split -> its combinations
    lemma_counts: dict[str, int]  # lemma -> number of training sentences it stands in

    @property
    def unseen_share(self) -> float:
        """Share of validation and test sentences with at least one held-out combination."""
        sentences = [english for english, _ in self.validation + self.test]
        return sum(not self.held_out.isdisjoint(self.combinations[english]) for english in sentences) / len(sentences)


def draw_held_out(rng: Random) -> frozenset[Combination]:
    """Choose the combinations kept from training; every word keeps most of its own."""
    lexicon = load_lexicon()
    pairs = [(verb.key, noun.key) for verb in lexicon.transitives for noun in lexicon.select(verb.objects)]
    pairs += [(item.key, noun.key) for item in lexicon.adjectives for noun in lexicon.select(item.classes)]
    allowance = {word: MOST_HELD_OUT * count for word, count in Counter(w for pair in pairs for w in pair).items()}
    wanted = int(HELD_OUT_RATE * len(pairs))
    rng.shuffle(pairs)
    chosen: list[Combination] = []
    for pair in pairs:
        if len(chosen) < wanted and all(allowance[word] >= 1 for word in pair):
            chosen.append(pair)
            for word in pair:
                allowance[word] -= 1
    return frozenset(chosen)


class Collector:
    """Takes distinct sentences and insists that one English sentence has one French."""

    def __init__(self) -> None:
        self.french: dict[str, str] = {}

    def take(self, pair: Pair) -> bool:
        """Whether the pair is new; raises if its English already has another French."""
        english, french = pair
        known = self.french.get(english)
        if known is None:
            self.french[english] = french
        elif known != french:
            raise ValueError(f"two translations of {english!r}: {known!r} and {french!r}")
        return known is None


def deciding_tokens(first: str, second: str) -> tuple[str, str] | None:
    """The one token two English sentences differ in, without punctuation; None if they differ otherwise."""
    left, right = first.split(), second.split()
    differing = [(a, b) for a, b in zip(left, right, strict=False) if a != b]
    if len(left) != len(right) or len(differing) != 1:
        return None
    return differing[0][0].strip(".?"), differing[0][1].strip(".?")


def draw_contrasts(draw: Draw, held_out: frozenset[Combination], collector: Collector) -> list[Contrast]:
    """The contrast pairs of every ambiguous word, made of nothing that is held out of training."""
    contrasts: list[Contrast] = []
    words = Counter(puzzle.word for puzzle in PUZZLES)
    for puzzle in PUZZLES:
        missing = CONTRASTS_PER_WORD // words[puzzle.word]
        while missing:
            sides = puzzle.contrast(draw)
            deciding = deciding_tokens(sides[0].english, sides[1].english)
            if deciding is None or any(not held_out.isdisjoint(side.combinations) for side in sides):
                continue
            if any(side.english in collector.french for side in sides):
                continue
            for side in sides:
                collector.take(side.pair)
            contrasts.append(Contrast(puzzle.word, sides[0].pair, sides[1].pair, deciding))
            missing -= 1
    return contrasts


def draw_sentences(
    draw: Draw, held_out: frozenset[Combination], collector: Collector, plain_size: int, unseen_size: int
) -> tuple[list[Sentence], list[Sentence]]:
    """New sentences without and with held-out combinations, in random order."""
    plain: list[Sentence] = []
    unseen: list[Sentence] = []
    counts: Counter[str] = Counter()
    templates = [template for template, _ in TEMPLATES]
    weights = list(accumulate(weight for _, weight in TEMPLATES))
    while len(plain) < plain_size or len(unseen) < unseen_size:
        sentence = draw.rng.choices(templates, cum_weights=weights)[0](draw)
        due = FLOOR * len(plain) / plain_size
        lags = any(counts[lemma] <= due for lemma in sentence.lemmas)
        if not lags and not draw.chance(COMMON_KEPT):
            continue
        if not collector.take(sentence.pair):
            continue
        if not held_out.isdisjoint(sentence.combinations):
            if len(unseen) < unseen_size:
                unseen.append(sentence)
        elif len(plain) < plain_size:
            plain.append(sentence)
            counts.update(set(sentence.lemmas))
    return plain, unseen


def build(seed: int) -> Phrasebook:
    """Draw sentences until every split is full; the same seed gives the same phrasebook."""
    rng = Random(seed)
    held_out = draw_held_out(rng)
    draw, collector = Draw(rng), Collector()
    for landmark in LANDMARKS:
        collector.take(landmark)
    contrasts = draw_contrasts(draw, held_out, collector)

    unseen_size = int(UNSEEN_SHARE * EVALUATION_SIZE)
    plain_size = TRAIN_SIZE + 2 * (EVALUATION_SIZE - unseen_size) - len(LANDMARKS)
    plain, unseen = draw_sentences(draw, held_out, collector, plain_size, 2 * unseen_size)
    train = plain[:TRAIN_SIZE]
    half = EVALUATION_SIZE - unseen_size
    validation = plain[TRAIN_SIZE : TRAIN_SIZE + half] + unseen[:unseen_size]
    test = plain[TRAIN_SIZE + half :] + unseen[unseen_size:]
    test_pairs = [*LANDMARKS, *(sentence.pair for sentence in test)]
    validation_pairs = [sentence.pair for sentence in validation]
    rng.shuffle(test_pairs)
    rng.shuffle(validation_pairs)
    combinations = {sentence.english: sentence.combinations for sentence in (*plain, *unseen)}
    combinations |= {english: () for english, _ in LANDMARKS}
    return Phrasebook(
        train=[sentence.pair for sentence in train],
        validation=validation_pairs,
        test=test_pairs,
        contrasts=contrasts,
        held_out=held_out,
        combinations=combinations,
        lemma_counts=dict(sorted(Counter(lemma for sentence in train for lemma in set(sentence.lemmas)).items())),
    )
