"""The sentence templates: each draws its words at random and returns one finished sentence.

A template is a function from `Draw` (random choice from the lexicon) to a `Text`; its docstring gives examples.
TEMPLATES, at the end, lists all templates with their shares of the corpus, including those for ambiguous words, which
are defined in `ambiguous_words`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from lingua_flax.data.corpora.phrasebook.ambiguous_words import PUZZLES
from lingua_flax.data.corpora.phrasebook.bank_templates import banking, crossing
from lingua_flax.data.corpora.phrasebook.contrast_templates import DEGREES, OPINIONS, THAT
from lingua_flax.data.corpora.phrasebook.it_templates import ANIMATE_REASONS, BECAUSE, on_surface
from lingua_flax.data.corpora.phrasebook.lexicon import (
    ADJECTIVES,
    INTRANSITIVES,
    NOUNS,
    TRANSITIVES,
    Noun,
    Verb,
    nouns,
    parse_verb,
)
from lingua_flax.data.corpora.phrasebook.morphology import agree
from lingua_flax.data.corpora.phrasebook.phrases import (
    AVOIR,
    BE,
    BE_PAST,
    ETRE,
    ETRE_PAST,
    NOTHING,
    NUMBERS,
    PRONOUNS,
    WE,
    Form,
    I,
    NounPhrase,
    Pronoun,
    Text,
    clause,
    copula,
    finish,
    join,
    noun_phrase,
    object_of,
    pronoun_phrase,
    sentence,
    with_preposition,
)
from lingua_flax.data.corpora.phrasebook.random_draws import (
    PREDICATIVE_ADJECTIVES,
    Draw,
    adjectives_of,
    at_place,
    past_if_ambiguous,
)

Template = Callable[[Draw], Text]

COMPARISONS = ((Text("as", "aussi"), Text("as", "que")), (Text("less", "moins"), Text("than", "que")))
MEAL_VERBS = tuple(TRANSITIVES[word] for word in ("eat", "drink", "taste", "buy", "like", "love", "hate", "prepare"))
DYNAMIC_VERBS = tuple(verb for verb in TRANSITIVES.values() if "present" not in verb.flags)
PERSON_VERBS = tuple(verb for verb in TRANSITIVES.values() if "person" in verb.flags)
# (intransitive verbs, states that are a reason for them)
REASONS = (
    (("sleep", "rest", "fall asleep"), ("tired", "sick", "sleepy", "sad")),
    (("stay", "wait"), ("tired", "sick", "afraid", "sad", "busy")),
    (("leave", "come back"), ("tired", "sick", "hungry", "thirsty", "afraid", "sad", "angry", "alone", "late")),
    (("cry",), ("tired", "hungry", "sad", "afraid", "alone", "thirsty")),
    (("stop",), ("tired", "hungry", "thirsty", "sick", "afraid", "sleepy")),
    (("eat",), ("hungry", "sad", "happy")),
    (("get up",), ("hungry", "thirsty", "afraid", "happy", "late")),
    (("smile", "laugh", "dance", "sing"), ("happy", "proud")),
)
COMPARABLE = tuple(item for item in PREDICATIVE_ADJECTIVES if item.gradable and not item.idiom)
DESCRIBABLE = tuple(noun for noun in NOUNS.values() if not noun.mass and adjectives_of(noun, True))


# --- Templates: one clause ---------------------------------------------------------------------------------------


def transitive(draw: Draw) -> Text:
    """A transitive verb in any form: She ate an apple. Do you want to open the window?"""
    verb = draw.one(tuple(TRANSITIVES.values()))
    return _with_object(draw, verb, nouns(*verb.objects))


def _with_object(draw: Draw, verb: Verb, objects: Sequence[Noun], time_probability: float = 0.3) -> Text:
    subject = draw.subject("animals" in verb.flags)
    form = draw.form(verb, subject)
    phrase = draw.object(draw.one(objects), subject, form, verb)
    return sentence(subject, verb, form, phrase, draw.time(form, verb, time_probability))


def statement(draw: Draw) -> Text:
    """A transitive verb without adverb or negation: She ate an apple. The cat eats fish."""
    verb = draw.one(DYNAMIC_VERBS)
    subject = draw.subject("animals" in verb.flags)
    tense = draw.one(("past", "present")) if "habit" not in verb.flags else "habit"
    form = past_if_ambiguous(Form(tense), verb, subject)
    return sentence(subject, verb, form, draw.object(draw.one(nouns(*verb.objects)), subject, form, verb))


def meal(draw: Draw) -> Text:
    """Food and drink: The cat eats fish. We did not drink water. They like apples."""
    verb = draw.one(MEAL_VERBS)
    return _with_object(draw, verb, edibles_of(verb), 0.2)


@cache
def edibles_of(verb: Verb) -> tuple[Noun, ...]:
    """Returns the food and drink among the objects of a verb."""
    return tuple(noun for noun in nouns(*verb.objects) if noun in nouns("food", "drink", "countfood"))


def intransitive(draw: Draw) -> Text:
    """An intransitive verb: The children are sleeping in the garden. Marie did not get up this morning."""
    verb = draw.one(tuple(INTRANSITIVES.values()))
    subject = draw.subject("animals" in verb.flags)
    form = draw.form(verb, subject)
    place = draw.place(verb, 0.75)
    return sentence(subject, verb, form, None, join(place, draw.time(form, verb, 0.5, "season")))


# destinations that take à (aller à la gare, but not à la colline)
GOALS = ("at", "garden", "park", "beach", "castle", "church", "village", "port", "house", "lake", "river", "cathedral")
PLACES = ("at", "in", "on", "-room", "-way")
# (verb, English preposition, French preposition, classes of places)
MOTIONS = (
    (parse_verb("go:went = aller vais va allons vont allé ; etre animals"), "to", "à", GOALS),
    (parse_verb("come:came = venir viens vient venons viennent venu ; etre animals"), "from", "de", PLACES),
    (INTRANSITIVES["come back"], "from", "de", PLACES),
    (parse_verb("return = retourner ; etre animals"), "to", "à", GOALS),
    (INTRANSITIVES["run"], "to", "jusqu'à", PLACES),
    (INTRANSITIVES["walk"], "to", "jusqu'à", PLACES),
)
LEAVE = parse_verb("leave:left = quitter ; animals")


def motion(draw: Draw) -> Text:
    """Motion to or from a place: We went to the market yesterday. The cat came back from the forest."""
    if draw.chance(0.15):
        verb, place = LEAVE, join(noun_phrase(draw.one(nouns(*PLACES)), "the"))
    else:
        verb, english, french, classes = draw.one(MOTIONS)
        place = with_preposition(english, french, noun_phrase(draw.one(nouns(*classes)), "the"))
    subject = draw.subject(draw.chance(0.5))
    form = draw.form(verb, subject)
    return sentence(subject, verb, form, None, join(place, draw.time(form, verb, 0.35, "season")))


def object_pronoun(draw: Draw) -> Text:
    """A personal pronoun as object: I saw her yesterday. They are not going to help us."""
    verb = draw.one(PERSON_VERBS)
    subject = draw.subject("animals" in verb.flags and draw.chance(0.4))
    excluded = {subject.pronoun} | ({I, WE} if subject.pronoun in (I, WE) else set())
    object_ = draw.one([pronoun for pronoun in PRONOUNS if pronoun not in excluded])
    form = draw.form(verb, subject)
    return sentence(subject, verb, form, object_, draw.time(form, verb))


def predicate(draw: Draw) -> Text:
    """To be and an adjective: The soup is not too salty. Are your shoes clean? I am very hungry."""
    adjective = draw.one(PREDICATIVE_ADJECTIVES)
    noun = draw.one(nouns(*adjective.classes))
    if {"person", "animal"} & set(noun.classes) and draw.chance(0.35):
        subject = pronoun_phrase(draw.one(PRONOUNS)) if draw.chance(0.6) else draw.person()
        if adjective not in adjectives_of(draw.one(nouns("man")), False):
            subject = noun_phrase(noun, "the")
    elif noun.mass:
        subject = noun_phrase(noun, draw.determiner_or_possessive(noun, "the", "this"))
    else:
        plural = draw.chance(0.25)
        determiner = draw.determiner_or_possessive(noun, "the", "the", "these" if plural else "this")
        subject = noun_phrase(noun, determiner, plural)
    form = Form(draw.one(("present", "present", "past")), draw.one(("", "", "", "not")), draw.chance(0.15))
    degree = draw.one(DEGREES) if draw.chance(0.35) and adjective.gradable else NOTHING
    if form.question:
        form = form._replace(negation="")
    combinations = [(adjective.key, noun.key)] if noun.key in subject.lemmas else []
    return finish(copula(subject, adjective, form, degree).with_combinations(*combinations), form.question)


def comparison(draw: Draw) -> Text:
    """A comparison: The horse is as strong as the bear. The cake is less sweet than that cake."""
    adjective = draw.one(COMPARABLE)
    first = draw.one(nouns(*adjective.classes))
    second = draw.one([noun for noun in nouns(*adjective.classes) if noun.kind == first.kind])
    left, right = noun_phrase(first, "the"), noun_phrase(second, "the" if draw.chance(0.7) else "this")
    if first is second:
        right = noun_phrase(second, "that")
    degree, than = draw.one(COMPARISONS)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    text = copula(left, adjective, form, degree, join(than, right))
    return finish(text.with_combinations((adjective.key, first.key), (adjective.key, second.key)))


# (classes of things, classes of the places they can be at)
SCENERY = (
    ("animal", "at outdoors barn house field road bridge"),
    ("person", "at in on"),
    ("portable clothes", "room at house castle tower garden park"),
    ("furniture", "room house hotel castle restaurant museum"),
    ("vehicle -boat -plane", "street road bridge village city farm station hospital airport garage"),
    ("tree", "outdoors -beach -coast -port -market -cave -city field"),
)


def existence(draw: Draw) -> Text:
    """There is or was something: There is a big tree in the garden. There were three red cars on the bridge."""
    things, places = draw.one(SCENERY)
    place = at_place(draw.one(nouns(*places.split())))
    noun = draw.one(nouns(*things.split()))
    adjective = draw.attributive_adjective(noun) if draw.chance(0.6) else None
    plural = draw.chance(0.4)
    phrase = noun_phrase(noun, draw.one(tuple(NUMBERS)) if plural else "a", plural, adjective)
    past, question = draw.chance(0.4), draw.chance(0.15)
    be = ("were" if plural else "was") if past else "are" if plural else "is"
    there_is = Text(
        f"{be} there" if question else f"there {be}",
        ("est-ce que il y " if question else "il y ") + ("avait" if past else "a"),
    )
    return finish(join(there_is, phrase, place), question)


def location(draw: Draw) -> Text:
    """Where a thing is: The book is under the table. Where were my shoes?"""
    noun = draw.one(nouns("portable", "clothes", "pet"))
    plural = draw.chance(0.2)
    subject = noun_phrase(noun, draw.determiner_or_possessive(noun, "the"), plural)
    place = noun_phrase(draw.one(nouns("furniture", "container", "openable", "vehicle", "-gate")), "the")
    preposition = draw.one(SPATIAL_PREPOSITIONS)
    past = draw.chance(0.4)
    person = subject.person
    be = Text(BE_PAST[person], ETRE_PAST[person]) if past else Text(BE[person], ETRE[person])
    if draw.chance(0.12):
        return finish(join(Text("where", "où"), be, subject), True)
    return finish(join(subject, be, with_preposition(*preposition, place)))


SPATIAL_PREPOSITIONS = (
    ("under", "sous"),
    ("behind", "derrière"),
    ("near", "près de"),
    ("next to", "à côté de"),
    ("in front of", "devant"),
)


def identity(draw: Draw) -> Text:
    """What a thing is: This is an old house. This is not my umbrella. Is this your coat?"""
    noun = draw.one(DESCRIBABLE)
    adjective = draw.attributive_adjective(noun) if draw.chance(0.7) else None
    determiner: str | Pronoun = draw.one(PRONOUNS)
    if "kin" in noun.classes:
        adjective = None
    elif "body" not in noun.classes:
        determiner = draw.determiner_or_possessive(noun, "a", "a", "the")
    plural = determiner != "a" and draw.chance(0.2)
    phrase = noun_phrase(noun, determiner, plural, adjective)
    question = draw.chance(0.2)
    if question:
        this_is = Text("are these", "est-ce que ce sont") if plural else Text("is this", "est-ce que c'est")
    elif draw.chance(0.2):
        this_is = Text("these are not", "ce ne sont pas") if plural else Text("this is not", "ce n'est pas")
    else:
        this_is = Text("these are", "ce sont") if plural else Text("this is", "c'est")
    return finish(join(this_is, phrase), question)


def ownership(draw: Draw) -> Text:
    """A thing with its owner: Paul's car is old. I found the teacher's umbrella."""
    owner = draw.name() if draw.chance(0.5) else noun_phrase(draw.one(nouns("person")), "the")
    if draw.chance(0.3):
        owner = noun_phrase(draw.one(nouns("kin")), draw.one(PRONOUNS))
    if draw.chance(0.5):
        word, classes = draw.one(OWNED_VERBS)
        verb, noun = TRANSITIVES[word], draw.one(nouns(*classes.split()))
        subject = draw.subject()
        form = draw.form(verb, subject)
        return sentence(subject, verb, form, object_of(verb, _owned_phrase(noun, owner)), draw.time(form, verb))
    noun = draw.one(nouns("clothes", "portable", "vehicle", "pet", "room", "house", "garden"))
    options = adjectives_of(noun, False)
    if not options:
        return ownership(draw)
    adjective = draw.one(options)
    subject = _owned_phrase(noun, owner)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    return finish(copula(subject, adjective, form).with_combinations((adjective.key, noun.key)))


OWNED_VERBS = (
    ("find", "portable pet clothes"),
    ("see", "vehicle house garden pet portable"),
    ("borrow", "portable vehicle clothes"),
    ("look for", "portable pet clothes"),
    ("repair", "vehicle clock lamp computer chair toy machine"),
    ("clean", "vehicle room house shoe"),
    ("read", "readable"),
)


def _owned_phrase(noun: Noun, owner: NounPhrase) -> NounPhrase:
    """Returns a thing with its owner: la voiture de Paul, le livre du professeur."""
    phrase, of_owner = noun_phrase(noun, "the"), with_preposition("of", "de", owner)
    english, french = f"{owner.english}'s {noun.english}", f"{phrase.french} {of_owner.french}"
    return replace(phrase, english=english, french=french, lemmas=(noun.key, *owner.lemmas))


def giving(draw: Draw) -> Text:
    """A direct and an indirect object: She gave a book to the teacher. We are going to show the map to Paul."""
    verb = draw.one(GIVING_VERBS)
    noun = draw.one(nouns(*verb.objects))
    subject = draw.subject()
    form = draw.form(verb, subject)
    phrase = draw.object(noun, subject, form, verb)
    receiver = draw.person()
    while receiver.english == subject.english:
        receiver = draw.person()
    return sentence(subject, verb, form, phrase, with_preposition("to", "à", receiver))


GIVING_VERBS = tuple(
    parse_verb(entry)
    for entry in (
        "give:gave = donner : portable clothes readable countfood flower",
        "send:sent = envoyer : portable letter book contract clothes",
        "lend:lent = prêter : portable clothes vehicle book",
        "sell:sold = vendre vends vend vendons vendent vendu : vehicle house furniture painting jewel",
        "show:showed = montrer : portable room animal painting letter",
    )
)


# --- Templates: two clauses --------------------------------------------------------------------------------------


def opinion(draw: Draw) -> Text:
    """A statement and its speaker: I think that she is tired. Paul says that the soup is cold."""
    speaker = draw.subject()
    verb = draw.one(OPINION_VERBS)
    adjective = draw.one(PREDICATIVE_ADJECTIVES)
    noun = draw.one(nouns(*adjective.classes))
    living = {"person", "animal"} & set(noun.classes)
    subject = noun_phrase(noun, draw.determiner_or_possessive(noun, "the", "the"))
    if living and adjective.english in ANIMATE_REASONS and draw.chance(0.7):
        subject = pronoun_phrase(draw.one(PRONOUNS))
    inner = copula(subject, adjective, Form(negation=draw.one(("", "", "not"))))
    form = Form("present", "", draw.chance(0.15))
    combinations = [(adjective.key, noun.key)] if noun.key in subject.lemmas else []
    return sentence(speaker, verb, form, None, join(THAT, inner.with_combinations(*combinations)))


OPINION_VERBS = (*OPINIONS, parse_verb("hope = espérer"))


# (first verb, second verb, classes of the objects of both)
SEQUELS = (
    ("buy", "eat", "food countfood -soup"),
    ("buy", "wear", "clothes"),
    ("buy", "drink", "drink"),
    ("buy", "sell", "thing vehicle house"),
    ("find", "hide", "portable coin jewel"),
    ("find", "read", "readable"),
    ("wash", "fold", "clothes blanket -shoe -hat"),
    ("peel", "eat", "peelable -potato -onion"),
    ("cut", "taste", "cake pie melon cheese bread apple pear meat"),
    ("prepare", "eat", "countfood soup salad fish meat rice -lemon"),
    ("pick", "wash", "fruit tomato bean"),
    ("write", "forget", "letter poem song"),
    ("open", "close", "openable container umbrella"),
    ("repair", "sell", "vehicle clock lamp computer toy"),
    ("borrow", "lose", "portable"),
    ("borrow", "break", "cup plate lamp toy mirror clock computer bottle"),
    ("catch", "feed", "animal"),
    ("catch", "throw", "ball stone"),
    ("draw", "photograph", "animal tree house castle boat flower"),
    ("clean", "paint", "chair boat door gate table"),
    ("see", "follow", "animal"),
    ("choose", "buy", "clothes thing countfood"),
)


def and_then(draw: Draw) -> Text:
    """Two verbs with one object: She bought an apple and ate it. They washed the shirts and folded them."""
    first_word, second_word, classes = draw.one(SEQUELS)
    first, second = TRANSITIVES[first_word], TRANSITIVES[second_word]
    noun = draw.one(nouns(*classes.split()))
    subject = draw.subject()
    form = Form("past")
    phrase = draw.object(noun, subject, form, first)
    participle = agree(second.french.participle, phrase.feminine, phrase.plural)
    then = Text(
        f"and {second.english.past} {second.english.particle}".strip() + (" them" if phrase.plural else " it"),
        f"et {phrase.pronoun.clitic} {AVOIR[subject.person]} {participle}",
        (second.key,),
        ((second.key, noun.key),),
    )
    return finish(join(clause(subject, first, form, phrase), then))


def reason(draw: Draw) -> Text:
    """An action and its reason: Marie stayed at the hotel because she was sick."""
    verbs, states = draw.one(REASONS)
    verb = INTRANSITIVES[draw.one(verbs)]
    subject = pronoun_phrase(draw.one(PRONOUNS)) if draw.chance(0.5) else draw.name()
    place = draw.place(verb, 0.5)
    adjective = ADJECTIVES[draw.one(states)]
    past = draw.chance(0.7)
    main = clause(subject, verb, Form("past" if past else "progressive"), None, place)
    state = copula(pronoun_phrase(subject.pronoun), adjective, Form("past" if past else "present"))
    return finish(join(main, BECAUSE, state))


# (template, relative share of the corpus); the order is part of the corpus, because the random draws depend on it
TEMPLATES: tuple[tuple[Template, int], ...] = (
    (transitive, 190),
    (statement, 60),
    (meal, 50),
    (intransitive, 80),
    (motion, 40),
    (object_pronoun, 30),
    (predicate, 70),
    (comparison, 15),
    (existence, 40),
    (location, 30),
    (identity, 30),
    (ownership, 35),
    (giving, 35),
    (opinion, 30),
    (and_then, 35),
    (reason, 25),
    (on_surface, 40),
    (banking, 25),
    (crossing, 30),
    *((puzzle.sample, puzzle.weight) for puzzle in PUZZLES),
)
