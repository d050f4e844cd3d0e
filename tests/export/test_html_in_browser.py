"""HTML files in Chromium, offline: the exported network, and the attention of one sentence."""

import numpy as np
from playwright.sync_api import expect

from lingua_flax.inspection.interventions import inspection_of
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.translator import Translator
from tests.conftest import ROOT
from tests.helpers.browser import (
    LOOKS,
    SENTENCE,
    browser,
    button,
    check_accessibility,
    check_heat_map,
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
    sentence_field(page).fill("I swam in pizza.")
    expect(page.locator("mark")).to_have_text(["pizza"])
    expect(translation(page)).to_be_visible()
    sentence_field(page).fill("Привет мир.")
    expect(page.locator(".message")).to_contain_text("stays as it is")


def test_attention_of_a_sentence_opens_without_a_server(run, open_page, tmp_path):
    line = "The bank </script><script>alert(1)</script> & river."
    path = tmp_path / "page.html"
    done = run("translate", "--workdir", WORKDIR, "--attention", path, "--beam-size", 4, input=f"{line}\n")
    assert done.returncode == 0, done.stderr
    page = open_page(path.as_uri(), offline=True)
    expect(page.locator("h1")).to_have_text(line)
    translator = Translator.load(WORKDIR)
    observed = inspection_of(translator, *translator.translate([line], DecodingOptions(beam_size=4))).observation
    button(page, "Cross-attention, mean of all heads").click()
    show_tokens(page)
    check_heat_map(page, observed.cross.mean((0, 1)))
    button(page, "Encoder self-attention").click()
    maxima = observed.encoder.max(-1).mean(-1)
    layer, head = np.unravel_index(maxima.argmax(), maxima.shape)
    expect(page.locator("figcaption")).to_have_text(f"Encoder self-attention, layer {layer + 1}, head {head + 1}")
    check_accessibility(page)
