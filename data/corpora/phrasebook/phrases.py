"""Noun phrases and clauses, built in both languages at once by deterministic functions.

French phrases are built with unelided articles and pronouns (le homme, je ai, que elle). `finish` elides the complete
sentence at the end, so the functions that build its parts need not know the neighbouring words.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from lingua_flax.data.corpora.phrasebook.lexicon import Adjective, Noun, Verb
from lingua_flax.data.corpora.phrasebook.morphology import (
    agree,
    attach,
    capitalise,
    elide,
    indefinite_article,
    starts_with_vowel,
)

Pair = tuple[str, str]
Combination = tuple[str, str]


@dataclass(frozen=True)
class Text:
    """A sentence or a part of one in both languages, with the keys of its lemmas.

    `combinations` are its (verb, object noun) and (adjective, noun) combinations, as pairs of lemma keys.
    """

    english: str = ""
    french: str = ""
    lemmas: tuple[str, ...] = ()
    combinations: tuple[Combination, ...] = ()

    @property
    def pair(self) -> Pair:
        """(English, French)."""
        return self.english, self.french

    def with_combinations(self, *further: Combination) -> Self:
        """Returns the text with further combinations, which its words do not tell."""
        return replace(self, combinations=(*self.combinations, *further))


NOTHING = Text()


def join(*parts: Text) -> Text:
    """Returns the parts one after the other."""
    return Text(
        _join(*(part.english for part in parts)),
        _join(*(part.french for part in parts)),
        tuple(lemma for part in parts for lemma in part.lemmas),
        tuple(combination for part in parts for combination in part.combinations),
    )


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal pronoun in both languages, with its other forms.

    `english` and `french` are the subject forms, and `clitic` is the French object form. The French possessives are
    those before a masculine, a feminine and a plural noun.
    """

    english: str
    french: str
    person: int
    feminine: bool
    plural: bool
    english_object: str
    clitic: str
    reflexive: str
    english_possessive: str
    possessives: tuple[str, str, str]


I = Pronoun("I", "je", 0, False, False, "me", "me", "me", "my", ("mon", "ma", "mes"))  # noqa: E741
HE = Pronoun("he", "il", 1, False, False, "him", "le", "se", "his", ("son", "sa", "ses"))
SHE = Pronoun("she", "elle", 1, True, False, "her", "la", "se", "her", ("son", "sa", "ses"))
WE = Pronoun("we", "nous", 2, False, True, "us", "nous", "nous", "our", ("notre", "notre", "nos"))
YOU = Pronoun("you", "vous", 3, False, False, "you", "vous", "vous", "your", ("votre", "votre", "vos"))
THEY = Pronoun("they", "ils", 4, False, True, "them", "les", "se", "their", ("leur", "leur", "leurs"))
PRONOUNS = (I, HE, SHE, WE, YOU, THEY)


@dataclass(frozen=True, kw_only=True)
class NounPhrase(Text):
    """A subject or object; `negated` is its French form after a negation, if it differs (du pain -> de pain)."""

    negated: str = ""
    pronoun: Pronoun = HE
    feminine: bool = False
    human: bool = True

    @property
    def person(self) -> int:
        """The grammatical person of a verb with this subject."""
        return self.pronoun.person

    @property
    def plural(self) -> bool:
        """Whether it is plural."""
        return self.pronoun.plural


NUMBERS = {"two": "deux", "three": "trois", "four": "quatre", "ten": "dix"}


def noun_phrase(
    noun: Noun,
    determiner: str | Pronoun,
    plural: bool = False,
    adjective: Adjective | None = None,
    generic: bool = False,
) -> NounPhrase:
    """Returns a determiner, a noun and, if given, an adjective.

    Args:
      determiner: the, a, this, that, these, a number word, a pronoun for its possessive, or "bare" for a noun without
        determiner in English, which takes du, de la or des in French.
      generic: whether a bare noun is meant in general (likes fish); French then uses the definite article.
    """
    core = _french_core(noun, plural, adjective)
    article = "les" if plural else "la" if noun.feminine else "le"
    negated = ""
    if determiner == "the" or (generic and determiner == "bare"):
        french = f"{article} {core}"
    elif determiner == "bare":
        before = adjective is not None and adjective.before
        french = f"de {core}" if plural and before else attach("de", f"{article} {core}")
        negated = f"de {core}"
    elif determiner == "a":
        french, negated = f"{'une' if noun.feminine else 'un'} {core}", f"de {core}"
    else:
        french = f"{_agreeing_determiner(determiner, noun.feminine, plural, core)} {core}"
    words = ([adjective.english] if adjective else []) + [noun.english_plural if plural else noun.english]
    return NounPhrase(
        english=" ".join(_english_determiner(determiner, words[0]) + words),
        french=french,
        negated=negated,
        feminine=noun.feminine,
        pronoun=THEY if plural else SHE if noun.feminine else HE,
        human="animal" not in noun.classes,
        lemmas=(noun.key, adjective.key) if adjective else (noun.key,),
        combinations=((adjective.key, noun.key),) if adjective else (),
    )


