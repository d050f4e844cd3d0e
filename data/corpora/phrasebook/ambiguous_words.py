"""The ambiguous words (bank, bat, spring, light, know ...) and the words that decide between their two senses.

Every sense has at least four deciders. Most deciders are ordinary words of the lexicon, so that a model learns a sense
from many contexts and not from a single sentence. The words of the plain kinds are in words/ambiguous_words.txt, the
others here.
"""

from dataclasses import replace

from lingua_flax.data.corpora.phrasebook.bank_templates import AgentPuzzle, CrossingPuzzle
from lingua_flax.data.corpora.phrasebook.contrast_templates import (
    NEUTRAL_VERBS,
    AttributePuzzle,
    ModifiedPuzzle,
    ObjectPuzzle,
    PlacePuzzle,
    PredicatePuzzle,
    Puzzle,
    VerbPuzzle,
)
from lingua_flax.data.corpora.phrasebook.it_templates import ANIMATE_REASONS, THING_REASONS, ItPuzzle
from lingua_flax.data.corpora.phrasebook.lexicon import (
    NAMES,
    Noun,
    Verb,
    parse_adjective,
    parse_noun,
    parse_verb,
    read_translations,
    read_words,
)


def _deciders(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parses the deciders of the two senses: "cave attic | stadium gymnasium"."""
    left, right = text.split(" | ")
    return tuple(left.split()), tuple(right.split())


def _verb_puzzle(word: str, senses: tuple[Noun, Noun], deciders: str) -> VerbPuzzle:
    """Returns a puzzle about a noun, with deciders such as "light:lit = allumer, burn = brûler | win:won = gagner"."""
    first, second = ([parse_verb(entry.strip()) for entry in side.split(",")] for side in deciders.split(" | "))
    bases = tuple(verb.english.base for verb in first), tuple(verb.english.base for verb in second)
    return VerbPuzzle(word, bases, senses, {verb.english.base: verb for verb in (*first, *second)})


def _read_puzzle(header: str, entries: list[str]) -> Puzzle:
    word, kind, *options = header.split()
    (first, _, first_deciders), (second, _, second_deciders) = (entry.partition(" : ") for entry in entries)
    deciders = f"{first_deciders} | {second_deciders}"
    if kind == "modified":
        adjectives = parse_adjective(first), parse_adjective(second)
        return ModifiedPuzzle(word, _deciders(deciders), adjectives, owned="unowned" not in options)
    senses = parse_noun(first), parse_noun(second)
    if kind == "verb":
        return _verb_puzzle(word, senses, deciders)
    if kind == "predicate":
        return PredicatePuzzle(word, _deciders(deciders), senses)
    english, french = options
    return PlacePuzzle(word, _deciders(deciders), senses, english, french, plural=word == senses[0].english_plural)


def _object_puzzle(word: str, senses: tuple[Verb, Verb], first: dict[str, str], second: dict[str, str]) -> ObjectPuzzle:
    """Returns a puzzle about a verb, with objects that are not nouns of the lexicon, and their translations."""
    return ObjectPuzzle(word, (tuple(first), tuple(second)), senses, first | second)


OBJECTS = read_translations("objects")
PUZZLES: tuple[Puzzle, ...] = (
    *(_read_puzzle(header, entries) for header, entries in read_words("ambiguous_words").items()),
    AttributePuzzle(
        "right",
        _deciders("hand foot arm eye leg ear shoulder knee | answer address word number road train map"),
        (parse_adjective("right = droit"), parse_adjective("right = bon/bonne", "before")),
        (parse_verb("show:showed = montrer"), *NEUTRAL_VERBS),
    ),
    ObjectPuzzle(
        "visit",
        _deciders(
            "doctor neighbor king queen baker actress prince | "
            "museum castle city cathedral island farm hospital village"
        ),
        (
            replace(parse_verb("visit = rendre rends rend rendons rendent rendu"), preposition="à", suffix="visite"),
            parse_verb("visit = visiter"),
        ),
    ),
    ObjectPuzzle(
        "bring",
        _deciders("dog cat horse child boy girl prince | book cake chair letter gift flower lamp"),
        (parse_verb("bring:brought = amener"), parse_verb("bring:brought = apporter")),
    ),
    _object_puzzle(
        "know",
        (
            parse_verb("know:knew = savoir sais sait savons savent su ; stative habit"),
            parse_verb("know:knew = connaître connais connaît connaissons connaissent connu ; stative habit"),
        ),
        OBJECTS["questions"],
        {name: name for names in NAMES.values() for name in names},
    ),
    _object_puzzle(
        "play",
        (replace(parse_verb("play = jouer"), preposition="à"), replace(parse_verb("play = jouer"), preposition="de")),
        OBJECTS["games"],
        OBJECTS["instruments"],
    ),
    ItPuzzle("it", (ANIMATE_REASONS, THING_REASONS)),
    CrossingPuzzle("bank", _deciders("river lake stream canal pond | street road avenue park garden")),
    AgentPuzzle(
        "bank", _deciders("fisherman frog duck crocodile swan otter | banker cashier customer manager thief accountant")
    ),
)
