"""Measures the time from a keystroke on the page to the new translation, with a server or in an exported file.

Run from the repository root, with Chromium installed:
  python -m benchmarks.page --workdir checkpoints/tiny --input FILE [--view translation|attention]
  python -m benchmarks.page --page translator.html --input FILE

The lines of the file are typed character by character; each keystroke waits for what the page draws in answer.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.serving import Server
from lingua_flax.commands.main import exit_status
from lingua_flax.data.text_files import read_lines

KEYSTROKE = """async (text) => {
  const field = document.querySelector("textarea");
  const content = document.querySelector(".content");
  const drawn = new Promise((resolve) => new MutationObserver(resolve).observe(content, { childList: true }));
  field.value = text;
  const started = performance.now();
  field.dispatchEvent(new Event("input"));
  await drawn;
  await new Promise(requestAnimationFrame);
  return performance.now() - started;
}"""


def command(argv: Sequence[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    page_of = parser.add_mutually_exclusive_group(required=True)
    page_of.add_argument("--workdir", type=Path, help="a run to serve")
    page_of.add_argument("--page", type=Path, help="a file of lingua-flax export --format html")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--view", default="translation", choices=("translation", "attention", "beam"))
    options = parser.parse_args(argv)
    lines = list(read_lines(options.input))
    opened = contextlib.nullcontext(options.page.absolute().as_uri()) if options.page else served(options.workdir)
    with opened as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.get_by_role("tab", name=options.view.capitalize()).click()
        for line in lines:
            page.evaluate(KEYSTROKE, line)  # compiles
        times = {
            line[:length]: page.evaluate(KEYSTROKE, line[:length])
            for line in lines
            for length in range(1, len(line) + 1)
            if line[:length].strip()
        }
        browser.close()
    percentiles = statistics.quantiles(times.values(), n=20)
    median, whole = statistics.median(times.values()), statistics.median(times[line] for line in lines)
    print(f"{len(times)} keystrokes: median {median:.0f} ms, 95% below {percentiles[18]:.0f} ms")
    print(f"whole lines: median {whole:.0f} ms")


@contextlib.contextmanager
def served(workdir: Path) -> Iterator[str]:
    """Starts a server, and yields its address."""
    server = Server(workdir, ["--batch-size", "1"])
    yield f"http://127.0.0.1:{server.port}"
    server.process.terminate()


if __name__ == "__main__":
    sys.exit(exit_status(command, sys.argv[1:]))
