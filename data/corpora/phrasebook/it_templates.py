"""Templates for the pronoun it and for animals and people on surfaces.

The French pronoun has the gender of its antecedent, and only the predicate identifies the antecedent.
"""

from typing import NamedTuple

from lingua_flax.data.corpora.phrasebook.contrast_templates import Puzzle
from lingua_flax.data.corpora.phrasebook.lexicon import Noun, Verb, load_lexicon, parse_verb
from lingua_flax.data.corpora.phrasebook.morphology import agree, attach
from lingua_flax.data.corpora.phrasebook.phrases import (
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
from lingua_flax.data.corpora.phrasebook.random_draws import Draw, adjectives_of, nouns


class ItScene(NamedTuple):
    """A main clause about an animal and a thing, to which a reason with it is added; `noun` is that of the thing."""

    animal: NounPhrase
    thing: NounPhrase
    noun: Noun
    animal_reasons: tuple[str, ...]
    main: Pair
    past: bool
    lemmas: tuple[str, ...]
    combinations: tuple[tuple[str, str], ...]


RESTING_REASONS = ("tired", "sleepy", "sick", "afraid", "sad", "lazy")
JUMPING_REASONS = ("afraid", "happy")
EATING_REASONS = ("hungry", "hungry", "sad", "happy")
DRINKING_REASONS = ("thirsty", "thirsty", "tired", "happy")
FEEDING_REASONS = ("sad", "sick", "tired")  # in addition to hungry or thirsty
SURFACE_REASONS = ("soft", "dry", "warm", "clean", "comfortable", "flat", "thick")
THING_REASONS = (*SURFACE_REASONS, "ripe", "sweet", "fresh", "delicious", "salty", "rotten")
ANIMATE_REASONS = tuple(
    dict.fromkeys(RESTING_REASONS + JUMPING_REASONS + EATING_REASONS + DRINKING_REASONS + FEEDING_REASONS)
)
# (verb, whether it can also describe a posture: sat, s'est assis; sits, est assis)
SURFACE_VERBS = (
    (parse_verb("sit:sat = asseoir assieds assied asseyons asseyent assis ; etre reflexive"), True),
    (parse_verb("lie:lay = coucher ; etre reflexive"), True),
    (parse_verb("sleep:slept = dormir dors dort dormons dorment dormi"), False),
    (parse_verb("rest = reposer ; etre reflexive"), False),
    (parse_verb("stay = rester ; etre"), False),
    (parse_verb("jump = sauter"), False),
)
POSTURE_VERBS = tuple(item for item in SURFACE_VERBS if item[1])
GIVE = parse_verb("give:gave = donner")
EAT = parse_verb("eat:ate = manger")
DRINK = parse_verb("drink:drank = boire bois boit buvons boivent bu")


def surface_clause(subject: NounPhrase, verb: Verb, posture: bool, form: Form, surface: NounPhrase) -> Pair:
    """Returns a clause such as "the cat sat on the mat": le chat s'est assis sur le tapis.

    If the verb can describe a posture, the present and the progressive tenses take être and the participle in French:
    le chat est assis sur le tapis.
    """
    tail = (f"on {surface.english}", f"sur {surface.french}")
    english, french = clause(subject, verb, form, None, tail)
    if posture and form.tense in ("present", "progressive", "past progressive"):
        etre = (ETRE_PAST if form.tense == "past progressive" else ETRE)[subject.person]
        before, after = ("ne ", " pas") if form.negation else ("", "")
        state = agree(verb.french.participle, subject.feminine, subject.plural)
        question = "est-ce que " if form.question else ""
        french = f"{question}{subject.french} {before}{etre}{after} {state} {tail[1]}"
    return english, french


def thing_phrase(draw: Draw, noun: Noun) -> NounPhrase:
    """Returns the noun with the, this or a possessive."""
    return noun_phrase(noun, draw.determiner_or_possessive(noun, "the", "the", "this"))


def on_surface(draw: Draw) -> Sentence:
    """Somebody on a surface: The cat sits on the mat. Was your dog sleeping on the sofa?"""
    verb, posture = draw.one((*SURFACE_VERBS, *POSTURE_VERBS))
    subject = draw.subject(True)
    surface = thing_phrase(draw, draw.one(nouns("surface")))
    form = draw.form(verb, subject)
    if posture and (form.negation == "never" or form.english_adverb):
        form = Form(form.tense)
    pair = surface_clause(subject, verb, posture, form, surface)
    return finish(pair, form.question, (verb.key, *subject.lemmas, *surface.lemmas))


class ItPuzzle(Puzzle[ItScene]):
    """The predicate decides the antecedent of it: the cow sat on the carpet because it was tired / soft."""

    @property
    def weight(self) -> int:
        """The relative share of the corpus, large because the scenes are so varied."""
        return 90

    def scene(self, draw: Draw) -> ItScene:
        animal = noun_phrase(draw.one(nouns("animal")), "the")
        past = draw.chance(0.7)
        if draw.chance(0.55):
            return self._resting(draw, animal, past)
        food = draw.one(nouns("food", "countfood", "drink", "-wine", "-beer", "-coffee", "-tea"))
        thing = thing_phrase(draw, food)
        liquid = "drink" in food.classes
        reasons = DRINKING_REASONS if liquid else EATING_REASONS
        if draw.chance(0.5):
            verb = DRINK if liquid else EAT
            form = Form("past" if past else "progressive")
            combinations = ((verb.key, food.key),)
            main = clause(animal, verb, form, thing)
            lemmas = (verb.key, *animal.lemmas, *thing.lemmas)
            return ItScene(animal, thing, food, reasons, main, past, lemmas, combinations)
        verb, subject = GIVE, draw.subject()
        form = Form("past" if past else "progressive")
        tail = (f"to {animal.english}", attach("à", animal.french))
        main = clause(subject, verb, form, thing, tail)
        lemmas = (verb.key, *animal.lemmas, *thing.lemmas, *subject.lemmas)
        return ItScene(animal, thing, food, (*reasons[:2], *FEEDING_REASONS), main, past, lemmas, ())

    def _resting(self, draw: Draw, animal: NounPhrase, past: bool) -> ItScene:
        verb, posture = draw.one(SURFACE_VERBS)
        noun = draw.one(nouns("surface"))
        surface = thing_phrase(draw, noun)
        form = Form("past" if past else draw.one(("present", "progressive")))
        reasons = JUMPING_REASONS if verb.english.base == "jump" else RESTING_REASONS
        main = surface_clause(animal, verb, posture, form, surface)
        return ItScene(animal, surface, noun, reasons, main, past, (verb.key, *animal.lemmas, *surface.lemmas), ())

    def reasons(self, scene: ItScene) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the reasons that fit the animal and those that fit the thing."""
        fitting = {adjective.english for adjective in adjectives_of(scene.noun, False)}
        return scene.animal_reasons, tuple(word for word in THING_REASONS if word in fitting)

    def sample(self, draw: Draw) -> Sentence:
        scene = self.scene(draw)
        reasons = self.reasons(scene)
        sense = draw.one((0, 1)) if reasons[1] else 0
        return self.render(scene, sense, draw.one(reasons[sense]))

    def contrast(self, draw: Draw) -> tuple[Sentence, Sentence]:
        scene = self.scene(draw)
        reasons = self.reasons(scene)
        while scene.animal.feminine == scene.thing.feminine or not reasons[1]:
            scene = self.scene(draw)
            reasons = self.reasons(scene)
        return self.render(scene, 0, draw.one(reasons[0])), self.render(scene, 1, draw.one(reasons[1]))

    def render(self, scene: ItScene, sense: int, decider: str) -> Sentence:
        antecedent = (scene.animal, scene.thing)[sense]
        it = pronoun_phrase(SHE if antecedent.feminine else HE)
        it = NounPhrase("it", it.french, "", 1, antecedent.feminine, False, it.pronoun)
        adjective = load_lexicon().adjective(decider)
        reason = copula(it, adjective, Form("past" if scene.past else "present"))
        pair = (f"{scene.main[0]} because {reason[0]}", f"{scene.main[1]} parce que {reason[1]}")
        combinations = (*scene.combinations, (adjective.key, antecedent.lemmas[0]))
        return finish(pair, False, (adjective.key, *scene.lemmas), combinations)
