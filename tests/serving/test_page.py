"""The page of the server, driven in Chromium by mouse, keyboard and touch, and compared with what the server answers.

The network is the one that is shipped. For pictures of all views, which are saved to the folder LINGUA_PICTURES if it
is set, LINGUA_PHRASEBOOK_RUN names another workdir, such as that of `make train`.
"""

import functools
import json
import os
import re
import shutil
import urllib.parse
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from playwright.sync_api import expect

from lingua_flax.host.figures import save_figure
from lingua_flax.options.schema import AlignmentOptions, DecodingOptions
from lingua_flax.runs.checkpoint import read_metadata, save_network, saved_steps
from lingua_flax.runs.learning_curves import CURVES_NAME, Curves, draw_curves
from lingua_flax.serving.continuous_search import ContinuousSearch
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.inspector import inspected
from lingua_flax.translation.translator import Translator
from tests.conftest import ROOT
from tests.helpers import servers
from tests.helpers.archives import docx, unpacked
from tests.helpers.browser import (
    LOOKS,
    SENTENCE,
    VIEWS,
    browser,
    button,
    cells,
    check_accessibility,
    check_heat_map,
    check_views,
    choose_map,
    expect_in_view,
    needs_chromium,
    open_page,
    opening,
    sentence_field,
    show_tokens,
    tab,
    translation,
)
from tests.helpers.inspections import pad_alike, weights_in
from tests.helpers.servers import request, serving, serving_with

__all__ = ["browser", "open_page"]  # fixtures

pytestmark = needs_chromium
NAMES = {"cross": "Cross-attention", "encoder": "Encoder self-attention", "decoder": "Masked self-attention"}
BAT = "The bat is hungry."
WALK = "I walked along the river to the bank."
BANKS = [WALK, "I deposited my paycheck at the bank yesterday."]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """The run with metrics, and with an earlier checkpoint of which all parameters are half as large."""
    path = Path(os.environ.get("LINGUA_PHRASEBOOK_RUN") or ROOT / "checkpoints" / "phrasebook")
    workdir = shutil.copytree(path, tmp_path_factory.mktemp("runs") / path.name)
    checkpoints, metrics = workdir / "checkpoints", workdir / "metrics.jsonl"
    params = jax.tree.map(lambda leaf: np.asarray(leaf / 2), Translator.load(workdir).params)
    save_network(workdir / "earlier", 100, params, read_metadata(checkpoints, saved_steps(checkpoints)[-1]))
    (workdir / "earlier" / "100").rename(checkpoints / "100")
    if not metrics.exists():
        sample = {"source": "It is red.", "reference": "Il est rouge.", "translation": "Elle est rouge."}
        losses = {"validation_loss": 1.5, "validation_loss_shuffled": 3.5, "validation_chrf": 71.25}
        lines = [{"step": 100, "loss": 5.5}, {"step": 1300, "loss": 0.5}, {"step": 1300, "samples": [sample]} | losses]
        metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        save_figure(draw_curves({"validation": [Curves(lines)]}), workdir / CURVES_NAME)
    return workdir


@pytest.fixture(scope="module")
def url(workdir):
    @functools.cache
    def translators(checkpoint):
        return {"fr": Translator.load(workdir, checkpoint)}

    def load(server):
        best, options = translators("best"), DecodingOptions()
        server.inspector = functools.partial(inspected, best, translators, options)
        return Engine(best, ContinuousSearch(best["fr"], options, 1, Mock()), options, AlignmentOptions(), workers=1)

    examples = {"sentences": [SENTENCE, WALK], "ambiguous": [{"word": "bank", "sentences": BANKS}]}
    with pytest.MonkeyPatch.context() as patch:
        pad_alike(patch)
        patch.setattr("lingua_flax.serving.app.example_sentences", lambda _: examples)
        with serving(load, root_path="/mt", workdir=workdir) as (_, url):
            yield url