def _french_core(noun: Noun, plural: bool, adjective: Adjective | None) -> str:
    """Returns the French noun with its adjective before or after it: bel arbre, pomme rouge."""
    word = noun.french_plural if plural else noun.french
    if adjective is None:
        return word
    form = adjective.agree(noun.feminine, plural)
    if not adjective.before:
        return f"{word} {form}"
    if adjective.prevocalic and not plural and not noun.feminine and starts_with_vowel(word):
        form = adjective.prevocalic
    return f"{form} {word}"


def _agreeing_determiner(determiner: str | Pronoun, feminine: bool, plural: bool, core: str) -> str:
    """Returns a French demonstrative, possessive or number: cet (arbre), mon (amie), deux (chats)."""
    before_vowel = starts_with_vowel(core)
    if isinstance(determiner, Pronoun):
        masculine_form, feminine_form, plural_form = determiner.possessives
        return plural_form if plural else feminine_form if feminine and not before_vowel else masculine_form
    if determiner in NUMBERS:
        return NUMBERS[determiner]
    if plural:
        return "ces"
    return "cette" if feminine else "cet" if before_vowel else "ce"


def _english_determiner(determiner: str | Pronoun, next_word: str) -> list[str]:
    if isinstance(determiner, Pronoun):
        return [determiner.english_possessive]
    if determiner == "a":
        return [indefinite_article(next_word)]
    return [] if determiner == "bare" else [determiner]


def pronoun_phrase(pronoun: Pronoun) -> NounPhrase:
    """Returns a pronoun as subject."""
    return NounPhrase(pronoun.english, pronoun.french, pronoun=pronoun, feminine=pronoun.feminine)


def name_phrase(name: str, feminine: bool) -> NounPhrase:
    """Returns a first name, which is the same in both languages."""
    return NounPhrase(name, name, (f"{name}/{name}",), pronoun=SHE if feminine else HE, feminine=feminine)


def friend_phrase(name: NounPhrase, owner: Pronoun) -> NounPhrase:
    """Returns "my friend Marie": the name decides between ami and amie; both take the form mon, son ..."""
    french = f"{owner.possessives[0]} {'amie' if name.feminine else 'ami'} {name.french}"
    english = f"{owner.english_possessive} friend {name.english}"
    return replace(name, english=english, french=french, lemmas=(*name.lemmas, "friend/ami"))


def object_of(verb: Verb, phrase: NounPhrase) -> NounPhrase:
    """Returns a noun phrase with its combination with a verb."""
    return phrase.with_combinations((verb.key, phrase.lemmas[0]))


def with_preposition(english: str, french: str, phrase: NounPhrase) -> Text:
    """Returns a noun phrase after a preposition in both languages."""
    return Text(f"{english} {phrase.english}", attach(french, phrase.french), phrase.lemmas, phrase.combinations)


