"""Mutation testing of the core: breaks it in each of the ways listed in mutants.toml and shows which test notices.

`make mutants` runs it. Each mutant is a replacement in one file of a copy of the repository, in which the tests listed
with the mutant then run until the first failure. Without any mutant, all of these tests must pass. The exit status is 1
if a mutant survives.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from lingua_flax.host.terminal import print_table
from lingua_flax.host.wording import counted
from tests.helpers.repository import copy_repository

ROOT = Path(__file__).parent.parent
TIME_LIMIT = 3600  # seconds, more than twice what all default tests take one after the other


class Mutant(NamedTuple):
    """A replacement that breaks the program, and the tests that should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


class Result(NamedTuple):
    """The first test that failed, or None if all passed or time ran out, and the duration in seconds."""

    failed: str | None
    seconds: float


def read_mutants(path: Path) -> list[Mutant]:
    """Reads the list and checks that the text to be replaced occurs exactly once in its file."""
    mutants = [Mutant(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]
    for mutant in mutants:
        count = (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old)
        if count != 1:
            raise SystemExit(f"error: {mutant.name}: its text occurs {count} times in {mutant.file}, not once")
    return mutants


def run_tests(tests: list[str], mutant: Mutant | None = None) -> Result:
    """Runs tests in a copy of the repository, after making the replacement of the mutant if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        copy_repository(copy)
        if mutant:
            file = copy / mutant.file
            file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
        started = time.monotonic()
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired:
            return Result(None, time.monotonic() - started)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        if done.returncode and not failed:
            raise SystemExit(f"error: pytest failed without a failed test: {done.stdout}{done.stderr}")
        return Result(failed[1] if failed else None, time.monotonic() - started)


def main() -> None:
    """Tests all mutants and prints a table of which test caught which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run only mutants whose names contain this text")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at the same time")
    options = parser.parse_args()
    listed = read_mutants(Path(__file__).with_name("mutants.toml"))
    mutants = [mutant for mutant in listed if not options.only or options.only in mutant.name]
    sound = sorted({test for mutant in mutants for test in mutant.tests})
    if failed := run_tests(sound).failed:
        raise SystemExit(f"error: {failed} fails without any mutant")
    with ThreadPoolExecutor(options.jobs) as threads:
        results = list(threads.map(lambda mutant: run_tests(mutant.tests, mutant), mutants))
    table = Table("mutant", "file", "caught by", "seconds")
    for mutant, result in zip(mutants, results, strict=True):
        survived = "SURVIVED" if result.seconds < TIME_LIMIT else "NOT WITHIN THE TIME LIMIT"
        table.add_row(mutant.name, mutant.file, result.failed or survived, f"{result.seconds:.0f}")
    print_table(table)
    survivors = sum(result.failed is None for result in results)
    print(f"{counted(len(mutants), 'mutant')}, {survivors} survived")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
