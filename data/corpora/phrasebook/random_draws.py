"""Random choice of words, phrases and verb forms, within what the classes of the lexicon allow."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import TypeVar

from lingua_flax.data.corpora.phrasebook.lexicon import ADJECTIVES, ADVERBS, NAMES, Adjective, Noun, Verb, nouns
from lingua_flax.data.corpora.phrasebook.phrases import (
    NOTHING,
    NUMBERS,
    PRONOUNS,
    Form,
    NounPhrase,
    Pronoun,
    Text,
    friend_phrase,
    name_phrase,
    noun_phrase,
    object_of,
    pronoun_phrase,
    with_preposition,
)

Item = TypeVar("Item")

STATE_FLAGS = frozenset({"habit", "present"})  # flags of verbs for a lasting state: has, knows, likes
TENSES = ("present", "progressive", "past", "past progressive", "future", "can", "must", "want")
TENSE_WEIGHTS = (24, 34, 68, 73, 85, 90, 95, 100)  # cumulative
PLACE_PREPOSITIONS = {"in": "dans", "at": "à", "on": "sur"}
ATTRIBUTIVE_ADJECTIVES = tuple(item for item in ADJECTIVES.values() if item.attributive)
PREDICATIVE_ADJECTIVES = tuple(item for item in ADJECTIVES.values() if item.predicative)


@cache
def adjectives_of(noun: Noun, attributive: bool) -> tuple[Adjective, ...]:
    """Returns the adjectives that can describe a noun: `attributive` (a red apple) or after to be."""
    adjectives = ATTRIBUTIVE_ADJECTIVES if attributive else PREDICATIVE_ADJECTIVES
    return tuple(item for item in adjectives if noun in nouns(*item.classes))


def at_place(noun: Noun) -> Text:
    """Returns a place with the preposition it takes (in the kitchen, at the station)."""
    preposition = next(word for word in PLACE_PREPOSITIONS if word in noun.classes)
    return with_preposition(preposition, PLACE_PREPOSITIONS[preposition], noun_phrase(noun, "the"))


def past_if_ambiguous(form: Form, verb: Verb, subject: NounPhrase) -> Form:
    """Returns the form, in the past if its English is the same in the present and the past (they read, they cut)."""
    unmarked = verb.english.base == verb.english.past and subject.person != 1
    if unmarked and form.tense == "present" and form.negation != "not" and not form.question:
        return Form("past", form.negation)
    return form


class Draw:
    """Draws words, phrases and verb forms of the lexicon with a random generator."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def one(self, items: Sequence[Item]) -> Item:
        """Returns one of the items, all equally likely."""
        return items[int(self.rng.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Returns True with the given probability."""
        return self.rng.random() < probability

    def name(self) -> NounPhrase:
        """Returns a first name."""
        female = self.chance(0.5)
        return name_phrase(self.one(NAMES["female" if female else "male"]), female)

    def person(self) -> NounPhrase:
        """Returns a person as subject or object, never a pronoun."""
        roll = self.rng.random()
        if roll < 0.3:
            return self.name()
        if roll < 0.35:
            return friend_phrase(self.name(), self.one(PRONOUNS))
        if roll < 0.55:
            return noun_phrase(self.one(nouns("kin")), self.one(PRONOUNS))
        if roll < 0.9:
            return noun_phrase(self.one(nouns("person")), "the")
        return noun_phrase(self.one(nouns("person")), "the", plural=True)

    def subject(self, animals: bool = False) -> NounPhrase:
        """Returns a subject: a pronoun, a person or, only if `animals` is set, an animal."""
        if animals and self.chance(0.4):
            return noun_phrase(self.one(nouns("animal")), "the", plural=self.chance(0.2))
        return pronoun_phrase(self.one(PRONOUNS)) if self.chance(0.5) else self.person()

    def form(self, verb: Verb, subject: NounPhrase) -> Form:
        """Returns a tense, negation and mood that verb and subject allow."""
        tense, roll = self.tense(verb), self.rng.random()
        is_state = not STATE_FLAGS.isdisjoint(verb.flags)
        if roll < 0.16:
            form = Form(tense, "not")
        elif roll < 0.26 and subject.person != 0:
            form = Form(tense, question=True)
        elif roll < 0.33 and tense in ("present", "past") and not is_state:
            form = Form(tense, "never")
        elif tense == "present" and roll < 0.48 and not is_state:
            form = Form(tense, adverb=Text(*self.one(ADVERBS["frequency"])))
        else:
            form = Form(tense)
        return past_if_ambiguous(form, verb, subject)

    def tense(self, verb: Verb) -> str:
        """Returns a tense that the verb allows."""
        if "habit" in verb.flags:
            return self.one(("present", "present", "habit"))
        if "present" in verb.flags:
            return "present"
        tense = self.rng.choices(TENSES, cum_weights=TENSE_WEIGHTS)[0]
        if "stative" in verb.flags and "progressive" in tense:
            return "past"
        return "past" if "event" in verb.flags and tense in ("can", "must", "want") else tense

    def time(self, form: Form, verb: Verb, probability: float = 0.3, present: str = "present") -> Text:
        """Returns a time adverb, if form and verb allow one; `present` is a group of adverbs."""
        excluded = form.adverb.english or form.negation == "never" or not STATE_FLAGS.isdisjoint(verb.flags)
        groups = {"past": "past", "present": present, "progressive": "now", "future": "future"}
        if excluded or form.tense not in groups or not self.chance(probability):
            return NOTHING
        return Text(*self.one(ADVERBS[groups[form.tense]]))

    def determiner_or_possessive(self, noun: Noun, *determiners: str) -> str | Pronoun:
        """Returns one of the given determiners or, if the noun takes one, a possessive."""
        index = int(self.rng.random() * (len(determiners) + noun.ownable))
        return determiners[index] if index < len(determiners) else self.one(PRONOUNS)

    def determiner(self, noun: Noun, owner: NounPhrase) -> str | Pronoun:
        """Returns a determiner for a singular countable noun; a possessive refers mostly to `owner`."""
        roll = self.rng.random()
        if roll < 0.38:
            return "the"
        if roll < 0.66:
            return "a"
        if roll < 0.88 and noun.ownable:
            return self.owner(owner)
        return self.one(("this", "that"))

    def owner(self, subject: NounPhrase) -> Pronoun:
        """Returns an owner: mostly the subject, unless the subject is an animal."""
        return subject.pronoun if subject.human and self.chance(0.65) else self.one(PRONOUNS)

    def object(self, noun: Noun, owner: NounPhrase, form: Form, verb: Verb) -> NounPhrase:
        """Returns a noun as object, with a suitable determiner and sometimes an adjective."""
        return object_of(verb, self._object(noun, owner, form, verb))

    def _object(self, noun: Noun, owner: NounPhrase, form: Form, verb: Verb) -> NounPhrase:
        generic = "generic" in verb.flags
        if "kin" in noun.classes:
            return noun_phrase(noun, self.owner(owner))
        if generic and self.chance(0.6):
            return noun_phrase(noun, "bare", plural=not noun.mass, generic=True)
        adjective = self.attributive_adjective(noun) if self.chance(0.25) else None
        if noun.mass or generic:
            determiners = ("the", "this") if generic else ("bare", "bare", "bare", "the")
            return noun_phrase(noun, self.determiner_or_possessive(noun, *determiners), adjective=adjective)
        if self.chance(0.74) and "plural" not in verb.flags:
            determiner = self.determiner(noun, owner)
            if determiner == "a" and form.negation == "never":
                determiner = "the"
            return noun_phrase(noun, determiner, adjective=adjective)
        number = self.one(tuple(NUMBERS))
        determiner = self.determiner_or_possessive(noun, "the", "bare", "bare", "these", number)
        return noun_phrase(noun, determiner, True, adjective)

    def attributive_adjective(self, noun: Noun) -> Adjective | None:
        """Returns an adjective that can modify the noun, or None if there is none."""
        options = adjectives_of(noun, True)
        return self.one(options) if options else None

    def place(self, verb: Verb, probability: float) -> Text:
        """Returns a place for an action, if the verb allows one: in the garden, at the station, near the tree."""
        if "place" not in verb.flags or not self.chance(probability):
            return NOTHING
        if self.chance(0.2):
            phrase = noun_phrase(self.one(nouns("place", "way", "tree", "structure", "-room")), "the")
            return with_preposition("near", "près de", phrase)
        return at_place(self.one(nouns("in", "on") if "roam" in verb.flags else nouns("in", "at", "on")))
