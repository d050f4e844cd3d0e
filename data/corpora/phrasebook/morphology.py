"""Word forms of both languages: plurals, agreement, conjugation, elision and contraction.

These functions only apply spelling rules; they use no dictionary. A word that a rule gets wrong has its form in the
lexicon instead. Grammatical persons are numbered 0 je, 1 il/elle, 2 nous, 3 vous, 4 ils (the phrasebook never uses tu).
"""

import re
from typing import NamedTuple

VOWELS = "aeiouyàâäéèêëîïôöùûüœ"

# French words whose initial h blocks elision (h aspiré). Every other initial h is treated as silent.
ASPIRATED = "hibou|haricot|hache|harpe|héros|haut|homard|hamster|hérisson|handball|hall"

_SOUNDS_LIKE_VOWEL = re.compile(rf"(?!{ASPIRATED})[h{VOWELS}]", re.IGNORECASE)
_ELISION = re.compile(rf"\b(je|me|se|le|la|ne|de|que) (?=(?!{ASPIRATED})[h{VOWELS}])", re.IGNORECASE)
_CONTRACTIONS = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}

_AN_EXCEPTIONS = ("useful", "uniform", "university")  # spelled with a vowel, pronounced with a consonant
_SILENT_H = ("honest", "hour")
_DOUBLING = frozenset(("cut", "forget", "get", "run", "sit", "stop", "swim", "trim", "win"))


def starts_with_vowel(french: str) -> bool:
    """Returns whether a French word makes the preceding word elide or change (l'homme, cet homme, bel homme)."""
    return _SOUNDS_LIKE_VOWEL.match(french) is not None


def elide(french: str) -> str:
    """Applies elision to a whole sentence: je ai -> j'ai, que elle -> qu'elle, but le hibou is unchanged."""
    return _ELISION.sub(lambda match: match.group(1)[:-1] + "'", french)


def attach(preposition: str, noun_phrase: str) -> str:
    """Puts à, de or another preposition before a noun phrase: de + le chat -> du chat, à + la gare -> à la gare.

    An article that will be elided is not contracted: de + le arbre is left as it is, and `elide` makes it de l'arbre.
    """
    article, _, rest = noun_phrase.partition(" ")
    contracted = _CONTRACTIONS.get((preposition, article))
    if contracted is None or (article == "le" and starts_with_vowel(rest)):
        return f"{preposition} {noun_phrase}"
    return f"{contracted} {rest}"


def capitalise(sentence: str) -> str:
    """Returns the sentence with a capital first letter, otherwise unchanged."""
    return sentence[0].upper() + sentence[1:]


# --- French nouns and adjectives ---------------------------------------------------------------------------------


def french_plural(word: str) -> str:
    """Returns the regular plural: chats, journaux, gâteaux, tapis."""
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    if word != "bleu" and word.endswith(("eau", "eu", "hibou", "bijou", "chou", "genou")):
        return word + "x"
    return word + "s"


def french_feminine(adjective: str) -> str:
    """Returns the regular feminine: verte, heureuse, chère, neuve, rouge."""
    if adjective.endswith("e"):
        return adjective
    if adjective.endswith("eux"):
        return adjective[:-1] + "se"
    if adjective.endswith("er"):
        return adjective[:-2] + "ère"
    if adjective.endswith("f"):
        return adjective[:-1] + "ve"
    if adjective.endswith(("en", "on")):
        return adjective + adjective[-1] + "e"
    return adjective + "e"


def agree(stem: str, feminine: bool, plural: bool) -> str:
    """Returns a past participle with its agreement: vu, vue, vus, vues (assis takes no second s)."""
    singular = stem + "e" if feminine else stem
    return singular + "s" if plural and not singular.endswith("s") else singular


# --- French verbs ------------------------------------------------------------------------------------------------


class FrenchVerb(NamedTuple):
    """A French verb.

    Attributes:
      infinitive: without se.
      present: one form for each of the five persons.
      imperfect: the imparfait, one form for each of the five persons.
      participle: the masculine singular past participle.
      etre: whether the passé composé takes être.
      reflexive: whether the verb is used with se.
    """

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    participle: str
    etre: bool = False
    reflexive: bool = False


_VOUS_EXCEPTIONS = {"êtes": "sommes", "faites": "faisons", "dites": "disons"}
_IMPERFECT_ENDINGS = ("ais", "ait", "ions", "iez", "aient")


