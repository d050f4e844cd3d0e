"""Templates for the pronoun it and for animals and people on surfaces.

The French pronoun has the gender of its antecedent, and only the predicate identifies the antecedent.
"""

from dataclasses import replace
from typing import NamedTuple

from lingua_flax.data.corpora.phrasebook.contrast_templates import Puzzle
from lingua_flax.data.corpora.phrasebook.lexicon import ADJECTIVES, Noun, Verb, nouns, parse_verb
from lingua_flax.data.corpora.phrasebook.morphology import agree
from lingua_flax.data.corpora.phrasebook.phrases import (
    ETRE,
    ETRE_PAST,
    Form,
    NounPhrase,
    Text,
    clause,
    copula,
    finish,
    join,
    noun_phrase,
    object_of,
    with_preposition,
)
from lingua_flax.data.corpora.phrasebook.random_draws import Draw, adjectives_of


class ItScene(NamedTuple):
    """A main clause about an animal and a thing, to which a reason with it is added; `noun` is that of the thing."""

    animal: NounPhrase
    thing: NounPhrase
    noun: Noun
    animal_reasons: tuple[str, ...]
    main: Text
    past: bool


BECAUSE = Text("because", "parce que")
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


def surface_clause(subject: NounPhrase, verb: Verb, posture: bool, form: Form, surface: NounPhrase) -> Text:
    """Returns a clause such as "the cat sat on the mat": le chat s'est assis sur le tapis.

    If the verb can describe a posture, the present and the progressive tenses take être and the participle in French:
    le chat est assis sur le tapis.
    """
    tail = with_preposition("on", "sur", surface)
    text = clause(subject, verb, form, None, tail)
    if posture and form.tense in ("present", "progressive", "past progressive"):
        etre = (ETRE_PAST if form.tense == "past progressive" else ETRE)[subject.person]
        before, after = ("ne ", " pas") if form.negation else ("", "")
        state = agree(verb.french.participle, subject.feminine, subject.plural)
        question = "est-ce que " if form.question else ""
        return replace(text, french=f"{question}{subject.french} {before}{etre}{after} {state} {tail.french}")
    return text


def thing_phrase(draw: Draw, noun: Noun) -> NounPhrase:
    """Returns the noun with the, this or a possessive."""
    return noun_phrase(noun, draw.determiner_or_possessive(noun, "the", "the", "this"))


def on_surface(draw: Draw) -> Text:
    """Somebody on a surface: The cat sits on the mat. Was your dog sleeping on the sofa?"""
    verb, posture = draw.one((*SURFACE_VERBS, *POSTURE_VERBS))
    subject = draw.subject(True)
    surface = thing_phrase(draw, draw.one(nouns("surface")))
    form = draw.form(verb, subject)
    if posture and (form.negation == "never" or form.english_adverb):
        form = Form(form.tense)
    return finish(surface_clause(subject, verb, posture, form, surface), form.question)


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
        form = Form("past" if past else "progressive")
        if draw.chance(0.5):
            verb = DRINK if liquid else EAT
            main = clause(animal, verb, form, object_of(verb, thing))
        else:
            main = clause(draw.subject(), GIVE, form, thing, with_preposition("to", "à", animal))
            reasons = (*reasons[:2], *FEEDING_REASONS)
        return ItScene(animal, thing, food, reasons, main, past)

    def _resting(self, draw: Draw, animal: NounPhrase, past: bool) -> ItScene:
        verb, posture = draw.one(SURFACE_VERBS)
        noun = draw.one(nouns("surface"))
        surface = thing_phrase(draw, noun)
        form = Form("past" if past else draw.one(("present", "progressive")))
        reasons = JUMPING_REASONS if verb.english.base == "jump" else RESTING_REASONS
        main = surface_clause(animal, verb, posture, form, surface)
        return ItScene(animal, surface, noun, reasons, main, past)

    def reasons(self, scene: ItScene) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the reasons that fit the animal and those that fit the thing."""
        fitting = {adjective.english for adjective in adjectives_of(scene.noun, False)}
        return scene.animal_reasons, tuple(word for word in THING_REASONS if word in fitting)

    def sample(self, draw: Draw) -> Text:
        scene = self.scene(draw)
        reasons = self.reasons(scene)
        sense = draw.one((0, 1)) if reasons[1] else 0
        return self.render(scene, sense, draw.one(reasons[sense]))

    def contrast(self, draw: Draw) -> tuple[Text, Text]:
        scene = self.scene(draw)
        reasons = self.reasons(scene)
        while scene.animal.feminine == scene.thing.feminine or not reasons[1]:
            scene = self.scene(draw)
            reasons = self.reasons(scene)
        return self.render(scene, 0, draw.one(reasons[0])), self.render(scene, 1, draw.one(reasons[1]))

    def render(self, scene: ItScene, sense: int, decider: str) -> Text:
        antecedent = (scene.animal, scene.thing)[sense]
        it = NounPhrase("it", "elle" if antecedent.feminine else "il", feminine=antecedent.feminine)
        reason = copula(it, ADJECTIVES[decider], Form("past" if scene.past else "present"))
        text = join(scene.main, BECAUSE, reason)
        return finish(text.with_combinations((ADJECTIVES[decider].key, antecedent.lemmas[0])))
