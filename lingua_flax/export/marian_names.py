"""Which array of ours is which tensor of transformers, in both directions: for MarianMT, and Pegasus with final norms.

Their matrices are [outputs, inputs], ours [inputs, outputs]. Their sinusoids stand in two halves, sines and cosines,
while ours alternate, so all dimensions of the residual stream are reordered; nothing else depends on their order.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lingua_flax.options.schema import ModelConfig

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
BIAS_OF_LOGITS = "final_logits_bias"  # [1, V], output_bias here


def stream_order(width: int) -> np.ndarray:
    """Returns which of our dimensions of the residual stream each of theirs is."""
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


class Correspondence(NamedTuple):
    """An array of ours and the tensor with the same numbers."""

    ours: str
    theirs: str
    stream_axis: int | None  # of ours, along which the dimensions of the residual stream are

    def exported(self, array: np.ndarray) -> np.ndarray:
        """Returns our array as their tensor."""
        return self._turned(self._reordered(array, stream_order))

    def imported(self, tensor: np.ndarray) -> np.ndarray:
        """Returns their tensor as our array."""
        return self._reordered(self._turned(tensor), lambda width: np.argsort(stream_order(width)))

    def _turned(self, array: np.ndarray) -> np.ndarray:
        return array.T if self.ours.endswith("kernel") else array

    def _reordered(self, array: np.ndarray, order: Callable[[int], np.ndarray]) -> np.ndarray:
        axis = self.stream_axis
        return array if axis is None else np.take(array, order(array.shape[axis]), axis)


def correspondences(config: ModelConfig) -> Iterator[Correspondence]:
    """Yields all arrays but the bias of the logits; those of biases in attention also if the config has none."""
    yield Correspondence("target_embedding", "model.shared.weight", 1)
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        sublayers = ["self_attention"] if stack == "encoder" else list(SUBLAYERS)
        for number in range(layers):
            ours, theirs = f"{stack}.{number}", f"model.{stack}.layers.{number}"
            for own in sublayers:
                yield from _attention(f"{ours}.{own}", f"{theirs}.{SUBLAYERS[own]}")
            yield from _linear(f"{ours}.feed_forward.up", f"{theirs}.fc1", 0)
            yield from _linear(f"{ours}.feed_forward.down", f"{theirs}.fc2", 1)
            yield from _norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
        if config.norm == "pre":
            yield from _norm(f"{stack}_norm", f"model.{stack}.layer_norm")


def _attention(ours: str, theirs: str) -> Iterator[Correspondence]:
    for part, projection in PROJECTIONS.items():
        yield from _linear(f"{ours}.{part}", f"{theirs}.{projection}", 1 if part == "output" else 0)
    yield from _norm(f"{ours}_residual.norm", f"{theirs}_layer_norm")


def _linear(ours: str, theirs: str, stream_axis: int) -> Iterator[Correspondence]:
    """Yields a layer that reads the stream (axis 0 of its kernel) or adds to it (axis 1)."""
    yield Correspondence(f"{ours}.kernel", f"{theirs}.weight", stream_axis)
    yield Correspondence(f"{ours}.bias", f"{theirs}.bias", 0 if stream_axis else None)


def _norm(ours: str, theirs: str) -> Iterator[Correspondence]:
    yield Correspondence(f"{ours}.scale", f"{theirs}.weight", 0)
    yield Correspondence(f"{ours}.bias", f"{theirs}.bias", 0)


def their_numbers(ids: Mapping[str, int]) -> list[int]:
    """Returns the number that each of our pieces has in a vocabulary of transformers, given its size and special ids.

    Ours begins with padding, end, start and unknown; the others follow in the same order. What theirs starts with is a
    piece of its own here, most often a second padding.
    """
    first = [ids[name] for name in ("pad", "eos", "start", "unk")]
    others = {ids[name] for name in ("pad", "eos", "unk")}
    return first + [number for number in range(ids["size"]) if number not in others]
