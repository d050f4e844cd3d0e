"""Translates the lines of standard input with this folder's network, in NumPy: python translate.py < lines.txt

The Transformer of Vaswani et al. (2017), written to be read rather than to be fast: one sentence at a time, and each
step computes the whole translation so far again. Needs numpy, safetensors and sentencepiece.

Shapes: S source length, T target length, D model width, N heads, H = D / N head width, V vocabulary size.
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor

# The options of the network that this program knows, which may have any value or one of those in KNOWN.
SIZES = {"num_encoder_layers", "num_decoder_layers", "embed_dim", "num_heads", "mlp_dim", "max_length"}
ANY = SIZES | {"position_base", "norm_epsilon"}
IRRELEVANT = {"dropout_rate", "attention"}  # only training reads them
KNOWN = {
    "activation": ("relu", "gelu", "silu"),
    "attention_bias": (False, True),
    "output_bias": (False, True),
    "norm": ("pre", "post"),
    "positions": ("sinusoidal", "learned", "rotary"),
    "rotary_cross_attention": (True, False),
    "qk_norm": (True, False, "self"),
    "tied_embeddings": ("all", "decoder", "none"),
}
LINE_BREAKS = str.maketrans("\n\r", "  ")  # that byte fallback can produce; each translation is a single line


class Network:
    """The network: token ids -> probabilities of the next token."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.model = self.config["model"]
        for name, value in self.model.items():
            if name not in ANY | IRRELEVANT and value not in KNOWN.get(name, ()):
                raise ValueError(f"this program does not know {name} = {value}")
        arrays = load_file(folder / "model.safetensors")
        self.parameters = {name: array.astype(np.float32) for name, array in arrays.items()}

    def encode(self, source: list[int]) -> np.ndarray:
        """Returns the encoder's output [S, D] for source ids."""
        x = self.embed("target" if self.model["tied_embeddings"] == "all" else "source", source)
        for number in range(self.model["num_encoder_layers"]):
            layer = f"encoder.{number}"
            x = self.residual(f"{layer}.self_attention", x, lambda y, at: self.attention(at, y, y))
            x = self.residual(f"{layer}.feed_forward", x, lambda y, at: self.feed_forward(at, y))
        return self.layer_norm("encoder_norm", x) if self.model["norm"] == "pre" else x

    def logits(self, memory: np.ndarray, target: list[int]) -> np.ndarray:
        """Returns the logits [V] of the token that follows `target`, given the encoder's output [S, D]."""
        x = self.embed("target", target)
        for number in range(self.model["num_decoder_layers"]):
            layer = f"decoder.{number}"
            x = self.residual(f"{layer}.self_attention", x, lambda y, at: self.attention(at, y, y, causal=True))
            x = self.residual(f"{layer}.cross_attention", x, lambda y, at: self.attention(at, y, memory))
            x = self.residual(f"{layer}.feed_forward", x, lambda y, at: self.feed_forward(at, y))
        last = self.layer_norm("decoder_norm", x[-1]) if self.model["norm"] == "pre" else x[-1]
        table = "output_embedding" if self.model["tied_embeddings"] == "none" else "target_embedding"
        return self.parameters[table] @ last + self.parameters.get("output_bias", 0)

    def embed(self, side: str, ids: list[int]) -> np.ndarray:
        """Returns the embeddings of ids times sqrt(D), plus the position encodings unless rotary: [T, D]."""
        width = self.model["embed_dim"]
        x = self.parameters[f"{side}_embedding"][ids] * math.sqrt(width)
        if self.model["positions"] == "learned":
            x += self.parameters["position_embedding"][: len(ids)]
        elif self.model["positions"] == "sinusoidal":
            angles = self.angles(len(ids), width)
            x += np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(ids), width)
        return x

    def residual(self, name: str, x: np.ndarray, sublayer: Callable[[np.ndarray, str], np.ndarray]) -> np.ndarray:
        """Applies a sublayer to [T, D] and adds its output to its input, with a norm before it or after the sum."""
        if self.model["norm"] == "pre":
            return x + sublayer(self.layer_norm(f"{name}_residual.norm", x), name)
        return self.layer_norm(f"{name}_residual.norm", x + sublayer(x, name))

    def attention(self, name: str, x: np.ndarray, memory: np.ndarray, *, causal: bool = False) -> np.ndarray:
        """Lets each position of x [T, D] attend to memory [S, D], or with `causal` to its predecessors and itself."""
        query, keys, values = (
            self.heads(self.linear(f"{name}.{part}", source))
            for part, source in (("query", x), ("key", memory), ("value", memory))
        )
        if self.model["qk_norm"] is True or (self.model["qk_norm"] == "self" and memory is x):
            query, keys = self.rms_norm(f"{name}.query_norm", query), self.rms_norm(f"{name}.key_norm", keys)
        if self.model["positions"] == "rotary" and (memory is x or self.model["rotary_cross_attention"]):
            query, keys = self.rotate(query), self.rotate(keys)
        scores = query @ keys.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return self.linear(f"{name}.output", (weights @ values).transpose(1, 0, 2).reshape(x.shape))

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """Multiplies x [T, I] by a matrix and adds a bias, if there is one: [T, O]."""
        return x @ self.parameters[f"{name}.kernel"] + self.parameters.get(f"{name}.bias", 0)

    def heads(self, x: np.ndarray) -> np.ndarray:
        """Splits the width into heads: [T, D] -> [N, T, H]."""
        return x.reshape(len(x), self.model["num_heads"], -1).transpose(1, 0, 2)

    def rotate(self, heads: np.ndarray) -> np.ndarray:
        """Rotates dimensions i and i + H / 2 of position t by t times their frequency: [N, T, H] -> [N, T, H]."""
        angles = self.angles(heads.shape[1], heads.shape[2])
        first, second = np.split(heads, 2, axis=-1)
        cosines, sines = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)

    def angles(self, length: int, width: int) -> np.ndarray:
        """Returns position * base**(-2i / width) for each of the width / 2 pairs i: [length, width / 2]."""
        frequencies = np.float32(self.model["position_base"]) ** (-np.arange(0, width, 2, dtype=np.float32) / width)
        return np.arange(length, dtype=np.float32)[:, None] * frequencies

    def feed_forward(self, name: str, x: np.ndarray) -> np.ndarray:
        """Applies the two linear layers of a feed-forward sublayer: [T, D] -> [T, D]."""
        hidden = self.linear(f"{name}.up", x)
        if self.model["activation"] == "relu":
            hidden = np.maximum(hidden, 0)
        elif self.model["activation"] == "silu":
            hidden *= 0.5 * (1 + np.tanh(0.5 * hidden))  # x times the logistic function of x, without overflow
        else:  # the approximation of GELU by tanh
            hidden *= 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return self.linear(f"{name}.down", hidden)

    def layer_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """Normalizes each position's vector [..., D] to mean 0 and variance 1, then scales and shifts it."""
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.model["norm_epsilon"])
        return x * self.parameters[f"{name}.scale"] + self.parameters[f"{name}.bias"]

    def rms_norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """Divides each vector [..., H] by its root mean square, then scales it."""
        return (
            x
            / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.model["norm_epsilon"])
            * self.parameters[f"{name}.scale"]
        )


