"""The built-in corpus: splits, determinism, correct French, and contrast pairs that only attention can resolve."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lingua_flax.data.corpora import open_corpus
from lingua_flax.data.corpora.phrasebook import find_readings, generate, source_digest
from lingua_flax.data.corpora.phrasebook.ambiguous_words import PUZZLES
from lingua_flax.data.corpora.phrasebook.contrast_templates import ObjectPuzzle, VerbPuzzle
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
from tests.conftest import ROOT

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
def other() -> Phrasebook:
    """Returns a smaller phrasebook of another seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lingua_flax.data.corpora.phrasebook.generator.TRAIN_SIZE", 10_000)
        return generate(1)


@pytest.fixture(scope="module")
def pairs(book: Phrasebook) -> list[Pair]:
    """Returns the pairs of all splits."""
    contrasts = [side for contrast in book.contrasts for side in (contrast.first, contrast.second)]
    return [*book.train, *book.validation, *book.test, *contrasts]


# --- Splits ------------------------------------------------------------------------------------------------------


def test_split_sizes(book: Phrasebook) -> None:
    assert len(book.train) >= 40_000
    assert len(book.validation) >= 1_000
    assert len(book.test) >= 1_000
    assert len(book.contrasts) >= 320


def test_english_sentences_are_unique_across_splits(pairs: list[Pair]) -> None:
    repeated = [english for english, count in Counter(english for english, _ in pairs).items() if count > 1]
    assert repeated == []


def test_translations_are_the_same_for_all_seeds(pairs: list[Pair], other: Phrasebook) -> None:
    french: dict[str, str] = dict(pairs)
    for english, translation in [*other.train, *other.validation, *other.test]:
        assert french.setdefault(english, translation) == translation


def test_sentences_are_short_and_well_formed(pairs: list[Pair]) -> None:
    for english, french in pairs:
        for text in (english, french):
            assert re.fullmatch(r"[A-ZÀÂÉÊÎÔ][^\n’]*[.?]", text), text
            assert "  " not in text
            assert len(text.split()) <= 18, text
        assert english.endswith("?") == french.endswith(" ?")
        assert " ." not in french
        assert " ?" not in english


def test_hash_randomization_has_no_effect() -> None:
    program = """
import hashlib
from lingua_flax.data.corpora.phrasebook import generate, generator

generator.TRAIN_SIZE, generator.EVALUATION_SIZE = 5000, 100
book = generate(3)
content = (book.train, book.validation, book.test, book.contrasts, sorted(book.held_out), book.lemma_counts)
print(hashlib.sha256(repr(content).encode()).hexdigest())
"""

    def digest(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environment, text=True)

    assert digest("1") == digest("4711")


def test_seeds_yield_different_sentences(book: Phrasebook, other: Phrasebook) -> None:
    assert len(set(other.train) - set(book.train)) > 0.5 * len(other.train)


