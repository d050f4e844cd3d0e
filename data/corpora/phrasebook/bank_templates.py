"""Templates for the word bank: rive if it is the bank of a river or lake, banque if it is the bank for money."""

from dataclasses import replace

from lingua_flax.data.corpora.phrasebook.contrast_templates import Puzzle, Scene
from lingua_flax.data.corpora.phrasebook.lexicon import (
    INTRANSITIVES,
    NOUNS,
    Noun,
    Verb,
    nouns,
    parse_noun,
    parse_verb,
)
from lingua_flax.data.corpora.phrasebook.phrases import (
    NOTHING,
    Form,
    NounPhrase,
    Text,
    join,
    noun_phrase,
    sentence,
    with_preposition,
)
from lingua_flax.data.corpora.phrasebook.random_draws import Draw

BANKS = (parse_noun("bank = rive f"), parse_noun("bank = banque f"))
SIDE = parse_noun("side = côté m")
CROSS = parse_verb("cross = traverser")
# (English verb, French manner, classes of what is crossed)
CROSSINGS = (
    (parse_verb("swim:swam = nager"), "à la nage", ("waterway",)),
    (parse_verb("row = ramer"), "à la rame", ("waterway",)),
    (parse_verb("walk = marcher"), "à pied", ("town", "field", "forest", "meadow", "bridge")),
    (parse_verb("run:ran = courir"), "en courant", ("town", "field", "forest", "meadow", "bridge")),
    (parse_verb("go:went = aller"), "", ("waterway", "town")),
)
GOALS = ("house", "station", "hotel", "restaurant", "market", "school", "farm", "church", "bakery", "village", "tree")


def crossing(draw: Draw) -> Text:
    """Crossing a way to get somewhere: I swam across the river to get to the other bank."""
    verb, manner, classes = draw.one(CROSSINGS)
    way = draw.one(nouns(*classes))
    roll = draw.rng.random()
    if roll < 0.5 and way.english != "bridge":
        goal = BANKS[0 if "waterway" in way.classes else 1]
        with_other = draw.chance(0.65)
    elif roll < 0.65:
        goal, with_other = SIDE, True
    else:
        goal, with_other = NOUNS[draw.one(GOALS)], False
    subject = draw.subject(draw.chance(0.4))
    form = draw.form(verb, subject)._replace(adverb=NOTHING)
    return _crossing_sentence(subject, verb, manner, form, way, goal, with_other)


def _crossing_sentence(
    subject: NounPhrase, verb: Verb, manner: str, form: Form, way: Noun, goal: Noun, with_other: bool
) -> Text:
    """English says how (swim across the river), French that (traverser la rivière à la nage)."""
    destination: Text = noun_phrase(goal, "the")
    if with_other:
        destination = Text(f"the other {goal.english}", f"le autre {goal.french}", destination.lemmas)
    tail = join(noun_phrase(way, "the"), Text("to get to", f"{manner} pour atteindre".lstrip()), destination)
    english = sentence(subject, verb, form, None, join(Text("across"), tail))
    french = sentence(subject, CROSS, form, None, tail).french
    return replace(english, french=french)


class CrossingPuzzle(Puzzle):
    """What is crossed decides the sense of bank: we went across the river / the street to get to the bank."""

    def scene(self, draw: Draw) -> Scene:
        verb, manner, _ = CROSSINGS[-1]
        subject = draw.subject(draw.chance(0.3))
        form = draw.form(verb, subject)._replace(adverb=NOTHING)
        with_other = draw.chance(0.6)
        return lambda sense, way: _crossing_sentence(subject, verb, manner, form, NOUNS[way], BANKS[sense], with_other)


AGENT_VERBS = tuple(
    verb
    for verb in INTRANSITIVES.values()
    if verb.english.base in ("sleep", "wait", "rest", "stay", "stop", "walk", "run")
)


class AgentPuzzle(Puzzle):
    """The subject decides the sense of bank: the frog / the cashier is waiting near the bank."""

    def scene(self, draw: Draw) -> Scene:
        verb = draw.one(AGENT_VERBS)
        form = draw.form(verb, noun_phrase(NOUNS["frog"], "the"))
        time = draw.time(form, verb)

        def with_agent(sense: int, decider: str) -> Text:
            bank = with_preposition("near", "près de", noun_phrase(BANKS[sense], "the"))
            return sentence(noun_phrase(NOUNS[decider], "the"), verb, form, None, join(bank, time))

        return with_agent


MONEY = (
    parse_noun("paycheck = chèque de paie/chèques de paie m"),
    parse_noun("money = argent m +mass"),
    parse_noun("check = chèque m"),
    parse_noun("gold = or m +mass"),
)
BANKING = (
    parse_verb("deposit = déposer"),
    parse_verb("deposit = déposer"),  # listed twice to be drawn twice as often
    parse_verb("leave:left = laisser"),
    parse_verb("lose:lost = perdre perds perd perdons perdent perdu ; stative event"),
    parse_verb("forget:forgot = oublier ; stative event"),
)


def banking(draw: Draw) -> Text:
    """Money at a bank: I deposited my paycheck at the bank yesterday."""
    verb, noun, subject = draw.one(BANKING), draw.one(MONEY), draw.subject()
    form = draw.form(verb, subject)
    determiner = draw.owner(subject) if draw.chance(0.6) else "the"
    bank = with_preposition("at", "à", noun_phrase(BANKS[1], "the"))
    return sentence(subject, verb, form, noun_phrase(noun, determiner), join(bank, draw.time(form, verb, 0.5)))
