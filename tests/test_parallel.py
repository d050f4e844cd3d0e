"""Calls side by side: in order, so many at a time, and what happens to a mistake."""

import os
import threading
import time
from types import SimpleNamespace

import jax
import pytest

from devices.mesh import make_mesh
from options.schema import MeshConfig
from translation.parallel import map_concurrently, num_concurrent_programs


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_results_come_in_order_and_no_more_run_than_asked_for(at_once):
    lock, running, most = threading.Lock(), [0], [0]

    def square(number):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01 * (5 - number % 5))
        with lock:
            running[0] -= 1
        return number**2

    assert list(map_concurrently(square, range(20), at_once)) == [(number, number**2) for number in range(20)]
    assert most[0] == at_once


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_reaches_the_caller_and_nothing_more_is_begun(at_once):
    begun = []

    def fail_at_two(number):
        begun.append(number)
        time.sleep(0.01)
        if number == 2:
            raise ValueError("two")
        return number

    with pytest.raises(ValueError, match="two"):
        list(map_concurrently(fail_at_two, range(50), at_once))
    assert len(begun) < 8


def test_a_caller_that_stops_ends_it():
    begun = []
    results = map_concurrently(begun.append, range(50), 2)
    next(results)
    results.close()
    time.sleep(0.05)
    assert len(begun) < 8


def test_several_devices_run_one_program_at_a_time():
    assert num_concurrent_programs(make_mesh(MeshConfig(), jax.devices()[:1])) == min(4, len(os.sched_getaffinity(0)))
    assert num_concurrent_programs(SimpleNamespace(size=2)) == 1
