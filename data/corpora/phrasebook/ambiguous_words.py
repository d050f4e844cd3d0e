"""The ambiguous words (bank, bat, spring, light, know ...) and the words that decide between their two senses.

Every sense has at least four deciders. Most deciders are ordinary words of the lexicon, so that a model learns a sense
from many contexts and not from a single sentence.
"""

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
    FEMALE_NAMES,
    MALE_NAMES,
    Noun,
    Verb,
    parse_adjective,
    parse_noun,
    parse_verb,
)


def _deciders(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parses the deciders of the two senses: "cave attic | stadium gymnasium"."""
    left, right = text.split(" | ")
    return tuple(left.split()), tuple(right.split())


def _senses(text: str) -> tuple[Noun, Noun]:
    """Parses a noun in its two senses: "fan = supporter m | fan = ventilateur m"."""
    left, right = text.split(" | ")
    return parse_noun(left), parse_noun(right)


def _verb_puzzle(word: str, senses: str, first: str, second: str) -> VerbPuzzle:
    """Returns a puzzle about a noun; `first` and `second` list the verbs that decide for each of its senses."""
    verbs = tuple(tuple(parse_verb(entry.strip()) for entry in side.split(",")) for side in (first, second))
    by_base = {verb.english.base: verb for side in verbs for verb in side}
    deciders = (tuple(verb.english.base for verb in verbs[0]), tuple(verb.english.base for verb in verbs[1]))
    return VerbPuzzle(word, deciders, _senses(senses), by_base)


ANIMATE_STATES = "hungry thirsty tired afraid happy sad angry sleepy"
NAMES = (*FEMALE_NAMES, *MALE_NAMES)
GAMES = {
    "tennis": "le tennis", "football": "le football", "rugby": "le rugby", "golf": "le golf", "chess": "les échecs",
    "cards": "les cartes",
}  # fmt: skip
INSTRUMENTS = {
    "guitar": "la guitare", "violin": "le violon", "piano": "le piano", "flute": "la flûte", "trumpet": "la trompette",
    "harp": "la harpe",
}  # fmt: skip
QUESTION_WORDS = {"why": "pourquoi", "when": "quand", "where": "où", "how": "comment"}


def _with_preposition(entry: str, preposition: str, suffix: str = "") -> Verb:
    verb = parse_verb(entry)
    return Verb(verb.english, verb.french, verb.objects, verb.flags, preposition, suffix)


PUZZLES: tuple[Puzzle, ...] = (
    PlacePuzzle("bat", _deciders("cave attic barn forest tower cellar | stadium gymnasium locker bag suitcase"),
                _senses("bat = chauve-souris/chauves-souris f | bat = batte f"), "in", "dans"),
    PredicatePuzzle("bat", _deciders(f"{ANIMATE_STATES} | broken expensive wooden plastic"),
                    _senses("bat = chauve-souris/chauves-souris f | bat = batte f")),
    PlacePuzzle("spring", _deciders("forest valley desert meadow cave field | mattress sofa armchair clock toy trap"),
                _senses("spring = source f | spring = ressort m"), "in", "dans"),
    PlacePuzzle("seal", _deciders("beach island coast ice rock sand | envelope letter contract diploma package"),
                _senses("seal = phoque m | seal = sceau m"), "on", "sur"),
    PlacePuzzle("mole", _deciders("lawn path hill road grass | arm cheek chin neck back shoulder forehead"),
                _senses("mole = taupe f | mole = grain de beauté/grains de beauté m"), "on", "sur"),
    PlacePuzzle("trunk", _deciders("tree oak pine birch poplar | car taxi ambulance van"),
                _senses("trunk = tronc m | trunk = coffre m"), "of", "de"),
    PlacePuzzle("keys", _deciders("door car safe cupboard house castle | "
                                  "piano accordion computer calculator typewriter"),
                _senses("key = clé f | key = touche f"), "of", "de", plural=True),
    _verb_puzzle("match", "match = allumette f | match = match/matchs m",
                 "light:lit = allumer, burn = brûler, strike:struck = craquer, break:broke = casser",
                 "win:won = gagner, referee = arbitrer, film = filmer, cancel = annuler, organize = organiser"),
    _verb_puzzle("date", "date = datte f | date = date f",
                 "eat:ate = manger, taste = goûter, swallow = avaler, chew = mâcher",
                 "forget:forgot = oublier, confirm = confirmer, announce = annoncer, write:wrote = écrire écris "
                 "écrit écrivons écrivent écrit"),
    _verb_puzzle("square", "square = carré m | square = place f",
                 "draw:drew = dessiner, color = colorier, trace = tracer, erase = effacer",
                 "cross = traverser, leave:left = quitter, sweep:swept = balayer, reach = atteindre atteins atteint "
                 "atteignons atteignent atteint"),
    _verb_puzzle("plant", "plant = plante f | plant = usine f",
                 "water = arroser, trim = tailler, grow:grew = cultiver, smell = sentir sens sent sentons sentent "
                 "senti",
                 "close = fermer, build:built = construire construis construit construisons construisent construit, "
                 "manage = diriger, modernize = moderniser, inspect = inspecter"),
    _verb_puzzle("nut", "nut = noix f | nut = écrou m",
                 "eat:ate = manger, taste = goûter, swallow = avaler, chew = mâcher",
                 "tighten = serrer, loosen = desserrer, unscrew = dévisser, grease = graisser"),
    _verb_puzzle("bulb", "bulb = bulbe m | bulb = ampoule f",
                 "plant = planter, water = arroser, grow:grew = cultiver, bury = enterrer",
                 "replace = remplacer, unscrew = dévisser, break:broke = casser, change = changer"),
    PredicatePuzzle("fan", _deciders(f"{ANIMATE_STATES} proud | broken expensive rusty dusty electric plastic"),
                    _senses("fan = supporter m | fan = ventilateur m")),
    PredicatePuzzle("speaker", _deciders(f"{ANIMATE_STATES} proud | broken expensive dusty plastic"),
                    _senses("speaker = orateur m | speaker = haut-parleur m")),
    ModifiedPuzzle("light", _deciders("suitcase box bag backpack basket package ladder | "
                                      "kitchen office bedroom hall classroom library"),
                   (parse_adjective("light = léger"), parse_adjective("light = clair"))),
    ModifiedPuzzle("hard", _deciders("bread bed mattress stone cheese ground wood bench | "
                                     "question lesson exercise exam problem game"),
                   (parse_adjective("hard = dur"), parse_adjective("hard = difficile"))),
    ModifiedPuzzle("short", _deciders("man woman boy girl soldier doctor neighbor king | "
                                      "skirt dress letter film rope song poem lesson"),
                   (parse_adjective("short = petit"), parse_adjective("short = court")), owned=False),
    AttributePuzzle("right", _deciders("hand foot arm eye leg ear shoulder knee | "
                                       "answer address word number road train map"),
                    (parse_adjective("right = droit"), parse_adjective("right = bon/bonne", "before")),
                    (parse_verb("show:showed = montrer"), *NEUTRAL_VERBS)),
    ObjectPuzzle("visit", _deciders("doctor neighbor king queen baker actress prince | "
                                    "museum castle city cathedral island farm hospital village"),
                 (_with_preposition("visit = rendre rends rend rendons rendent rendu", "à", "visite"),
                  parse_verb("visit = visiter")), {}),
    ObjectPuzzle("bring", _deciders("dog cat horse child boy girl prince | book cake chair letter gift flower lamp"),
                 (parse_verb("bring:brought = amener"), parse_verb("bring:brought = apporter")), {}),
    ObjectPuzzle("know", (tuple(QUESTION_WORDS), NAMES),
                 (parse_verb("know:knew = savoir sais sait savons savent su ; stative habit"),
                  parse_verb("know:knew = connaître connais connaît connaissons connaissent connu ; stative habit")),
                 QUESTION_WORDS | {name: name for name in NAMES}),
    ObjectPuzzle("play", (tuple(GAMES), tuple(INSTRUMENTS)),
                 (_with_preposition("play = jouer", "à"), _with_preposition("play = jouer", "de")),
                 GAMES | INSTRUMENTS),
    ItPuzzle("it", (ANIMATE_REASONS, THING_REASONS)),
    CrossingPuzzle("bank", _deciders("river lake stream canal pond | street road avenue park garden")),
    AgentPuzzle("bank", _deciders("fisherman frog duck crocodile swan otter | "
                                  "banker cashier customer manager thief accountant")),
)  # fmt: skip
