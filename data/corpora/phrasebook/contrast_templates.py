"""Puzzles: sentence templates with an ambiguous English word, the sense of which is decided by one other word.

A puzzle first draws a scene: everything except the deciding word. The same scene with a decider of each sense is a
contrast pair: two sentences that differ in one English word and in the translation of the ambiguous word. The ambiguous
words are listed in `ambiguous_words`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from lingua_flax.data.corpora.phrasebook.lexicon import ADJECTIVES, NOUNS, Adjective, Noun, Verb, parse_verb
from lingua_flax.data.corpora.phrasebook.phrases import (
    NOTHING,
    PRONOUNS,
    Form,
    NounPhrase,
    Pair,
    Pronoun,
    Text,
    copula,
    finish,
    join,
    noun_phrase,
    sentence,
    with_preposition,
)
from lingua_flax.data.corpora.phrasebook.random_draws import Draw

# Everything of a sentence except the decider: (sense, 0 or 1; a decider of that sense) -> the sentence.
Scene = Callable[[int, str], Text]


class Contrast(NamedTuple):
    """A contrast pair: two sentences that differ in one English word and in the translation of another.

    `word` is the ambiguous word, which both sentences contain; `deciding` are the words that decide its sense in each.
    """

    word: str
    first: Pair
    second: Pair
    deciding: tuple[str, str]


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A template for sentences with an ambiguous word.

    The deciders are the English words that decide for each of its two senses.
    """

    word: str
    deciders: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def weight(self) -> int:
        """The relative share of the corpus, which grows with the deciders so that each of them is frequent enough."""
        return 3 * max(map(len, self.deciders))

    def scene(self, draw: Draw) -> Scene:
        """Draws everything except the decider."""
        raise NotImplementedError

    def sample(self, draw: Draw) -> Text:
        """Returns one sentence with a random sense and decider."""
        sense = draw.one((0, 1))
        return self.scene(draw)(sense, draw.one(self.deciders[sense]))

    def contrast(self, draw: Draw) -> tuple[Text, Text]:
        """Returns two sentences of one scene, the first with a decider of sense 0, the second with one of sense 1."""
        scene = self.scene(draw)
        first, second = (draw.one(words) for words in self.deciders)
        return scene(0, first), scene(1, second)


class Clause(NamedTuple):
    """The subject, form and time adverb of a clause and the determiner of its object."""

    subject: NounPhrase
    form: Form
    time: Text
    determiner: str

    @classmethod
    def drawn(cls, draw: Draw, verb: Verb, *determiners: str) -> Self:
        """Draws what fits the verb, and one of the determiners."""
        subject = draw.subject()
        form = draw.form(verb, subject)
        return cls(subject, form, draw.time(form, verb), draw.one(determiners))

    def sentence(self, verb: Verb, phrase: NounPhrase, place: Text = NOTHING) -> Text:
        """Returns the sentence with a verb and its object."""
        return sentence(self.subject, verb, self.form, phrase, join(place, self.time))


NEUTRAL_VERBS = tuple(
    parse_verb(entry)
    for entry in (
        "see:saw = voir vois voit voyons voient vu : thing ; stative",
        "look at:looked = regarder : thing",
        "find:found = trouver : thing ; stative",
        "photograph = photographier : thing",
        "draw:drew = dessiner : thing",
        "describe = décrire décris décrit décrivons décrivent décrit : thing",
        "notice = remarquer : thing ; stative event",
    )
)


@dataclass(frozen=True, eq=False)
class PlacePuzzle(Puzzle):
    """The place decides the sense of the object: he saw a seal on the beach / on the letter."""

    senses: tuple[Noun, Noun]
    english_preposition: str
    french_preposition: str
    plural: bool = False

    def scene(self, draw: Draw) -> Scene:
        verb = draw.one(NEUTRAL_VERBS)
        determiners = ("the",) if self.english_preposition == "of" else ("the", "a", "this")
        clause = Clause.drawn(draw, verb, *determiners)

        def with_place(sense: int, decider: str) -> Text:
            place = noun_phrase(NOUNS[decider], "the")
            where = with_preposition(self.english_preposition, self.french_preposition, place)
            return clause.sentence(verb, noun_phrase(self.senses[sense], clause.determiner, self.plural), where)

        return with_place


