"""Memory, files and threads of a long run."""

import os
import re
import time
from pathlib import Path
from statistics import median

import pytest

from tests.processes import start


@pytest.mark.slow
def test_memory_files_and_threads_do_not_grow_over_5000_steps(toy, tmp_path):
    """Reads them from the kernel every 0.1 s, during steps, validations, saves and everything else a run does.

    The first 1,500 steps do not count, since the heap still grows: in a run of 15,000 steps, the median memory of each
    500 steps rose by 6% until step 2,000 and then stayed within 4%.
    """
    every = ["--training.eval-every", 250, "--training.checkpoint-every", 100]
    with open(tmp_path / "log", "w") as log:
        process = start(toy, tmp_path / "w", "--training.num-steps", 6500, *every, stdout=log, stderr=log)
    usages: dict[int, tuple[int, int, int]] = {}
    lines = tmp_path / "w" / "metrics.jsonl"
    while process.poll() is None:
        time.sleep(0.1)
        last = lines.read_text().splitlines()[-1:] if lines.exists() else []
        step = re.search(r'"step": (\d+)', last[0]) if last else None
        if step and (usage := resource_usage(process.pid)):
            usages[int(step[1])] = usage
    assert process.wait() == 0, (tmp_path / "log").read_text()[-500:]
    early, late = ([usage for step, usage in usages.items() if low <= step < low + 1000] for low in (1500, 5500))
    memory, files, threads = ([[usage[kind] for usage in part] for part in (early, late)] for kind in range(3))
    assert median(memory[1]) <= 1.05 * median(memory[0]), (memory, len(usages))
    assert min(files[1]) <= min(files[0])  # the minimum, because files are open during saves
    assert min(threads[1]) <= min(threads[0]) + 2  # pools vary by one or two; a leak would add some with each save


def resource_usage(pid: int) -> tuple[int, int, int] | None:
    """Returns the resident memory in kB, open files and threads of a process, or None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]), files, int(re.search(r"Threads:\s+(\d+)", status)[1])
    except (OSError, TypeError):
        return None
