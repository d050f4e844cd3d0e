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
    if posture and (form.negation == "never" or form.adverb.english):
        form = Form(form.tense)
    return finish(surface_clause(subject, verb, posture, form, surface), form.question)


class ItScene(NamedTuple):
    """A main clause about an animal and a thing, and the reasons with it that fit either of them."""

    animal: NounPhrase
    thing: NounPhrase
    reasons: tuple[tuple[str, ...], tuple[str, ...]]
    main: Text
    past: bool

    def sentence(self, sense: int, reason: str) -> Text:
        """Returns the sentence with one of the reasons of the animal, sense 0, or of the thing, sense 1."""
        antecedent, adjective = (self.animal, self.thing)[sense], ADJECTIVES[reason]
        it = NounPhrase("it", "elle" if antecedent.feminine else "il", feminine=antecedent.feminine)
        state = copula(it, adjective, Form("past" if self.past else "present"))
        return finish(join(self.main, BECAUSE, state).with_combinations((adjective.key, antecedent.lemmas[0])))


def draw_it_scene(draw: Draw) -> ItScene:
    """Draws an animal that rests on a thing, eats or drinks it, or gets it from somebody."""
    animal = noun_phrase(draw.one(nouns("animal")), "the")
    past = draw.chance(0.7)
    if draw.chance(0.55):
        verb, posture = draw.one(SURFACE_VERBS)
        noun = draw.one(nouns("surface"))
        thing = thing_phrase(draw, noun)
        form = Form("past" if past else draw.one(("present", "progressive")))
        reasons: tuple[str, ...] = JUMPING_REASONS if verb.english.base == "jump" else RESTING_REASONS
        main = surface_clause(animal, verb, posture, form, thing)
    else:
        noun = draw.one(nouns("food", "countfood", "drink", "-wine", "-beer", "-coffee", "-tea"))
        thing = thing_phrase(draw, noun)
        verb, reasons = (DRINK, DRINKING_REASONS) if "drink" in noun.classes else (EAT, EATING_REASONS)
        form = Form("past" if past else "progressive")
        if draw.chance(0.5):
            main = clause(animal, verb, form, object_of(verb, thing))
        else:
            main = clause(draw.subject(), GIVE, form, thing, with_preposition("to", "à", animal))
            reasons = (*reasons[:2], *FEEDING_REASONS)
    fitting = {adjective.english for adjective in adjectives_of(noun, False)}
    return ItScene(animal, thing, (reasons, tuple(word for word in THING_REASONS if word in fitting)), main, past)


class ItPuzzle(Puzzle):
    """The predicate decides the antecedent of it: the cow sat on the carpet because it was tired / soft.

    Which predicates fit depends on the scene.
    """

    @property
    def weight(self) -> int:
        """The relative share of the corpus, large because the scenes are so varied."""
        return 90

    def sample(self, draw: Draw) -> Text:
        scene = draw_it_scene(draw)
        sense = draw.one((0, 1)) if scene.reasons[1] else 0
        return scene.sentence(sense, draw.one(scene.reasons[sense]))

    def contrast(self, draw: Draw) -> tuple[Text, Text]:
        scene = draw_it_scene(draw)
        while scene.animal.feminine == scene.thing.feminine or not scene.reasons[1]:
            scene = draw_it_scene(draw)
        first, second = map(draw.one, scene.reasons)
        return scene.sentence(0, first), scene.sentence(1, second)
