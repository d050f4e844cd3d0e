"""Parameters by name: the tree of a network as one flat dictionary, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax


def named_parameters(params: Any) -> dict[str, Any]:
    """Returns the arrays of a tree of parameters by name, such as encoder.0.self_attention.query.kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {".".join(str(_key(entry)) for entry in path): leaf for path, leaf in leaves}


def _key(entry: Any) -> str | int:
    return entry.key if hasattr(entry, "key") else entry.idx


def parameter_tree(named: Mapping[str, Any], like: Any) -> Any:
    """Returns the inverse of `named_parameters`: a tree with the structure of `like`."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(structure, [named[name] for name in named_parameters(like)])
