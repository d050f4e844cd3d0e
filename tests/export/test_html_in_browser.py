"""HTML files in Chromium, offline: the exported network, and the attention of one sentence."""

import pytest
from playwright.sync_api import expect

from tests.conftest import ROOT
from tests.helpers.browser import (
    LOOKS,
    SENTENCE,
    browser,
    button,
    cells,
    check_accessibility,
    check_views,
    needs_chromium,
    open_page,
    sentence_field,
    show_tokens,
    tab,
    translation,
)

__all__ = ["browser", "open_page"]  # fixtures

pytestmark = needs_chromium
WORKDIR = ROOT / "checkpoints" / "phrasebook"


def test_exported_network_has_all_views_offline(run, open_page, tmp_path):
    exported, line = tmp_path / "translator.html", tmp_path / "line"
    line.write_text(f"{SENTENCE}\n")  # to compare, instead of 100, which takes half a minute
    options = ("--quantization", "float32", "--beam-size", 4, "--verify", line)
    done = run("export", "--workdir", WORKDIR, "--format", "html", "--output", exported, *options)
    assert done.returncode == 0, done.stderr
    page = open_page(exported.as_uri(), offline=True)
    sentence_field(page).fill(SENTENCE)
    expected = run("translate", "--workdir", WORKDIR, "--beam-size", 4, input=f"{SENTENCE}\n")
    expect(translation(page)).to_have_text(expected.stdout.strip())
    for width, theme in LOOKS[::3]:
        check_views(page, width, theme, "file-")
    tab(page, "Attention")
    button(page, "Cross-attention, layer 1, head 1").click()
    page.locator(".heat button").first.click()
    steps = page.get_by_label("How this weight is made")
    expect(steps).to_contain_text("Softmax of the row")
    page.reload()  # the address has it all
    expect(steps).to_contain_text("Softmax of the row")
    tab(page, "Translation")
    sentence_field(page).fill("river " * 100)
    expect(page.get_by_text("the network reads at most 64")).to_be_visible()
    expect(translation(page)).to_have_count(0)


def test_attention_of_a_sentence_opens_without_a_server(run, open_page, tmp_path):
    line = "The bank </script><script>alert(1)</script> & river."
    path = tmp_path / "page.html"
    done = run("translate", "--workdir", WORKDIR, "--attention", path, "--beam-size", 4, input=f"{line}\n")
    assert done.returncode == 0, done.stderr
    page = open_page(path.as_uri(), offline=True)
    expect(page.locator("h1")).to_have_text(line)
    button(page, "Cross-attention, mean of all heads").click()
    show_tokens(page)
    shown = cells(page)
    rows = page.locator(".heat tbody tr").count()
    assert sum(float(weight) for *_, weight in shown) == pytest.approx(rows, abs=0.0005 * len(shown))
    check_accessibility(page)
