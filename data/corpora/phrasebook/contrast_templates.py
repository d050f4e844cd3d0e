"""Puzzles: sentence templates with an ambiguous English word, the sense of which is decided by one other word.

A puzzle first draws a scene: everything except the deciding word. Rendering the same scene with a decider of each sense
gives a contrast pair: two sentences that differ in one English word and in the translation of the ambiguous word. The
ambiguous words are listed in `ambiguous_words`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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

Scene = TypeVar("Scene")


class Contrast(NamedTuple):
    """A contrast pair: two sentences that differ in one English word and in the translation of another.

    `word` is the ambiguous word, which both sentences contain; `deciding` are the words that decide its sense in each.
    """

    word: str
    first: Pair
    second: Pair
    deciding: tuple[str, str]


@dataclass(frozen=True, eq=False)
class Puzzle(ABC, Generic[Scene]):
    """A template for sentences with an ambiguous word.

    The deciders are the English words that decide for each of its two senses.
    """

    word: str
    deciders: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def weight(self) -> int:
        """The relative share of the corpus, which grows with the deciders so that each of them is frequent enough."""
        return 3 * max(map(len, self.deciders))

    @abstractmethod
    def scene(self, draw: Draw) -> Scene:
        """Draws everything except the decider."""

    @abstractmethod
    def render(self, scene: Scene, sense: int, decider: str) -> Text:
        """Returns the sentence of a scene with a decider of the given sense."""

    def sample(self, draw: Draw) -> Text:
        """Returns one sentence with a random sense and decider."""
        sense = draw.one((0, 1))
        return self.render(self.scene(draw), sense, draw.one(self.deciders[sense]))

    def contrast(self, draw: Draw) -> tuple[Text, Text]:
        """Returns two sentences of one scene, the first with a decider of sense 0, the second with one of sense 1."""
        scene = self.scene(draw)
        first, second = (draw.one(words) for words in self.deciders)
        return self.render(scene, 0, first), self.render(scene, 1, second)


class ClauseScene(NamedTuple):
    """The subject, verb, form and time adverb of a clause and the determiner of its object."""

    subject: NounPhrase
    verb: Verb
    form: Form
    time: Text
    determiner: str | Pronoun

    def sentence(self, verb: Verb, phrase: NounPhrase, place: Text = NOTHING) -> Text:
        """Returns the sentence with this verb and object."""
        return sentence(self.subject, verb, self.form, phrase, join(place, self.time))


def _clause_scene(draw: Draw, verb: Verb, determiners: tuple[str, ...]) -> ClauseScene:
    subject = draw.subject()
    form = draw.form(verb, subject)
    return ClauseScene(subject, verb, form, draw.time(form, verb), draw.one(determiners))


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
class PlacePuzzle(Puzzle[ClauseScene]):
    """The place decides the sense of the object: he saw a seal on the beach / on the letter."""

    senses: tuple[Noun, Noun]
    english_preposition: str
    french_preposition: str
    plural: bool = False

    def scene(self, draw: Draw) -> ClauseScene:
        determiners = ("the",) if self.english_preposition == "of" else ("the", "a", "this")
        return _clause_scene(draw, draw.one(NEUTRAL_VERBS), determiners)

    def render(self, scene: ClauseScene, sense: int, decider: str) -> Text:
        phrase = noun_phrase(self.senses[sense], scene.determiner, self.plural)
        place = noun_phrase(NOUNS[decider], "the")
        return scene.sentence(
            scene.verb, phrase, with_preposition(self.english_preposition, self.french_preposition, place)
        )


@dataclass(frozen=True, eq=False)
class VerbPuzzle(Puzzle[ClauseScene]):
    """The verb decides the sense of its object: she lit the match / she won the match."""

    senses: tuple[Noun, Noun]
    verbs: dict[str, Verb]  # the deciding verbs by their English base forms

    def scene(self, draw: Draw) -> ClauseScene:
        verb = next(iter(self.verbs.values()))
        scene = _clause_scene(draw, verb, ("the", "a", "this", "that"))
        return scene._replace(determiner="the") if scene.form.negation == "never" else scene

    def render(self, scene: ClauseScene, sense: int, decider: str) -> Text:
        return scene.sentence(self.verbs[decider], noun_phrase(self.senses[sense], scene.determiner))


class StateScene(NamedTuple):
    """A statement about a thing, optionally reported as the opinion of a speaker."""

    speaker: NounPhrase | None
    opinion: Verb
    determiner: str | Pronoun
    form: Form
    degree: Text


THAT = Text("that", "que")
DEGREES = (Text("very", "très"), Text("too", "trop"))
OPINIONS = (
    parse_verb("think:thought = penser"),
    parse_verb("say:said = dire dis dit disons disent dit"),
    parse_verb("believe = croire crois croit croyons croient cru"),
)


def _state_scene(draw: Draw) -> StateScene:
    speaker = draw.subject() if draw.chance(0.4) else None
    tense = "present" if speaker or draw.chance(0.5) else "past"
    question = speaker is None and draw.chance(0.2)
    form = Form(tense, "" if question else draw.one(("", "", "not")), question)
    degree = draw.one((NOTHING, NOTHING, *DEGREES))
    owner = draw.one(PRONOUNS)
    determiners: tuple[str | Pronoun, ...] = ("the", "the", "this", owner)
    determiner = draw.one(determiners)
    return StateScene(speaker, draw.one(OPINIONS), determiner, form, degree)


def _state(scene: StateScene, subject: NounPhrase, adjective: Adjective) -> Text:
    state = copula(subject, adjective, scene.form, scene.degree)
    if scene.speaker:
        return sentence(scene.speaker, scene.opinion, Form(), None, join(THAT, state))
    return finish(state, scene.form.question)


@dataclass(frozen=True, eq=False)
class PredicatePuzzle(Puzzle[StateScene]):
    """The predicate decides the sense of the subject: the bat is hungry / the bat is broken."""

    senses: tuple[Noun, Noun]

    def scene(self, draw: Draw) -> StateScene:
        scene = _state_scene(draw)
        determiner = "the" if isinstance(scene.determiner, Pronoun) else scene.determiner
        return scene._replace(determiner=determiner, degree=NOTHING)

    def render(self, scene: StateScene, sense: int, decider: str) -> Text:
        return _state(scene, noun_phrase(self.senses[sense], scene.determiner), ADJECTIVES[decider])


@dataclass(frozen=True, eq=False)
class ModifiedPuzzle(Puzzle[StateScene]):
    """The subject decides the sense of the predicate: the suitcase is light / the kitchen is light."""

    senses: tuple[Adjective, Adjective]
    owned: bool = True  # whether all deciding nouns can take a possessive

    def scene(self, draw: Draw) -> StateScene:
        return _state_scene(draw)

    def render(self, scene: StateScene, sense: int, decider: str) -> Text:
        determiner = scene.determiner if self.owned else "the"
        return _state(scene, noun_phrase(NOUNS[decider], determiner), self.senses[sense])


@dataclass(frozen=True, eq=False)
class AttributePuzzle(Puzzle[ClauseScene]):
    """The noun decides the sense of its adjective: he showed the right hand / he showed the right answer."""

    senses: tuple[Adjective, Adjective]
    verbs: tuple[Verb, ...]  # fit nouns of both senses

    def scene(self, draw: Draw) -> ClauseScene:
        return _clause_scene(draw, draw.one(self.verbs), ("the",))

    def render(self, scene: ClauseScene, sense: int, decider: str) -> Text:
        return scene.sentence(scene.verb, noun_phrase(NOUNS[decider], "the", adjective=self.senses[sense]))


@dataclass(frozen=True, eq=False)
class ObjectPuzzle(Puzzle[ClauseScene]):
    """The object decides the sense of the verb: they visited the doctor / they visited the museum."""

    senses: tuple[Verb, Verb]
    words: dict[str, str]  # objects that are not nouns of the lexicon (why, tennis, Marie) -> their translations

    def scene(self, draw: Draw) -> ClauseScene:
        return _clause_scene(draw, self.senses[0], ("the", "the", "this", "that"))

    def render(self, scene: ClauseScene, sense: int, decider: str) -> Text:
        if decider in self.words:
            is_name, french = decider[0].isupper(), self.words[decider]
            lemma = f"{decider}/{decider if is_name else french.split()[-1]}"
            phrase = NounPhrase(decider, french, (lemma,))
        else:
            phrase = noun_phrase(NOUNS[decider], scene.determiner)
        return scene.sentence(self.senses[sense], phrase)
