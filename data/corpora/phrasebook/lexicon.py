"""The bilingual lexicon: nouns, adjectives, verbs, names and adverbs, with classes that keep sentences meaningful.

The classes of a noun (readable, openable, animal ...) determine which words it can be combined with: a verb names the
classes of its objects, an adjective the classes of the nouns it can describe. The words are in text files in the folder
words, which describe their formats. The order of the entries is part of the corpus: the random draws depend on it.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lingua_flax.data.corpora.phrasebook.morphology import (
    EnglishVerb,
    FrenchVerb,
    conjugate,
    english_plural,
    english_verb,
    french_feminine,
    french_plural,
)

NOT_OWNABLE = frozenset({"person", "outdoors", "way", "solid"})  # classes of nouns that take no possessive


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun in both languages. A `mass` noun has no plural and takes the partitive (bread, du pain)."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    classes: tuple[str, ...]
    mass: bool = False

    @property
    def kind(self) -> str:
        """The class within which nouns are compared with one another: furniture for a chair, animal for a cat."""
        return self.classes[1] if self.classes[0] == "thing" else self.classes[0]

    @property
    def ownable(self) -> bool:
        """Whether the noun takes a possessive: my teacher and my garden, but not my woman or my desert."""
        return "ownable" in self.classes or NOT_OWNABLE.isdisjoint(self.classes)

    @property
    def key(self) -> str:
        """The unique lemma key: bank/banque and bank/rive are two lemmas."""
        return f"{self.english}/{self.french}"


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective in both languages, with its four French forms.

    Attributes:
      before: whether the French adjective precedes the noun.
      prevocalic: the masculine singular before a vowel (bel), if it differs.
      idiom: whether French uses avoir and a bare noun (hungry: avoir faim); such an adjective cannot modify a noun.
    """

    english: str
    forms: tuple[str, str, str, str]  # masculine, feminine, masculine plural, feminine plural
    classes: tuple[str, ...]
    before: bool = False
    prevocalic: str = ""
    attributive: bool = True  # can modify a noun directly
    predicative: bool = True  # can follow to be
    gradable: bool = True  # can be used with very and too
    idiom: bool = False

    @property
    def key(self) -> str:
        """The unique lemma key: light/léger and light/clair are two lemmas."""
        return f"{self.english}/{self.forms[0]}"

    def agree(self, feminine: bool, plural: bool) -> str:
        """Returns the French form for a gender and number."""
        return self.forms[2 * plural + feminine]


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages.

    Attributes:
      objects: classes or English names of the nouns that can be its object.
      preposition: between the French verb and its object (jouer à, rendre visite à).
      suffix: a fixed word after the French verb (rendre visite).
    """

    english: EnglishVerb
    french: FrenchVerb
    objects: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    preposition: str = ""
    suffix: str = ""

    @property
    def key(self) -> str:
        """The unique lemma key: visit/visiter and visit/rendre visite are two lemmas."""
        return f"{self.english.infinitive}/{self.french.infinitive} {self.suffix}".strip()


# --- Parsing the text files --------------------------------------------------------------------------------------


@cache
def read_words(name: str) -> dict[str, list[str]]:
    """Returns the entries of words/`name`.txt by the header of their section, in the order of the file.

    An entry is a line, which indented lines continue. Lines that start with # are comments.
    """
    text = (Path(__file__).parent / "words" / f"{name}.txt").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    header = ""
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            header = line.strip("[]")
            sections.setdefault(header, [])
        elif line and not line.startswith("#"):
            sections[header].append(line)
    return sections


def read_translations(name: str) -> dict[str, dict[str, str]]:
    """Returns the translations in words/`name`.txt, "english = french", by the header of their section."""
    return {header: dict(entry.split(" = ") for entry in entries) for header, entries in read_words(name).items()}


NAMES = read_words("names")  # female and male
ADVERBS = {group: tuple(adverbs.items()) for group, adverbs in read_translations("adverbs").items()}


def parse_noun(entry: str, shared: tuple[str, ...] = ()) -> Noun:
    """Parses an entry such as "wolf/wolves = loup m +wild -farm"; `shared` are the classes of its section."""
    english, _, right = entry.partition(" = ")
    words = right.split()
    marks = [word for word in words if word[0] in "+-"]
    *french_words, gender = [word for word in words if word not in marks]
    singular, _, plural = english.strip().partition("/")
    french_singular, _, irregular_plural = " ".join(french_words).partition("/")
    removed = {mark[1:] for mark in marks if mark[0] == "-"}
    classes = tuple(c for c in (*shared, *(mark[1:] for mark in marks if mark[0] == "+")) if c not in removed)
    return Noun(
        english=singular,
        english_plural=plural or english_plural(singular),
        french=french_singular,
        french_plural=irregular_plural or french_plural(french_singular),
        feminine=gender == "f",
        classes=classes,
        mass="mass" in classes,
    )


def parse_adjective(entry: str, position: str = "after") -> Adjective:
    """Parses an entry such as "old = vieux/vieille/vieil : person animal"; `position` is the header of its section."""
    english, _, right = entry.partition(" = ")
    translation, _, flags = right.partition(";")
    french, _, classes = translation.partition(" : ")
    masculine, feminine, prevocalic = (*french.strip().split("/"), "", "")[:3]
    feminine = feminine or french_feminine(masculine)
    invariable = position == "idiom" or (masculine == feminine and " " in masculine)
    forms = (masculine,) * 4 if invariable else (masculine, feminine, french_plural(masculine), french_plural(feminine))
    return Adjective(
        english=english.strip(),
        forms=forms,
        classes=tuple(classes.split()),
        before=position == "before",
        prevocalic=prevocalic,
        attributive=position in ("before", "after"),
        predicative="attributive" not in flags.split(),
        gradable="ungradable" not in flags.split(),
        idiom=position == "idiom",
    )


def parse_verb(entry: str) -> Verb:
    """Parses an entry such as "wait for:waited = attendre attends attend ... attendu : bus train ; person"."""
    english, _, right = entry.partition(" = ")
    french, _, flag_words = right.partition(";")
    forms, _, objects = french.partition(" : ")
    words, _, past = english.strip().partition(":")
    infinitive, _, key_forms = forms.strip().partition(" ")
    flags = tuple(flag_words.split())
    return Verb(
        english_verb(words, past),
        conjugate(infinitive, key_forms, "etre" in flags, "reflexive" in flags),
        tuple(objects.split()),
        flags,
    )


# --- The lexicon, by English word, in the order of the text files ------------------------------------------------


_VERBS = read_words("verbs")
NOUNS = {
    noun.english: noun
    for header, entries in read_words("nouns").items()
    for noun in (parse_noun(entry, tuple(header.split())) for entry in entries)
}
ADJECTIVES = {
    adjective.english: adjective
    for position, entries in read_words("adjectives").items()
    for adjective in (parse_adjective(entry, position) for entry in entries)
}
TRANSITIVES = {verb.english.infinitive: verb for verb in map(parse_verb, _VERBS["transitive"])}
INTRANSITIVES = {verb.english.infinitive: verb for verb in map(parse_verb, _VERBS["intransitive"])}


@cache
def nouns(*terms: str) -> tuple[Noun, ...]:
    """Returns the nouns selected by classes or English names, in the order of the lexicon.

    Terms such as "pet" or "lemon" include nouns; those with a leading "-" exclude them ("-pet", "-lemon"). Raises
    ValueError if a term is neither a noun nor a class.
    """
    included, excluded = set[Noun](), set[Noun]()
    for term in terms:
        name = term.lstrip("-").replace("_", " ")
        selected = {noun for noun in NOUNS.values() if name in (noun.english, *noun.classes)}
        if not selected:
            raise ValueError(f"the lexicon has no noun and no class of nouns called {term!r}")
        (excluded if term[0] == "-" else included).update(selected)
    return tuple(noun for noun in NOUNS.values() if noun in included - excluded)
