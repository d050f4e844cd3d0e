"""How an attention weight came about: every vector between the stream of a position and what attention adds to it.

S source or key positions, T target or query positions, D model width, N heads, H head width, V vocabulary.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import StrictInt

from lingua_flax.host.errors import UserError
from lingua_flax.inspection.observation import Observation

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

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object in which vectors are lists of numbers with six digits."""
        rounded = np.vectorize(lambda number: number if isinstance(number, np.bool_) else float(f"{number:.6g}"))
        vectors = {name: rounded(array).tolist() for name, array in self.vectors.items()}
        return dataclasses.asdict(self.place) | {"norm": self.norm} | vectors


def explain(observed: Observation, place: Place, norm: Literal["pre", "post"]) -> Explanation:
    """Returns what a head computes at a query in an observed forward pass; raises UserError if there is no such query.

    `norm` is that of the network.
    """
    queries = len(observed.source if place.attention == "encoder" else observed.target)
    if not 0 <= place.query < queries:
        raise UserError(f"a query must be from 0 to {queries - 1}")
    sublayer, memory = getattr(observed.sublayers, place.attention)[place.layer], observed.sublayers.memory
    attention, head, query = sublayer.attention, place.head, place.query
    keys = len(observed.target if place.attention == "decoder" else observed.source)
    vectors = {
        "stream": sublayer.before[0, query],
        "read": sublayer.read[0, query],
        "heads": attention.heads[0, query],
        "output": attention.output[0, query],
        "after": sublayer.after[0, query],
        "query_vector": attention.queries[0, head, query],
        "memory": (memory if place.attention == "cross" else sublayer.read)[0, :keys],
        "keys": attention.cache.keys[0, head, :, :keys].T,
        "values": attention.cache.values[0, head, :keys],
        "weights": attention.weights[0, head, query, :keys],
    }
    vectors = {name: array.astype(np.float32) for name, array in vectors.items()}
    vectors["mask"] = attention.mask[0, 0, query, :keys]
    if place.attention != "encoder":
        vectors["hidden"] = observed.hidden[0, query].astype(np.float32)
    return Explanation(place, norm, vectors)
