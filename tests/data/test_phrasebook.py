"""The built-in corpus: splits, determinism, correct French, and contrast pairs that only attention can resolve."""

import hashlib
import re
from collections import Counter
from itertools import pairwise

import pytest

from lingua_flax.data.corpora import open_corpus, phrasebook
from lingua_flax.data.corpora.phrasebook import find_readings, generate
from lingua_flax.data.corpora.phrasebook.contrast_templates import Contrast
from lingua_flax.data.corpora.phrasebook.generator import Phrasebook
from lingua_flax.data.corpora.phrasebook.lexicon import NOUNS, TRANSITIVES, read_words
from lingua_flax.data.corpora.phrasebook.phrases import Pair
from lingua_flax.data.corpora.phrasebook.readings import READINGS
from lingua_flax.options.schema import DataConfig
from tests.helpers.pairs import sizes

LANDMARKS = {
    "The cat eats fish.": "Le chat mange du poisson.",
    "She ate an apple.": "Elle a mangé une pomme.",
    "The cat sits on the mat.": "Le chat est assis sur le tapis.",
    "The cat sat on the mat because it was tired.": "Le chat s'est assis sur le tapis parce qu'il était fatigué.",
    "I deposited my paycheck at the bank yesterday.": "J'ai déposé mon chèque de paie à la banque hier.",
    "I swam across the river to get to the other bank.": (
        "J'ai traversé la rivière à la nage pour atteindre l'autre rive."
    ),
}


@pytest.fixture(scope="module")
def book() -> Phrasebook:
    return generate(0)


@pytest.fixture(scope="module")
def pairs(book: Phrasebook) -> list[Pair]:
    """Returns the pairs of all splits."""
    contrasts = [side for contrast in book.contrasts for side in (contrast.first, contrast.second)]
    return [*book.train, *book.validation, *book.test, *contrasts]


# Splits.


def test_sentences_are_short_well_formed_and_different(book, pairs):
    for english, french in pairs:
        for text in (english, french):
            assert re.fullmatch(r"[A-ZÀÂÉÊÎÔ][^\n’]*[.?]", text), text
            assert len(text.split()) <= 18, text
        assert english.endswith("?") == french.endswith(" ?")
        assert " ?" not in english
    assert len(book.train) >= 40_000
    assert min(len(book.validation), len(book.test)) >= 1_000
    assert len(dict(pairs)) == len(pairs)


def test_sentences_are_those_of_the_first_run_in_every_process(book):
    """If they change, runs that were trained on them cannot be resumed."""
    content = repr((book.train, book.validation, book.test, book.contrasts, sorted(book.held_out)))
    digest = "53d3728d6a6260d45844eaebfc141f83710dc73656a11165842ec1d123a88b17"
    assert hashlib.sha256(content.encode()).hexdigest() == digest


# Held-out combinations.


DETERMINER = re.compile("the|an?|this|that|these|my|his|her|our|your|their|two|three|four|ten")


def test_train_contains_no_held_out_combination(book):
    """According to its own records, and to adjacent words of the sentences."""
    assert len(book.held_out) >= 300
    described, governed = set(), set()
    for english, _ in book.train:
        assert book.held_out.isdisjoint(book.combinations[english]), english
        words = english[:-1].split()
        described.update(pairwise(words))
        governed.update(pairwise(word for word in words if not DETERMINER.fullmatch(word)))
    assert len(NOUNS) == sum(map(len, read_words("nouns").values()))  # none is listed twice
    plural = {noun.key: noun.english_plural for noun in NOUNS.values()}
    verbs = {verb.key for verb in TRANSITIVES.values()}
    for word, noun in book.held_out:
        if not word.startswith("clean/"):  # both a verb and an adjective: clean walls
            seen = governed if word in verbs else described
            assert not {(word.split("/")[0], form) for form in (noun.split("/")[0], plural[noun])} & seen


# Contrasts.


