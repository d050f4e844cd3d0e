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

    The preposition may have several words (près de, jusqu'à). An article that will be elided is not contracted:
    de + le arbre is left as it is, and `elide` makes it de l'arbre.
    """
    article, _, rest = noun_phrase.partition(" ")
    *_, last_word = re.split("[ ']", preposition)
    contracted = _CONTRACTIONS.get((last_word, article))
    if contracted is None or (article == "le" and starts_with_vowel(rest)):
        return f"{preposition} {noun_phrase}"
    return f"{preposition.removesuffix(last_word)}{contracted} {rest}"


def capitalise(sentence: str) -> str:
    """Returns the sentence with a capital first letter, otherwise unchanged."""
    return sentence[0].upper() + sentence[1:]


# Pairs of a pattern for the end of a word and what replaces it; the first pattern that matches counts.
_Rules = tuple[tuple[str, str], ...]
_FRENCH_PLURAL: _Rules = (
    ("(?<=[sxz])$", ""),
    ("al$", "aux"),
    ("^bleu$", "bleus"),
    ("(eau|eu|hibou|bijou|chou|genou)$", r"\1x"),
    ("$", "s"),
)
_FRENCH_FEMININE: _Rules = (
    ("e$", "e"),
    ("eux$", "euse"),
    ("er$", "ère"),
    ("f$", "ve"),
    ("([eo]n)$", r"\1ne"),
    ("$", "e"),
)
_BEFORE_O: _Rules = (("g$", "ge"), ("c$", "ç"), ("$", ""))
_BEFORE_I: _Rules = (("ge$", "g"), ("ç$", "c"), ("$", ""))
_STRESSED: _Rules = (
    ("([ou])y$", r"\1i"),
    ("^(appe|je)([lt])$", r"\1\2\2"),
    ("(?<=[^aiou])e([lmntv])$", r"è\1"),
    ("é([a-z])$", r"è\1"),
    ("$", ""),
)
_VOUS: _Rules = (
    ("^sommes$", "êtes"),
    ("^faisons$", "faites"),
    ("^disons$", "dites"),
    ("geons$", "gez"),
    ("çons$", "cez"),
    ("ons$", "ez"),
)
_ENGLISH_S: _Rules = (("(s|x|ch|sh|o)$", r"\1es"), ("([^aeiou])y$", r"\1ies"), ("$", "s"))
_ENGLISH_ING: _Rules = (("ie$", "ying"), ("([^e])e$", r"\1ing"), ("$", "ing"))
_ENGLISH_ED: _Rules = (("e$", "ed"), ("([^aeiou])y$", r"\1ied"), ("$", "ed"))


def _with_ending(word: str, rules: _Rules) -> str:
    return next(re.sub(end, replacement, word) for end, replacement in rules if re.search(end, word))


def french_plural(word: str) -> str:
    """Returns the regular plural: chats, journaux, gâteaux, tapis."""
    return _with_ending(word, _FRENCH_PLURAL)


def french_feminine(adjective: str) -> str:
    """Returns the regular feminine: verte, heureuse, chère, neuve, rouge."""
    return _with_ending(adjective, _FRENCH_FEMININE)


def agree(stem: str, feminine: bool, plural: bool) -> str:
    """Returns a past participle with its agreement: vu, vue, vus, vues (assis takes no second s)."""
    singular = stem + "e" if feminine else stem
    return singular + "s" if plural and not singular.endswith("s") else singular


class FrenchVerb(NamedTuple):
    """A French verb: its infinitive without se, and the forms of the five persons in the present and the imparfait.

    The participle is masculine singular; `etre` tells whether the passé composé takes être, and `reflexive` whether the
    verb is used with se.
    """

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    participle: str
    etre: bool = False
    reflexive: bool = False


def conjugate(infinitive: str, key_forms: str = "", etre: bool = False, reflexive: bool = False) -> FrenchVerb:
    """Returns a verb built from its infinitive and, if it is irregular, the key forms "je il nous ils participle"."""
    if key_forms:
        je, il, nous, ils, participle = key_forms.split()
    elif infinitive.endswith("er"):
        stem = infinitive[:-2]
        je = il = _with_ending(stem, _STRESSED) + "e"
        nous, ils, participle = _with_ending(stem, _BEFORE_O) + "ons", je + "nt", stem + "é"
    else:
        stem = infinitive[:-1]
        je, il, nous, ils, participle = stem + "s", stem + "t", stem + "ssons", stem + "ssent", stem
    present = (je, il, nous, _with_ending(nous, _VOUS), ils)
    stem = "ét" if infinitive == "être" else nous[:-3]
    before_i = _with_ending(stem, _BEFORE_I)
    imperfect = (stem + "ais", stem + "ait", before_i + "ions", before_i + "iez", stem + "aient")
    return FrenchVerb(infinitive, present, imperfect, participle, etre, reflexive)


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


def english_plural(noun: str) -> str:
    """Returns the regular plural: cats, boxes, cherries. Exceptions such as pianos are listed in the lexicon."""
    return _with_ending(noun, _ENGLISH_S)


def english_verb(words: str, past: str = "") -> EnglishVerb:
    """Returns the forms of a verb.

    `words` is the base form, followed by a particle if there is one ("look for"); `past` is given only if irregular.
    """
    base, _, particle = words.partition(" ")
    doubled = base + base[-1] if base in _DOUBLING else base
    third = "has" if base == "have" else _with_ending(base, _ENGLISH_S)
    past = past or _with_ending(doubled, _ENGLISH_ED)
    return EnglishVerb(base, third, past, _with_ending(doubled, _ENGLISH_ING), particle)


def indefinite_article(next_word: str) -> str:
    """Returns a or an, depending on the sound of the next word."""
    if next_word.startswith(_AN_EXCEPTIONS):
        return "a"
    return "an" if next_word[0] in "aeiou" or next_word.startswith(_SILENT_H) else "a"
