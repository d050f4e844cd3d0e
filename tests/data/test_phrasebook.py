"""The built-in corpus: splits, correct French, and contrast pairs that only attention can resolve."""

import re
from collections import Counter

import pytest

from lingua_flax.data.corpora import Corpus, Pair, open_corpus
from lingua_flax.data.corpora.phrasebook import READINGS, find_readings
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
def corpus() -> Corpus:
    return open_corpus(DataConfig())


@pytest.fixture(scope="module")
def contrasts(corpus) -> list[tuple[Pair, Pair]]:
    lines = list(corpus.split("contrast"))
    return list(zip(lines[::2], lines[1::2], strict=True))


# Splits.


def test_sentences_are_short_well_formed_and_different(corpus):
    pairs = [pair for split in corpus.splits.values() for pair in split]
    for english, french in pairs:
        for text in (english, french):
            assert re.fullmatch(r"[A-ZÀÂÉÊÎÔ][^\n’]*[.?]", text), text
            assert len(text.split()) <= 18, text
        assert english.endswith("?") == french.endswith(" ?")
        assert " ?" not in english
    assert sizes(corpus) == {"train": 50_000, "validation": 1_000, "test": 1_000, "contrast": 864}
    assert len(dict(pairs)) == len(pairs)


def test_sentences_are_those_of_the_first_run(corpus):
    """If they change, runs that were trained on them cannot be resumed."""
    assert corpus.digest == "e484721ac5e4744d9cd07bdd5448c288fd5f379a3d043cf7bd0f0130e7d2dac9"


def test_training_has_every_english_word_of_the_other_splits(corpus):
    words = {
        split: {word for pair in pairs for word in re.findall(r"\w+", pair.source.lower())}
        for split, pairs in corpus.splits.items()
    }
    assert words["validation"] | words["test"] | words["contrast"] <= words["train"]


# Contrasts.


def test_contrasts_differ_in_one_token_and_in_french(contrasts):
    for first, second in contrasts:
        tokens = zip(first.source.split(), second.source.split(), strict=True)
        assert sum(own != other for own, other in tokens) == 1, (first, second)
        assert first.target != second.target


def test_references_express_the_senses_that_the_readings_tell(contrasts):
    """Each reference matches the pattern of its sense and not that of the other one, for every ambiguous word."""
    names = Counter()
    for first, second in contrasts:
        found = find_readings(*zip(first, second, strict=True))
        assert found is not None, first
        readings, senses = found
        assert senses == (0, 1) or (readings.name == "it" and senses == (1, 0))
        assert readings.word.search(readings.name)
        names[readings.name] += 1
    assert names == {readings.name: 18 for readings in READINGS}


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


def test_translations_checked_by_hand(corpus):
    french = dict(pair for split in corpus.splits.values() for pair in split)
    expected = LANDMARKS | HARD_CASES
    assert {english: french.get(english) for english in expected} == expected
    assert LANDMARKS.keys() <= dict(corpus.split("test")).keys()
