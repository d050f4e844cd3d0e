"""Times the steps of the page in Chromium: what its main thread computes for each, in milliseconds.

Run from the repository root, with the address of a server or an exported file:
  python -m benchmarks.page http://127.0.0.1:8000 [--rounds 5]

The time is that of the processor, so that others on the machine do not count: script, style, layout and painting,
before an inspection is asked for and once it has arrived. With reduced motion, as animations move while one waits, too.
"""

import argparse
import statistics
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

from tests.helpers.browser import CHROMIUM, TIMEOUT, VIEWS, button, opening, sentence_field

CLICK = """async (own) => {
  const frame = () => new Promise(requestAnimationFrame);
  own.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  do await frame(); while (document.querySelector('[aria-busy="true"]'));
  await frame();
}"""


def steps_of(page: Page) -> dict[str, Locator]:
    """Returns what is clicked in each step, by the name of the step; after the last, they can begin again."""
    tour = page.get_by_label("Tour", exact=True)
    maps, cells = page.locator(".strip .map"), page.locator(".heat button")
    stops = {f"tour, stop {number}": button(tour, "Next") for number in range(2, 9)}
    return {
        **{f"view: {name}": page.get_by_role("tab", name=name) for name in VIEWS},
        "view: Attention, again": page.get_by_role("tab", name="Attention"),
        "another layer and head": maps.last,
        "weight": cells.last,
        "stage of the weight": page.get_by_label("Softmax of the row"),
        "another weight": cells.first,
        "another head, with a weight": maps.nth(2),
        "another kind, with a weight": button(page, "Encoder self-attention"),
        "weight of this kind": cells.first,
        "from the start": button(page, "From the start"),
        "next word, with a weight": button(page, "Next step"),
        "whole sentence": button(page, "Whole sentence"),
        "close": button(page, "Close"),
        "next word": button(page, "Back"),
        "translation": page.get_by_role("tab", name="Translation"),
        "hide a word": page.get_by_label("Source tokens").get_by_role("button").nth(2),
        "tour, stop 1": button(page, "Guided tour"),
        **stops,
        "end of the tour": button(tour, "End"),
        "first example": page.locator(".line .chips button").first,
    }


def measure(page: Page, rounds: int) -> dict[str, list[float]]:
    """Returns the times of each step in milliseconds, without those of a first round."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def time(step: Locator) -> float:
        step.wait_for()
        before = computed()
        step.evaluate(CLICK)
        return computed() - before

    measured = [{name: time(step) for name, step in steps_of(page).items()} for _ in range(rounds + 1)]
    return {name: [own[name] for own in measured[1:]] for name in measured[0]}


def main() -> None:
    """Prints the median and the largest time of each step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address", help="of a server, or an exported file")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    address = given.address if "://" in given.address else Path(given.address).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=TIMEOUT)
        with opening(browser) as opened:
            page = opened(address, reduced_motion="reduce")
            sentence_field(page).wait_for()
            for name, times in measure(page, given.rounds).items():
                print(f"{name:30}{statistics.median(times):7.0f} ms, at most{max(times):5.0f}")


if __name__ == "__main__":
    main()
