"""Dropout: what it keeps, its scale, and that no two masks are alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lingua_flax.model.dropout import Dropout


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.999, float(np.nextafter(1, 0))])
def test_share_and_scale_of_kept_elements(rate):
    kept = np.asarray(Dropout(jax.random.key(0))(jnp.ones(10_000), rate))
    assert np.mean(kept > 0) == pytest.approx(1 - rate, abs=0.01)
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-6)


def test_mask_depends_on_key_site_and_position():
    @jax.jit
    def masks(key):
        dropout = Dropout(key)
        return [dropout(jnp.ones((64, 257)), 0.3) for _ in range(2)]

    a, b = jax.device_get(masks(jax.random.key(7)))
    np.testing.assert_array_equal(masks(jax.random.key(7))[0], a)
    assert not np.array_equal(masks(jax.random.key(8))[0], a)
    for one, other in ((a, b), (a[:, 1:], a[:, :-1])):  # sites, and neighbors
        assert ((one == 0) & (other == 0)).mean() == pytest.approx(0.09, abs=0.01)  # independent