def test_corpus_contains_the_generated_splits(
    book: Phrasebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lingua_flax.data.corpora.phrasebook.generate", {0: book}.__getitem__)
    corpus = open_corpus(DataConfig(cache_directory=tmp_path))
    assert list(corpus.splits) == ["train", "validation", "test", "contrast"]
    for split in ("train", "validation", "test"):
        assert list(corpus.split(split)) == getattr(book, split)
    sides = iter(corpus.split("contrast"))
    assert list(zip(sides, sides, strict=True)) == [(contrast.first, contrast.second) for contrast in book.contrasts]


def test_source_digest_is_a_stable_sha256() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", source_digest())
    assert source_digest() == source_digest()


def test_landmarks_are_in_the_test_split_only(book: Phrasebook) -> None:
    test = dict(book.test)
    assert {english: test.get(english) for english in LANDMARKS} == LANDMARKS
    assert not set(LANDMARKS) & {english for english, _ in book.train + book.validation}


def test_words_of_landmarks_are_frequent_in_train(book: Phrasebook) -> None:
    for side in (0, 1):
        counts = Counter(word for pair in book.train for word in re.findall(r"[\w-]+", pair[side].lower()))
        words = {word for pair in LANDMARKS.items() for word in re.findall(r"[\w-]+", pair[side].lower())}
        rare = {word: counts[word] for word in words if counts[word] < 60}
        assert rare == {}


# --- Held-out combinations ---------------------------------------------------------------------------------------


def test_train_has_no_held_out_combination(book: Phrasebook) -> None:
    assert len(book.held_out) >= 300
    for english, _ in book.train:
        assert book.held_out.isdisjoint(book.combinations[english]), english


def test_train_text_contains_no_held_out_combination(book: Phrasebook) -> None:
    """The same rule, checked on the adjacent words of the sentences themselves."""
    lexicon = load_lexicon()
    plural = {noun.key: noun.english_plural for noun in lexicon.nouns}
    verbs = {verb.key: verb.english for verb in lexicon.transitives}
    described, governed = set(), set()
    for word, noun in book.held_out:
        if word.startswith("clean/"):  # both a verb and an adjective: clean walls
            continue
        for form in (noun.split("/")[0], plural[noun]):
            if word in verbs:
                english = verbs[word]
                forms = (english.base, english.third, english.past, english.gerund)
                governed |= {(f"{verb} {english.particle}".strip(), form) for verb in forms}
            else:
                described.add((word.split("/")[0], form))
    nouns = sorted({re.escape(form) for _, form in described | governed}, key=len, reverse=True)
    heads = sorted({re.escape(form) for form, _ in governed}, key=len, reverse=True)
    adjectives = sorted({re.escape(form) for form, _ in described}, key=len, reverse=True)
    determiner = r"(?:(?:the|an?|this|that|these|my|his|her|our|your|their|two|three|four|ten) )?"
    verb_object = re.compile(rf"\b({'|'.join(heads)}) {determiner}({'|'.join(nouns)})(?=[ .?]|$)")
    adjective_noun = re.compile(rf"\b({'|'.join(adjectives)}) ({'|'.join(nouns)})(?=[ .?]|$)")
    seen_verbs = {match.groups() for english, _ in book.train for match in verb_object.finditer(english)}
    seen_adjectives = {match.groups() for english, _ in book.train for match in adjective_noun.finditer(english)}
    assert len(seen_verbs) > 500
    assert len(seen_adjectives) > 500
    assert seen_verbs & governed == set()
    assert seen_adjectives & described == set()


def test_evaluation_splits_have_many_unseen_combinations(book: Phrasebook) -> None:
    for split in (book.validation, book.test):
        unseen = sum(not book.held_out.isdisjoint(book.combinations[english]) for english, _ in split)
        assert unseen >= 0.4 * len(split)


def test_words_keep_twice_as_many_combinations_as_are_held_out(book: Phrasebook) -> None:
    trained = {pair for english, _ in book.train for pair in book.combinations[english]}
    kept = Counter(word for pair in trained for word in pair)
    held_out = Counter(word for pair in book.held_out for word in pair)
    assert {word: (kept[word], count) for word, count in held_out.items() if kept[word] < 2 * count} == {}


# --- Contrasts ---------------------------------------------------------------------------------------------------


def test_contrasts_differ_in_one_token_and_in_french(book: Phrasebook) -> None:
    for contrast in book.contrasts:
        left, right = contrast.first[0].split(), contrast.second[0].split()
        assert len(left) == len(right), contrast
        differing = [(a, b) for a, b in zip(left, right, strict=True) if a != b]
        assert len(differing) == 1, contrast
        assert tuple(token.strip(".?") for token in differing[0]) == contrast.deciding
        assert contrast.first[1] != contrast.second[1]


def test_there_are_many_contrasts_for_many_words(book: Phrasebook) -> None:
    counts = Counter(contrast.word for contrast in book.contrasts)
    assert len(book.contrasts) >= 320
    assert len(counts) >= 15
    assert "it" in counts
    assert min(counts.values()) >= 15


def test_translations_of_the_ambiguous_word_differ(book: Phrasebook) -> None:
    for contrast in book.contrasts:
        here, there = (re.findall(r"[\w-]+", french.lower()) for _, french in (contrast.first, contrast.second))
        if contrast.word == "it":
            assert here[here.index("parce") + 1 :][1] != there[there.index("parce") + 1 :][1]
            continue
        first, second = (re.compile(way) for way in FRENCH_OF[contrast.word])
        assert any(first.search(word) for word in here), contrast
        assert not any(first.search(word) for word in there), contrast
        assert any(second.search(word) for word in there), contrast


FRENCH_OF = {
    "bank": ("^rive$", "^banque$"),
    "bat": ("^chauve-souris$", "^batte$"),
    "spring": ("^source$", "^ressort$"),
    "seal": ("^phoque$", "^sceau$"),
    "mole": ("^taupe$", "^grain$"),
    "trunk": ("^tronc$", "^coffre$"),
    "keys": ("^clés$", "^touches$"),
    "match": ("^allumette$", "^match$"),
    "date": ("^datte$", "^date$"),
    "square": ("^carré$", "^place$"),
    "plant": ("^plante$", "^usine$"),
    "nut": ("^noix$", "^écrou$"),
    "bulb": ("^bulbe$", "^ampoule$"),
    "fan": ("^supporter$", "^ventilateur$"),
    "speaker": ("^orateur$", "^haut-parleur$"),
    "light": ("^lég", "^clair"),
    "hard": ("^dure?$", "^difficile$"),
    "short": ("^petite?$", "^courte?$"),
    "right": ("^droite?$", "^bon(ne)?$"),
    "visit": ("^rend", "^visit"),
    "bring": ("^am[eè]n", "^apport"),
    "know": ("^sa(i|v)", "^conna"),
    "play": ("^(au|aux)$", "^(du|de)$"),
}


def test_deciding_words_occur_with_the_ambiguous_word_in_train(book: Phrasebook) -> None:
    """Both deciding words of every contrast pair do so in at least a dozen training sentences."""
    words = {contrast.word for contrast in book.contrasts}
    together: Counter[tuple[str, str]] = Counter()
    for english, _ in book.train:
        bag = {BASES.get(token, token) for token in re.findall(r"[\w-]+", english.lower())}
        for word in words & bag:
            together.update((word, token) for token in bag)
    for contrast in book.contrasts:
        for decider in contrast.deciding:
            seen = together[contrast.word, BASES.get(decider, decider.lower())]
            assert seen >= 12, (contrast.word, decider, seen)


PUZZLE_VERBS = [
    verb
    for puzzle in PUZZLES
    for verb in (
        puzzle.verbs.values()
        if isinstance(puzzle, VerbPuzzle)
        else puzzle.senses
        if isinstance(puzzle, ObjectPuzzle)
        else ()
    )
]
BASES = {
    form: verb.english.base
    for verb in PUZZLE_VERBS
    for form in (verb.english.third, verb.english.past, verb.english.gerund)
}


# --- Lexicon -----------------------------------------------------------------------------------------------------


def test_there_are_many_lemmas_and_none_is_rare(book: Phrasebook) -> None:
    assert len(book.lemma_counts) >= 400
    rare = {lemma: count for lemma, count in book.lemma_counts.items() if count < 60}
    assert rare == {}


def test_every_word_of_the_lexicon_is_used(book: Phrasebook) -> None:
    lexicon = load_lexicon()
    words = (*lexicon.nouns, *lexicon.adjectives, *lexicon.transitives, *lexicon.intransitives)
    assert [word.key for word in words if word.key not in book.lemma_counts] == []


# --- French ------------------------------------------------------------------------------------------------------

VOWEL = "[aeiouyhàâäéèêëîïôöùûüœAEIOUYHÀÂÉÈÊÎÔŒ]"
ASPIRATED = "hibou|haricot|hache|harpe|héros|haut|homard|hamster|hérisson|hall"
BEFORE_VOWEL = rf"(?=(?!{ASPIRATED}){VOWEL})"
ILLEGAL = {
    "missing contraction with de": r"\b[Dd]e les? (?!\w+(er|ir|re)\b)",
    "missing contraction with à": r"\bà les? (?!\w+(er|ir|re)\b)",
    "contraction before a vowel": rf"\b(au|du) {BEFORE_VOWEL}",
    "missing elision": rf"\b([Jj]e|[Mm]e|[Tt]e|[Ss]e|[Ll]e|[Ll]a|[Nn]e|[Qq]ue|[Dd]e) {BEFORE_VOWEL}",
    "elision before h aspiré": rf"\b\w+'({ASPIRATED})",
    "elision before a consonant": r"\b(?!aujourd)\w+'(?![aeiouyhàâäéèêëîïôöùûüœAEIOUÉÂ])",
    "ce before a vowel": rf"\bce {BEFORE_VOWEL}(?!est\b|ét)",
    "cet before a consonant": rf"\b[Cc]et (?!(?!{ASPIRATED}){VOWEL})",
    "ma, ta, sa before a vowel": rf"\b([Mm]a|[Tt]a|[Ss]a) {BEFORE_VOWEL}",
    "beau, nouveau before a vowel": rf"\b(beau|nouveau) {BEFORE_VOWEL}",
    "vieux before a vowel": rf"\b(un|le|ce|mon|son|notre|votre|leur) vieux {BEFORE_VOWEL}",
    "bel, vieil, nouvel before a consonant": rf"\b(bel|vieil|nouvel) (?!(?!{ASPIRATED}){VOWEL})",
    "si il": r"\b[Ss]i ils?\b",
    "partitive after negation": (
        r"\b[Nn](?:e |')(?!est|ét|s[ou]|êtes|re?v[ie]|ven|vien|jou)\w+ (?:pas|jamais) (?!jou)"
        r"(?:\w+[éiu]s? )?(?:une?|du|des) "
    ),
    "des before a preposed adjective": (
        r"\bdes (grand|petit|nouvel|joli|bon|beaux|belles|nouveaux|bonnes|mauvais|jeunes|vie[ui])\w* \w"
    ),
    "negation without its second half": r"\b([Nn]e |[Nn]')(?!.*\b(pas|jamais)\b)",
    "two spaces": r"  ",
    "space before the full stop": r" \.",
    "no space before the question mark": r"\S\?",
    "left-over markup": r"[/_+|:;<>\[\]()\"]",
}


@pytest.mark.parametrize("rule", ILLEGAL)
def test_french_has_no_illegal_sequence(rule: str, pairs: list[Pair]) -> None:
    pattern = re.compile(ILLEGAL[rule])
    assert [french for _, french in pairs if pattern.search(french)][:5] == []


ILLEGAL_EXAMPLES = {
    "missing contraction with de": "Je viens de le marché.",
    "missing contraction with à": "Je vais à les champs.",
    "contraction before a vowel": "Je vais au hôtel.",
    "missing elision": "La eau est froide.",
    "elision before h aspiré": "C'est l'hibou.",
    "elision before a consonant": "Je l'vois.",
    "ce before a vowel": "Je vois ce homme.",
    "cet before a consonant": "Je vois cet hibou.",
    "ma, ta, sa before a vowel": "C'est ma amie.",
    "beau, nouveau before a vowel": "C'est un beau arbre.",
    "vieux before a vowel": "C'est un vieux homme.",
    "bel, vieil, nouvel before a consonant": "C'est un bel héros.",
    "si il": "Je ne sais pas si il vient.",
    "partitive after negation": "Il ne mange pas du pain.",
    "des before a preposed adjective": "Il a des beaux livres.",
    "negation without its second half": "Il ne mange.",
    "two spaces": "Il  mange.",
    "space before the full stop": "Il mange .",
    "no space before the question mark": "Est-ce qu'il mange?",
    "left-over markup": "Il mange un/une pomme.",
}


@pytest.mark.parametrize("rule", ILLEGAL)
def test_rules_detect_mistakes(rule: str) -> None:
    assert re.search(ILLEGAL[rule], ILLEGAL_EXAMPLES[rule])


# --- Hard cases, written by hand ---------------------------------------------------------------------------------

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
    "the | man": "l'homme",
    "the | hero": "le héros",
    "the | owl": "le hibou",
    "the | owls": "les hiboux",
    "the | axe": "la hache",
    "the | school": "l'école",
    "this | man": "cet homme",
    "this | hero": "ce héros",
    "that | lobster": "ce homard",
    "this | old | man": "ce vieil homme",
    "an ancient tree: a | old | tree": "un vieil arbre",
    "a | beautiful | bird": "un bel oiseau",
    "a | beautiful | hedgehog": "un beau hérisson",
    "a | new | hotel": "un nouvel hôtel",
    "the | new | school": "la nouvelle école",
    "- | beautiful | trees": "de beaux arbres",
    "- | old | houses": "de vieilles maisons",
    "- | red | cars": "des voitures rouges",
    "the | white | dress": "la robe blanche",
    "two | expensive | jewels": "deux bijoux chers",
    "- | water": "de l'eau",
    "- | soup": "de la soupe",
    "- | fish": "du poisson",
    "- | delicious | soup": "de la soupe délicieuse",
    "my | aunt": "ma tante",
    "my | scarf": "mon écharpe",
    "her | beautiful | scarf": "sa belle écharpe",
    "his | axe": "sa hache",
    "their | eyes": "leurs yeux",
    "our | uncle": "notre oncle",
    "your | newspapers": "vos journaux",
    "the | potatoes": "les pommes de terre",
    "a | wooden | chair": "une chaise en bois",
    "the | fresh | salad": "la salade fraîche",
    "a | lazy | girl": "une fille paresseuse",
    "the | broken | windows": "les fenêtres cassées",
}


