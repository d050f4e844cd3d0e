r"""Measures how a network keeps URLs, numbers and placeholders of software, and how it places the terms of a glossary.

Nothing of the kind is in Multi30k, so it is planted: in 5% of the training pairs, on both sides before a noun whose
translation is known or instead of it, at the beginning or at the end. Run from the repository root:
  python benchmarks/placeholders.py plant MULTI30K FOLDER
  lingua-flax train --config configs/multi30k_en_de.toml --data.name text --tokenizer.placeholders 8 \
      --data.train-source FOLDER/train.en --data.train-target FOLDER/train.de \
      --data.validation-source FOLDER/validation.en --data.validation-target FOLDER/validation.de \
      --data.test-source FOLDER/test.en --data.test-target FOLDER/test.de --workdir WORKDIR
  python benchmarks/placeholders.py score FOLDER WORKDIR
where MULTI30K is a folder with the published files.
"""

from __future__ import annotations

import argparse
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import sacrebleu

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.corpora.pair_files import read_aligned
from lingua_flax.data.glossary import Glossary
from lingua_flax.data.placeholders import spans_to_keep
from lingua_flax.data.text_files import write_lines
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator

OPTIONS = DecodingOptions(beam_size=5, length_penalty=1.0)
SHARE = 0.05  # of the training pairs
NOUNS = dict(
    pair.split(":")
    for pair in [
        "man:Mann",
        "woman:Frau",
        "boy:Junge",
        "girl:Mädchen",
        "dog:Hund",
        "dogs:Hunde",
        "child:Kind",
        "children:Kinder",
        "people:Personen",
        "men:Männer",
        "women:Frauen",
        "street:Straße",
        "water:Wasser",
        "ball:Ball",
        "shirt:Hemd",
        "hat:Hut",
        "horse:Pferd",
        "bicycle:Fahrrad",
        "beach:Strand",
        "park:Park",
        "snow:Schnee",
        "car:Auto",
        "building:Gebäude",
        "table:Tisch",
        "bench:Bank",
        "guitar:Gitarre",
        "boat:Boot",
        "tree:Baum",
        "girls:Mädchen",
        "boys:Jungen",
        "baby:Baby",
        "crowd:Menschenmenge",
        "field:Feld",
        "grass:Gras",
        "player:Spieler",
        "jacket:Jacke",
    ]
)
TERMS = Glossary(
    (
        ("Norwick", "Norderwiek"),
        ("harbour pilot", "Hafenlotse"),
        ("Blue Falcon", "Blauer Falke"),
        ("XR seven", "XR-Sieben"),
        ("member of the Quorvex club", "Quorvex-Mitglied"),
    )
)


def drawn_thing(draw: random.Random) -> str:
    """Returns something that a translation must keep."""
    word = "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9)))
    number = draw.randint(1, 10**6)
    things = [
        f"https://www.{word}.org/{number}",
        f"http://{word}.com",
        f"{word}@{word[::-1]}.net",
        str(number + 1000),
        f"{number + 1000:,}",
        f"{{{word}}}",
        "%s",
        f"%{draw.randint(1, 3)}$d",
        f"@{word}",
        f"`{word} -{word[0]}`",
    ]
    return draw.choice(things)


def planted(pair: Pair, things: Sequence[tuple[str, str]], draw: random.Random, replacing: float = 0.3) -> Pair:
    """Returns the pair with the things (on the source and on the target side), each in a place of its own.

    Before a noun, or, with the probability `replacing`, instead of it.
    """
    source, target = pair
    nouns = [noun for noun in NOUNS if all(len(found) == 1 for found in _found(noun, pair))]
    places: list[str] = draw.sample([*nouns, "beginning", "end"], len(things))
    for place, (own, other) in zip(places, things, strict=True):
        if place == "beginning":
            source, target = f"{own}: {source}", f"{other}: {target}"
        elif place == "end":
            source, target = (f"{side.rstrip('. ')} ({thing})." for side, thing in ((source, own), (target, other)))
        else:
            (source_noun,), (target_noun,) = _found(place, Pair(source, target))
            instead = draw.random() < replacing
            source, target = (
                side[: noun.start()] + thing + (side[noun.end() :] if instead else f" {side[noun.start() :]}")
                for side, noun, thing in ((source, source_noun, own), (target, target_noun, other))
            )
    return Pair(source, target)