@dataclass(frozen=True, eq=False)
class VerbPuzzle(Puzzle):
    """The verb decides the sense of its object: she lit the match / she won the match."""

    senses: tuple[Noun, Noun]
    verbs: dict[str, Verb]  # the deciding verbs by their English base forms

    def scene(self, draw: Draw) -> Scene:
        clause = Clause.drawn(draw, next(iter(self.verbs.values())), "the", "a", "this", "that")
        determiner = "the" if clause.form.negation == "never" else clause.determiner
        return lambda sense, verb: clause.sentence(self.verbs[verb], noun_phrase(self.senses[sense], determiner))


THAT = Text("that", "que")
DEGREES = (Text("very", "très"), Text("too", "trop"))
OPINIONS = (
    parse_verb("think:thought = penser"),
    parse_verb("say:said = dire dis dit disons disent dit"),
    parse_verb("believe = croire crois croit croyons croient cru"),
)


def _draw_state(draw: Draw) -> tuple[str | Pronoun, Callable[..., Text]]:
    """Draws a statement about a thing, optionally as the opinion of a speaker.

    Returns the determiner of the thing, and what makes a sentence of the thing and an adjective.
    """
    speaker = draw.subject() if draw.chance(0.4) else None
    tense = "present" if speaker or draw.chance(0.5) else "past"
    question = speaker is None and draw.chance(0.2)
    form = Form(tense, "" if question else draw.one(("", "", "not")), question)
    degree = draw.one((NOTHING, NOTHING, *DEGREES))
    owner = draw.one(PRONOUNS)
    determiners: tuple[str | Pronoun, ...] = ("the", "the", "this", owner)
    determiner = draw.one(determiners)
    opinion = draw.one(OPINIONS)

    def state(subject: NounPhrase, adjective: Adjective, *, with_degree: bool = True) -> Text:
        text = copula(subject, adjective, form, degree if with_degree else NOTHING)
        return sentence(speaker, opinion, Form(), None, join(THAT, text)) if speaker else finish(text, form.question)

    return determiner, state


@dataclass(frozen=True, eq=False)
class PredicatePuzzle(Puzzle):
    """The predicate decides the sense of the subject: the bat is hungry / the bat is broken."""

    senses: tuple[Noun, Noun]

    def scene(self, draw: Draw) -> Scene:
        drawn, state = _draw_state(draw)
        determiner = "the" if isinstance(drawn, Pronoun) else drawn
        subjects = [noun_phrase(noun, determiner) for noun in self.senses]
        return lambda sense, adjective: state(subjects[sense], ADJECTIVES[adjective], with_degree=False)


@dataclass(frozen=True, eq=False)
class ModifiedPuzzle(Puzzle):
    """The subject decides the sense of the predicate: the suitcase is light / the kitchen is light."""

    senses: tuple[Adjective, Adjective]
    owned: bool = True  # whether all deciding nouns can take a possessive

    def scene(self, draw: Draw) -> Scene:
        drawn, state = _draw_state(draw)
        determiner = drawn if self.owned else "the"
        return lambda sense, noun: state(noun_phrase(NOUNS[noun], determiner), self.senses[sense])


@dataclass(frozen=True, eq=False)
class AttributePuzzle(Puzzle):
    """The noun decides the sense of its adjective: he showed the right hand / he showed the right answer."""

    senses: tuple[Adjective, Adjective]
    verbs: tuple[Verb, ...]  # fit nouns of both senses

    def scene(self, draw: Draw) -> Scene:
        verb = draw.one(self.verbs)
        clause = Clause.drawn(draw, verb, "the")
        return lambda sense, noun: clause.sentence(verb, noun_phrase(NOUNS[noun], "the", adjective=self.senses[sense]))


@dataclass(frozen=True, eq=False)
class ObjectPuzzle(Puzzle):
    """The object decides the sense of the verb: they visited the doctor / they visited the museum."""

    senses: tuple[Verb, Verb]
    # Objects that are not nouns of the lexicon (why, tennis, Marie) -> their translations.
    words: dict[str, str] = field(default_factory=dict)

    def scene(self, draw: Draw) -> Scene:
        clause = Clause.drawn(draw, self.senses[0], "the", "the", "this", "that")
        return lambda sense, decider: clause.sentence(self.senses[sense], self._object(decider, clause.determiner))

    def _object(self, decider: str, determiner: str) -> NounPhrase:
        if decider not in self.words:
            return noun_phrase(NOUNS[decider], determiner)
        is_name, french = decider[0].isupper(), self.words[decider]
        lemma = f"{decider}/{decider if is_name else french.split()[-1]}"
        return NounPhrase(decider, french, (lemma,))
