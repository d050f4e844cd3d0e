"""Measures word alignments on 200 hand-aligned sentences of the phrasebook (tests/word_alignments).

Run from the repository root:
  python -m benchmarks.word_alignment --workdir checkpoints/tiny [--workdir W ...]

The error rate (AER, Och and Ney 2003), in percent, of every step, layer and head is measured on the even lines; what is
best there, and the mean of all layers and heads, on the odd lines.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lingua_flax.commands.main import exit_status
from lingua_flax.options.schema import AlignmentOptions
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import align, word_links
from tests.word_alignments import HandAligned, alignment_error_rate, read_hand_aligned

STEPS: tuple[Literal["predict", "read"], ...] = ("predict", "read")


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


def command(argv: Sequence[str]) -> None:
    """Prints the error rates of the networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, action="append", required=True)
    pairs = read_hand_aligned()
    for workdir in parser.parse_args(argv).workdir:
        measure(workdir, pairs)


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