def test_contrasts_differ_in_one_token_and_in_french(book):
    counts = Counter(contrast.word for contrast in book.contrasts)
    assert len(counts) >= 15
    assert min(counts.values()) >= 15
    for contrast in book.contrasts:
        left, right = contrast.first[0].split(), contrast.second[0].split()
        differing = [(a, b) for a, b in zip(left, right, strict=True) if a != b]
        assert len(differing) == 1, contrast
        assert tuple(token.strip(".?") for token in differing[0]) == contrast.deciding
        assert contrast.first[1] != contrast.second[1]


def test_references_express_the_senses_that_the_readings_tell(book):
    """Each reference matches the pattern of its sense and not that of the other one, for every ambiguous word."""
    words = set()
    for contrast in book.contrasts:
        (first, one), (second, other) = contrast.first, contrast.second
        result = find_readings((first, second), (one, other))
        assert result is not None, contrast
        readings, senses = result
        assert senses == (0, 1) or (contrast.word == "it" and senses == (1, 0))
        assert [readings.of(text) for text in (one, other)] == list(senses)
        assert readings.word.search(contrast.word)
        words.add(readings.word.pattern)
    assert words == {readings.word.pattern for readings in READINGS}


# French.

HARD_CASES = {
    "She likes owls.": "Elle aime les hiboux.",
    "She does not buy an egg.": "Elle n'achète pas d'œuf.",
    "You never saw her.": "Vous ne l'avez jamais vue.",
    "I did not find them.": "Je ne les ai pas trouvés.",
    "Pierre cannot thank me.": "Pierre ne peut pas me remercier.",
    "He gets bored.": "Il s'ennuie.",
    "She arrived.": "Elle est arrivée.",
    "Did Antoine stop?": "Est-ce qu'Antoine s'est arrêté ?",
    "We were cooking.": "Nous cuisinions.",
    "She often works.": "Elle travaille souvent.",
    "Is this hotel empty?": "Est-ce que cet hôtel est vide ?",
    "This is the old tree.": "C'est le vieil arbre.",
    "I built beautiful castles.": "J'ai construit de beaux châteaux.",
    "There are two expensive armchairs in the attic.": "Il y a deux fauteuils chers dans le grenier.",
    "Does my friend Emma help this man?": "Est-ce que mon amie Emma aide cet homme ?",
    "Is she angry?": "Est-ce qu'elle est en colère ?",
    "I am hungry.": "J'ai faim.",
    "They play chess.": "Ils jouent aux échecs.",
    "There is an old bird at the market.": "Il y a un vieil oiseau au marché.",
}


def test_translations_checked_by_hand(book, pairs):
    french, expected = dict(pairs), LANDMARKS | HARD_CASES
    assert {english: french.get(english) for english in expected} == expected
    assert LANDMARKS.keys() <= dict(book.test).keys()


# The corpus in the cache.


def test_corpus_is_generated_again_only_if_its_source_changes(cache, monkeypatch):
    """If the sentences are the same, for example because only a comment changed, checkpoints remain valid."""
    seeds = []

    def generate_few(seed: int) -> Phrasebook:
        seeds.append(seed)
        pairs = [(f"Line {number}.", f"Ligne {number}.") for number in range(100 * seed, 100 * seed + 9)]
        contrasts = [Contrast("line", pairs[i], pairs[i + 1], (str(i), str(i + 1))) for i in (5, 7)]
        return Phrasebook(pairs[:3], pairs[3:4], pairs[4:5], contrasts, frozenset(), {})

    monkeypatch.setattr(phrasebook, "generate", generate_few)
    config = DataConfig(cache_directory=cache)
    first, _ = open_corpus(config), open_corpus(config)
    assert seeds == [0]
    assert sizes(first) == {"train": 3, "validation": 1, "test": 1, "contrast": 4}
    assert [english for split in first.splits.values() for english, _ in split] == [f"Line {i}." for i in range(9)]
    monkeypatch.setattr(phrasebook, "source_digest", lambda: "changed")
    assert open_corpus(config).digest == first.digest
    monkeypatch.setattr(phrasebook, "_SEED", 1)
    assert open_corpus(config).digest != first.digest
    assert seeds == [0, 0, 1]
