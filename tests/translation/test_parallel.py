"""Concurrent calls: the order of their results, their number at a time, and errors."""

import os
import threading
from types import SimpleNamespace

import jax
import pytest

from lingua_flax.devices.mesh import make_mesh
from lingua_flax.options.schema import MeshConfig
from lingua_flax.translation.parallel import map_concurrently, num_concurrent_programs
from tests.conftest import HUNG_AFTER


@pytest.mark.parametrize("workers", [1, 3])
def test_results_are_in_order_and_as_many_calls_run_as_requested(workers):
    """All calls of a group of `workers` must be running before any of them returns, the last one first."""
    running, most = set(), []
    groups = [threading.Barrier(workers) for _ in range(6)]
    returned = [threading.Event() for _ in range(6 * workers)]

    def square(number):
        running.add(number)
        most.append(len(running))
        groups[number // workers].wait(HUNG_AFTER)
        if (number + 1) % workers:
            assert returned[number + 1].wait(HUNG_AFTER)
        running.remove(number)
        returned[number].set()
        return number**2

    results = list(map_concurrently(square, range(6 * workers), workers))
    assert results == [(number, number**2) for number in range(6 * workers)]
    assert max(most) == workers


@pytest.mark.parametrize("workers", [1, 2])
def test_no_calls_follow_an_error_or_the_last_result_that_is_taken(workers):
    called = []

    def fail_at_two(number):
        called.append(number)
        if number == 2:
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        list(map_concurrently(fail_at_two, range(50), workers))
    assert len(called) < 8
    called.clear()
    results = map_concurrently(called.append, range(50), workers)
    next(results)
    results.close()
    assert len(called) < 8


def test_several_devices_run_one_program_at_a_time():
    assert num_concurrent_programs(make_mesh(MeshConfig(), jax.devices()[:1])) == min(4, len(os.sched_getaffinity(0)))
    assert num_concurrent_programs(SimpleNamespace(size=2)) == 1
