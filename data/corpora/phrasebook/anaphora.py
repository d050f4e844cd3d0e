"""The pronoun it, whose French takes the gender of what it means, and only the predicate tells what it means."""

from typing import NamedTuple

from .draw import Draw, adjectives_of, nouns
from .lexicon import (
    Noun,
    Verb,
    load_lexicon,
    parse_verb,
)
from .morphology import agree, attach
from .phrases import (
    ETRE,
    ETRE_PAST,
    HE,
    SHE,
    Form,
    NounPhrase,
    Pair,
    Sentence,
    clause,
    copula,
    finish,
    noun_phrase,
    pronoun_phrase,
)
from .puzzles import Puzzle


class ItScene(NamedTuple):
    """An animal, a thing, and what happened between them, ready but for the reason."""

    animal: NounPhrase
    thing: NounPhrase
    noun: Noun  # of the thing
    moods: tuple[str, ...]  # reasons that fit the animal
    main: Pair
    past: bool
    lemmas: tuple[str, ...]
    combinations: tuple[tuple[str, str], ...]


RESTING_REASONS = ("tired", "sleepy", "sick", "afraid", "sad", "lazy")
JUMPING_REASONS = ("afraid", "happy")
EATING_REASONS = ("hungry", "hungry", "sad", "happy")
DRINKING_REASONS = ("thirsty", "thirsty", "tired", "happy")
FEEDING_REASONS = ("sad", "sick", "tired")  # beside hungry or thirsty
THING_REASONS = (
    "soft", "dry", "warm", "clean", "comfortable", "flat", "thick",
    "ripe", "sweet", "fresh", "delicious", "salty", "rotten",
)  # fmt: skip
ANIMATE_REASONS = tuple(
    dict.fromkeys(RESTING_REASONS + JUMPING_REASONS + EATING_REASONS + DRINKING_REASONS + FEEDING_REASONS)
)
# verb, whether it is a posture: sits, est assis; sat, s'est assis
ON_SURFACE = (
    (parse_verb("sit:sat = asseoir assieds assied asseyons asseyent assis ; etre reflexive"), True),
    (parse_verb("lie:lay = coucher ; etre reflexive"), True),
    (parse_verb("sleep:slept = dormir dors dort dormons dorment dormi"), False),
    (parse_verb("rest = reposer ; etre reflexive"), False),
    (parse_verb("stay = rester ; etre"), False),
    (parse_verb("jump = sauter"), False),
)
POSTURES = tuple(item for item in ON_SURFACE if item[1])
GIVE = parse_verb("give:gave = donner")
EAT = parse_verb("eat:ate = manger")
DRINK = parse_verb("drink:drank = boire bois boit buvons boivent bu")


def on_surface(subject: NounPhrase, verb: Verb, posture: bool, form: Form, surface: NounPhrase) -> Pair:
    """The cat sat on the mat: le chat s'est assis sur le tapis; The cat sits on the mat: le chat est assis ..."""
    tail = (f"on {surface.english}", f"sur {surface.french}")
    english, french = clause(subject, verb, form, None, None, tail)
    if posture and form.tense in ("present", "progressive", "past progressive"):
        be = (ETRE_PAST if form.tense == "past progressive" else ETRE)[subject.person]
        denied = ("ne ", " pas") if form.negation else ("", "")
        state = agree(verb.french.participle, subject.feminine, subject.plural)
        question = "est-ce que " if form.question else ""
        french = f"{question}{subject.french} {denied[0]}{be}{denied[1]} {state} {tail[1]}"
    return english, french


def this_or_mine(draw: Draw, noun: Noun) -> NounPhrase:
    """The, this or somebody's thing."""
    return noun_phrase(noun, draw.determined(noun, "the", "the", "this"))


