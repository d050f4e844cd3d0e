"""Measures word alignments on 200 hand-aligned sentences of the phrasebook (tests/word_alignments).

Run from the repository root:
  python -m benchmarks.word_alignment --workdir checkpoints/tiny [--workdir W ...] [--eflomal]

The error rate (AER, Och and Ney 2003), in percent, of every step, layer and head is measured on the even lines; what is
best there, and the mean of all layers and heads, on the odd lines. With --eflomal (pip install eflomal), the aligner
eflomal aligns the same sentences, together with the phrasebook's training split, in both directions.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lingua_flax.commands.main import exit_status
from lingua_flax.data.corpora.phrasebook import generate
from lingua_flax.options.schema import AlignmentOptions
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import WordLinks, align, word_links
from tests.word_alignments import HandAligned, alignment_error_rate, read_hand_aligned

STEPS: tuple[Literal["predict", "read"], ...] = ("predict", "read")
# Elided words, words, and single punctuation marks.
TOKEN = re.compile(r"\w+'(?!s\b)|'s|[\w-]+|[^\w\s]")


def measure(workdir: Path, pairs: Sequence[HandAligned]) -> None:
    """Prints the error rates of one network."""
    translator = Translator.load(workdir)
    sources = [pair.source for pair in pairs]
    targets = translator.tokenizer.encode_target([pair.target for pair in pairs])

    def rates(options: AlignmentOptions) -> tuple[float, float]:
        aligned = align(translator, sources, targets, options)
        links = [word_links(own, *pair[:2]) for own, pair in zip(aligned, pairs, strict=True)]
        return alignment_error_rate(pairs[::2], links[::2]), alignment_error_rate(pairs[1::2], links[1::2])

    numbers = [
        (None, *range(1, count + 1)) for count in (translator.config.num_decoder_layers, translator.config.num_heads)
    ]
    for step in STEPS:
        results = {
            key: rates(AlignmentOptions(alignment_step=step, alignment_layer=key[0], alignment_head=key[1]))
            for key in itertools.product(*numbers)
        }
        for layer in numbers[0]:
            mean, *heads = (f"{100 * results[layer, head][0]:.1f}" for head in numbers[1])
            name = f"layer {layer}" if layer else "all layers"
            print(f"{workdir}, step that {step}s, {name}: mean {mean}, heads {' '.join(heads)}", flush=True)
        best = min(results, key=lambda key: results[key][0])
        name = f"{f'layer {best[0]}' if best[0] else 'all layers'}, {f'head {best[1]}' if best[1] else 'mean'}"
        odd, all_odd = (100 * results[key][1] for key in (best, (None, None)))
        print(f"{workdir}, step that {step}s: odd lines: {name} {odd:.1f}, mean of all {all_odd:.1f}")


def measure_eflomal(pairs: Sequence[HandAligned]) -> None:
    """Prints the error rates of eflomal, model 3, for both directions and their intersection."""
    import eflomal

    texts = [(pair.source, pair.target) for pair in pairs] + list(generate().train)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{name}" for name in ("forward", "reverse")]
        sides = [[" ".join(_tokens(pair[side])[0]) + "\n" for pair in texts] for side in (0, 1)]
        eflomal.Aligner(model=3).align(*sides, links_filename_fwd=paths[0], links_filename_rev=paths[1], quiet=True)
        forward, reverse = (_word_links(pairs, Path(path).read_text().splitlines()) for path in paths)
    both = [sorted({*first} & {*second}) for first, second in zip(forward, reverse, strict=True)]
    for name, links in (("forward", forward), ("reverse", reverse), ("intersection", both)):
        even, odd = (100 * alignment_error_rate(pairs[half::2], links[half::2]) for half in (0, 1))
        print(f"eflomal, {name}: even lines {even:.1f}, odd lines {odd:.1f}")


def _tokens(line: str) -> tuple[list[str], list[int]]:
    """Returns the tokens of a line and, for each, the index of the word that it is in."""
    found = [(token, index) for index, word in enumerate(line.split()) for token in TOKEN.findall(word.lower())]
    return [token for token, _ in found], [index for _, index in found]


def _word_links(pairs: Sequence[HandAligned], lines: Sequence[str]) -> list[WordLinks]:
    """Returns the links between words, given those between tokens, one line for each pair."""
    results = []
    for pair, line in zip(pairs, lines, strict=False):  # the training split follows
        source, target = _tokens(pair.source)[1], _tokens(pair.target)[1]
        links = (map(int, link.split("-")) for link in line.split())
        results.append(sorted({(source[i], target[j]) for i, j in links}))
    return results


def command(argv: Sequence[str]) -> None:
    """Prints the error rates of the networks and, if requested, of eflomal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, action="append", default=[])
    parser.add_argument("--eflomal", action="store_true")
    options = parser.parse_args(argv)
    pairs = read_hand_aligned()
    for workdir in options.workdir:
        measure(workdir, pairs)
    if options.eflomal:
        measure_eflomal(pairs)


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
