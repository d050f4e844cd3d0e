"""How an attention weight came about: every vector between the stream of a position and what attention adds to it.

S source or key positions, T target or query positions, D model width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lingua_flax.inspection.observation import NUM_ALTERNATIVES, forward_inputs, run_program
from lingua_flax.model.attention import merge_heads, scaled_dot_product_attention
from lingua_flax.model.layers import DecoderLayer, EncoderLayer
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.transformer import Transformer
from lingua_flax.translation.decoding import mask_special_tokens
from lingua_flax.translation.translator import Translator

SIGNIFICANT_DIGITS = 6


Attention = Literal["encoder", "decoder", "cross"]


class Place(NamedTuple):
    """An attention head and a query position, counted from 0."""

    attention: Attention
    layer: int
    head: int
    query: int


class Logit(NamedTuple):
    """A token that may follow."""

    token: int
    logit: float
    probability: float


class Explanation(NamedTuple):
    """What a head computes at one query, in float32.

    Attributes:
      vectors: by name:
        stream: what the residual connection starts from, [D]; after: the stream after the sublayer, [D].
        read: what the query is projected from, [D]: the stream, normalized first if norms come first.
        memory: what keys and values are projected from, [S, D].
        query_vector: [H]; keys, values: [S, H]; normalized and rotated if the model does that.
        mask: True where the query may attend to a key, [S].
        weights: [S].
        heads: weighted sums of values of all heads, concatenated, [D]; output: their product with the output
          projection, [D].
        hidden: the decoder's output at the query, [D]; none for the encoder.
      logits: the likeliest tokens that the decoder may write next, best first; none for the encoder.
    """

    place: Place
    norm: Literal["pre", "post"]
    vectors: dict[str, np.ndarray]
    logits: list[Logit]

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object in which vectors are lists of numbers with six digits; `logits` are left out."""
        vectors = {name: _numbers(array) for name, array in self.vectors.items()}
        return self.place._asdict() | {"norm": self.norm} | vectors


Trace = dict[str, jax.Array]  # by the names above, for all heads [1, N, ...] and all queries


def explain(
    translator: Translator, source: Sequence[int], target: Sequence[int], masked: Sequence[int], place: Place
) -> Explanation:
    """Returns what one head computes at one query while the network writes a translation; arguments as of `observe`."""
    visible, read_source, read, _ = forward_inputs(translator, source, target, masked)
    traces, hidden, logits = run_program(_traced, translator, visible, read_source, read)
    attention, layer, head, query = place
    trace = {name: array[0].astype(np.float32) for name, array in traces[attention][layer].items()}
    keys = len(target) if attention == "decoder" else len(source)
    vectors = {name: trace[name][query] for name in ("stream", "read", "heads", "output", "after")}
    vectors |= {"query_vector": trace["query_vector"][head, query], "memory": trace["memory"][:keys]}
    vectors |= {name: trace[name][head, :keys] for name in ("keys", "values")}
    vectors |= {"mask": trace["mask"][0, query, :keys] > 0, "weights": trace["weights"][head, query, :keys]}
    if attention == "encoder":
        return Explanation(place, translator.config.norm, vectors, [])
    vectors["hidden"] = hidden[0, query].astype(np.float32)
    probabilities = np.asarray(jax.nn.softmax(logits[0, query]))
    best = np.argsort(-probabilities, kind="stable")[:NUM_ALTERNATIVES]
    likeliest = [Logit(int(token), float(logits[0, query, token]), float(probabilities[token])) for token in best]
    return Explanation(place, translator.config.norm, vectors, likeliest)


def _numbers(array: np.ndarray) -> Any:
    if array.dtype == bool:
        return array.tolist()
    if array.ndim == 0:
        return float(f"{array:.{SIGNIFICANT_DIGITS}g}")
    return [_numbers(row) for row in array]


@functools.partial(jax.jit, static_argnames="graphdef")
def _traced(
    params: Any, visible: jax.Array, source: jax.Array, read: jax.Array, *, graphdef: nnx.GraphDef
) -> tuple[dict[str, list[Trace]], jax.Array, jax.Array]:
    """Returns the traces by kind of attention and layer, the decoder's output [1, T, D], and the logits [1, T, V]."""
    model: Transformer = nnx.merge(graphdef, params)
    traces: dict[str, list[Trace]] = {"encoder": [], "decoder": [], "cross": []}
    for encoder_layer in model.encoder:
        _record(encoder_layer, "self_attention", traces["encoder"])
    for decoder_layer in model.decoder:
        _record(decoder_layer, "self_attention", traces["decoder"])
        _record(decoder_layer, "cross_attention", traces["cross"])
    hidden, _ = model.hidden_states(source, read, source_segments=visible)
    return traces, hidden, mask_special_tokens(model.logits(hidden))


def _record(layer: EncoderLayer | DecoderLayer, name: str, traces: list[Trace]) -> None:
    """Replaces an attention module and the residual connection around it by functions that add a trace.

    They compute the same, attention by the equation.
    """
    attention, residual = getattr(layer, name), getattr(layer, f"{name}_residual")

    def attend(
        y: jax.Array, memory: jax.Array, mask: SegmentMask, rotation: Any, memory_rotation: Any, _: None
    ) -> tuple[jax.Array, jax.Array]:
        query, projected = attention.queries(y, rotation), attention.keys_values(memory, memory_rotation)
        keys, values = jnp.swapaxes(projected.keys, 2, 3), projected.values
        heads, weights = scaled_dot_product_attention(query, keys, values, mask.dense())
        merged = merge_heads(heads)
        output = attention.output(merged)
        traces.append({"read": y, "memory": memory, "query_vector": query, "keys": keys, "values": values})
        traces[-1] |= {"mask": mask.dense(), "weights": weights, "heads": merged, "output": output}
        return output, weights

    def connect(x: jax.Array, sublayer: Callable[[Any], Any], _: None) -> tuple[jax.Array, jax.Array]:
        after, weights = residual(x, sublayer)
        traces[-1] |= {"stream": x, "after": after}
        return after, weights

    setattr(layer, name, attend)
    setattr(layer, f"{name}_residual", connect)
