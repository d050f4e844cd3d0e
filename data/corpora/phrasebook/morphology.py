"""Word forms of both languages: plurals, agreement, conjugation, elision and contraction.

Everything here is spelling; it knows no dictionary. Words that a rule gets wrong carry their form in the lexicon
table instead. Grammatical persons are numbered 0 je, 1 il/elle, 2 nous, 3 vous, 4 ils (the phrasebook never says tu).
"""

import re
from typing import NamedTuple

VOWELS = "aeiouyàâäéèêëîïôöùûüœ"

# French words with an h that forbids elision (h aspiré); any other h counts as silent.
ASPIRATED = (
    "hibou", "haricot", "hache", "harpe", "héros", "haut", "homard", "hamster", "hérisson", "handball", "hall",
)  # fmt: skip

_NO_ELISION = "|".join(ASPIRATED)
_SOUNDS_LIKE_VOWEL = re.compile(rf"(?!{_NO_ELISION})[h{VOWELS}]", re.IGNORECASE)
_ELISION = re.compile(rf"\b(je|me|se|le|la|ne|de|que) (?=(?!{_NO_ELISION})[h{VOWELS}])", re.IGNORECASE)
_CONTRACTIONS = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}

_AN_EXCEPTIONS = ("useful", "uniform", "university")  # written with a vowel, spoken with a consonant
_SILENT_H = ("honest", "hour")
_DOUBLING = frozenset(("cut", "forget", "get", "run", "sit", "stop", "swim", "trim", "win"))


def starts_with_vowel(french: str) -> bool:
    """Whether a French word makes the word before it elide or change (l'homme, cet homme, bel homme)."""
    return _SOUNDS_LIKE_VOWEL.match(french) is not None


def elide(french: str) -> str:
    """Apply elision to a whole sentence: je ai -> j'ai, que elle -> qu'elle, but le hibou stays."""
    return _ELISION.sub(lambda match: match.group(1)[:-1] + "'", french)


def attach(preposition: str, noun_phrase: str) -> str:
    """Put à or de (or any other preposition) before a noun phrase: de + le chat -> du chat, à + la gare -> à la gare.

    Contraction is left alone before an elided article: de + le arbre stays and elides later to de l'arbre.
    """
    article, _, rest = noun_phrase.partition(" ")
    contracted = _CONTRACTIONS.get((preposition, article))
    if contracted is None or (article == "le" and starts_with_vowel(rest)):
        return f"{preposition} {noun_phrase}"
    return f"{contracted} {rest}"


def capitalise(sentence: str) -> str:
    """Capital first letter, the rest untouched."""
    return sentence[0].upper() + sentence[1:]


# --- French nouns and adjectives ---------------------------------------------------------------------------------


def french_plural(word: str) -> str:
    """Regular plural: chats, journaux, gâteaux, tapis."""
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith("al"):
        return word[:-1] + "ux"
    if word != "bleu" and word.endswith(("eau", "eu", "hibou", "bijou", "chou", "genou")):
        return word + "x"
    return word + "s"


def french_feminine(adjective: str) -> str:
    """Regular feminine: verte, heureuse, chère, neuve, rouge."""
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
    """A past participle with its agreement: vu, vue, vus, vues (assis takes no second s)."""
    word = stem + "e" if feminine else stem
    return word + "s" if plural and not word.endswith("s") else word


# --- French verbs ------------------------------------------------------------------------------------------------


class FrenchVerb(NamedTuple):
    """One French verb: infinitive without se, present and imparfait of the five persons, masculine participle."""

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    participle: str
    etre: bool = False
    reflexive: bool = False


_VOUS_EXCEPTIONS = {"êtes": "sommes", "faites": "faisons", "dites": "disons"}
_IMPERFECT_ENDINGS = ("ais", "ait", "ions", "iez", "aient")


def _first_group(infinitive: str) -> tuple[str, str, str, str, str]:
    """Key forms (je, il, nous, ils, participle) of a regular -er verb with its spelling changes."""
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
    """Key forms of a verb like choisir."""
    stem = infinitive[:-1]
    return stem + "s", stem + "t", stem + "ssons", stem + "ssent", stem


def conjugate(infinitive: str, key_forms: str = "", etre: bool = False, reflexive: bool = False) -> FrenchVerb:
    """Build a verb from its infinitive, and for irregular ones from "je il nous ils participle"."""
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
    """Imparfait from the nous form: mangeais but mangions, étais for être."""
    stem = "ét" if infinitive == "être" else nous[:-3]
    soft = stem
    if stem.endswith("ge"):
        soft = stem[:-1]
    elif stem.endswith("ç"):
        soft = stem[:-1] + "c"
    return tuple((soft if ending.startswith("i") else stem) + ending for ending in _IMPERFECT_ENDINGS)


# --- English -----------------------------------------------------------------------------------------------------


class EnglishVerb(NamedTuple):
    """One English verb; `particle` follows every form (look at, wait for, get up)."""

    base: str
    third: str
    past: str
    gerund: str
    particle: str = ""

    @property
    def infinitive(self) -> str:
        """Base form with its particle: look for."""
        return f"{self.base} {self.particle}".strip()


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_plural(noun: str) -> str:
    """Regular plural: cats, boxes, cherries; piano, photo and the like carry theirs in the table."""
    return _add_s(noun)


def english_verb(words: str, past: str = "") -> EnglishVerb:
    """Build the forms of a verb; `words` may hold a particle ("look for"), `past` is given when irregular."""
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
    """a or an, by the sound of the next word."""
    if next_word.startswith(_AN_EXCEPTIONS):
        return "a"
    return "an" if next_word[0] in "aeiou" or next_word.startswith(_SILENT_H) else "a"
