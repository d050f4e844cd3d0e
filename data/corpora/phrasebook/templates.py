"""The sentence templates: each draws its words at random and returns one finished sentence.

A template is a function from `Draw` (random choice from the lexicon) to a `Sentence`; its docstring gives examples.
TEMPLATES, at the end, lists all templates with their shares of the corpus, including those for ambiguous words, which
are defined in `ambiguous_words`.
"""

from collections.abc import Callable
from functools import cache

from lingua_flax.data.corpora.phrasebook.ambiguous_words import PUZZLES
from lingua_flax.data.corpora.phrasebook.bank_templates import banking, crossing
from lingua_flax.data.corpora.phrasebook.contrast_templates import OPINIONS
from lingua_flax.data.corpora.phrasebook.it_templates import ANIMATE_REASONS, on_surface
from lingua_flax.data.corpora.phrasebook.lexicon import Noun, Verb, load_lexicon, parse_verb
from lingua_flax.data.corpora.phrasebook.morphology import agree, attach
from lingua_flax.data.corpora.phrasebook.phrases import (
    AVOIR,
    BE,
    BE_PAST,
    ETRE,
    ETRE_PAST,
    HE,
    NUMBERS,
    PRONOUNS,
    SHE,
    THEY,
    WE,
    Combination,
    Form,
    I,
    NounPhrase,
    Pair,
    Pronoun,
    Sentence,
    clause,
    copula,
    finish,
    noun_phrase,
    pronoun_phrase,
)
from lingua_flax.data.corpora.phrasebook.random_draws import (
    PREDICATIVE_ADJECTIVES,
    Draw,
    adjectives_of,
    at_place,
    nouns,
    past_if_ambiguous,
)

Template = Callable[[Draw], Sentence]

DEGREES = (("very", "très"), ("too", "trop"))
COMPARISONS = (("as", "as", "aussi"), ("less", "than", "moins"))
LEXICON = load_lexicon()
MEAL_VERBS = tuple(LEXICON.verb(word) for word in ("eat", "drink", "taste", "buy", "like", "love", "hate", "prepare"))
DYNAMIC_VERBS = tuple(verb for verb in LEXICON.transitives if "present" not in verb.flags)
PERSON_VERBS = tuple(verb for verb in LEXICON.transitives if "person" in verb.flags)
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
DESCRIBABLE = tuple(noun for noun in LEXICON.nouns if not noun.mass and adjectives_of(noun, True))


def _combinations(verb: Verb, noun: Noun) -> tuple[Combination, ...]:
    return ((verb.key, noun.key),)


# --- Templates: one clause ---------------------------------------------------------------------------------------


def transitive(draw: Draw) -> Sentence:
    """A transitive verb in any form: She ate an apple. Do you want to open the window?"""
    verb = draw.one(draw.lexicon.transitives)
    subject = draw.subject("animals" in verb.flags)
    form = draw.form(verb, subject)
    noun = draw.one(nouns(*verb.objects))
    phrase = draw.object(noun, subject, form, verb)
    return _with_object(subject, verb, form, noun, phrase, draw.time(form, verb))


def _with_object(
    subject: NounPhrase,
    verb: Verb,
    form: Form,
    noun: Noun,
    phrase: NounPhrase,
    tail: Pair,
    lemmas: tuple[str, ...] = (),
) -> Sentence:
    lemmas = (verb.key, *lemmas, *subject.lemmas, *phrase.lemmas)
    combinations = (*_combinations(verb, noun), *subject.combinations, *phrase.combinations)
    return finish(clause(subject, verb, form, phrase, tail), form.question, lemmas, combinations)


def _without_object(subject: NounPhrase, verb: Verb, form: Form, tail: Pair, lemmas: tuple[str, ...]) -> Sentence:
    pair = clause(subject, verb, form, None, tail)
    return finish(pair, form.question, (verb.key, *lemmas, *subject.lemmas), subject.combinations)


def statement(draw: Draw) -> Sentence:
    """A transitive verb without adverb or negation: She ate an apple. The cat eats fish."""
    verb = draw.one(DYNAMIC_VERBS)
    subject = draw.subject("animals" in verb.flags)
    tense = draw.one(("past", "present")) if "habit" not in verb.flags else "habit"
    form = past_if_ambiguous(Form(tense), verb, subject)
    noun = draw.one(nouns(*verb.objects))
    phrase = draw.object(noun, subject, form, verb)
    return _with_object(subject, verb, form, noun, phrase, ("", ""))


