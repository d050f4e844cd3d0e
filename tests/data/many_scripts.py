"""Plants faults in parallel text of many scripts and measures how many of them lingua-flax clean finds.

Sentences are made of the words of words_of_scripts.txt, with the order, punctuation, digits and calendars of the
language. `python -m tests.data.many_scripts` prints the table of docs/results.
"""

import itertools
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from lingua_flax.data.cleaning.readers import read_rows
from tests.data.planted_faults import cleaned

# How many words of a kind are on a line of words_of_scripts.txt, after its conventions, and in a sentence.
KINDS = {"noun": 24, "adjective": 10, "verb": 10, "place": 8, "time": 6, "name": 6, "and": 1, "people": 1, "year": 1}
DRAWN = {"noun": 3, "adjective": 3, "verb": 2, "place": 2, "time": 1, "name": 2, "and": 1, "people": 1, "year": 1}
TEN_THOUSAND = {"zh": "万", "ja": "万", "ko": "만"}
LAKH = {"hi": " लाख", "bn": " লাখ", "gu": " લાખ", "pa": " ਲੱਖ"}
YEARS_AHEAD = {"th": 543, "lo": 543, "km": 543, "am": -8}  # of calendars
FAULTS = ("random target", "other numbers", "cut character", "lost byte", "untranslated", "swapped", "mojibake")


class Language(NamedTuple):
    """How a language is written, in the order of words such as SOV-NA, and its words; word i is the same in all."""

    script: str
    code: str
    order: str
    space: str
    full_stop: str
    comma: str
    zero: str
    words: dict[str, list[str]]


class Sentence(NamedTuple):
    """The words of a sentence by kind, and how many people, which year and which hour it tells; 0 if none."""

    words: dict[str, list[int]]
    people: int
    year: int
    hour: int


def read_languages() -> list[Language]:
    """Returns English and the others."""
    languages = []
    for line in Path(__file__).with_name("words_of_scripts.txt").read_text(encoding="utf-8").splitlines():
        script, code, order, space, full_stop, comma, zero, *words = (
            word.replace("_", " ") for word in line.split(" ")
        )
        left = iter(words)
        by_kind = {kind: [*itertools.islice(left, count)] for kind, count in KINDS.items()}
        written = (space.replace("-", ""), full_stop.strip(), comma, zero)
        languages.append(Language(script, code, order, *written, by_kind))
    return languages


def draw_sentence(draw: random.Random) -> Sentence:
    """Returns any sentence; one of eight has no number."""
    words = {kind: draw.sample(range(KINDS[kind]), count) for kind, count in DRAWN.items()}
    people = draw.randrange(11, 99) * draw.choice((1, 10_000, 1_000_000))
    numbers = (people, draw.randrange(1900, 2020), draw.randrange(13, 24))
    return Sentence(words, *(number * draw.randrange(2) for number in numbers))


def write(sentence: Sentence, language: Language) -> str:
    """Returns the sentence in a language."""
    space, comma = language.space, language.comma + language.space
    people, year, hour = _numbers(sentence, language)
    words = {kind: [language.words[kind][index] for index in chosen] for kind, chosen in sentence.words.items()}
    order = -1 if "NA" in language.order else 1
    nouns = [space.join(each[::order]) for each in zip(words["adjective"], words["noun"], strict=True)]
    clauses = []
    for subject, verb, *others in zip((words["name"][0], nouns[2]), words["verb"], nouns, words["place"], strict=False):
        clauses.append(space.join((subject, *others, verb) if "SOV" in language.order else (subject, verb, *others)))
    if sentence.people:
        clauses[0] += f"{space}({people}{space}{words['people'][0]})"
    if sentence.year:
        clauses[1] += f"{comma}{words['year'][0]}{space}{year}"
    time = words["time"][0] + (space + hour if sentence.hour else "")
    text = f"{time}{comma}{clauses[0]}{space}{words['and'][0]}{space}{clauses[1]}{comma}{words['name'][1]}"
    return text[0].title() + text[1:] + language.full_stop


