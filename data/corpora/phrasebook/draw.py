"""Drawing words, phrases and verb forms at random, within what the lexicon's classes allow."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from .lexicon import FEMALE_NAMES, FREQUENCY_ADVERBS, MALE_NAMES, TIME_ADVERBS, Adjective, Noun, Verb, load_lexicon
from .morphology import attach
from .phrases import (
    NUMBERS,
    PRONOUNS,
    Form,
    NounPhrase,
    Pair,
    Pronoun,
    befriend,
    name_phrase,
    noun_phrase,
    pronoun_phrase,
)

Item = TypeVar("Item")

STEADY = frozenset({"habit", "present"})  # flags of verbs that say a lasting state: has, knows, likes
TENSES = ("present", "progressive", "past", "past progressive", "future", "can", "must", "want")
TENSE_WEIGHTS = (24, 34, 68, 73, 85, 90, 95, 100)  # cumulative
PLACE_PREPOSITIONS = {"in": "dans", "at": "à", "on": "sur"}


@cache
def objects_of(verb: Verb) -> tuple[Noun, ...]:
    """Nouns that can be the object of a verb."""
    return load_lexicon().select(verb.objects)


@cache
def nouns_of(adjective: Adjective) -> tuple[Noun, ...]:
    """Nouns an adjective can describe."""
    return load_lexicon().select(adjective.classes)


ATTRIBUTES = tuple(item for item in load_lexicon().adjectives if item.attributive)
PREDICATES = tuple(item for item in load_lexicon().adjectives if item.predicative)


@cache
def adjectives_of(noun: Noun, beside: bool) -> tuple[Adjective, ...]:
    """Adjectives that can describe a noun, `beside` it (a red apple) or after to be."""
    return tuple(item for item in (ATTRIBUTES if beside else PREDICATES) if noun in nouns_of(item))


@cache
def nouns(*classes: str) -> tuple[Noun, ...]:
    """Nouns of the given classes or names."""
    return load_lexicon().select(classes)


def at_place(noun: Noun) -> tuple[str, str, tuple[str, ...]]:
    """A place behind its own preposition: in the kitchen, at the station; with its lemmas."""
    preposition = next(word for word in PLACE_PREPOSITIONS if word in noun.classes)
    phrase = noun_phrase(noun, "the")
    return f"{preposition} {phrase.english}", attach(PLACE_PREPOSITIONS[preposition], phrase.french), phrase.lemmas


def unmistakable(form: Form, verb: Verb, subject: NounPhrase) -> Form:
    """They read, they cut: where English does not tell present from past, it is past."""
    unmarked = verb.english.base == verb.english.past and subject.person != 1
    if unmarked and form.tense == "present" and form.negation != "not" and not form.question:
        return Form("past", form.negation)
    return form


class Draw:
    """A random generator that knows the lexicon: draws words, phrases and forms."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lexicon = load_lexicon()

    def one(self, items: Sequence[Item]) -> Item:
        """One item, all alike."""
        return items[int(self.rng.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.rng.random() < probability

    def name(self) -> NounPhrase:
        """A first name."""
        female = self.chance(0.5)
        return name_phrase(self.one(FEMALE_NAMES if female else MALE_NAMES), female)

    def person(self) -> NounPhrase:
        """A person as subject or object, never a pronoun."""
        roll = self.rng.random()
        if roll < 0.3:
            return self.name()
        if roll < 0.35:
            return befriend(self.name(), self.one(PRONOUNS))
        if roll < 0.55:
            return noun_phrase(self.one(nouns("kin")), self.one(PRONOUNS))
        if roll < 0.9:
            return noun_phrase(self.one(nouns("person")), "the")
        return noun_phrase(self.one(nouns("person")), "the", plural=True)

    def subject(self, beast: bool = False) -> NounPhrase:
        """A subject; where a `beast` can do it, often an animal."""
        if beast and self.chance(0.4):
            return noun_phrase(self.one(nouns("animal")), "the", plural=self.chance(0.2))
        return pronoun_phrase(self.one(PRONOUNS)) if self.chance(0.5) else self.person()

    def form(self, verb: Verb, subject: NounPhrase) -> Form:
        """A tense, negation and mood that verb and subject allow."""
        tense, roll = self.tense(verb), self.rng.random()
        steady = not STEADY.isdisjoint(verb.flags)
        if roll < 0.16:
            form = Form(tense, "not")
        elif roll < 0.26 and subject.person != 0:
            form = Form(tense, question=True)
        elif roll < 0.33 and tense in ("present", "past") and not steady:
            form = Form(tense, "never")
        elif tense == "present" and roll < 0.48 and not steady:
            form = Form(tense, "", False, *self.one(FREQUENCY_ADVERBS))
        else:
            form = Form(tense)
        return unmistakable(form, verb, subject)

    def tense(self, verb: Verb) -> str:
        """A tense the verb allows."""
        if "habit" in verb.flags:
            return self.one(("present", "present", "habit"))
        if "present" in verb.flags:
            return "present"
        tense = self.rng.choices(TENSES, cum_weights=TENSE_WEIGHTS)[0]
        if "stative" in verb.flags and "progressive" in tense:
            return "past"
        return "past" if "event" in verb.flags and tense in ("can", "must", "want") else tense

    def time(self, form: Form, verb: Verb, probability: float = 0.3, present: str = "present") -> Pair:
        """A time adverb that fits form and verb, or nothing; `present` names the group for the simple present."""
        adverb = form.english_adverb or form.negation == "never" or not STEADY.isdisjoint(verb.flags)
        groups = {"past": "past", "present": present, "progressive": "now", "future": "future"}
        if adverb or form.tense not in groups or not self.chance(probability):
            return "", ""
        return self.one(TIME_ADVERBS[groups[form.tense]])

    def determined(self, noun: Noun, *words: str) -> str | Pronoun:
        """One of the given determiners, or a possessive where the noun can belong to somebody."""
        index = int(self.rng.random() * (len(words) + noun.ownable))
        return words[index] if index < len(words) else self.one(PRONOUNS)

    def determiner(self, noun: Noun, owner: NounPhrase) -> str | Pronoun:
        """A determiner for one countable thing; possessives mostly mean the subject's own."""
        roll = self.rng.random()
        if roll < 0.38:
            return "the"
        if roll < 0.66:
            return "a"
        if roll < 0.88 and noun.ownable:
            return self.owner(owner)
        return self.one(("this", "that"))

    def owner(self, subject: NounPhrase) -> Pronoun:
        """Whose: mostly the subject's own, but nothing belongs to animals."""
        return subject.pronoun if subject.human and self.chance(0.65) else self.one(PRONOUNS)

    def object(self, noun: Noun, owner: NounPhrase, form: Form, verb: Verb) -> NounPhrase:
        """A noun as object, with a fitting determiner and sometimes an adjective."""
        generic = "generic" in verb.flags
        if "kin" in noun.classes:
            return noun_phrase(noun, self.owner(owner))
        if generic and self.chance(0.6):
            return noun_phrase(noun, "bare", plural=not noun.mass, generic=True)
        adjective = self.adjective_beside(noun) if self.chance(0.25) else None
        if noun.mass or generic:
            bare = ("the", "this") if generic else ("bare", "bare", "bare", "the")
            return noun_phrase(noun, self.determined(noun, *bare), adjective=adjective)
        if self.chance(0.74) and "plural" not in verb.flags:
            determiner = self.determiner(noun, owner)
            if determiner == "a" and form.negation == "never":
                determiner = "the"
            return noun_phrase(noun, determiner, adjective=adjective)
        number = self.one(tuple(NUMBERS))
        return noun_phrase(noun, self.determined(noun, "the", "bare", "bare", "these", number), True, adjective)

    def adjective_beside(self, noun: Noun) -> Adjective | None:
        """An adjective that can stand next to the noun, if there is any."""
        options = adjectives_of(noun, True)
        return self.one(options) if options else None

    def place(self, verb: Verb) -> tuple[str, str, tuple[str, ...]]:
        """Where one does it, with the lemmas used: in the garden, at the station, on the beach, near the tree."""
        if self.chance(0.2):
            phrase = noun_phrase(self.one(nouns("place", "way", "tree", "structure", "-room")), "the")
            return f"near {phrase.english}", f"près {attach('de', phrase.french)}", phrase.lemmas
        return at_place(self.one(nouns("in", "on") if "roam" in verb.flags else nouns("in", "at", "on")))