@cache
def edibles_of(verb: Verb) -> tuple[Noun, ...]:
    """Returns the food and drink among the objects of a verb."""
    return tuple(noun for noun in nouns(*verb.objects) if noun in nouns("food", "drink", "countfood"))


def meal(draw: Draw) -> Sentence:
    """Food and drink: The cat eats fish. We did not drink water. They like apples."""
    verb = draw.one(MEAL_VERBS)
    subject = draw.subject("animals" in verb.flags)
    form = draw.form(verb, subject)
    noun = draw.one(edibles_of(verb))
    phrase = draw.object(noun, subject, form, verb)
    return _with_object(subject, verb, form, noun, phrase, draw.time(form, verb, 0.2))


def intransitive(draw: Draw) -> Sentence:
    """An intransitive verb: The children are sleeping in the garden. Marie did not get up this morning."""
    verb = draw.one(draw.lexicon.intransitives)
    subject = draw.subject("animals" in verb.flags)
    form = draw.form(verb, subject)
    english, french, lemmas = draw.place(verb) if "place" in verb.flags and draw.chance(0.75) else ("", "", ())
    adverb = draw.time(form, verb, 0.5, "season")
    tail = (f"{english} {adverb[0]}".strip(), f"{french} {adverb[1]}".strip())
    return _without_object(subject, verb, form, tail, lemmas)


# destinations that take à (aller à la gare, but not à la colline)
GOALS = ("at", "garden", "park", "beach", "castle", "church", "village", "port", "house", "lake", "river", "cathedral")
PLACES = ("at", "in", "on", "-room", "-way")
# (verb, English preposition, French preposition, classes of places)
MOTIONS = (
    (parse_verb("go:went = aller vais va allons vont allé ; etre animals"), "to", "à", GOALS),
    (parse_verb("come:came = venir viens vient venons viennent venu ; etre animals"), "from", "de", PLACES),
    (LEXICON.verb("come back"), "from", "de", PLACES),
    (parse_verb("return = retourner ; etre animals"), "to", "à", GOALS),
    (LEXICON.verb("run"), "to", "jusqu'à", PLACES),
    (LEXICON.verb("walk"), "to", "jusqu'à", PLACES),
)
LEAVE = parse_verb("leave:left = quitter ; animals")


def motion(draw: Draw) -> Sentence:
    """Motion to or from a place: We went to the market yesterday. The cat came back from the forest."""
    if draw.chance(0.15):
        place = noun_phrase(draw.one(nouns(*PLACES)), "the")
        verb, english, french = LEAVE, place.english, place.french
    else:
        verb, english_preposition, french_preposition, classes = draw.one(MOTIONS)
        place = noun_phrase(draw.one(nouns(*classes)), "the")
        english = f"{english_preposition} {place.english}"
        prefix, _, preposition = french_preposition.rpartition("'")  # jusqu'à la gare, jusqu'au parc
        french = f"{prefix}'" * bool(prefix) + attach(preposition, place.french)
    subject = draw.subject(draw.chance(0.5))
    form = draw.form(verb, subject)
    adverb = draw.time(form, verb, 0.35, "season")
    tail = (f"{english} {adverb[0]}".strip(), f"{french} {adverb[1]}".strip())
    return _without_object(subject, verb, form, tail, place.lemmas)


def object_pronoun(draw: Draw) -> Sentence:
    """A personal pronoun as object: I saw her yesterday. They are not going to help us."""
    verb = draw.one(PERSON_VERBS)
    subject = draw.subject("animals" in verb.flags and draw.chance(0.4))
    excluded = {subject.pronoun} | ({I, WE} if subject.pronoun in (I, WE) else set())
    object_ = draw.one([pronoun for pronoun in PRONOUNS if pronoun not in excluded])
    form = draw.form(verb, subject)
    pair = clause(subject, verb, form, object_, draw.time(form, verb))
    return finish(pair, form.question, (verb.key, *subject.lemmas), subject.combinations)


def predicate(draw: Draw) -> Sentence:
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
    degree = draw.one(DEGREES) if draw.chance(0.35) and adjective.gradable else ("", "")
    combinations = ((adjective.key, noun.key),) if noun.key in subject.lemmas else ()
    if form.question:
        form = form._replace(negation="")
    return finish(
        copula(subject, adjective, form, degree), form.question, (adjective.key, *subject.lemmas), combinations
    )