@pytest.mark.parametrize(("english", "french"), NOUN_PHRASES.items())
def test_noun_phrase(english: str, french: str) -> None:
    assert elide(_phrase(english.rpartition(": ")[2]).french) == french


OFTEN = Form(english_adverb="often", french_adverb="souvent")
# subject, verb, form, object (a phrase or "him", "them" ...), and the sentence in both languages
CLAUSES: list[tuple[str, str, Form, str, str, str]] = [
    ("the | cat", "eat", Form(), "- | fish", "The cat eats fish.", "Le chat mange du poisson."),
    ("the | cat", "like", Form(), "- | fish", "The cat likes fish.", "Le chat aime le poisson."),
    ("he", "eat", Form(negation="not"), "- | bread", "He does not eat bread.", "Il ne mange pas de pain."),
    ("she", "drink", Form(negation="not"), "- | water", "She does not drink water.", "Elle ne boit pas d'eau."),
    ("we", "eat", Form(), "- | apples", "We eat apples.", "Nous mangeons des pommes."),
    ("I", "eat", Form("past", "not"), "a | apple", "I did not eat an apple.", "Je n'ai pas mangé de pomme."),
    ("they", "buy", Form("past", "never"), "- | eggs", "They never bought eggs.", "Ils n'ont jamais acheté d'œufs."),
    ("I", "see", Form("past"), "her", "I saw her.", "Je l'ai vue."),
    ("I", "see", Form("past"), "him", "I saw him.", "Je l'ai vu."),
    ("Marie", "see", Form("past", "not"), "them", "Marie did not see them.", "Marie ne les a pas vus."),
    ("he", "see", Form(), "me", "He sees me.", "Il me voit."),
    ("she", "help", Form("past"), "us", "She helped us.", "Elle nous a aidés."),
    ("they", "help", Form(), "you", "They help you.", "Ils vous aident."),
    ("he", "listen to", Form(), "her", "He listens to her.", "Il l'écoute."),
    ("we", "call", Form("future"), "her", "We are going to call her.", "Nous allons l'appeler."),
    ("you", "call", Form("can", "not"), "me", "You cannot call me.", "Vous ne pouvez pas m'appeler."),
    ("I", "invite", Form("want"), "them", "I want to invite them.", "Je veux les inviter."),
    ("she", "get up", Form("past"), "", "She got up.", "Elle s'est levée."),
    ("they", "get up", Form("past", "not"), "", "They did not get up.", "Ils ne se sont pas levés."),
    ("I", "get dressed", Form(), "", "I get dressed.", "Je m'habille."),
    ("we", "rest", Form("future"), "", "We are going to rest.", "Nous allons nous reposer."),
    ("the | otter", "fall asleep", Form("past"), "", "The otter fell asleep.", "La loutre s'est endormie."),
    ("you", "get bored", Form("progressive"), "", "You are getting bored.", "Vous vous ennuyez."),
    ("he", "get bored", Form(), "", "He gets bored.", "Il s'ennuie."),
    ("she", "leave", Form("past"), "", "She left.", "Elle est partie."),
    ("the | girls", "arrive", Form("past"), "", "The girls arrived.", "Les filles sont arrivées."),
    ("we", "come back", Form("past", question=True), "", "Did we come back?", "Est-ce que nous sommes revenus ?"),
    ("Antoine", "stay", Form("past", question=True), "", "Did Antoine stay?", "Est-ce qu'Antoine est resté ?"),
    ("he", "sleep", Form("past progressive"), "", "He was sleeping.", "Il dormait."),
    ("we", "swim", Form("past progressive"), "", "We were swimming.", "Nous nagions."),
    ("I", "have", Form(negation="not"), "a | car", "I do not have a car.", "Je n'ai pas de voiture."),
    ("she", "have", Form("habit"), "a | dog", "She had a dog.", "Elle avait un chien."),
    ("she", "wear", Form(), "the | new | coat", "She wears the new coat.", "Elle porte le nouveau manteau."),
    ("they", "peel", Form("progressive"), "a | onion", "They are peeling an onion.", "Ils épluchent un oignon."),
    ("he", "throw", Form(), "the | ball", "He throws the ball.", "Il jette le ballon."),
    ("they", "paint", Form(), "the | door", "They paint the door.", "Ils peignent la porte."),
    ("I", "buy", OFTEN, "- | ham", "I often buy ham.", "J'achète souvent du jambon."),
    ("he", "protect", Form("must"), "the | house", "He must protect the house.", "Il doit protéger la maison."),
    ("she", "protect", Form(), "the | child", "She protects the child.", "Elle protège l'enfant."),
    ("he", "carry", Form(question=True), "my | bag", "Does he carry my bag?", "Est-ce qu'il porte mon sac ?"),
    ("they", "build", Form("past"), "this | boat", "They built this boat.", "Ils ont construit ce bateau."),
]