# --- Clauses -----------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Tense, polarity, mood and frequency adverb of a clause.

    Attributes:
      tense: present, progressive, past, past progressive, future, can, must, want, or habit (simple past in English,
        imparfait in French).
      negation: "", "not" or "never".
      adverb: before the English verb (often) and after the conjugated French verb (souvent).
    """

    tense: str = "present"
    negation: str = ""
    question: bool = False
    adverb: Text = NOTHING


MODALS = {
    "can": ("peux", "peut", "pouvons", "pouvez", "peuvent"),
    "must": ("dois", "doit", "devons", "devez", "doivent"),
    "want": ("veux", "veut", "voulons", "voulez", "veulent"),
    "future": ("vais", "va", "allons", "allez", "vont"),
}
AVOIR = ("ai", "a", "avons", "avez", "ont")
AVOIR_PAST = ("avais", "avait", "avions", "aviez", "avaient")
ETRE = ("suis", "est", "sommes", "êtes", "sont")
ETRE_PAST = ("étais", "était", "étions", "étiez", "étaient")
BE = ("am", "is", "are", "are", "are")
BE_PAST = ("was", "was", "were", "were", "were")


def english_clause(subject: NounPhrase, verb: Verb, form: Form, rest: str = "") -> str:
    """Returns subject, verb group and the rest, with do-support and, in questions, inversion."""
    words, person = verb.english, subject.person
    third_person = person == 1
    adverb = "never" if form.negation == "never" else form.adverb.english
    negation = "not" if form.negation == "not" else ""
    auxiliary, main = "", f"want to {words.base}" if form.tense == "want" else words.base
    past = form.tense in ("past", "habit")
    if form.tense in ("progressive", "past progressive"):
        auxiliary, main = (BE if form.tense == "progressive" else BE_PAST)[person], words.gerund
    elif form.tense == "future":
        auxiliary, main = BE[person], f"going to {words.base}"
    elif form.tense in ("can", "must"):
        auxiliary = form.tense
    elif negation or form.question:
        auxiliary = "did" if past else "does" if third_person else "do"
    elif form.tense == "want":
        main = f"wants to {words.base}" if third_person else main
    else:
        main = words.past if past else words.third if third_person else words.base
    if auxiliary == "can" and negation and not form.question:
        auxiliary, negation = "cannot", ""
    head = (auxiliary, subject.english) if form.question else (subject.english, auxiliary)
    return _join(*head, negation, adverb, main, words.particle, rest)


def french_verb_group(subject: NounPhrase, verb: Verb, form: Form, object_: Pronoun | None = None) -> str:
    """Returns clitic, negation, auxiliary and verb: ne la a pas mangée, va se lever.

    The participle agrees with the object if that is a pronoun, which stands before the verb.
    """
    words, person = verb.french, subject.person
    clitic = subject.pronoun.reflexive if words.reflexive else object_.clitic if object_ else ""
    negation = {"": "", "not": "pas", "never": "jamais"}[form.negation]
    if form.tense in MODALS:
        main = (form.adverb.french, clitic, words.infinitive, verb.suffix)
        return _join("ne" if negation else "", MODALS[form.tense][person], negation, *main)
    participle = ""
    if form.tense == "past":
        etre = words.etre or words.reflexive
        conjugated = (ETRE if etre else AVOIR)[person]
        antecedent = subject if etre else object_
        participle = agree(words.participle, antecedent.feminine, antecedent.plural) if antecedent else words.participle
    else:
        conjugated = (words.imperfect if form.tense in ("past progressive", "habit") else words.present)[person]
    rest = (negation, form.adverb.french, participle, verb.suffix)
    return _join("ne" if negation else "", clitic, conjugated, *rest)


def _french_clause(form: Form, *parts: str) -> str:
    return _join("est-ce que" if form.question else "", *parts)


def clause(
    subject: NounPhrase, verb: Verb, form: Form, object_: NounPhrase | Pronoun | None = None, tail: Text = NOTHING
) -> Text:
    """Returns a complete clause that is yet to be passed to `finish`; French questions start with est-ce que.

    `tail` is the end of the clause.
    """
    pronoun = object_ if isinstance(object_, Pronoun) else None
    phrase = object_ if isinstance(object_, NounPhrase) else NounPhrase()
    english_object = pronoun.english_object if pronoun else phrase.english
    french_object = phrase.negated if form.negation and phrase.negated else phrase.french
    if verb.preposition:
        french_object = attach(verb.preposition, phrase.french)
    group = french_verb_group(subject, verb, form, pronoun)
    return replace(
        join(Text(lemmas=(verb.key,)), subject, phrase, tail),
        english=english_clause(subject, verb, form, _join(english_object, tail.english)),
        french=_french_clause(form, subject.french, group, french_object, tail.french),
    )


def copula(subject: NounPhrase, adjective: Adjective, form: Form, degree: Text = NOTHING, tail: Text = NOTHING) -> Text:
    """Returns a clause of subject, to be and adjective; idioms take avoir: elle a très faim.

    `degree` is an adverb before the adjective (very, très), and `tail` the end of the clause.
    """
    past = form.tense == "past"
    be = (BE_PAST if past else BE)[subject.person]
    negation = "not" if form.negation else ""
    head = (be, subject.english) if form.question else (subject.english, be)
    forms = (AVOIR_PAST if past else AVOIR) if adjective.idiom else (ETRE_PAST if past else ETRE)
    ne, pas = ("ne", "pas") if negation else ("", "")
    predicate = _join(degree.french, adjective.agree(subject.feminine, subject.plural), tail.french)
    return replace(
        join(Text(lemmas=(adjective.key,)), subject, tail),
        english=_join(*head, negation, degree.english, adjective.english, tail.english),
        french=_french_clause(form, subject.french, ne, forms[subject.person], pas, predicate),
    )


def finish(text: Text, question: bool = False) -> Text:
    """Returns the clause as a sentence: elided, capitalised and punctuated."""
    english = capitalise(text.english) + ("?" if question else ".")
    return replace(text, english=english, french=capitalise(elide(text.french)) + (" ?" if question else "."))


def sentence(
    subject: NounPhrase, verb: Verb, form: Form, object_: NounPhrase | Pronoun | None = None, tail: Text = NOTHING
) -> Text:
    """Returns a sentence of one `clause`."""
    return finish(clause(subject, verb, form, object_, tail), form.question)