@pytest.fixture(scope="module")
def loaded(browser, url):
    with opening(browser) as opened:
        yield opened(url)


@pytest.fixture
def page(loaded):
    """The page, loaded once, as it is when one has just typed SENTENCE."""
    loaded.set_viewport_size({"width": 1400, "height": 900})
    loaded.emulate_media(color_scheme="light", reduced_motion="no-preference")
    loaded.mouse.move(0, 0)
    go_to(loaded, json.dumps({"panels": [{"text": SENTENCE}]}))
    loaded.wait_for_function("location.hash.includes('selection')")  # it has taken the address
    expect_answer(loaded)
    return loaded


def go_to(page, address):
    page.evaluate("(address) => location.hash = address", address)


def expect_answer_in(page):
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)
    expect(page.locator(".text, .heat, .beam").first).to_be_visible()


def expect_answer(page):
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)
    expect(page.get_by_label("Source tokens").first).to_be_visible()


def write(page, text):
    """Types a sentence and waits for its translation."""
    with page.expect_response(lambda answer: answer.url.endswith("/inspect") and text in answer.request.post_data):
        sentence_field(page).fill(text)
    expect_answer(page)


def ask(url, **question):
    """Returns what the server makes of a sentence."""
    status, answer, _ = request(url, "/inspect", {"q": SENTENCE} | question)
    assert status == 200, answer
    return answer


def expect_translation(page, url, number=0, **question):
    """Expects what the server makes of a sentence; returns that."""
    answer = ask(url, **question)
    expect(translation(page, number)).to_have_text(answer["translation"])
    return answer


def vector(page, name):
    """Reads all numbers of a vector."""
    strip = page.get_by_role("slider", name=name, exact=isinstance(name, str)).first
    texts = strip.evaluate("""(strip) => Array.from({ length: strip.max }, (_, i) => {
      strip.value = i + 1;
      strip.dispatchEvent(new Event("input"));
      return strip.ariaValueText;
    })""")
    return [float(text.split(": ")[1].replace("−", "-")) for text in texts]


def number_rows(table):
    """Returns the cells of each row of a table after the first, as numbers where they are."""
    rows = [row.split("\t")[1:] for row in table.locator("tbody tr").all_inner_texts()]
    return [[cell if "(" in cell else float(cell.replace("−", "-")) for cell in row] for row in rows]


def readable(*pieces):
    return "".join(pieces).replace("▁", " ").strip() or "␣"


def test_translates_while_one_types(page, url):
    sentence_field(page).fill("")
    expect(page.get_by_label("Target tokens")).to_have_count(0)
    sentence_field(page).press_sequentially(BAT)
    answer = expect_translation(page, url, q=BAT)
    scored = [f"{hypothesis['text']} {hypothesis['score']:.3f}" for hypothesis in answer["hypotheses"]]
    assert page.locator(".hypotheses li").all_inner_texts() == scored
    expect(page.get_by_text("Label smoothing of 0.1")).to_be_visible()
    for text, token in zip(page.locator(".target .token").all_inner_texts(), answer["target"], strict=True):
        piece, percentage = text.split("\n")
        assert piece == readable(token["piece"])
        assert float(re.search(r"[\d.]+(?=%)", percentage)[0]) == pytest.approx(100 * token["probability"], abs=0.51)


def test_sentences_of_a_text_are_shown_one_by_one(page, url):
    text = f"{BAT}\n\nWe saw the bank. It is red."
    sentence_field(page).fill(text)
    answer = expect_translation(page, url, q=text)
    listed = [f"{sentence['source']} {sentence['translation']}" for sentence in answer["sentences"]]
    assert page.locator(".sentences li").all_inner_texts() == listed
    page.get_by_role("button", name="We saw the bank.").first.click()
    second = expect_translation(page, url, q="We saw the bank.")
    assert listed[1].endswith(second["translation"])
    expect(page.locator(".sentences [aria-pressed=true]")).to_have_text("We saw the bank.")