def comparison(draw: Draw) -> Sentence:
    """A comparison: The horse is as strong as the bear. The cake is less sweet than that cake."""
    adjective = draw.one(COMPARABLE)
    first = draw.one(nouns(*adjective.classes))
    second = draw.one([noun for noun in nouns(*adjective.classes) if noun.kind == first.kind])
    left, right = noun_phrase(first, "the"), noun_phrase(second, "the" if draw.chance(0.7) else "this")
    if first is second:
        right = noun_phrase(second, "that")
    words = draw.one(COMPARISONS)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    english_tail, french_tail = f"{words[1]} {right.english}", f"que {right.french}"
    pair = copula(left, adjective, form, (words[0], words[2]), (english_tail, french_tail))
    combinations = ((adjective.key, first.key), (adjective.key, second.key))
    return finish(pair, False, (adjective.key, first.key, second.key), combinations)


# (classes of things, classes of the places they can be at)
SCENERY = (
    ("animal", "at outdoors barn house field road bridge"),
    ("person", "at in on"),
    ("portable clothes", "room at house castle tower garden park"),
    ("furniture", "room house hotel castle restaurant museum"),
    ("vehicle -boat -plane", "street road bridge village city farm station hospital airport garage"),
    ("tree", "outdoors -beach -coast -port -market -cave -city field"),
)


def existence(draw: Draw) -> Sentence:
    """There is or was something: There is a big tree in the garden. There were three red cars on the bridge."""
    things, places = draw.one(SCENERY)
    english_place, french_place, lemmas = at_place(draw.one(nouns(*places.split())))
    noun = draw.one(nouns(*things.split()))
    adjective = draw.attributive_adjective(noun) if draw.chance(0.6) else None
    plural = draw.chance(0.4)
    phrase = noun_phrase(noun, draw.one(tuple(NUMBERS)) if plural else "a", plural, adjective)
    past, question = draw.chance(0.4), draw.chance(0.15)
    be = ("were" if plural else "was") if past else "are" if plural else "is"
    head = f"{be} there" if question else f"there {be}"
    french = f"{'est-ce que ' if question else ''}il y {'avait' if past else 'a'} {phrase.french} {french_place}"
    pair = (f"{head} {phrase.english} {english_place}", french)
    return finish(pair, question, (*phrase.lemmas, *lemmas), phrase.combinations)


def location(draw: Draw) -> Sentence:
    """Where a thing is: The book is under the table. Where were my shoes?"""
    noun = draw.one(nouns("portable", "clothes", "pet"))
    plural = draw.chance(0.2)
    subject = noun_phrase(noun, draw.determiner_or_possessive(noun, "the"), plural)
    place = noun_phrase(draw.one(nouns("furniture", "container", "openable", "vehicle", "-gate")), "the")
    preposition = draw.one(SPATIAL_PREPOSITIONS)
    past = draw.chance(0.4)
    be, etre = (BE_PAST, ETRE_PAST) if past else (BE, ETRE)
    if draw.chance(0.12):
        pair = (f"where {be[subject.person]} {subject.english}", f"où {etre[subject.person]} {subject.french}")
        return finish(pair, True, subject.lemmas)
    french_place = attach(preposition[1], place.french)
    if preposition[1].endswith(" de"):
        french_place = preposition[1][:-2] + attach("de", place.french)
    pair = (
        f"{subject.english} {be[subject.person]} {preposition[0]} {place.english}",
        f"{subject.french} {etre[subject.person]} {french_place}",
    )
    return finish(pair, False, (*subject.lemmas, *place.lemmas))


SPATIAL_PREPOSITIONS = (
    ("under", "sous"),
    ("behind", "derrière"),
    ("near", "près de"),
    ("next to", "à côté de"),
    ("in front of", "devant"),
)


def identity(draw: Draw) -> Sentence:
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
    english_head = "these are" if plural else "this is"
    french_head, question = ("ce sont" if plural else "c'est"), draw.chance(0.2)
    if question:
        inverted_head = " ".join(reversed(english_head.split()))
        pair = (f"{inverted_head} {phrase.english}", f"est-ce que {french_head} {phrase.french}")
    elif draw.chance(0.2):
        negated_head = "ce ne sont pas" if plural else "ce n'est pas"
        pair = (f"{english_head} not {phrase.english}", f"{negated_head} {phrase.french}")
    else:
        pair = (f"{english_head} {phrase.english}", f"{french_head} {phrase.french}")
    return finish(pair, question, phrase.lemmas, phrase.combinations)


