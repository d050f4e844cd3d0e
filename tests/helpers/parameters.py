"""Parameters of networks that tests do not train."""

import jax
import numpy as np

from lingua_flax.model.transformer import Structure


def random_params(network: Structure, seed: int = 0) -> dict:
    """Returns parameters drawn by NumPy: JAX takes seconds to compile the initialization of a network."""
    draw = np.random.default_rng(seed)

    def parameter(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        is_scale = path[-1].key == "scale"
        deviation = np.sqrt(2 / sum(leaf.shape)) if leaf.ndim > 1 else 0.1
        return (is_scale + deviation * draw.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(parameter, network.params)