DROP = """([name, content]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([Uint8Array.from(content)], name));
  const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
  if (document.body.dispatchEvent(event)) throw new Error("the browser would open the file");
}"""


def test_documents_that_are_dropped_or_chosen_are_translated(open_page, engine, workdir, monkeypatch):
    monkeypatch.setattr("lingua_flax.serving.app.example_sentences", lambda _: {"sentences": [], "ambiguous": []})
    content = docx("<w:p><w:r><w:t>one two three: a table</w:t></w:r></w:p>")
    with serving_with(engine, workdir=workdir, root_path="/mt") as url:
        page = open_page(f"{url}/mt/")
        status = page.locator("#status")
        for is_dropped in (True, False, False):
            if is_dropped:
                expect(button(page, "Document")).to_be_visible()
                page.evaluate(DROP, ["my letter.docx", list(content)])
            else:
                with page.expect_file_chooser() as chooser:
                    button(page, "Document").click()
                chooser.value.set_files({"name": "my letter.docx", "mimeType": "text/any", "buffer": content})
            with page.expect_download() as download:
                status.get_by_role("link", name="my_letter_fr.docx", exact=True).click()
            assert download.value.suggested_filename == "my_letter_fr.docx"
            text = unpacked(download.value.path().read_bytes())["word/document.xml"].decode()
            assert "".join(re.findall("<w:t[^>]*>([^<]*)</w:t>", text)) == servers.translation("one two three: a table")
            status.evaluate("(status) => status.replaceChildren()")
        page.evaluate(DROP, ["letter.pdf", [1]])
        expect(status).to_contain_text("the name of a file must end in .txt, .docx")


def test_unknown_words_are_marked_and_what_is_not_translated_leaves_no_old_translation(page):
    for text, marked, said in (
        ("I like 👍 pizza and ananas.", ["pizza", "ananas"], "what it makes of them is a guess"),
        ("Ich mag Ananas.", ["Ich", "mag", "Ananas"], "its translation is a guess"),
    ):
        write(page, text)
        expect(page.locator("p.unknown")).to_have_text(text)
        assert page.locator("mark").all_inner_texts() == marked
        expect(page.get_by_text(said)).to_be_visible()
    check_accessibility(page)
    message = page.locator(".message")
    for text, said in (
        (f"Привет мир. {SENTENCE}", "stays as it is"),
        ("river " * 20, "120 characters exceed the limit of 100"),
    ):
        sentence_field(page).fill(text)
        expect(message).to_contain_text(said)
        expect(translation(page)).to_have_count(0)
        write(page, SENTENCE)
        expect(message).to_be_empty()
        expect(page.locator("mark")).to_have_count(0)
    page.route("**/inspect", lambda route: route.abort())
    sentence_field(page).fill(BAT)
    expect(message).to_have_text("The server does not answer.")
    expect(translation(page)).to_have_count(0)
    page.unroute("**/inspect")
    expect(translation(page)).not_to_be_empty()  # the page has asked again


def test_word_that_the_network_knows_takes_the_place_of_an_unknown_one(page):
    write(page, "We saw the pizza. It is red.")
    assert page.locator("mark").all_inner_texts() == ["pizza"]
    tried = page.locator(".panel .chips").filter(has_text="Words to try").get_by_role("button")
    word = tried.first.inner_text()
    tried.first.click()
    expect(sentence_field(page)).to_have_value(f"We saw the {word}. It is red.")
    expect(page.locator("mark")).to_have_count(0)


def test_failure_offers_a_retry_and_waiting_is_seen(page):
    page.route("**/inspect", lambda route: route.fulfill(status=500, json={"error": "out of memory"}))
    sentence_field(page).fill(BAT)
    expect(page.locator(".message")).to_have_text("out of memory")
    page.route("**/inspect", lambda route: None)  # no answer yet
    button(page, "Try again").click()
    bar = "getComputedStyle(document.querySelector('.panel'), '::before').animationName"
    assert page.evaluate(bar) == "wait"
    page.unroute("**/inspect")
    expect(translation(page)).not_to_be_empty()
    assert page.evaluate(bar) == "none"


