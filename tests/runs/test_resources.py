"""Memory, files and threads of a long run."""

import contextlib
import time
from statistics import median

import psutil
import pytest

from lingua_flax.runs.workdir import Workdir
from tests.processes import start


@pytest.mark.slow
def test_memory_files_and_threads_do_not_grow_over_5000_steps(toy, tmp_path):
    """The first 1,500 steps do not count, since the heap still grows: in a run of 15,000 steps, the median memory of
    each 500 steps rose by 6% until step 2,000 and then stayed within 4%."""
    every = ["--training.eval-every", 250, "--training.checkpoint-every", 100]
    with open(tmp_path / "log", "w") as log:
        process = start(toy, tmp_path / "w", "--training.num-steps", 6500, *every, stdout=log, stderr=log)
    usages = {}
    training = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(0.1)
        with contextlib.suppress(psutil.Error):  # it has ended
            usage = training.memory_info().rss, training.num_fds(), training.num_threads()
            usages[Workdir(tmp_path / "w").last_step()] = usage
    assert process.wait() == 0, (tmp_path / "log").read_text()[-500:]
    early, late = ([usage for step, usage in usages.items() if low <= step < low + 1000] for low in (1500, 5500))
    memory, files, threads = ([[usage[kind] for usage in part] for part in (early, late)] for kind in range(3))
    assert median(memory[1]) <= 1.05 * median(memory[0]), (memory, len(usages))
    assert min(files[1]) <= min(files[0])  # the minimum, because files are open during saves
    assert min(threads[1]) <= min(threads[0]) + 2  # pools vary by one or two; a leak would add some with each save
