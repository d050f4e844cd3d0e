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
from lingua_flax.data.corpora.phrasebook.lexicon import load_lexicon
from lingua_flax.data.corpora.phrasebook.morphology import attach, elide, indefinite_article
from lingua_flax.data.corpora.phrasebook.phrases import (
    PRONOUNS,
    Form,
    NounPhrase,
    Pair,
    Pronoun,
    clause,
    copula,
    finish,
    name_phrase,
    noun_phrase,
    pronoun_phrase,
)
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


def test_landmarks_are_in_the_test_split_only(book):
    test = dict(book.test)
    assert {english: test.get(english) for english in LANDMARKS} == LANDMARKS
    assert not set(LANDMARKS) & {english for english, _ in book.train + book.validation}


# Held-out combinations.


DETERMINER = re.compile("the|an?|this|that|these|my|his|her|our|your|their|two|three|four|ten")


def test_train_contains_no_held_out_combination(book):
    """According to its own records, and to adjacent words of the sentences."""
    assert len(book.held_out) >= 300
    seen = set()
    for english, _ in book.train:
        assert book.held_out.isdisjoint(book.combinations[english]), english
        seen.update(pairwise(word for word in english[:-1].split() if not DETERMINER.fullmatch(word)))
    plural = {noun.key: noun.english_plural for noun in load_lexicon().nouns}
    for word, noun in book.held_out:
        if not word.startswith("clean/"):  # both a verb and an adjective: clean walls
            assert not {(word.split("/")[0], form) for form in (noun.split("/")[0], plural[noun])} & seen


def test_evaluation_splits_have_many_unseen_combinations_but_no_word_loses_most_of_its(book):
    for split in (book.validation, book.test):
        unseen = sum(not book.held_out.isdisjoint(book.combinations[english]) for english, _ in split)
        assert unseen >= 0.4 * len(split)
    trained = {pair for english, _ in book.train for pair in book.combinations[english]}
    kept = Counter(word for pair in trained for word in pair)
    held_out = Counter(word for pair in book.held_out for word in pair)
    assert {word: (kept[word], count) for word, count in held_out.items() if kept[word] < 2 * count} == {}


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


# Lexicon.


def test_every_word_of_the_lexicon_is_used_and_none_is_rare(book):
    assert len(book.lemma_counts) >= 400
    assert {lemma: count for lemma, count in book.lemma_counts.items() if count < 60} == {}
    lexicon = load_lexicon()
    words = (*lexicon.nouns, *lexicon.adjectives, *lexicon.transitives, *lexicon.intransitives)
    assert [word.key for word in words if word.key not in book.lemma_counts] == []


# French.