def test_click_on_an_old_translation_asks_nothing(page):
    """The new translation has fewer tokens."""
    page.get_by_role("button", name="rive, probability").hover()
    head = page.locator(".looks button").first
    expect(head).to_be_visible()
    page.route("**/inspect", lambda route: None)
    sentence_field(page).fill("It is red.")
    head.dispatch_event("click")
    page.unroute("**/inspect")
    sentence_field(page).fill("It is red!")
    expect(page.get_by_label("Target tokens")).to_be_visible()
    expect_answer(page)
    expect(page.locator(".message")).to_be_empty()


def test_rows_of_a_script_without_spaces_are_pieces(page):
    def in_chinese(route):
        answer = route.fetch().json()
        for token, piece in zip(answer["source"][:4], "我去河边", strict=True):
            token.update(piece=piece, word=0)
        route.fulfill(json=answer)

    page.route("**/inspect", in_chinese)
    tab(page, "Attention")
    sentence_field(page).fill(BAT)
    expect(page.locator(".heat thead th").nth(3)).to_have_text("边")
    page.unroute("**/inspect")


def test_alternatives_are_shown_and_one_is_chosen(page, url):
    answer = ask(url)
    tokens = answer["target"]
    prefix = [tokens[0]["id"], tokens[1]["id"], tokens[2]["alternatives"][4]["id"]]
    alternatives = page.get_by_label("Alternatives", exact=True).get_by_role("button")
    third = page.locator(".target .token").nth(2)
    for show, hide in (
        (third.hover, sentence_field(page).hover),
        (third.focus, lambda: page.keyboard.press("Escape")),
        (third.click, lambda: None),
    ):
        show()
        expect(alternatives).to_have_count(10)
        names = [text.split("\n")[0] for text in alternatives.all_inner_texts()]
        hide()
    assert names == [readable(token["piece"]) for token in tokens[2]["alternatives"]]
    alternatives.nth(4).click()
    expect_translation(page, url, prefix=prefix)
    expect(page.locator(".comparison dd").first).to_have_text(answer["translation"])
    button(page, "Undo: chosen tokens").click()
    expect(translation(page)).to_have_text(answer["translation"])
    own = page.locator(".target .token").nth(1)
    own.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "Escape"):
        page.keyboard.press(key)
    expect(own).to_be_focused()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect_translation(page, url, prefix=[tokens[0]["id"], tokens[1]["alternatives"][1]["id"]])


def test_source_tokens_are_hidden_and_shown(page, url):
    """Enter shows again what it has hidden, even if another token has the same name."""
    text = "the river the bank"
    write(page, text)
    source = ask(url, q=text)["source"]
    tokens = page.get_by_label("Source tokens").get_by_role("button")
    for position in (1, 0):
        tokens.nth(position).click()
        expect(button(page, f"Undo: masked: {readable(source[position]['piece'])}")).to_be_visible()
    expect_translation(page, url, q=text, masked=[1, 0])
    again = max(i for i, token in enumerate(source) if token["piece"] == source[0]["piece"])
    tokens.nth(again).focus()
    for count in (3, 2):
        page.keyboard.press("Enter")
        expect(page.get_by_label("Source tokens").locator("[aria-pressed=true]")).to_have_count(count)
        expect(tokens.nth(again)).to_be_focused()
    tokens.nth(1).click()
    expect_translation(page, url, q=text, masked=[0])
    button(page, f"Undo: masked: {readable(source[0]['piece'])}").click()
    expect_translation(page, url, q=text)