def ownership(draw: Draw) -> Sentence:
    """A thing with its owner: Paul's car is old. I found the teacher's umbrella."""
    owner = draw.name() if draw.chance(0.5) else noun_phrase(draw.one(nouns("person")), "the")
    if draw.chance(0.3):
        owner = noun_phrase(draw.one(nouns("kin")), draw.one(PRONOUNS))
    if draw.chance(0.5):
        word, classes = draw.one(OWNED_VERBS)
        verb, noun = draw.lexicon.verb(word), draw.one(nouns(*classes.split()))
        subject = draw.subject()
        form = draw.form(verb, subject)
        phrase = _owned_phrase(noun, owner)
        return _with_object(subject, verb, form, noun, phrase, draw.time(form, verb))
    noun = draw.one(nouns("clothes", "portable", "vehicle", "pet", "room", "house", "garden"))
    options = adjectives_of(noun, False)
    if not options:
        return ownership(draw)
    adjective = draw.one(options)
    subject = _owned_phrase(noun, owner)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    return finish(
        copula(subject, adjective, form), False, (adjective.key, *subject.lemmas), ((adjective.key, noun.key),)
    )


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
    article = "la" if noun.feminine else "le"
    return NounPhrase(
        english=f"{owner.english}'s {noun.english}",
        french=f"{article} {noun.french} {attach('de', owner.french)}",
        negated=f"{article} {noun.french} {attach('de', owner.french)}",
        person=1,
        feminine=noun.feminine,
        plural=False,
        pronoun=SHE if noun.feminine else HE,
        lemmas=(noun.key, *owner.lemmas),
    )


def giving(draw: Draw) -> Sentence:
    """A direct and an indirect object: She gave a book to the teacher. We are going to show the map to Paul."""
    verb = draw.one(GIVING_VERBS)
    noun = draw.one(nouns(*verb.objects))
    subject = draw.subject()
    form = draw.form(verb, subject)
    phrase = draw.object(noun, subject, form, verb)
    receiver = draw.person()
    while receiver.english == subject.english:
        receiver = draw.person()
    tail = (f"to {receiver.english}", attach("à", receiver.french))
    return _with_object(subject, verb, form, noun, phrase, tail, receiver.lemmas)


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


def opinion(draw: Draw) -> Sentence:
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
    pair = clause(speaker, verb, form, None, (f"that {inner[0]}", f"que {inner[1]}"))
    combinations = ((adjective.key, noun.key),) if noun.key in subject.lemmas else ()
    return finish(pair, form.question, (verb.key, adjective.key, *speaker.lemmas, *subject.lemmas), combinations)


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


def and_then(draw: Draw) -> Sentence:
    """Two verbs with one object: She bought an apple and ate it. They washed the shirts and folded them."""
    first_word, second_word, classes = draw.one(SEQUELS)
    first, second = draw.lexicon.verb(first_word), draw.lexicon.verb(second_word)
    noun = draw.one(nouns(*classes.split()))
    subject = draw.subject()
    form = Form("past")
    phrase = draw.object(noun, subject, form, first)
    clitic = THEY if phrase.plural else SHE if phrase.feminine else HE
    first_clause = clause(subject, first, form, phrase)
    participle = agree(second.french.participle, phrase.feminine, phrase.plural)
    english = f"{first_clause[0]} and {second.english.past} {second.english.particle}".strip()
    pair = (
        f"{english} {'them' if phrase.plural else 'it'}",
        f"{first_clause[1]} et {clitic.clitic} {AVOIR[subject.person]} {participle}",
    )
    lemmas = (first.key, second.key, *subject.lemmas, *phrase.lemmas)
    combinations = (*_combinations(first, noun), *_combinations(second, noun), *phrase.combinations)
    return finish(pair, False, lemmas, combinations)


def reason(draw: Draw) -> Sentence:
    """An action and its reason: Marie stayed at the hotel because she was sick."""
    verbs, states = draw.one(REASONS)
    verb = draw.lexicon.intransitive(draw.one(verbs))
    subject = pronoun_phrase(draw.one(PRONOUNS)) if draw.chance(0.5) else draw.name()
    english, french, lemmas = draw.place(verb) if "place" in verb.flags and draw.chance(0.5) else ("", "", ())
    adjective = draw.lexicon.adjective(draw.one(states))
    past = draw.chance(0.7)
    main = clause(subject, verb, Form("past" if past else "progressive"), None, (english, french))
    because = copula(pronoun_phrase(subject.pronoun), adjective, Form("past" if past else "present"))
    pair = (f"{main[0]} because {because[0]}", f"{main[1]} parce que {because[1]}")
    return finish(pair, False, (verb.key, adjective.key, *subject.lemmas, *lemmas))


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