@pytest.mark.parametrize(("subject", "verb", "form", "object_", "english", "french"), CLAUSES)
def test_clause(subject: str, verb: str, form: Form, object_: str, english: str, french: str) -> None:
    word = load_lexicon().verb(verb)
    phrase = OBJECTS.get(object_) or (_phrase(object_, "generic" in word.flags) if object_ else None)
    sentence = finish(clause(_phrase(subject), word, form, phrase), form.question)
    assert sentence.pair == (english, french)


COPULAS: list[tuple[str, str, Form, str, str]] = [
    ("you", "tired", Form(), "You are tired.", "Vous êtes fatigué."),
    ("she", "hungry", Form(), "She is hungry.", "Elle a faim."),
    ("I", "thirsty", Form("past"), "I was thirsty.", "J'avais soif."),
    ("they", "afraid", Form(negation="not"), "They are not afraid.", "Ils n'ont pas peur."),
    ("we", "happy", Form("past"), "We were happy.", "Nous étions heureux."),
    ("the | soup", "cold", Form("past"), "The soup was cold.", "La soupe était froide."),
    ("my | shoes", "dry", Form(question=True), "Are my shoes dry?", "Est-ce que mes chaussures sont sèches ?"),
    ("Emma", "proud", Form(question=True), "Is Emma proud?", "Est-ce qu'Emma est fière ?"),
    ("this | house", "old", Form(), "This house is old.", "Cette maison est vieille."),
    ("the | grass", "soft", Form(), "The grass is soft.", "L'herbe est douce."),
    ("the | girl", "late", Form("past", "not"), "The girl was not late.", "La fille n'était pas en retard."),
    ("the | tower", "high", Form(), "The tower is high.", "La tour est haute."),
]