def lying_around(draw: Draw) -> Sentence:
    """The cat sits on the mat. Was your dog sleeping on the sofa?"""
    verb, posture = draw.one((*ON_SURFACE, *POSTURES))
    subject = draw.subject(True)
    surface = this_or_mine(draw, draw.one(nouns("surface")))
    form = draw.form(verb, subject)
    if posture and (form.negation == "never" or form.english_adverb):
        form = Form(form.tense)
    return finish(
        on_surface(subject, verb, posture, form, surface), form.question,
        (verb.key, *subject.lemmas, *surface.lemmas),
    )  # fmt: skip


class ItPuzzle(Puzzle[ItScene]):
    """The cow sat on the carpet because it was tired / because it was soft."""

    @property
    def weight(self) -> int:
        """It has many scenes to tell."""
        return 90

    def scene(self, draw: Draw) -> ItScene:
        animal = noun_phrase(draw.one(nouns("animal")), "the")
        past = draw.chance(0.7)
        if draw.chance(0.55):
            return self._resting(draw, animal, past)
        food = draw.one(nouns("food", "countfood", "drink", "-wine", "-beer", "-coffee", "-tea"))
        thing = this_or_mine(draw, food)
        liquid = "drink" in food.classes
        moods = DRINKING_REASONS if liquid else EATING_REASONS
        if draw.chance(0.5):
            verb = DRINK if liquid else EAT
            form = Form("past" if past else "progressive")
            combinations = ((verb.key, food.key),)
            main = clause(animal, verb, form, thing)
            lemmas = (verb.key, *animal.lemmas, *thing.lemmas)
            return ItScene(animal, thing, food, moods, main, past, lemmas, combinations)
        verb, subject = GIVE, draw.subject()
        form = Form("past" if past else "progressive")
        tail = (f"to {animal.english}", attach("à", animal.french))
        main = clause(subject, verb, form, thing, None, tail)
        lemmas = (verb.key, *animal.lemmas, *thing.lemmas, *subject.lemmas)
        return ItScene(animal, thing, food, (*moods[:2], *FEEDING_REASONS), main, past, lemmas, ())

    def _resting(self, draw: Draw, animal: NounPhrase, past: bool) -> ItScene:
        verb, posture = draw.one(ON_SURFACE)
        noun = draw.one(nouns("surface"))
        surface = this_or_mine(draw, noun)
        form = Form("past" if past else draw.one(("present", "progressive")))
        moods = JUMPING_REASONS if verb.english.base == "jump" else RESTING_REASONS
        main = on_surface(animal, verb, posture, form, surface)
        return ItScene(animal, surface, noun, moods, main, past, (verb.key, *animal.lemmas, *surface.lemmas), ())

    def options(self, scene: ItScene) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Reasons that fit the animal, and reasons that fit the thing."""
        fitting = {adjective.english for adjective in adjectives_of(scene.noun, False)}
        return scene.moods, tuple(word for word in THING_REASONS if word in fitting)

    def sample(self, draw: Draw) -> Sentence:
        scene = self.scene(draw)
        options = self.options(scene)
        sense = draw.one((0, 1)) if options[1] else 0
        return self.render(scene, sense, draw.one(options[sense]))

    def contrast(self, draw: Draw) -> tuple[Sentence, Sentence]:
        scene = self.scene(draw)
        options = self.options(scene)
        while scene.animal.feminine == scene.thing.feminine or not options[1]:
            scene = self.scene(draw)
            options = self.options(scene)
        return self.render(scene, 0, draw.one(options[0])), self.render(scene, 1, draw.one(options[1]))

    def render(self, scene: ItScene, sense: int, decider: str) -> Sentence:
        meant = (scene.animal, scene.thing)[sense]
        it = pronoun_phrase(SHE if meant.feminine else HE)
        it = NounPhrase("it", it.french, "", 1, meant.feminine, False, it.pronoun)
        adjective = load_lexicon().adjective(decider)
        why = copula(it, adjective, Form("past" if scene.past else "present"))
        pair = (f"{scene.main[0]} because {why[0]}", f"{scene.main[1]} parce que {why[1]}")
        combinations = (*scene.combinations, (adjective.key, meant.lemmas[0]))
        return finish(pair, False, (adjective.key, *scene.lemmas), combinations)
