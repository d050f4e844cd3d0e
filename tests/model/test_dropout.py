"""Dropout: the share of elements that it keeps, and its scale, up to rates just below 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.model.dropout import Dropout


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9, 0.999, 0.99999999999, float(np.nextafter(1, 0))])
def test_share_and_scale_of_kept_elements(rate):
    kept = np.asarray(Dropout(jax.random.key(0))(jnp.ones(10_000), rate))
    assert np.mean(kept > 0) == pytest.approx(1 - rate, abs=0.01)
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-6)
