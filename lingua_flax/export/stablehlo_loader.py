"""Translates the lines of standard input with this folder's programs: python translate.py < lines.txt

The programs are StableHLO for CPUs, NVIDIA GPUs and TPUs; JAX compiles them for the device that it finds. Needs jax,
flatbuffers and sentencepiece.

Shapes: B sentences of a batch, S source length, L maximum target length.
"""

import argparse
import hashlib
import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export
from sentencepiece import SentencePieceProcessor

LINE_BREAKS = str.maketrans("\n\r", "  ")  # that byte fallback can produce; each translation is a single line


class Programs:
    """The exported searches, with their parameters."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.parameters = dict(np.load(folder / "parameters.npz"))
        programs = {name: (folder / f"{name}.stablehlo").read_bytes() for name in ("greedy", "beam")}
        try:
            self.searches = {name: export.deserialize(bytearray(program)) for name, program in programs.items()}
            for program in self.searches.values():  # reads its operations, which deserialize does not
                jax.jit(program.call).lower(*jax.tree.unflatten(program.in_tree, program.in_avals)[0])
        except Exception as error:  # of several kinds, depending on the version
            made, own = self.config["jax"], jax.__version__
            sys.exit(
                f"error: jax {own} cannot read the programs; install jax {made}, which made them, or newer ({error})"
            )

    def translate(self, sources: list[list[int]], search: str, alpha: float) -> list[tuple[list[int], float]]:
        """Returns the ids and the score of the best translation of each of at most B sources of at most S tokens.

        `search` is greedy or beam, `alpha` the exponent of the length penalty of Wu et al. (2016).
        """
        batch = np.full((self.config["batch_size"], self.config["source_length"]), self.config["special_ids"]["pad"])
        for row, source in enumerate(sources):
            batch[row, : len(source)] = source
        tokens, scores = self.searches[search].call(self.parameters, batch.astype(np.int32), np.float32(alpha))
        return list(zip(np.asarray(tokens)[: len(sources)].tolist(), np.asarray(scores).tolist(), strict=False))


def check_files(folder: Path) -> None:
    """Ends the program if a file is missing or not as it was exported: of a flipped bit, nonsense could come."""
    for name, digest in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"error: {name} is not the file that was exported; copy the folder again")


def main() -> None:
    """Translates standard input, a batch at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", choices=("beam", "greedy"), default="beam")
    parser.add_argument("--length-penalty", type=float, default=0.6)
    options = parser.parse_args()
    folder = Path(__file__).parent
    check_files(folder)
    programs = Programs(folder)
    config, names = programs.config, programs.config["tokenizers"]
    source, target = (SentencePieceProcessor(model_file=str(folder / names[side])) for side in ("source", "target"))
    lines = enumerate(sys.stdin, 1)
    while batch := list(itertools.islice(lines, config["batch_size"])):
        ids = []
        for number, line in batch:
            pieces = source.encode(line.rstrip("\n"))
            ids.append([*config["source_tags"], *pieces, config["special_ids"]["eos"]] if pieces else [])
            if len(ids[-1]) > config["source_length"]:
                sys.exit(f"error: line {number} has {len(ids[-1])} tokens; the programs take {config['source_length']}")
        translations = programs.translate(ids, options.search, options.length_penalty)
        for sentence, (tokens, _) in zip(ids, translations, strict=True):
            print(target.decode(tokens).translate(LINE_BREAKS) if sentence else "", flush=True)


if __name__ == "__main__":
    main()
