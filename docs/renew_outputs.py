"""Runs the commands of the guides again and stores what they print in the guides (`make docs-outputs`).

A block that begins with ```console contains commands, which begin with "$ ", and what they print. All blocks are run in
a clone of the last commit, page by page in the order of PAGES: a page may use what an earlier one has trained. If an
output contains a line "...", the new one is shortened to as many lines before and after it. The
notebooks of docs/understanding are run last, with the network that the first page has trained.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from notebooks.execute import execute, read_notebook, store_outputs

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = ("first_run", "training", "evaluation", "decoding", "fine_tuning", "export", "devices")
COURSE = sorted(path.relative_to(ROOT) for path in DOCS.glob("understanding/*.ipynb"))
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)  # and its output
RESULTS = DOCS / "results" / "index.md"
ORIGIN = re.compile(r"(?<=`make docs-outputs` \| )[^|]+ \| [^|]+(?= \|)")  # commit and hardware in its table
OMITTED = "..."


def shorten(output: list[str], like: list[str]) -> list[str]:
    """Returns as many of the first and last lines as surround the "..." of another output; without one, all lines."""
    if OMITTED not in like:
        return output
    first, last = like.index(OMITTED), like[::-1].index(OMITTED)
    return output if first + last >= len(output) else [*output[:first], OMITTED, *output[len(output) - last :]]


def run(script: str, folder: Path) -> list[str]:
    """Returns the lines that a command prints; raises CalledProcessError if it fails, except with status 2."""
    print(script, flush=True)
    bash, out = ["bash", "-c", script], subprocess.PIPE
    result = subprocess.run(bash, cwd=folder, text=True, stdout=out, stderr=subprocess.STDOUT)
    if result.returncode not in (0, 2):
        raise subprocess.CalledProcessError(result.returncode, script, result.stdout)
    text = result.stdout.replace(str(folder.parent / "cache"), "/home/you/.cache")
    return [line.rstrip() for line in text.replace(str(folder), "/home/you/lingua-flax").splitlines()]


def renew(text: str, folder: Path) -> str:
    """Returns the text of a page with the new outputs of its commands, which run in the folder."""

    def with_output(match: re.Match[str]) -> str:
        output = shorten(run(match[1], folder), match[2].splitlines())
        return "\n".join([f"$ {match[1]}", *output, ""])

    return BLOCK.sub(lambda block: COMMAND.sub(with_output, block[0]), text)


def origin(folder: Path) -> str:
    """Returns the commit and the hardware, as two cells of a table."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, text=True, capture_output=True).stdout
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{commit.strip()} | {os.cpu_count()} cores ({processor[1] if processor else platform.machine()})"


def renew_notebook(page: Path, folder: Path) -> None:
    """Runs a notebook of the course and stores its outputs."""
    notebook = read_notebook(folder / page)
    environment = {"PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    store_outputs(ROOT / page, execute(notebook, (folder / page).parent, environment))


def main() -> None:
    """Renews the outputs of all pages."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "lingua-flax")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        os.environ |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(Path(scratch, "cache")),
            "COLUMNS": "120",
        }
        for page in (DOCS / "guides" / f"{name}.md" for name in PAGES):
            page.write_text(renew(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
        shutil.copy(folder / "checkpoints" / "tiny" / "curves.png", DOCS / "pictures")
        for notebook in COURSE:
            renew_notebook(notebook, folder)
        RESULTS.write_text(ORIGIN.sub(origin(folder), RESULTS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
