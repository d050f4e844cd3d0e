"""Templates for the word bank: rive if it is the bank of a river or lake, banque if it is the bank for money."""

from typing import NamedTuple

from lingua_flax.data.corpora.phrasebook.contrast_templates import Puzzle
from lingua_flax.data.corpora.phrasebook.lexicon import Noun, Verb, load_lexicon, parse_noun, parse_verb
from lingua_flax.data.corpora.phrasebook.phrases import Form, NounPhrase, Pair, Sentence, clause, finish, noun_phrase
from lingua_flax.data.corpora.phrasebook.random_draws import Draw, nouns

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


def crossing(draw: Draw) -> Sentence:
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
        goal, with_other = draw.lexicon.noun(draw.one(GOALS)), False
    subject = draw.subject(draw.chance(0.4))
    form = draw.form(verb, subject)._replace(english_adverb="", french_adverb="")
    return _crossing_sentence(subject, verb, manner, form, way, goal, with_other)


def _crossing_sentence(
    subject: NounPhrase, verb: Verb, manner: str, form: Form, way: Noun, goal: Noun, with_other: bool
) -> Sentence:
    way_phrase, goal_phrase = noun_phrase(way, "the"), noun_phrase(goal, "the")
    english_goal = goal_phrase.english.replace("the ", "the other ") if with_other else goal_phrase.english
    french_goal = f"le autre {goal.french}" if with_other else goal_phrase.french
    english = f"across {way_phrase.english} to get to {english_goal}"
    french = f"{way_phrase.french} {manner}".rstrip() + f" pour atteindre {french_goal}"
    english_side = clause(subject, verb, form, None, (english, ""))[0]
    french_side = clause(subject, CROSS, form, None, ("", french))[1]
    lemmas = (verb.key, way.key, goal.key, *subject.lemmas)
    return finish((english_side, french_side), form.question, lemmas)


class CrossingScene(NamedTuple):
    """The subject and the form of a crossing, and whether its goal is the other bank or the bank."""

    subject: NounPhrase
    form: Form
    with_other: bool


class CrossingPuzzle(Puzzle[CrossingScene]):
    """What is crossed decides the sense of bank: we went across the river / the street to get to the bank."""

    def scene(self, draw: Draw) -> CrossingScene:
        subject = draw.subject(draw.chance(0.3))
        form = draw.form(CROSSINGS[-1][0], subject)._replace(english_adverb="", french_adverb="")
        return CrossingScene(subject, form, draw.chance(0.6))

    def render(self, scene: CrossingScene, sense: int, decider: str) -> Sentence:
        verb, manner, _ = CROSSINGS[-1]
        way = load_lexicon().noun(decider)
        return _crossing_sentence(scene.subject, verb, manner, scene.form, way, BANKS[sense], scene.with_other)


class AgentScene(NamedTuple):
    """What happens near a bank, and when."""

    verb: Verb
    form: Form
    time: Pair


AGENT_VERBS = tuple(
    verb
    for verb in load_lexicon().intransitives
    if verb.english.base in ("sleep", "wait", "rest", "stay", "stop", "walk", "run")
)


class AgentPuzzle(Puzzle[AgentScene]):
    """The subject decides the sense of bank: the frog / the cashier is waiting near the bank."""

    def scene(self, draw: Draw) -> AgentScene:
        verb = draw.one(AGENT_VERBS)
        form = draw.form(verb, noun_phrase(nouns("frog")[0], "the"))
        return AgentScene(verb, form, draw.time(form, verb))

    def render(self, scene: AgentScene, sense: int, decider: str) -> Sentence:
        subject = noun_phrase(load_lexicon().noun(decider), "the")
        bank = noun_phrase(BANKS[sense], "the")
        tail = (f"near {bank.english} {scene.time[0]}".rstrip(), f"près de {bank.french} {scene.time[1]}".rstrip())
        pair = clause(subject, scene.verb, scene.form, None, tail)
        return finish(pair, scene.form.question, (scene.verb.key, *subject.lemmas, *bank.lemmas))


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


def banking(draw: Draw) -> Sentence:
    """Money at a bank: I deposited my paycheck at the bank yesterday."""
    verb, noun, subject = draw.one(BANKING), draw.one(MONEY), draw.subject()
    form = draw.form(verb, subject)
    determiner = draw.owner(subject) if draw.chance(0.6) else "the"
    time = draw.time(form, verb, 0.5)
    tail = (f"at the bank {time[0]}".rstrip(), f"à la banque {time[1]}".rstrip())
    pair = clause(subject, verb, form, noun_phrase(noun, determiner), tail)
    return finish(pair, form.question, (verb.key, noun.key, BANKS[1].key, *subject.lemmas))
