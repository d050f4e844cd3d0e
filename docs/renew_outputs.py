"""Runs the commands of the guides again and stores what they print in the guides (`make docs-outputs`).

A block that begins with ```console contains commands, which begin with "$ ", and what they print. All blocks are run in
a clone of the last commit, page by page in the order of PAGES: a page may use what an earlier one has trained. If an
output contains a line "...", the new one is shortened to as many lines before and after it. The
notebooks of docs/understanding are run last, with the network that the first page has trained.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from notebooks.execute import execute, read_notebook, store_outputs

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = ("first_run", "data_report", "training", "evaluation", "decoding", "fine_tuning", "export", "devices")
COURSE = sorted(path.relative_to(ROOT) for path in DOCS.glob("understanding/*.ipynb"))
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
ORIGIN = re.compile(r"Outputs on this page: .*\.$", re.MULTILINE)
PROMPT, CONTINUED, OMITTED = "$ ", "\\", "..."


def split_block(block: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the lines of each command of a block, and the lines of its output."""
    command: list[str] = []
    output: list[str] = []
    for line in block.splitlines():
        if command and not output and command[-1].endswith(CONTINUED):
            command.append(line)
        elif line.startswith(PROMPT):
            if command:
                yield command, output
            command, output = [line], []
        else:
            output.append(line)
    yield command, output


def shorten(output: list[str], like: list[str]) -> list[str]:
    """Returns as many of the first and last lines as surround the "..." of another output; without one, all lines."""
    if OMITTED not in like:
        return output
    first, last = like.index(OMITTED), like[::-1].index(OMITTED)
    return output if first + last >= len(output) else [*output[:first], OMITTED, *output[len(output) - last :]]


def run(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """Returns the lines that a command prints in the folder, without trailing spaces.

    Raises:
      CalledProcessError: the command failed; status 2 is allowed, since pages show errors too.
    """
    script = "\n".join(command).removeprefix(PROMPT)
    print(script, flush=True)
    bash, env = ["bash", "-c", script], os.environ | environment
    result = subprocess.run(bash, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode not in (0, 2):
        raise subprocess.CalledProcessError(result.returncode, script, result.stdout)
    text = result.stdout.replace(str(folder.parent / "cache"), "/home/you/.cache")
    return [line.rstrip() for line in text.replace(str(folder), "/home/you/lingua-flax").splitlines()]


def renew(block: str, folder: Path, environment: dict[str, str]) -> str:
    """Returns a block with the new outputs of its commands."""
    lines: list[str] = []
    for command, output in split_block(block):
        lines += [*command, *shorten(run(command, folder, environment), output)]
    return "\n".join(lines) + "\n"


def origin(folder: Path) -> str:
    """Returns a sentence that names the commit and the hardware."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, text=True, capture_output=True).stdout
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = processors[0] if processors else platform.machine()
    return f"Outputs on this page: commit {commit.strip()}, {os.cpu_count()} cores ({processor})."


def renew_page(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Runs the commands of a page and rewrites it."""
    text = BLOCK.sub(lambda match: renew(match[0], folder, environment), page.read_text(encoding="utf-8"))
    page.write_text(ORIGIN.sub(origin(folder), text), encoding="utf-8")


def renew_notebook(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """Runs a notebook of the course and stores its outputs."""
    notebook = read_notebook(folder / page)
    for cell in notebook.cells:
        cell.source = ORIGIN.sub(origin(folder), cell.source)
    executed = execute(
        notebook, (folder / page).parent, environment | {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    )
    store_outputs(ROOT / page, executed)


def main() -> None:
    """Renews the outputs of all pages."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "lingua-flax")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(Path(scratch, "cache")),
            "COLUMNS": "120",
        }
        for name in PAGES:
            renew_page(DOCS / "guides" / f"{name}.md", folder, environment)
        shutil.copy(folder / "checkpoints" / "tiny" / "curves.png", DOCS / "pictures")
        for page in COURSE:
            renew_notebook(page, folder, environment)


if __name__ == "__main__":
    main()