def weights_of_words(answer, kind, own):
    """Returns the mean over the pieces of a word that looks of the sums over those of a word that is looked at."""
    read = [{"piece": "<s>", "word": -1}, *answer["target"][:-1]]
    attend = {"encoder": answer["source"], "decoder": read, "cross": answer["target"]}[kind]
    attended = read if kind == "decoder" else answer["source"]
    expected = []
    for query in dict.fromkeys(token["word"] for token in attend):
        for key in dict.fromkeys(token["word"] for token in attended):
            rows = [i for i, token in enumerate(attend) if token["word"] == query]
            columns = [i for i, token in enumerate(attended) if token["word"] == key]
            names = readable(*(attend[i]["piece"] for i in rows)), readable(*(attended[i]["piece"] for i in columns))
            is_hidden = kind == "decoder" and key > query
            if all(name != "</s>" and re.search(r"\w", name) for name in names) and not is_hidden:
                expected.append((*names, f"{own[rows][:, columns].sum(1).mean():.3f}"))
    return expected


@pytest.mark.parametrize("kind", NAMES)
def test_heat_map_and_every_number_of_a_weight_are_those_of_the_network(kind, page, url):
    name = NAMES[kind]
    for text in (BAT, SENTENCE):  # whose clearest maps, which come first, are not the same
        go_to(page, json.dumps({"view": "attention", "selection": {"kind": kind}, "panels": [{"text": text}]}))
        answer = ask(url, q=text)
        maps = weights_in(answer["attention"][kind])
        layer, head = np.unravel_index(maps.max(-1).mean(-1).argmax(), maps.shape[:2])
        expect(page.locator("figcaption")).to_have_text(f"{name}, layer {layer + 1}, head {head + 1}")
    choose_map(page, f"{name}, layer 2, head 1")
    assert cells(page) == weights_of_words(answer, kind, maps[1, 0])
    show_tokens(page)
    for title, own in (
        (f"{name}, layer 1, mean", maps[0].mean(0)),
        (f"{name}, mean of all heads", maps.mean((0, 1))),
        (f"{name}, layer 2, head 2", maps[1, 1]),
    ):
        choose_map(page, title)
        check_heat_map(page, own, causal=kind == "decoder")
    rows = page.locator(".heat tbody tr")
    rows.nth(rows.count() // 2).get_by_role("button").nth(2).click()
    steps = page.get_by_label("How this weight is made").locator(".scores")
    shown = json.loads(urllib.parse.unquote(page.url.split("#")[1]))["panels"][0]["pair"]
    place = {"attention": kind, "layer": 1, "head": 1, "query": shown["query"]}
    check_numbers(page, steps, shown["key"], ask(url, explain=place)["explanation"])
    button(page, "Close").click()
    expect(steps).to_have_count(0)


def check_numbers(page, steps, key, network):
    """Compares the steps in which a weight is made with an explanation."""
    is_of_decoder, own = "hidden" in network, np.array(network["weights"])
    query, keys, values = (np.array(network[name]) for name in ("query_vector", "keys", "values"))
    best = int(np.argmax(own))
    for name, expected in (
        ("query", query),
        ("key", keys[key]),
        ("query × key", query * keys[key]),
        (re.compile("^x, layer normalized"), network["read"]),
        ("all heads", network["heads"]),
        ("times W_O", network["output"]),
        ("x", network["stream"]),
        ("sum: x for what follows", network["after"]),
        ("their sum: what this head says", own @ values),
        (re.compile(r"^[0-9.]+ × value of"), own[best] * values[best]),
        *([("decoder's output", network["hidden"])] if is_of_decoder else []),
    ):
        np.testing.assert_allclose(vector(page, name), expected, atol=6e-4, rtol=0)
    close = functools.partial(pytest.approx, abs=6e-4)
    for row, score, share, seen in zip(number_rows(steps.first), keys @ query, own, network["mask"], strict=True):
        assert row[:2] == [close(score), close(score / len(query) ** 0.5) if seen else "−∞ (masked)"]
        assert row[2] == close(share)
    if is_of_decoder:
        for row, token in zip(number_rows(steps.last), network["logits"], strict=False):
            assert row == [close(token["logit"]), close(token["probability"])]


def test_views_and_heat_map_are_usable_by_keyboard(page):
    page.get_by_role("tab", name="Translation").focus()
    for view in (*list(VIEWS)[1:], "Translation", "Attention"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=view, selected=True)).to_be_focused()
    page.locator(".heat button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    cell = page.locator(".heat tbody tr").first.get_by_role("button").nth(1)
    expect(cell).to_be_focused()
    expect(page.locator(".readout")).to_have_text(cell.get_attribute("aria-label"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("How this weight is made")).to_be_visible()
    for kind, text in {"encoder": "self", "decoder": "masked self", "cross": "cross"}.items():
        button(page, f"Open layer 1, {text}-attention").press("Enter")
        expect(page.locator("figcaption")).to_contain_text(f"{NAMES[kind]}, layer 1, head")


def test_translation_grows_word_by_word(page, url):
    target = ask(url)["target"]
    tab(page, "Attention")
    show_tokens(page)
    button(page, "From the start").click()
    progress = page.get_by_label("Word by word")
    for number, token in enumerate(target[:3], 1):
        expect(progress).to_contain_text(f"Step {number} of {len(target)}")
        expect(progress).to_contain_text(f"the network writes “{readable(token['piece'])}”")
        expect(page.locator(".heat tbody tr")).to_have_count(number)
        if number == 1:
            page.locator(".heat button").first.click()
        best = page.get_by_label("How this weight is made").locator(".scores").last.locator("tbody tr").first
        expect(best).to_contain_text(f"{token['alternatives'][0]['probability']:.3f}")
        button(page, "Next step").click()
    button(page, "Whole sentence").click()
    expect(progress).to_contain_text(f"Step {len(target)} of {len(target)}")


def test_stranger_finds_in_five_clicks_why_bank_became_rive(page):
    button(page, WALK).click()
    expect(page.locator("p.text")).to_contain_text("march")  # the sentence before has a "rive", too
    page.get_by_role("button", name="rive, probability").click()
    river = page.get_by_role("button", name="rive looks at river: Cross-attention")
    expect(river).to_be_visible()
    page.keyboard.press("Escape")
    river.click()
    expect(page.get_by_role("heading", name="How “rive” comes to look at “river”")).to_be_visible()
    row = [(float(weight), key) for query, key, weight in cells(page) if query == "rive"]
    assert max(row)[1] == "river"
    tab(page, "Translation")
    page.get_by_role("button", name="Hide river").click()
    expect(page.locator(".comparison del").last).to_have_text("rive.")
    expect(page.locator(".comparison ins").last).to_have_text("banque.")


def test_two_sentences_are_shown_alike_and_the_address_holds_that(page, open_page, url):
    button(page, "Examples").click()
    button(page, "bank").click()
    for number, sentence in enumerate(BANKS):
        expect_translation(page, url, number, q=sentence)
    tab(page, "Attention")
    title = "Encoder self-attention, layer 2, head 2"
    boxes = ("Encoder self-attention, layer 1, head 3: on", "whole words")
    button(page, NAMES["encoder"]).first.click()
    button(page, title).nth(1).click()
    for name in boxes:
        page.get_by_role("checkbox", name=name).first.uncheck()
    page.locator(".heat tbody tr").nth(3).get_by_role("button").nth(2).click()
    expect(page.get_by_label("How this weight is made")).to_be_visible()
    other = open_page(page.url)
    expect(other.get_by_label("How this weight is made")).to_be_visible()
    for shown in (page, other):
        expect(shown.locator("figcaption")).to_have_text([title, title])
        for name in boxes:
            expect(shown.get_by_role("checkbox", name=name).nth(1)).not_to_be_checked()
    assert cells(page) == cells(other)
    tab(other, "Translation")
    off = [{"attention": "encoder", "layer": 0, "head": 2}]
    for number, sentence in enumerate(BANKS):
        expect_translation(other, url, number, q=sentence, heads_off=off)
    button(other, "Close").click()
    expect(translation(other)).to_have_count(1)
    for address in ("nonsense", "%", '{"panels":3}', '{"view":"x","selection":{"kind":"y"},"panels":[{"text":"A."}]}'):
        go_to(other, address)  # the fixture would note an error
    expect_translation(other, url, q="A.")


SCREENS = [(1400, 900), (390, 844)]


@pytest.mark.parametrize("size", SCREENS, ids=str)
def test_click_on_a_weight_and_each_stage_of_it_are_one_screen(page, size):
    page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    page.emulate_media(reduced_motion="reduce")  # scrolls at once
    tab(page, "Attention")
    parts = [page.locator(part) for part in (".heat", ".play", ".map[aria-pressed=true]")]
    expect_in_view(sentence_field(page), *parts)
    steps = page.get_by_label("How this weight is made")
    for cell in (page.locator(".heat button").first, page.locator(".heat button").last):
        cell.click()
        query, key = re.match("(.*) looks at (.*):", cell.get_attribute("aria-label")).groups()
        expect(steps.get_by_role("heading").first).to_contain_text(f"How “{query}” comes to look at “{key}”")
        expect_in_view(cell, steps, steps.locator(".flow"), steps.locator("li h3").first, sentence_field(page))
    if pictures := os.environ.get("LINGUA_PICTURES"):
        page.screenshot(path=Path(pictures) / f"weight-{size[0]}.png")
    titles = steps.locator("li h3").all_inner_texts()
    assert len(titles) == 6
    for number, title in enumerate(titles):
        button(steps, title).locator("rect").first.click()
        expect(steps.locator(".flow .lit")).to_have_attribute("aria-label", title)
        page.wait_for_selector(f'[data-stage="{number}"]')
        expect_in_view(steps.locator("li h3").nth(number), steps.locator(".flow .lit rect").first)
    check_accessibility(page)


def test_stage_moves_unless_one_prefers_reduced_motion(page):
    tab(page, "Attention")
    page.locator(".heat button").first.click()
    button(page, "Query times key").press("Enter")
    moving = "document.getAnimations().length"
    page.wait_for_selector('[data-stage="1"]')
    assert page.evaluate(moving) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0


def test_translation_is_played(page):
    tab(page, "Attention")
    progress = page.get_by_label("Word by word")
    total = int(re.search(r"of (\d+)", progress.inner_text())[1])
    play = button(page, "Play")
    play.click()
    for number in (1, 2, 3):
        expect(progress).to_contain_text(f"Step {number} of {total}")
    button(page, "Whole sentence").click()
    expect(play).to_have_attribute("aria-pressed", "false")
    button(page, "Back").click()
    play.press("Enter")
    expect(progress).to_contain_text(f"Step {total} of {total}")
    expect(play).to_have_attribute("aria-pressed", "false")
    expect(play).to_be_focused()


def test_sentence_is_reached_by_five_tabs_at_most(open_page, url):
    page = open_page(f"{url}/mt/")
    expect(translation(page)).not_to_be_empty()
    for _ in range(5):
        page.keyboard.press("Tab")
        if sentence_field(page).evaluate("(own) => own === document.activeElement"):
            return
    pytest.fail("the sentence is not among the first five stops")


@pytest.mark.parametrize("size", SCREENS, ids=str)
def test_tour_is_played_and_what_it_speaks_of_is_in_view(page, size):
    page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    heat, chosen, looks = page.locator(".heat"), page.locator(".map[aria-pressed=true]"), page.locator(".looks")

    def hovers(word):
        page.get_by_role("button", name=f"{word}, probability").first.hover()
        expect(looks).to_contain_text(f"“{word}” looked at")
        expect_in_view(looks, page.get_by_label("Source tokens"))

    def follows():
        page.locator(".heat button").nth(40).click()
        steps = page.get_by_label("How this weight is made")
        expect_in_view(steps, steps.locator(".flow"), page.locator('.heat [aria-pressed="true"]'))

    spoken_of = [
        lambda: expect_in_view(translation(page), translation(page, 1)),
        lambda: hovers("rive"),
        lambda: expect_in_view(heat, chosen, page.get_by_label("</s> and punctuation")),
        lambda: hovers("il"),
        lambda: expect_in_view(heat, chosen),
        lambda: expect_in_view(heat, button(page, "Play"), page.locator(".masked").first),
        follows,
        lambda: expect_in_view(page.locator(".beam button").first, page.locator("p[role=status]").last),
    ]
    button(page, "Guided tour").click()
    check_accessibility(page)
    tour = page.get_by_label("Tour", exact=True)
    for number, look in enumerate(spoken_of, 1):
        expect(tour).to_contain_text(f"{number} of {len(spoken_of)}: ")
        expect_answer_in(page)
        go_on = button(tour, "End" if number == len(spoken_of) else "Next")
        look()
        expect_in_view(tour, go_on)
        if pictures := os.environ.get("LINGUA_PICTURES"):
            page.screenshot(path=Path(pictures) / f"tour-{number}-{size[0]}.png")
        page.mouse.move(0, 0)
        go_on.click()


def test_beam_is_that_of_the_server(page, url):
    tab(page, "Beam")
    answer = ask(url, beam=True)
    steps, nodes = answer["beam"], page.locator(".beam button")
    expect(nodes).to_have_count(sum(map(len, steps)))
    labels = nodes.evaluate_all("(nodes) => nodes.map((node) => node.getAttribute('aria-label'))")
    assert [label.removesuffix(", best") for label in labels] == [
        f"step {number}: {readable(node['piece'])}, {node['score']:.2f}, {node['outcome']}"
        for number, step in enumerate(steps, 1)
        for node in step
    ]
    best = [re.search(": (.*?), ", label)[1] for label in labels if label.endswith(", best")]
    assert best == [readable(token["piece"]) for token in answer["target"]]
    index, second = next((i, node) for i, node in enumerate(steps[1]) if node["parent"] != 0)
    pieces = [steps[0][second["parent"]]["piece"], second["piece"]]
    nodes.nth(len(steps[0]) + index).click()
    said = f"Step 2, {second['outcome']}: “{readable(*pieces)}”, {second['score']:.3f}"
    expect(page.get_by_text(said)).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(nodes.nth(second["parent"])).to_be_focused()


def test_run_moves_while_training_goes_on_and_two_checkpoints_are_compared(workdir, page, url):
    metrics = workdir / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0])
    tab(page, "Run")
    expect(page.get_by_text("step 100 of 1,300")).to_be_visible()
    expect(page.get_by_text("none yet")).to_have_count(2)  # curves, samples
    metrics.write_text("".join(lines))
    losses = "training 0.50, validation 1.50, sources shuffled 3.50"
    curves = page.get_by_role("img", name=f"Learning curves. Loss: {losses}; validation chrF: 71.25")
    expect(curves).to_be_visible()
    assert curves.evaluate("image => image.naturalWidth") == 1080
    expect(page.get_by_text("Elle est rouge.")).to_be_visible()
    button(page, "Compare the first with the best").click()
    for number, step in enumerate((100, 1300)):
        expect(page.get_by_label("Checkpoint").nth(number)).to_have_value(str(step))
        expect_translation(page, url, number, checkpoint=step)


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_views_are_accessible_and_fit(page, width, theme):
    check_views(page, width, theme)


def test_page_and_documentation_work_below_another_path(open_page, url):
    """Whatever they ask for is below it, too: `open_page` checks that."""
    page = open_page(f"{url}/mt/")
    expect(translation(page)).not_to_be_empty()
    page.get_by_role("link", name="HTTP interface").click()
    page.get_by_role("button", name="GET /languages").first.click()
    page.get_by_role("button", name="Try it out").click()
    with page.expect_response(f"{url}/mt/languages") as answer:
        page.get_by_role("button", name="Execute").click()
    assert answer.value.json()[0]["code"] == "en"
