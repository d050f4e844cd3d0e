"""How an attention weight came about: every vector between the stream of a position and what attention adds to it.

S source or key positions, T target or query positions, D model width, N heads, H head width, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import StrictInt

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.observation import forward_inputs, run_program
from lingua_flax.model.attention import merge_heads, scaled_dot_product_attention
from lingua_flax.model.layers import DecoderLayer, EncoderLayer
from lingua_flax.model.masks import SegmentMask
from lingua_flax.model.transformer import Transformer
from lingua_flax.translation.decoding import mask_special_tokens
from lingua_flax.translation.translator import Translator

Attention = Literal["encoder", "decoder", "cross"]


@dataclasses.dataclass(frozen=True)
class Head:
    """An attention head; layer and head are counted from 0."""

    attention: Attention
    layer: StrictInt
    head: StrictInt


@dataclasses.dataclass(frozen=True)
class Place(Head):
    """An attention head and a query position, counted from 0."""

    query: StrictInt


class Explanation(NamedTuple):
    """What a head computes at one query, in float32.

    Vectors are those of the head and the query, of keys [S, H or D] and of the stream [D], by the names in the answer
    of POST /inspect (docs/reference/formats.md); `mask` is True where the query may attend to a key.
    """

    place: Place
    norm: Literal["pre", "post"]
    vectors: dict[str, np.ndarray]
    logits: np.ndarray  # of the token that the decoder writes next, [V]; nothing for the encoder

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object in which vectors are lists of numbers with six digits; `logits` are left out."""
        rounded = np.vectorize(lambda number: number if isinstance(number, np.bool_) else float(f"{number:.6g}"))
        vectors = {name: rounded(array).tolist() for name, array in self.vectors.items()}
        return dataclasses.asdict(self.place) | {"norm": self.norm} | vectors


def explain(
    translator: Translator, source: Sequence[int], target: Sequence[int], masked: Sequence[int], place: Place
) -> Explanation:
    """Returns what a head computes at a query; raises UserError if there is none. Arguments as of `observe`."""
    queries = len(source) if place.attention == "encoder" else len(target)
    if not 0 <= place.query < queries:
        raise UserError(f"a query must be from 0 to {queries - 1}")
    visible, read_source, read, _ = forward_inputs(translator, source, target, masked)
    traces, hidden, logits = run_program(_traced, translator, visible, read_source, read)
    head, query = place.head, place.query
    trace = {name: array[0].astype(np.float32) for name, array in traces[place.attention][place.layer].items()}
    keys = len(target) if place.attention == "decoder" else len(source)
    vectors = {name: trace[name][query] for name in ("stream", "read", "heads", "output", "after")}
    vectors |= {"query_vector": trace["query_vector"][head, query], "memory": trace["memory"][:keys]}
    vectors |= {name: trace[name][head, :keys] for name in ("keys", "values")}
    vectors |= {"mask": trace["mask"][0, query, :keys] > 0, "weights": trace["weights"][head, query, :keys]}
    if place.attention == "encoder":
        return Explanation(place, translator.config.norm, vectors, np.zeros(0))
    vectors["hidden"] = hidden[0, query].astype(np.float32)
    return Explanation(place, translator.config.norm, vectors, logits[0, query])


@functools.partial(jax.jit, static_argnames="graphdef")
def _traced(
    params: Any, visible: jax.Array, source: jax.Array, read: jax.Array, *, graphdef: nnx.GraphDef
) -> tuple[dict[str, list[dict[str, jax.Array]]], jax.Array, jax.Array]:
    """Returns vectors of all heads and queries by kind of attention and layer, the decoder's output, and logits."""
    model: Transformer = nnx.merge(graphdef, params)
    traces: dict[str, list[dict[str, jax.Array]]] = {"encoder": [], "decoder": [], "cross": []}
    for encoder_layer in model.encoder:
        _record(encoder_layer, "self_attention", traces["encoder"])
    for decoder_layer in model.decoder:
        _record(decoder_layer, "self_attention", traces["decoder"])
        _record(decoder_layer, "cross_attention", traces["cross"])
    hidden, _ = model.hidden_states(source, read, source_segments=visible)
    return traces, hidden, mask_special_tokens(model.logits(hidden))


def _record(layer: EncoderLayer | DecoderLayer, name: str, traces: list[dict[str, jax.Array]]) -> None:
    """Replaces an attention module and the residual connection around it by functions that also add a trace."""
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
