"""Runs JavaScript without a browser."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deno import find_deno_bin

from lingua_flax.export.html_file import ask_file


def ask(document: str, path: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the answers of the worker in an exported HTML file, which is written to the path."""
    path.write_text(document, encoding="utf-8")
    return ask_file(path, [{"question": question} for question in questions], seconds=1e9)


@contextlib.contextmanager
def conversation(script: Path, *arguments: Path) -> Iterator[Callable[..., Any]]:
    """Yields a function that asks a script, line by line."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    process: Any = subprocess.Popen([find_deno_bin(), "run", "--allow-read", "--no-lock", script, *arguments], **pipes)
    with process:

        def ask(**question: Any) -> Any:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