def _first_group(infinitive: str) -> tuple[str, str, str, str, str]:
    """Returns the key forms (je, il, nous, ils, participle) of a regular -er verb, with its spelling changes."""
    stem = infinitive[:-2]
    weak, strong = stem, stem
    if stem.endswith("g"):
        weak = stem + "e"
    elif stem.endswith("c"):
        weak = stem[:-1] + "ç"
    if stem.endswith(("oy", "uy")):
        strong = stem[:-1] + "i"
    elif stem in ("appel", "jet"):
        strong = stem + stem[-1]
    elif re.search(r"([^aiou]e[lmntv]|é[a-z])$", stem):
        strong = stem[:-2] + "è" + stem[-1]
    return strong + "e", strong + "e", weak + "ons", strong + "ent", stem + "é"


def _second_group(infinitive: str) -> tuple[str, str, str, str, str]:
    """Returns the key forms (je, il, nous, ils, participle) of a verb like choisir."""
    stem = infinitive[:-1]
    return stem + "s", stem + "t", stem + "ssons", stem + "ssent", stem


def conjugate(infinitive: str, key_forms: str = "", etre: bool = False, reflexive: bool = False) -> FrenchVerb:
    """Returns a verb built from its infinitive and, if it is irregular, the key forms "je il nous ils participle"."""
    if key_forms:
        je, il, nous, ils, participle = key_forms.split()
    elif infinitive.endswith("er"):
        je, il, nous, ils, participle = _first_group(infinitive)
    else:
        je, il, nous, ils, participle = _second_group(infinitive)
    vous = next((v for v, n in _VOUS_EXCEPTIONS.items() if n == nous), nous[:-3] + "ez")
    if infinitive.endswith("er") and nous.endswith("geons"):
        vous = nous[:-4] + "ez"
    elif infinitive.endswith("er") and nous.endswith("çons"):
        vous = nous[:-4] + "cez"
    return FrenchVerb(infinitive, (je, il, nous, vous, ils), _imperfect(infinitive, nous), participle, etre, reflexive)


def _imperfect(infinitive: str, nous: str) -> tuple[str, ...]:
    """Returns the imparfait, derived from the nous form: mangeais but mangions; étais for être."""
    stem = "ét" if infinitive == "être" else nous[:-3]
    stem_before_i = stem
    if stem.endswith("ge"):
        stem_before_i = stem[:-1]
    elif stem.endswith("ç"):
        stem_before_i = stem[:-1] + "c"
    return tuple((stem_before_i if ending.startswith("i") else stem) + ending for ending in _IMPERFECT_ENDINGS)


# --- English -----------------------------------------------------------------------------------------------------


class EnglishVerb(NamedTuple):
    """An English verb; `particle` follows every form (look at, wait for, get up)."""

    base: str
    third: str
    past: str
    gerund: str
    particle: str = ""

    @property
    def infinitive(self) -> str:
        """The base form with its particle: look for."""
        return f"{self.base} {self.particle}".strip()


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_plural(noun: str) -> str:
    """Returns the regular plural: cats, boxes, cherries. Exceptions such as pianos are listed in the lexicon."""
    return _add_s(noun)


def english_verb(words: str, past: str = "") -> EnglishVerb:
    """Returns the forms of a verb.

    `words` is the base form, followed by a particle if there is one ("look for"); `past` is given only if irregular.
    """
    base, _, particle = words.partition(" ")
    doubled = base + base[-1] if base in _DOUBLING else base
    if base.endswith("e") and not base.endswith("ee"):
        gerund = base[:-2] + "ying" if base.endswith("ie") else base[:-1] + "ing"
    else:
        gerund = doubled + "ing"
    if not past:
        past = base + "d" if base.endswith("e") else doubled + "ed"
        if base.endswith("y") and base[-2] not in "aeiou":
            past = base[:-1] + "ied"
    third = "has" if base == "have" else _add_s(base)
    return EnglishVerb(base, third, past, gerund, particle)


def indefinite_article(next_word: str) -> str:
    """Returns a or an, depending on the sound of the next word."""
    if next_word.startswith(_AN_EXCEPTIONS):
        return "a"
    return "an" if next_word[0] in "aeiou" or next_word.startswith(_SILENT_H) else "a"