@pytest.mark.parametrize(("subject", "adjective", "form", "english", "french"), COPULAS)
def test_copula(subject: str, adjective: str, form: Form, english: str, french: str) -> None:
    sentence = finish(copula(_phrase(subject), load_lexicon().adjective(adjective), form), form.question)
    assert sentence.pair == (english, french)


@pytest.mark.parametrize(
    ("preposition", "phrase", "french"),
    [
        ("de", "le marché", "du marché"),
        ("de", "le hôtel", "de l'hôtel"),
        ("de", "le hibou", "du hibou"),
        ("de", "les enfants", "des enfants"),
        ("de", "la école", "de l'école"),
        ("de", "Emma", "d'Emma"),
        ("à", "le médecin", "au médecin"),
        ("à", "le homme", "à l'homme"),
        ("à", "les échecs", "aux échecs"),
        ("à", "la gare", "à la gare"),
        ("dans", "le jardin", "dans le jardin"),
    ],
)
def test_preposition_and_article(preposition: str, phrase: str, french: str) -> None:
    assert elide(attach(preposition, phrase)) == french


@pytest.mark.parametrize(
    ("word", "article"), [("apple", "an"), ("useful", "a"), ("honest", "an"), ("house", "a"), ("old", "an")]
)
def test_english_article(word: str, article: str) -> None:
    assert indefinite_article(word) == article


def test_reading_of_every_contrast_reference_is_recognized(book: Phrasebook) -> None:
    """The patterns identify the sense that a translation chose, for every pair and every ambiguous word."""
    words = set()
    for contrast in book.contrasts:
        (first, one), (second, other) = contrast.first, contrast.second
        result = find_readings((first, second), (one, other))
        assert result is not None, contrast
        readings, senses = result
        assert sorted(senses) == [0, 1]
        assert [readings.of(text) for text in (one, other)] == list(senses)
        assert readings.word.search(contrast.word)
        words.add(readings.word.pattern)
    assert words == {readings.word.pattern for readings in READINGS}