VOWEL = "[aeiouyhàâäéèêëîïôöùûüœAEIOUYHÀÂÉÈÊÎÔŒ]"
ASPIRATED = "hibou|haricot|hache|harpe|héros|haut|homard|hamster|hérisson|hall"
BEFORE_VOWEL = rf"(?=(?!{ASPIRATED}){VOWEL})"
ILLEGAL = [  # patterns, each with a mistake that it finds
    (r"\b[Dd]e les? (?!\w+(er|ir|re)\b)", "Je viens de le marché."),
    (r"\bà les? (?!\w+(er|ir|re)\b)", "Je vais à les champs."),
    (rf"\b(au|du) {BEFORE_VOWEL}", "Je vais au hôtel."),
    (rf"\b([Jj]e|[Mm]e|[Tt]e|[Ss]e|[Ll]e|[Ll]a|[Nn]e|[Qq]ue|[Dd]e) {BEFORE_VOWEL}", "La eau est froide."),
    (rf"\b\w+'({ASPIRATED})", "C'est l'hibou."),
    (r"\b(?!aujourd)\w+'(?![aeiouyhàâäéèêëîïôöùûüœAEIOUÉÂ])", "Je l'vois."),
    (rf"\bce {BEFORE_VOWEL}(?!est\b|ét)", "Je vois ce homme."),
    (rf"\b[Cc]et (?!(?!{ASPIRATED}){VOWEL})", "Je vois cet hibou."),
    (rf"\b([Mm]a|[Tt]a|[Ss]a) {BEFORE_VOWEL}", "C'est ma amie."),
    (rf"\b(beau|nouveau) {BEFORE_VOWEL}", "C'est un beau arbre."),
    (rf"\b(un|le|ce|mon|son|notre|votre|leur) vieux {BEFORE_VOWEL}", "C'est un vieux homme."),
    (rf"\b(bel|vieil|nouvel) (?!(?!{ASPIRATED}){VOWEL})", "C'est un bel héros."),
    (r"\b[Ss]i ils?\b", "Je ne sais pas si il vient."),
    (
        r"\b[Nn](?:e |')(?!est|ét|s[ou]|êtes|re?v[ie]|ven|vien|jou)\w+ (?:pas|jamais) (?!jou)"
        r"(?:\w+[éiu]s? )?(?:une?|du|des) ",
        "Il ne mange pas du pain.",
    ),
    (
        r"\bdes (grand|petit|nouvel|joli|bon|beaux|belles|nouveaux|bonnes|mauvais|jeunes|vie[ui])\w* \w",
        "Il a des beaux livres.",
    ),
    (r"\b([Nn]e |[Nn]')(?!.*\b(pas|jamais)\b)", "Il ne mange."),
    (r"\S\?", "Est-ce qu'il mange?"),
    (r"[/_+|:;<>\[\]()\"]", "Il mange un/une pomme."),
]


def test_french_has_no_illegal_sequence(pairs):
    for rule, mistake in ILLEGAL:
        pattern = re.compile(rule)
        assert pattern.search(mistake)
        assert [french for _, french in pairs if pattern.search(french)][:5] == [], mistake


# Hard cases, written by hand.

POSSESSIVES = {pronoun.english_possessive: pronoun for pronoun in PRONOUNS}
SUBJECTS = {pronoun.english: pronoun for pronoun in PRONOUNS}
OBJECTS = {pronoun.english_object: pronoun for pronoun in PRONOUNS}


def _phrase(text: str, generic: bool = False) -> NounPhrase:
    """Parses "these | beautiful | trees", "- | fish" (no article), "she" or "Marie"."""
    parts = [part.strip() for part in text.split("|")]
    if len(parts) == 1:
        if text in SUBJECTS:
            return pronoun_phrase(SUBJECTS[text])
        return name_phrase(text, text in ("Marie", "Emma", "Alice"))
    determiner: str | Pronoun = POSSESSIVES.get(parts[0], "bare" if parts[0] == "-" else parts[0])
    noun = next(n for n in load_lexicon().nouns if parts[-1] in (n.english, n.english_plural))
    adjective = load_lexicon().adjective(parts[1]) if len(parts) == 3 else None
    return noun_phrase(noun, determiner, parts[-1] != noun.english, adjective, generic)


NOUN_PHRASES = {
    "this | hero": "ce héros",
    "this | old | man": "ce vieil homme",
    "a | beautiful | bird": "un bel oiseau",
    "- | beautiful | trees": "de beaux arbres",
    "two | expensive | jewels": "deux bijoux chers",
    "- | delicious | soup": "de la soupe délicieuse",
    "his | axe": "sa hache",
}