def beam_search(
    network: Network, source: list[int], beams: int, alpha: float = 0.0, form: str = "wu"
) -> tuple[list[int], float]:
    """Returns the best translation of source ids: its ids, without the end token, and its score.

    A single beam is greedy search; `alpha` is the exponent of the length penalty, that of Wu et al. (2016) or, with the
    form "length", of the length itself.
    """

    def penalty(length: int) -> float:
        return length**alpha if form == "length" else ((5 + length) / 6) ** alpha

    ids = network.config["special_ids"]
    limit = min(2 * len(source) + 10, network.model["max_length"])
    memory = network.encode(source)
    alive: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    for length in range(1, limit + 1):
        candidates = []
        for tokens, score in alive:
            logits = network.logits(memory, [ids["bos"], *tokens]).astype(np.float64)
            logits[[ids["pad"], ids["bos"], ids["unk"]]] = -np.inf
            total = score + logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            allowed = [ids["eos"]] if length == limit else np.argsort(-total)[: 2 * beams].tolist()
            candidates += [([*tokens, token], float(total[token])) for token in allowed]
        best = sorted(candidates, key=lambda candidate: -candidate[1])[: 2 * beams]
        ended = [(tokens[:-1], score / penalty(length)) for tokens, score in best[:beams] if tokens[-1] == ids["eos"]]
        finished = sorted(finished + ended, key=lambda hypothesis: -hypothesis[1])[:beams]
        alive = [(tokens, score) for tokens, score in best if tokens[-1] != ids["eos"]][:beams]
        # No log-probability can rise, and no penalty exceeds that of the limit.
        if finished and (beams == 1 or not alive or finished[0][1] >= alive[0][1] / penalty(limit)):
            break
    return finished[0]


def encode(source: SentencePieceProcessor, line: str) -> list[int]:
    """Returns the ids of a line; what the source side does not know may be a piece of the target side, unused here."""
    ids, pieces = source.encode(line), source.encode(line, out_type=str)
    others = map(source.piece_to_id, pieces)
    return [other if source.is_unused(other) else own for own, other in zip(ids, others, strict=True)]


def check_files(folder: Path) -> None:
    """Ends the program if a file is missing or not as it was exported: of a flipped bit, nonsense could come."""
    for name, digest in json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"error: {name} is not the file that was exported; copy the folder again")


def main() -> None:
    """Translates standard input line by line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = Path(__file__).parent
    check_files(folder)
    network = Network(folder)
    decoding = network.config["decoding"]
    parser.add_argument("--beam-size", type=int, default=decoding["beam_size"])
    parser.add_argument("--length-penalty", type=float, default=decoding["length_penalty"])
    options = parser.parse_args()
    if options.beam_size < 1:
        parser.error("--beam-size must be at least 1")
    names = network.config["tokenizers"]
    source, target = (SentencePieceProcessor(model_file=str(folder / names[side])) for side in ("source", "target"))
    for number, line in enumerate(sys.stdin, 1):
        text = line.rstrip("\n")
        if not any(map(str.isalpha, text)):  # there is nothing to translate
            print(text, flush=True)
            continue
        pieces = encode(source, text)
        ids = [*network.config["source_tags"], *pieces, network.config["special_ids"]["eos"]]
        if len(ids) > network.model["max_length"]:
            sys.exit(f"error: line {number} has {len(ids)} tokens; the network takes {network.model['max_length']}")
        how = (options.beam_size, options.length_penalty, decoding["length_penalty_form"])
        tokens = beam_search(network, ids, *how)[0] if pieces else []
        print(target.decode(tokens).translate(LINE_BREAKS), flush=True)


if __name__ == "__main__":
    main()
