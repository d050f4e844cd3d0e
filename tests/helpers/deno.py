"""Runs JavaScript without a browser."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deno import find_deno_bin

ASK_WORKER = Path(__file__).parent / "ask_worker.js"


def deno(script: Path, *arguments: object) -> list[str]:
    """Returns the command line that runs a script, which may read files."""
    return [find_deno_bin(), "run", "--allow-read", "--no-lock", str(script), *map(str, arguments)]


def ask(document: str, path: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the answers of the worker in an exported HTML file, which is written to the path."""
    path.write_text(document, encoding="utf-8")
    command = deno(ASK_WORKER, path)
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def conversation(script: Path, *arguments: object) -> Iterator[Callable[..., Any]]:
    """Yields a function that asks a script, line by line."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    process: Any = subprocess.Popen(deno(script, *arguments), **pipes)
    with process:

        def ask(**question: Any) -> Any:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