OFTEN = Form(english_adverb="often", french_adverb="souvent")
# subject, verb, form, object (a phrase or "him", "them" ...), and the sentence in both languages
CLAUSES: list[tuple[str, str, Form, str, str, str]] = [
    ("the | cat", "like", Form(), "- | fish", "The cat likes fish.", "Le chat aime le poisson."),
    ("he", "eat", Form(negation="not"), "- | bread", "He does not eat bread.", "Il ne mange pas de pain."),
    ("I", "eat", Form("past", "not"), "a | apple", "I did not eat an apple.", "Je n'ai pas mangé de pomme."),
    ("they", "buy", Form("past", "never"), "- | eggs", "They never bought eggs.", "Ils n'ont jamais acheté d'œufs."),
    ("I", "see", Form("past"), "her", "I saw her.", "Je l'ai vue."),
    ("Marie", "see", Form("past", "not"), "them", "Marie did not see them.", "Marie ne les a pas vus."),
    ("you", "call", Form("can", "not"), "me", "You cannot call me.", "Vous ne pouvez pas m'appeler."),
    ("I", "get dressed", Form(), "", "I get dressed.", "Je m'habille."),
    ("she", "leave", Form("past"), "", "She left.", "Elle est partie."),
    ("we", "come back", Form("past", question=True), "", "Did we come back?", "Est-ce que nous sommes revenus ?"),
    ("Antoine", "stay", Form("past", question=True), "", "Did Antoine stay?", "Est-ce qu'Antoine est resté ?"),
    ("she", "have", Form("habit"), "a | dog", "She had a dog.", "Elle avait un chien."),
    ("I", "buy", OFTEN, "- | ham", "I often buy ham.", "J'achète souvent du jambon."),
]


def test_clauses():
    for subject, verb, form, object_, english, french in CLAUSES:
        word = load_lexicon().verb(verb)
        phrase = OBJECTS.get(object_) or (_phrase(object_, "generic" in word.flags) if object_ else None)
        sentence = finish(clause(_phrase(subject), word, form, phrase), form.question)
        assert sentence.pair == (english, french)


COPULAS: list[tuple[str, str, Form, str, str]] = [
    ("she", "hungry", Form(), "She is hungry.", "Elle a faim."),
    ("they", "afraid", Form(negation="not"), "They are not afraid.", "Ils n'ont pas peur."),
    ("my | shoes", "dry", Form(question=True), "Are my shoes dry?", "Est-ce que mes chaussures sont sèches ?"),
    ("the | girl", "late", Form("past", "not"), "The girl was not late.", "La fille n'était pas en retard."),
]
PREPOSITIONS = {
    ("de", "le marché"): "du marché",
    ("de", "le hôtel"): "de l'hôtel",
    ("à", "le homme"): "à l'homme",
    ("à", "les échecs"): "aux échecs",
    ("à", "la gare"): "à la gare",
}
ARTICLES = {"apple": "an", "useful": "a", "honest": "an", "house": "a"}


def test_phrases_and_copulas():
    assert {english: elide(_phrase(english).french) for english in NOUN_PHRASES} == NOUN_PHRASES
    assert {phrase: elide(attach(*phrase)) for phrase in PREPOSITIONS} == PREPOSITIONS
    assert {word: indefinite_article(word) for word in ARTICLES} == ARTICLES
    for subject, adjective, form, english, french in COPULAS:
        sentence = finish(copula(_phrase(subject), load_lexicon().adjective(adjective), form), form.question)
        assert sentence.pair == (english, french)


# The corpus in the cache.


def test_corpus_is_generated_again_only_if_its_source_changes(cache, monkeypatch):
    """If the sentences are the same, for example because only a comment changed, checkpoints remain valid."""
    seeds = []

    def generate_few(seed: int) -> Phrasebook:
        seeds.append(seed)
        pairs = [(f"Line {number}.", f"Ligne {number}.") for number in range(100 * seed, 100 * seed + 9)]
        contrasts = [Contrast("line", pairs[i], pairs[i + 1], (str(i), str(i + 1))) for i in (5, 7)]
        return Phrasebook(pairs[:3], pairs[3:4], pairs[4:5], contrasts, frozenset(), {}, {})

    monkeypatch.setattr(phrasebook, "generate", generate_few)
    config = DataConfig(cache_directory=cache)
    first, _ = open_corpus(config), open_corpus(config)
    assert seeds == [0]
    assert sizes(first) == {"train": 3, "validation": 1, "test": 1, "contrast": 4}
    assert [english for split in first.splits.values() for english, _ in split] == [f"Line {i}." for i in range(9)]
    monkeypatch.setattr(phrasebook, "source_digest", lambda: "changed")
    assert open_corpus(config).fingerprint == first.fingerprint
    monkeypatch.setattr(phrasebook, "_SEED", 1)
    assert open_corpus(config).fingerprint != first.fingerprint
    assert seeds == [0, 0, 1]
