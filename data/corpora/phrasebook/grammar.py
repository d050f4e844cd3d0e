"""The sentence templates: each draws its words at random and returns one finished pair.

A template is a function from `Draw` (a random generator with the lexicon at hand) to a `Sentence`. TEMPLATES at the
end lists them with their share of the corpus. Sentences whose words are ambiguous stand in `ambiguity`.
"""

from collections.abc import Callable
from functools import cache

from .ambiguity import PUZZLES
from .anaphora import ANIMATE_REASONS, lying_around
from .banks import banking, crossing
from .draw import PREDICATES, Draw, adjectives_of, at_place, nouns, nouns_of, objects_of, unmistakable
from .lexicon import Noun, Verb, load_lexicon, parse_verb
from .morphology import agree, attach
from .phrases import (
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

Template = Callable[[Draw], Sentence]

DEGREES = (("very", "très"), ("too", "trop"))
COMPARISONS = (("as", "as", "aussi"), ("less", "than", "moins"))
LEXICON = load_lexicon()
MEAL_VERBS = tuple(LEXICON.verb(word) for word in ("eat", "drink", "taste", "buy", "like", "love", "hate", "prepare"))
DYNAMIC_VERBS = tuple(verb for verb in LEXICON.transitives if "present" not in verb.flags)
PERSON_VERBS = tuple(verb for verb in LEXICON.transitives if "person" in verb.flags)
# what one does, and the states one does it for
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
COMPARABLE = tuple(item for item in PREDICATES if item.gradable and not item.idiom)
DESCRIBABLE = tuple(noun for noun in LEXICON.nouns if not noun.mass and adjectives_of(noun, True))


def _pairs(verb: Verb, noun: Noun) -> tuple[Combination, ...]:
    return ((verb.key, noun.key),)


# --- Templates: one clause ---------------------------------------------------------------------------------------


def transitive(draw: Draw) -> Sentence:
    """She ate an apple. Do you want to open the window?"""
    verb = draw.one(draw.lexicon.transitives)
    subject = draw.subject("beast" in verb.flags)
    form = draw.form(verb, subject)
    noun = draw.one(objects_of(verb))
    phrase = draw.object(noun, subject, form, verb)
    return _clause_sentence(subject, verb, form, phrase, draw.time(form, verb), _pairs(verb, noun))


def _clause_sentence(
    subject: NounPhrase, verb: Verb, form: Form, phrase: NounPhrase | None, tail: Pair,
    combinations: tuple[Combination, ...] = (), lemmas: tuple[str, ...] = (),
) -> Sentence:  # fmt: skip
    """Finish a clause and note its words."""
    parts = (subject, phrase) if phrase else (subject,)
    words = (verb.key, *lemmas, *(lemma for part in parts for lemma in part.lemmas))
    pairs = (*combinations, *(pair for part in parts for pair in part.combinations))
    return finish(clause(subject, verb, form, phrase, None, tail), form.question, words, pairs)


def statement(draw: Draw) -> Sentence:
    """She ate an apple. The cat eats fish. The plainest sentences, without adverb or negation."""
    verb = draw.one(DYNAMIC_VERBS)
    subject = draw.subject("beast" in verb.flags)
    tense = draw.one(("past", "present")) if "habit" not in verb.flags else "habit"
    form = unmistakable(Form(tense), verb, subject)
    noun = draw.one(objects_of(verb))
    return _clause_sentence(subject, verb, form, draw.object(noun, subject, form, verb), ("", ""), _pairs(verb, noun))


@cache
def edibles_of(verb: Verb) -> tuple[Noun, ...]:
    """Food and drink among the objects of a verb."""
    return tuple(noun for noun in objects_of(verb) if noun in nouns("food", "drink", "countfood"))


def meal(draw: Draw) -> Sentence:
    """The cat eats fish. We did not drink water. They like apples."""
    verb = draw.one(MEAL_VERBS)
    subject = draw.subject("beast" in verb.flags)
    form = draw.form(verb, subject)
    noun = draw.one(edibles_of(verb))
    phrase = draw.object(noun, subject, form, verb)
    return _clause_sentence(subject, verb, form, phrase, draw.time(form, verb, 0.2), _pairs(verb, noun))


def intransitive(draw: Draw) -> Sentence:
    """The children are sleeping in the garden. Marie did not get up this morning."""
    verb = draw.one(draw.lexicon.intransitives)
    subject = draw.subject("beast" in verb.flags)
    form = draw.form(verb, subject)
    english, french, lemmas = draw.place(verb) if "place" in verb.flags and draw.chance(0.75) else ("", "", ())
    adverb = draw.time(form, verb, 0.5, "season")
    tail = (f"{english} {adverb[0]}".strip(), f"{french} {adverb[1]}".strip())
    return _clause_sentence(subject, verb, form, None, tail, (), lemmas)


# verb, English and French preposition, where to (aller à la gare, but not à la colline) or from
GOALS = ("at", "garden", "park", "beach", "castle", "church", "village", "port", "house", "lake", "river", "cathedral")
PLACES = ("at", "in", "on", "-room", "-way")
MOTIONS = (
    (parse_verb("go:went = aller vais va allons vont allé ; etre beast"), "to", "à", GOALS),
    (parse_verb("come:came = venir viens vient venons viennent venu ; etre beast"), "from", "de", PLACES),
    (LEXICON.verb("come back"), "from", "de", PLACES),
    (parse_verb("return = retourner ; etre beast"), "to", "à", GOALS),
    (LEXICON.verb("run"), "to", "jusqu'à", PLACES),
    (LEXICON.verb("walk"), "to", "jusqu'à", PLACES),
)
LEAVE = parse_verb("leave:left = quitter ; beast")


def motion(draw: Draw) -> Sentence:
    """We went to the market yesterday. The cat came back from the forest. She left the house."""
    if draw.chance(0.15):
        place = noun_phrase(draw.one(nouns(*PLACES)), "the")
        verb, english, french = LEAVE, place.english, place.french
    else:
        verb, towards, preposition, where = draw.one(MOTIONS)
        place = noun_phrase(draw.one(nouns(*where)), "the")
        english = f"{towards} {place.english}"
        prefix, _, preposition = preposition.rpartition("'")
        french = f"{prefix}'" * bool(prefix) + attach(preposition, place.french)
    subject = draw.subject(draw.chance(0.5))
    form = draw.form(verb, subject)
    adverb = draw.time(form, verb, 0.35, "season")
    tail = (f"{english} {adverb[0]}".strip(), f"{french} {adverb[1]}".strip())
    return _clause_sentence(subject, verb, form, None, tail, (), place.lemmas)


def object_pronoun(draw: Draw) -> Sentence:
    """I saw her yesterday. They are not going to help us."""
    verb = draw.one(PERSON_VERBS)
    subject = draw.subject("beast" in verb.flags and draw.chance(0.4))
    same = {subject.pronoun} | ({I, WE} if subject.pronoun in (I, WE) else set())
    clitic = draw.one([pronoun for pronoun in PRONOUNS if pronoun not in same])
    form = draw.form(verb, subject)
    pair = clause(subject, verb, form, None, clitic, draw.time(form, verb))
    return finish(pair, form.question, (verb.key, *subject.lemmas), subject.combinations)


def predicate(draw: Draw) -> Sentence:
    """The soup is not too salty. Are your shoes clean? I am very hungry."""
    adjective = draw.one(PREDICATES)
    noun = draw.one(nouns_of(adjective))
    if {"person", "animal"} & set(noun.classes) and draw.chance(0.35):
        subject = pronoun_phrase(draw.one(PRONOUNS)) if draw.chance(0.6) else draw.person()
        if adjective not in adjectives_of(draw.one(nouns("man")), False):
            subject = noun_phrase(noun, "the")
    elif noun.mass:
        subject = noun_phrase(noun, draw.determined(noun, "the", "this"))
    else:
        plural = draw.chance(0.25)
        determiner = draw.determined(noun, "the", "the", "these" if plural else "this")
        subject = noun_phrase(noun, determiner, plural)
    form = Form(draw.one(("present", "present", "past")), draw.one(("", "", "", "not")), draw.chance(0.15))
    degree = draw.one(DEGREES) if draw.chance(0.35) and adjective.gradable else ("", "")
    combinations = ((adjective.key, noun.key),) if noun.key in subject.lemmas else ()
    if form.question:
        form = form._replace(negation="")
    return finish(
        copula(subject, adjective, form, degree), form.question, (adjective.key, *subject.lemmas), combinations
    )  # fmt: skip


def comparison(draw: Draw) -> Sentence:
    """The horse is as strong as the bear. Marie is less tired than Paul."""
    adjective = draw.one(COMPARABLE)
    first = draw.one(nouns_of(adjective))
    second = draw.one([noun for noun in nouns_of(adjective) if noun.kind == first.kind])
    left, right = noun_phrase(first, "the"), noun_phrase(second, "the" if draw.chance(0.7) else "this")
    if first is second:
        right = noun_phrase(second, "that")
    words = draw.one(COMPARISONS)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    english_tail, french_tail = f"{words[1]} {right.english}", f"que {right.french}"
    pair = copula(left, adjective, form, (words[0], words[2]), (english_tail, french_tail))
    combinations = ((adjective.key, first.key), (adjective.key, second.key))
    return finish(pair, False, (adjective.key, first.key, second.key), combinations)


# what there may be where
SCENERY = (
    ("animal", "at outdoors barn house field road bridge"),
    ("person", "at in on"),
    ("portable clothes", "room at house castle tower garden park"),
    ("furniture", "room house hotel castle restaurant museum"),
    ("vehicle -boat -plane", "street road bridge village city farm station hospital airport garage"),
    ("tree", "outdoors -beach -coast -port -market -cave -city field"),
)


def existence(draw: Draw) -> Sentence:
    """There is a big tree in the garden. There were three red cars near the station."""
    things, places = draw.one(SCENERY)
    english_place, french_place, lemmas = at_place(draw.one(nouns(*places.split())))
    noun = draw.one(nouns(*things.split()))
    adjective = draw.adjective_beside(noun) if draw.chance(0.6) else None
    plural = draw.chance(0.4)
    phrase = noun_phrase(noun, draw.one(tuple(NUMBERS)) if plural else "a", plural, adjective)
    past, question = draw.chance(0.4), draw.chance(0.15)
    be = ("were" if plural else "was") if past else "are" if plural else "is"
    head = f"{be} there" if question else f"there {be}"
    french = f"{'est-ce que ' if question else ''}il y {'avait' if past else 'a'} {phrase.french} {french_place}"
    pair = (f"{head} {phrase.english} {english_place}", french)
    return finish(pair, question, (*phrase.lemmas, *lemmas), phrase.combinations)


def location(draw: Draw) -> Sentence:
    """The book is on the table. Where were my keys? - without the answer."""
    noun = draw.one(nouns("portable", "clothes", "pet"))
    plural = draw.chance(0.2)
    subject = noun_phrase(noun, draw.determined(noun, "the"), plural)
    where = noun_phrase(draw.one(nouns("furniture", "container", "openable", "vehicle", "-gate")), "the")
    spot = draw.one(SPOTS)
    past = draw.chance(0.4)
    be, etre = (BE_PAST, ETRE_PAST) if past else (BE, ETRE)
    if draw.chance(0.12):
        pair = (f"where {be[subject.person]} {subject.english}", f"où {etre[subject.person]} {subject.french}")
        return finish(pair, True, subject.lemmas)
    french_spot = attach(spot[1], where.french)
    if spot[1].endswith(" de"):
        french_spot = spot[1][:-2] + attach("de", where.french)
    pair = (
        f"{subject.english} {be[subject.person]} {spot[0]} {where.english}",
        f"{subject.french} {etre[subject.person]} {french_spot}",
    )
    return finish(pair, False, (*subject.lemmas, *where.lemmas))


SPOTS = (
    ("under", "sous"),
    ("behind", "derrière"),
    ("near", "près de"),
    ("next to", "à côté de"),
    ("in front of", "devant"),
)


def identity(draw: Draw) -> Sentence:
    """This is an old house. It is not my umbrella. Is this your coat?"""
    noun = draw.one(DESCRIBABLE)
    adjective = draw.adjective_beside(noun) if draw.chance(0.7) else None
    determiner: str | Pronoun = draw.one(PRONOUNS)
    if "kin" in noun.classes:
        adjective = None
    elif "body" not in noun.classes:
        determiner = draw.determined(noun, "a", "a", "the")
    plural = determiner != "a" and draw.chance(0.2)
    phrase = noun_phrase(noun, determiner, plural, adjective)
    this = "these are" if plural else "this is"
    verb, question = ("ce sont" if plural else "c'est"), draw.chance(0.2)
    if question:
        pair = (" ".join(reversed(this.split())) + f" {phrase.english}", f"est-ce que {verb} {phrase.french}")
    elif draw.chance(0.2):
        denied = "ce ne sont pas" if plural else "ce n'est pas"
        pair = (f"{this} not {phrase.english}", f"{denied} {phrase.french}")
    else:
        pair = (f"{this} {phrase.english}", f"{verb} {phrase.french}")
    return finish(pair, question, phrase.lemmas, phrase.combinations)


def ownership(draw: Draw) -> Sentence:
    """Paul's car is very old. I found the teacher's umbrella."""
    owner = draw.name() if draw.chance(0.5) else noun_phrase(draw.one(nouns("person")), "the")
    if draw.chance(0.3):
        owner = noun_phrase(draw.one(nouns("kin")), draw.one(PRONOUNS))
    if draw.chance(0.5):
        word, classes = draw.one(OWNED_VERBS)
        verb, noun = draw.lexicon.verb(word), draw.one(nouns(*classes.split()))
        subject = draw.subject()
        form = draw.form(verb, subject)
        phrase = _owned(noun, owner)
        return _clause_sentence(subject, verb, form, phrase, draw.time(form, verb), _pairs(verb, noun))
    noun = draw.one(nouns("clothes", "portable", "vehicle", "pet", "room", "house", "garden"))
    options = adjectives_of(noun, False)
    if not options:
        return ownership(draw)
    adjective = draw.one(options)
    subject = _owned(noun, owner)
    form = Form(draw.one(("present", "past")), draw.one(("", "", "not")))
    return finish(
        copula(subject, adjective, form), False, (adjective.key, *subject.lemmas), ((adjective.key, noun.key),)
    )  # fmt: skip


OWNED_VERBS = (
    ("find", "portable pet clothes"),
    ("see", "vehicle house garden pet portable"),
    ("borrow", "portable vehicle clothes"),
    ("look for", "portable pet clothes"),
    ("repair", "vehicle clock lamp computer chair toy machine"),
    ("clean", "vehicle room house shoe"),
    ("read", "readable"),
)


def _owned(noun: Noun, owner: NounPhrase) -> NounPhrase:
    """The owner's thing: la voiture de Paul, le livre du professeur."""
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
    """She gave a book to the teacher. We are going to show the map to Paul."""
    verb = draw.one(GIVING_VERBS)
    noun = draw.one(objects_of(verb))
    subject = draw.subject()
    form = draw.form(verb, subject)
    phrase = draw.object(noun, subject, form, verb)
    receiver = draw.person()
    while receiver.english == subject.english:
        receiver = draw.person()
    tail = (f"to {receiver.english}", attach("à", receiver.french))
    return _clause_sentence(subject, verb, form, phrase, tail, _pairs(verb, noun), receiver.lemmas)


GIVING_VERBS = tuple(
    parse_verb(line)
    for line in (
        "give:gave = donner : portable clothes readable countfood flower",
        "send:sent = envoyer : portable letter book contract clothes",
        "lend:lent = prêter : portable clothes vehicle book",
        "sell:sold = vendre vends vend vendons vendent vendu : vehicle house furniture painting jewel",
        "show:showed = montrer : portable room animal painting letter",
    )
)


# --- Templates: two clauses --------------------------------------------------------------------------------------


def opinion(draw: Draw) -> Sentence:
    """I think that she is tired. Paul says that the soup is cold."""
    speaker = draw.subject()
    verb = draw.one(OPINION_VERBS)
    adjective = draw.one(PREDICATES)
    noun = draw.one(nouns_of(adjective))
    living = {"person", "animal"} & set(noun.classes)
    subject = noun_phrase(noun, draw.determined(noun, "the", "the"))
    if living and adjective.english in ANIMATE_REASONS and draw.chance(0.7):
        subject = pronoun_phrase(draw.one(PRONOUNS))
    inner = copula(subject, adjective, Form(negation=draw.one(("", "", "not"))))
    form = Form("present", "", draw.chance(0.15))
    pair = clause(speaker, verb, form, None, None, (f"that {inner[0]}", f"que {inner[1]}"))
    combinations = ((adjective.key, noun.key),) if noun.key in subject.lemmas else ()
    return finish(pair, form.question, (verb.key, adjective.key, *speaker.lemmas, *subject.lemmas), combinations)


OPINION_VERBS = (
    parse_verb("think:thought = penser"),
    parse_verb("say:said = dire dis dit disons disent dit"),
    parse_verb("believe = croire crois croit croyons croient cru"),
    parse_verb("hope = espérer"),
)


# first verb, second verb, what both can be done to
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
    """She bought an apple and ate it. They washed the shirts and folded them."""
    first_word, second_word, classes = draw.one(SEQUELS)
    first, second = draw.lexicon.verb(first_word), draw.lexicon.verb(second_word)
    noun = draw.one(nouns(*classes.split()))
    subject = draw.subject()
    form = Form("past")
    phrase = draw.object(noun, subject, form, first)
    clitic = THEY if phrase.plural else SHE if phrase.feminine else HE
    one = clause(subject, first, form, phrase)
    antecedent = (phrase.feminine, phrase.plural)
    two = second.french
    auxiliary = f"{clitic.clitic} {AVOIR[subject.person]}"
    english = f"{one[0]} and {second.english.past} {second.english.particle}".strip()
    pair = (
        f"{english} {'them' if phrase.plural else 'it'}",
        f"{one[1]} et {auxiliary} {agree(two.participle, *antecedent)}",
    )
    lemmas = (first.key, second.key, *subject.lemmas, *phrase.lemmas)
    combinations = (*_pairs(first, noun), *_pairs(second, noun), *phrase.combinations)
    return finish(pair, False, lemmas, combinations)


def reason(draw: Draw) -> Sentence:
    """Marie stayed at the hotel because she was sick."""
    verbs, states = draw.one(REASONS)
    verb = draw.lexicon.intransitive(draw.one(verbs))
    subject = pronoun_phrase(draw.one(PRONOUNS)) if draw.chance(0.5) else draw.name()
    english, french, lemmas = draw.place(verb) if "place" in verb.flags and draw.chance(0.5) else ("", "", ())
    adjective = draw.lexicon.adjective(draw.one(states))
    past = draw.chance(0.7)
    main = clause(subject, verb, Form("past" if past else "progressive"), None, None, (english, french))
    why = copula(pronoun_phrase(subject.pronoun), adjective, Form("past" if past else "present"))
    pair = (f"{main[0]} because {why[0]}", f"{main[1]} parce que {why[1]}")
    return finish(pair, False, (verb.key, adjective.key, *subject.lemmas, *lemmas))


# every kind of sentence and its share of the corpus (relative weights)
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
    (lying_around, 40),
    (banking, 25),
    (crossing, 30),
    *((puzzle.sample, puzzle.weight) for puzzle in PUZZLES),
)
