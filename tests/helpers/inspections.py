"""Answers to POST /inspect, and comparisons of them."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lingua_flax.data import batch
from lingua_flax.inspection import observation

HEADS = [{"attention": kind, "layer": 0, "head": head} for kind, head in (("encoder", 1), ("decoder", 0), ("cross", 1))]


def weights_in(encoded: Mapping[str, Any]) -> np.ndarray:
    """Returns attention weights of an answer, [layers, heads, queries, keys]."""
    return np.frombuffer(base64.b64decode(encoded["weights"]), "<u2").reshape(encoded["shape"]) / 65535


def pad_alike(patch: pytest.MonkeyPatch) -> None:
    """Pads all sentences to the longest length, so that one program of each kind is compiled."""
    for module in (batch, observation):
        patch.setattr(module, "bucket_lengths", lambda max_length: [max_length])


def assert_same(actual: Any, expected: Any, tolerance: float, place: str = "answer") -> None:
    """Compares JSON values, numbers with a tolerance."""
    if isinstance(expected, dict) and isinstance(expected.get("weights"), str):
        np.testing.assert_allclose(weights_in(actual), weights_in(expected), rtol=0, atol=tolerance, err_msg=place)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), place
        for name in expected:
            assert_same(actual[name], expected[name], tolerance, f"{place}.{name}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), place
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            assert_same(*pair, tolerance, f"{place}[{i}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=tolerance, rel=tolerance), place
    else:
        assert actual == expected, place