def _numbers(sentence: Sentence, language: Language) -> list[str]:
    """Returns people, year and hour as they are written in a language."""
    code, (people, year, hour) = language.code, sentence[1:]
    if code == "en":
        return [f"{people:,}".replace(",000,000", " million"), f"{year}", f"{hour - 12} pm"]
    count = f"{people:,}".replace(",", ".")
    if people >= 10_000:
        count = f"{people // 10_000}{TEN_THOUSAND[code]}" if code in TEN_THOUSAND else count
        count = f"{people / 100_000:g}{LAKH[code]}" if code in LAKH else count
    digits = {ord("0") + digit: chr(ord(language.zero) + digit) for digit in range(10)}
    return [text.translate(digits) for text in (count, f"{year + YEARS_AHEAD.get(code, 0)}", f"{hour}:00")]


def damage(kind: str, text: bytes, draw: random.Random) -> bytes:
    """Returns a text in UTF-8 that is cut inside a character, or lost a byte of one; unchanged if all are ASCII."""
    places = [place for place in range(len(text)) if text[place] >> 6 == 0b10]
    if not places:
        return text
    place = draw.choice(places[len(places) // 2 :])
    return text[:place] + (text[place + 1 :] if kind == "lost byte" else b"")


def plant(
    kind: str, sentence: Sentence, english: Language, language: Language, draw: random.Random
) -> tuple[str, bytes]:
    """Returns both sides of a pair with a fault of a kind."""
    source, target, other = write(sentence, english), write(sentence, language), draw_sentence(draw)
    if kind == "other numbers":  # and other nouns and names
        kept = {name: sentence.words[name] for name in ("verb", "adjective", "time", "place")}
        other = Sentence(other.words | kept, *(draw.randrange(*span) for span in ((11, 999), (1900, 2020), (13, 21))))
    if kind in ("cut character", "lost byte"):
        return source, damage(kind, target.encode(), draw)
    if kind in ("random target", "other numbers"):
        return source, write(other, language).encode()
    if kind == "mojibake":
        return source, target.encode().decode("sloppy-windows-1252").encode()
    return (target if kind == "swapped" else source), source.encode()


def measure(language: Language, good: int, faults: int, *, seed: int = 1, **options: Any) -> tuple[Counter[str], int]:
    """Returns how many faults of each kind are left out or mended, and how many good pairs are kept as they are.

    The sentences are the same in all languages, apart from those that are cut where there are few letters to cut.
    """
    english, draw = read_languages()[0], random.Random(seed)
    planted = dict(zip(draw.sample(range(1, good + faults + 1), faults), itertools.cycle(FAULTS), strict=False))
    meant, lines = {}, []
    for number in range(1, good + faults + 1):
        draw, kind = random.Random(f"{seed} {number}"), planted.get(number)
        sentence = draw_sentence(draw)
        while kind in ("cut character", "lost byte") and write(sentence, language).isascii():
            sentence = draw_sentence(draw)
        source, target = meant[number] = write(sentence, english), write(sentence, language)
        lines.append(plant(kind, sentence, english, language, draw) if kind else (source, target.encode()))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, "source"), Path(folder, "target")]
        paths[0].write_bytes(b"".join(source.encode() + b"\n" for source, _ in lines))
        paths[1].write_bytes(b"".join(target + b"\n" for _, target in lines))
        kept = cleaned(read_rows(paths, ("en", language.code)), language.code, **options)
    right = {number for number, pair in kept.items() if pair == meant[number]}
    is_found = {
        number: number not in kept or (kind == "mojibake" and number in right) for number, kind in planted.items()
    }
    return Counter(planted[number] for number, found in is_found.items() if found), len(right - planted.keys())


if __name__ == "__main__":
    good, faults = map(int, sys.argv[1:] or (2000, 350))
    print(f"| script | {' | '.join(FAULTS)} | all faults | good pairs |\n|{'---|' * (len(FAULTS) + 3)}")
    for language in read_languages()[1:]:
        found, kept = measure(language, good, faults)
        counts = " | ".join(str(found[kind]) for kind in FAULTS)
        print(f"| {language.script} | {counts} | {found.total() / faults:.1%} | {kept / good:.1%} |", flush=True)
