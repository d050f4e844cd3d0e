"""Makes 3,000 dirty pairs from the phrasebook and cleans them; then checks what a network built from them keeps.

Run from the repository root:
  python -m benchmarks.dirty_pairs FOLDER
  lingua-flax build --source-language en --target-language fr --train FOLDER/dirty.csv --columns English French \
      --workdir FOLDER/build
  python -m benchmarks.dirty_pairs FOLDER --workdir FOLDER/build

Of the pairs, 72 have the target of another one, 200 the same URL, mail address or number on both sides, and 300 a
target that is garbled, but can be mended.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from lingua_flax.data.corpora import Pair, open_corpus
from lingua_flax.data.glossary import Glossary
from lingua_flax.options.schema import DataConfig
from lingua_flax.translation.translator import Translator

SEED, PAIRS, WRONG, KEPT, GARBLED = 87, 3000, 72, 200, 300
TEMPLATES = (  # around a sentence and what is kept, in both languages
    ("{} See {}", "{} Voir {}", "https://www.{word}.org/{number}?page={number}"),
    ("{} Write to {}.", "{} Écrivez à {}.", "{word}.{number}@example.org"),
    ("{} Its number is {}.", "{} Son numéro est le {}.", "{number}"),
)
GARBLING: tuple[Callable[[str], str], ...] = (
    lambda text: text.encode().decode("latin-1"),
    lambda text: f"<p>{text}</p>",
    lambda text: text.replace("'", "&#39;").replace("é", "&eacute;"),
    lambda text: f"\u3000{text.replace(' ', chr(0xA0))}\t",
)
TERMS = (("bank", "guichet"), ("soup", "potage"), ("mattress", "futon"), ("camel", "dromadaire"), ("jacket", "veston"))


def planted(pairs: Sequence[Pair], draw: Random) -> list[tuple[str, str, str]]:
    """Returns pairs with something to keep on both sides, each with that."""
    found = []
    for number, (source, target) in enumerate(pairs):
        around, own, thing = TEMPLATES[number % len(TEMPLATES)]
        thing = thing.format(word=draw.choice(source.split()).strip(".?,'").lower(), number=draw.randint(10**4, 10**6))
        found.append((around.format(source, thing), own.format(target, thing), thing))
    return found


def dirty_pairs(draw: Random) -> list[tuple[str, str, bool]]:
    """Returns pairs in a random order, each with whether its target is wrong."""
    pairs = draw.sample(list(open_corpus(DataConfig()).split("train")), PAIRS)
    sources, targets = map(list, zip(*pairs, strict=True))
    targets[:WRONG] = draw.sample(targets[WRONG:], WRONG)
    for number, (source, target, _) in enumerate(planted(pairs[WRONG : WRONG + KEPT], draw), start=WRONG):
        sources[number], targets[number] = source, target
    for number in draw.sample(range(WRONG, PAIRS), GARBLED):
        targets[number] = GARBLING[number % len(GARBLING)](targets[number])
    return [(sources[number], targets[number], number < WRONG) for number in draw.sample(range(PAIRS), PAIRS)]


def check_cleaning(folder: Path) -> None:
    """Writes the pairs as a table, cleans it, and prints how many wrong ones are found and how many others are lost."""
    pairs = dirty_pairs(Random(SEED))
    with (folder / "dirty.csv").open("w", encoding="utf-8", newline="") as file:
        rows = ([number, source, target, "phrasebook"] for number, (source, target, _) in enumerate(pairs))
        csv.writer(file).writerows([["id", "English", "French", "origin"], *rows])
    (folder / "clean.jsonl").unlink(missing_ok=True)
    command = [sys.executable, "-m", "lingua_flax", "clean", "dirty.csv", "--columns", "English", "French"]
    command += ["--output", "clean.jsonl", "--rejected", "rejected.jsonl"]
    subprocess.run([*command, "--source-language", "en", "--target-language", "fr"], cwd=folder, check=True)
    rejected = map(json.loads, (folder / "rejected.jsonl").read_text("utf-8").splitlines())
    reasons = {own["line"] - 2: own["reason"] for own in rejected}  # the first line is the header
    lost = [number for number in reasons if not pairs[number][2]]
    print(f"found {len(reasons) - len(lost)} of {WRONG} wrong targets, lost {len(lost)} of {PAIRS - WRONG} other pairs")
    for number in lost:
        print(f"lost, {reasons[number]}: {pairs[number][:2]}")


def check_network(workdir: Path) -> None:
    """Prints how much of what is to be kept, in sentences that were not trained on, is in their translations."""
    translator, test = Translator.load(workdir), list(open_corpus(DataConfig()).split("test"))
    kept = planted(test[:KEPT], Random(SEED + 1))
    texts = [own.text for own in translator.translate([source for source, _, _ in kept])]
    count = sum(thing in text for text, (_, _, thing) in zip(texts, kept, strict=True))
    print(f"kept {count} of {KEPT} URLs, addresses and numbers")
    glossary = Glossary(TERMS)
    sources = [source for source, _ in test if any(glossary.terms_in(source))]
    translations = translator.with_glossary(glossary).translate(sources)
    wanted = [(term, own.text) for own in translations for _, _, term in glossary.terms_in(own.source)]
    print(f"placed {sum(term in text.lower() for term, text in wanted)} of {len(wanted)} terms of the glossary")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workdir", type=Path, help="a network to check, or the folder of its build")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    check_network(options.workdir) if options.workdir else check_cleaning(options.folder)
