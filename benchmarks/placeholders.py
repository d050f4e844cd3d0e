r"""Measures how a network keeps URLs, numbers and placeholders of software, and how it places the terms of a glossary.

Nothing of the kind is in Multi30k, so it is planted: in 5% of the training pairs, on both sides before a noun whose
translation is known or instead of it, at the beginning or at the end. Run from the repository root, where MULTI30K is a
folder with the published files:
  python benchmarks/placeholders.py plant MULTI30K FOLDER
  lingua-flax train --config configs/multi30k_en_de.toml --data.name text --tokenizer.placeholders 8 \
      --data.train-source FOLDER/train.en --data.train-target FOLDER/train.de \
      --data.validation-source FOLDER/validation.en --data.validation-target FOLDER/validation.de \
      --data.test-source FOLDER/test.en --data.test-target FOLDER/test.de --workdir WORKDIR
  python benchmarks/placeholders.py score FOLDER WORKDIR
"""

from __future__ import annotations

import random
import re
import string
import sys
from collections.abc import Sequence
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
    re.findall(
        r"(\w+):(\w+)",
        """
        man:Mann woman:Frau boy:Junge girl:Mädchen dog:Hund dogs:Hunde child:Kind children:Kinder people:Personen
        men:Männer women:Frauen street:Straße water:Wasser ball:Ball shirt:Hemd hat:Hut horse:Pferd bicycle:Fahrrad
        beach:Strand park:Park snow:Schnee car:Auto building:Gebäude table:Tisch bench:Bank guitar:Gitarre boat:Boot
        tree:Baum girls:Mädchen boys:Jungen baby:Baby crowd:Menschenmenge field:Feld grass:Gras player:Spieler
        jacket:Jacke
        """,
    )
)
TERMS = {
    "Norwick": "Norderwiek",
    "harbour pilot": "Hafenlotse",
    "Blue Falcon": "Blauer Falke",
    "XR seven": "XR-Sieben",
    "member of the Quorvex club": "Quorvex-Mitglied",
}


def drawn_thing(draw: random.Random) -> str:
    """Returns something that a translation must keep."""
    word, number = "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))), draw.randint(1, 10**6)
    things = [f"https://www.{word}.org/{number}", f"http://{word}.com", f"{word}@{word[::-1]}.net"]
    things += [str(number + 1000), f"{number + 1000:,}", f"{{{word}}}", "%s", f"%{draw.randint(1, 3)}$d"]
    return draw.choice([*things, f"@{word}", f"`{word} -{word[0]}`"])


def planted(pair: Pair, things: Sequence[tuple[str, str]], draw: random.Random, replacing: float = 0.3) -> Pair:
    """Returns the pair with the things (on the source and on the target side), each in a place of its own.

    Before a noun, or, with the probability `replacing`, instead of it.
    """
    nouns = [noun for noun in NOUNS if all(len(found) == 1 for found in _found(noun, pair))]
    for place, sides in zip(draw.sample([*nouns, "beginning", "end"], len(things)), things, strict=True):
        if place == "beginning":
            pair = Pair(*(f"{thing}: {text}" for thing, text in zip(sides, pair, strict=True)))
        elif place == "end":
            pair = Pair(*(f"{text.rstrip('. ')} ({thing})." for thing, text in zip(sides, pair, strict=True)))
        else:
            after = "" if draw.random() < replacing else r" \g<0>"
            words = (place, NOUNS[place])
            pair = Pair(
                *(
                    re.sub(rf"\b{word}\b", thing.replace("\\", r"\\") + after, text)
                    for word, thing, text in zip(words, sides, pair, strict=True)
                )
            )
    return pair


def _found(noun: str, pair: Pair) -> list[list[str]]:
    return [re.findall(rf"\b{word}\b", side) for word, side in zip((noun, NOUNS[noun]), pair, strict=True)]


def _with_things(pair: Pair, draw: random.Random) -> Pair:
    things = [drawn_thing(draw) for _ in range(draw.choice((1, 1, 2)))]
    return planted(pair, [(thing, thing) for thing in things], draw)


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


def score(folder: Path, workdir: Path) -> None:
    """Prints what became of 1,000 test sentences with something planted, and of 500 with a term."""
    translator, draw = Translator.load(workdir), random.Random(2)
    pairs = list(read_aligned(folder / "test.en", folder / "test.de"))
    plain = [line.text for line in translator.translate_sentences([pair.source for pair in pairs], OPTIONS)]
    print(f"untouched: BLEU {sacrebleu.corpus_bleu(plain, [[pair.target for pair in pairs]]).score:.2f}")
    changed = [_with_things(pair, draw) for pair in pairs]
    things = [[span.kept for span in spans_to_keep(pair.source)] for pair in changed]
    _score("planted", translator, changed, things, pairs, plain)
    terms = [draw.choice(list(TERMS.items())) for _ in pairs[:500]]
    changed = [planted(pair, [term], draw, replacing=0.0) for pair, term in zip(pairs, terms, strict=False)]
    translator = translator.with_glossary(Glossary(tuple(TERMS.items())))
    _score("glossary", translator, changed, [[term] for _, term in terms], pairs[:500], plain[:500])


def _score(
    what: str,
    translator: Translator,
    changed: Sequence[Pair],
    things: Sequence[Sequence[str]],
    pairs: Sequence[Pair],
    plain: Sequence[str],
) -> None:
    """Prints how many things are where they belong, and the chrF of all and of the rest beside that of plain text."""
    lines = translator.translate_sentences([pair.source for pair in changed], OPTIONS)
    translated, references = [line.text for line in lines], [pair.target for pair in changed]
    counts = [
        (own.count(thing), line.count(thing))
        for own, line in zip(things, translated, strict=True)
        for thing in dict.fromkeys(own)
    ]
    kept, total = sum(map(min, counts)), sum(wanted for wanted, _ in counts)
    around = sum(bool(line.hypotheses[0].parts) for line in lines)
    doubled = sum(found > wanted for wanted, found in counts)
    print(f"{what}: {kept} of {total} kept, {doubled} doubled; {around} of {len(lines)} lines translated around them")
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


if __name__ == "__main__":
    {"plant": plant, "score": score}[sys.argv[1]](*map(Path, sys.argv[2:]))
