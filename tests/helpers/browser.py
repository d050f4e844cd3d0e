"""A browser, and what tests do with the page that shows translations, wherever that comes from."""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests.conftest import PROMPTLY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no Chromium among the system's packages")
SENTENCE = "I swam across the river to get to the other bank."
VIEWS = {"Translation": ".target", "Attention": ".heat", "Beam": ".beam", "Run": ".run > *"}  # and what each shows
LOOKS = [
    (1400, "light"),
    (375, "dark"),
    pytest.param(1400, "dark", marks=pytest.mark.slow),
    pytest.param(800, "light", marks=pytest.mark.slow),
]
TIMEOUT = 1000 * PROMPTLY  # milliseconds; Playwright's own are 5 and 30 seconds
FAILED_REQUEST = "the server responded with a status of|net::ERR_"  # as Chromium itself reports it
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=TIMEOUT)
        yield browser
        browser.close()


@contextlib.contextmanager
def opening(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yields what opens pages; in the end, nothing must have gone wrong or to another host."""
    contexts, faults = [], []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not re.search(FAILED_REQUEST, message.text):
            faults.append(message.text)

    def opened(address: str, width: int = 1400, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", note)
        own = (address.split("#")[0], "blob:")  # a file runs its worker from a blob
        page.on("request", lambda request: faults.extend([] if request.url.startswith(own) else [request.url]))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, as `opening`."""
    with opening(browser) as opened:
        yield opened


def sentence_field(page: Page, number: int = 0) -> Locator:
    """Returns the field with the text of a panel."""
    return page.get_by_label("Sentence", exact=True).nth(number)


def translation(page: Page, number: int = 0) -> Locator:
    """Returns the translation in a panel."""
    return page.locator("p.text").nth(number)


def tab(page: Page, name: str) -> None:
    """Opens a view."""
    page.get_by_role("tab", name=name).click()


def button(page: Page | Locator, name: str) -> Locator:
    """Returns a button with exactly this name."""
    return page.get_by_role("button", name=name, exact=True)


def choose_map(page: Page, name: str) -> None:
    """Shows one of the attention maps as the large one."""
    button(page, name).click()
    expect(page.locator("figcaption")).to_have_text(name)


def show_tokens(page: Page) -> None:
    """Shows the weights of all tokens instead of words."""
    page.get_by_role("checkbox", name="whole words").uncheck()
    page.get_by_role("checkbox", name="</s> and punctuation").check()


def expect_in_view(*shown: Locator) -> None:
    """Expects that one sees all of each element: it is in the window, and nothing lies over its middle."""
    for element in shown:
        expect(element).to_be_visible()
        assert element.evaluate("""(own) => {
          const { left, right, top, bottom } = own.getBoundingClientRect();
          const isInside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
          return isInside && own.contains(document.elementFromPoint((left + right) / 2, (top + bottom) / 2));
        }"""), f"{element} is at {element.bounding_box()}"


def check_accessibility(page: Page) -> None:
    """Checks the page with axe when no answer is waited for, until when the old one is paler; nothing is cut off."""
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def check_views(page: Page, width: int, theme: str) -> None:
    """Checks all views in a window; saves pictures of them to the folder LINGUA_PICTURES, if it is set."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for view, content in VIEWS.items():
        tab(page, view)
        page.wait_for_selector(content)
        if pictures := os.environ.get("LINGUA_PICTURES"):
            page.screenshot(path=Path(pictures) / f"{view.lower()}-{width}-{theme}.png", full_page=True)
        if view == "Attention":
            page.locator(".heat button").first.click()
            expect(page.get_by_label("How this weight is made")).to_be_visible()
        check_accessibility(page)


def cells(page: Page) -> list[tuple[str, ...]]:
    """Returns row, column and number of each weight of the heat map, as the page says them."""
    said = page.locator(".heat button").evaluate_all("(cells) => cells.map((cell) => cell.ariaLabel)")
    return [re.fullmatch("(.*) looks at (.*): ([0-9.]+)", text).groups() for text in said]  # type: ignore[union-attr]


def check_heat_map(page: Page, expected: np.ndarray, *, causal: bool = False) -> None:
    """Compares the numbers of the heat map with weights [queries, keys], those that are masked left out."""
    seen = np.tril(np.ones(expected.shape)) if causal else np.ones(expected.shape)
    shown = [float(weight) for *_, weight in cells(page)]
    np.testing.assert_allclose(shown, expected[seen > 0], rtol=0, atol=6e-4)