def _found(noun: str, pair: Pair) -> list[list[re.Match[str]]]:
    words = (noun, NOUNS[noun])
    return [list(re.finditer(rf"\b{word}\b", side)) for word, side in zip(words, pair, strict=True)]


def plant(multi30k: Path, folder: Path) -> None:
    """Writes the planted training pairs, and validation and test as they are."""
    draw = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for split, stem in {"train": "train", "validation": "val", "test": "test_2016_flickr"}.items():
        pairs = list(read_aligned(multi30k / f"{stem}.en.gz", multi30k / f"{stem}.de.gz"))
        if split == "train":
            pairs = [_with_things(pair, draw) if draw.random() < SHARE else pair for pair in pairs]
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            write_lines(folder / f"{split}.{language}", side)


def _with_things(pair: Pair, draw: random.Random) -> Pair:
    things = [drawn_thing(draw) for _ in range(draw.choice((1, 1, 2)))]
    return planted(pair, [(thing, thing) for thing in things], draw)


def score(folder: Path, workdir: Path) -> None:
    """Prints what became of 1,000 test sentences with something planted, and of 500 with a term."""
    translator = Translator.load(workdir)
    pairs = [Pair(*pair) for pair in read_aligned(folder / "test.en", folder / "test.de")]
    plain = [line.text for line in translator.translate_sentences([pair.source for pair in pairs], OPTIONS)]
    print(f"untouched: BLEU {sacrebleu.corpus_bleu(plain, [[pair.target for pair in pairs]]).score:.2f}")
    draw = random.Random(2)
    with_things = [_with_things(pair, draw) for pair in pairs]
    things = [[span.kept for span in spans_to_keep(pair.source)] for pair in with_things]
    _score("planted", translator, with_things, things, pairs, plain)
    chosen = [draw.choice(TERMS.terms) for _ in pairs[:500]]
    with_terms = [planted(pair, [term], draw, replacing=0.0) for pair, term in zip(pairs, chosen, strict=False)]
    terms = [[term] for _, term in chosen]
    _score("glossary", translator.with_glossary(TERMS), with_terms, terms, pairs[:500], plain[:500])


def _score(
    what: str,
    translator: Translator,
    with_things: Sequence[Pair],
    things: Sequence[Sequence[str]],
    pairs: Sequence[Pair],
    plain: Sequence[str],
) -> None:
    """Prints how many things are where they belong, and the chrF of all and of the rest beside that of plain text."""
    lines = translator.translate_sentences([pair.source for pair in with_things], OPTIONS)
    translated = [line.text for line in lines]
    references = [pair.target for pair in with_things]
    total = kept = doubled = 0
    for own, translation in zip(things, translated, strict=True):
        for thing, count in Counter(own).items():
            total += count
            kept += min(count, translation.count(thing))
            doubled += max(0, translation.count(thing) - count)
    around = sum(bool(line.hypotheses[0].parts) for line in lines)
    print(
        f"{what}: {kept} of {total} kept, {doubled} doubled; {around} of {len(lines)} sentences translated around them"
    )
    rest = [[_without(own, text) for own, text in zip(things, side, strict=True)] for side in (translated, references)]
    chrf = [
        sacrebleu.corpus_chrf(list(texts), [list(references)]).score
        for texts, references in ((plain, [pair.target for pair in pairs]), (translated, references), rest)
    ]
    print(f"{what}: chrF {chrf[0]:.2f} untouched, {chrf[1]:.2f} with them, {chrf[2]:.2f} of the rest")


def _without(things: Sequence[str], text: str) -> str:
    for thing in things:
        text = text.replace(thing, "")
    return " ".join(text.split())


COMMANDS: dict[str, Callable[[Path, Path], None]] = {"plant": plant, "score": score}


def main() -> None:
    """Runs the command that is named first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("first", type=Path, help="the folder of Multi30k, or that with the planted pairs")
    parser.add_argument("second", type=Path, help="the folder to write, or the workdir")
    options = parser.parse_args()
    COMMANDS[options.command](options.first, options.second)


if __name__ == "__main__":
    main()
