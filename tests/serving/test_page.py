"""The page of the server, driven in Chromium by mouse, keyboard and touch, and compared with what the server answers.

The network is a phrasebook run of a few steps; LINGUA_PHRASEBOOK_RUN names a workdir to use instead, such as that of
`make train`. Pictures of all views are saved to the folder LINGUA_PICTURES, if it is set.
"""

import base64
import json
import os
import re
import shutil
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from lingua_flax.data.corpora import open_corpus
from lingua_flax.options.config_files import read_workdir_config
from tests.conftest import PROMPTLY
from tests.processes import start_command

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium among the system's packages")
SENTENCE = "I swam across the river to get to the other bank."
VIEWS = ("Translation", "Attention", "Beam", "Run")
LOOKS = [(width, theme) for width in (1400, 800, 375) for theme in ("light", "dark")]
NAMES = {"cross": "Cross-attention", "encoder": "Encoder self-attention", "decoder": "Masked self-attention"}
TIMEOUT = 1000 * PROMPTLY  # milliseconds; Playwright's own are 5 and 30 seconds
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def workdir(run, tmp_path_factory):
    if given := os.environ.get("LINGUA_PHRASEBOOK_RUN"):
        return Path(given)
    workdir = tmp_path_factory.mktemp("runs") / "phrasebook"
    options = ("--training.num-steps", 60, "--training.eval-every", 30, "--training.checkpoint-every", 30)
    options += ("--training.tokens-per-batch", 512)
    done = run("train", "--config", "configs/tiny.toml", "--workdir", workdir, *options)
    assert done.returncode == 0, done.stderr
    return workdir


def serve(workdir, *options):
    """Starts a server with few programs; returns the process and its URL."""
    own = ("--port", 0, "--batch-size", 1, "--timeout", PROMPTLY)
    process = start_command("serve", "--workdir", workdir, *own, *options)
    line = next(line for line in iter(process.stderr.readline, "") if line.startswith("listening on "))
    return process, line.split()[-1]


@pytest.fixture(scope="module")
def url(workdir):
    process, url = serve(workdir, "--root-path", "/mt")
    assert "ready\n" in iter(process.stderr.readline, "")
    yield url
    process.terminate()
    process.communicate()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=TIMEOUT)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, url):
    """Opens the page; at the end of the test, nothing must have gone wrong or to another host.

    Chromium itself reports each answer with an error status.
    """
    contexts, faults = [], []

    def opened(address=url, *, width=1400, theme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: is_fault(message) and faults.append(message.text))
        own = (address.split("#")[0], "blob:")  # a file runs its worker from a blob
        page.on("request", lambda request: request.url.startswith(own) or faults.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def is_fault(message):
    expected = (
        "the server responded with a status of",
        "net::ERR_CON",
    )  # such as CONNECTION_REFUSED, of a killed server
    return message.type in ("error", "warning") and not any(text in message.text for text in expected)


@pytest.fixture
def page(open_page):
    page = open_page()
    write(page, SENTENCE)
    return page


def write(page, text):
    """Types a sentence and waits for its translation."""
    with page.expect_response(lambda answer: answer.url.endswith("/inspect") and text in answer.request.post_data):
        page.get_by_label("Sentence", exact=True).first.fill(text)
    expect(page.get_by_label("Source tokens").first).to_be_visible()


def ask(url, path="/inspect", **question):
    """Returns what the server answers."""
    body = json.dumps({"q": SENTENCE} | question).encode() if question or path == "/inspect" else None
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def weights(inspection, kind):
    """Returns the attention weights of an answer, [layers, heads, queries, keys]."""
    encoded = inspection["attention"][kind]
    return np.frombuffer(base64.b64decode(encoded["weights"]), "<u2").reshape(encoded["shape"]) / 65535


def clearest(maps):
    """Returns layer and head of the map whose rows have the largest maxima on average."""
    return np.unravel_index(maps.max(-1).mean(-1).argmax(), maps.shape[:2])


def show_tokens(page):
    """Shows all tokens instead of words."""
    page.get_by_role("checkbox", name="whole words").uncheck()
    page.get_by_role("checkbox", name="</s> and punctuation").check()


def check_accessibility(page):
    """Checks the page with axe when no answer is waited for, until when the old one is paler."""
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def cells(page):
    """Returns the numbers of the heat map, by the names of row and column as the page says them."""
    said = [cell.get_attribute("aria-label") for cell in page.locator(".heat button").all()]
    return [(*re.fullmatch("(.*) looks at (.*): ([0-9.]+)", text).groups(),) for text in said]


def check_heat_map(page, kind, expected):
    """Compares the numbers of the heat map with weights [queries, keys], those that are masked left out."""
    seen = np.tril(np.ones(expected.shape)) if kind == "decoder" else np.ones(expected.shape)
    shown = [float(weight) for *_, weight in cells(page)]
    np.testing.assert_allclose(shown, expected[seen > 0], rtol=0, atol=6e-4)


def vector(page, name):
    """Reads all numbers of a vector, the first two with real keys."""
    strip = page.get_by_role("slider", name=name, exact=True)
    texts = []
    for key in ("Home", "ArrowRight"):
        strip.press(key)
        texts.append(strip.get_attribute("aria-valuetext"))
    texts += strip.evaluate("""(strip) => Array.from({ length: strip.ariaValueMax - 2 }, () => {
      strip.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      return strip.ariaValueText;
    })""")
    return [float(text.split(": ")[1].replace("−", "-")) for text in texts]


def readable(token):
    return token["piece"].replace("▁", " ").strip() or "␣"


def translation(page, number=0):
    return page.locator(".text").nth(number)


def tab(page, name):
    page.get_by_role("tab", name=name).click()


def test_translates_while_one_types(page, url):
    expect(translation(page)).to_have_text(ask(url)["translation"])
    field = page.get_by_label("Sentence", exact=True)
    field.fill("")
    for typed in ("The bat", " is hungry."):
        field.press_sequentially(typed)
    answer = ask(url, q="The bat is hungry.")
    expect(translation(page)).to_have_text(answer["translation"])
    assert (
        answer["translation"]
        == ask(url, "/translate", q="The bat is hungry.", source="en", target="fr")["translatedText"]
    )
    scored = [f"{hypothesis['text']} {hypothesis['score']:.3f}" for hypothesis in answer["hypotheses"]]
    assert page.locator(".hypotheses li").all_inner_texts() == scored
    field.fill(" ")
    expect(page.get_by_label("Target tokens")).to_have_count(0)


def test_sentences_of_a_text_are_shown_one_by_one(page, url):
    text = "The bat is hungry. We saw the bank."
    write(page, text)
    answer = ask(url, q=text)
    listed = [f"{sentence['source']} {sentence['translation']}" for sentence in answer["sentences"]]
    assert page.locator(".sentences li").all_inner_texts() == listed
    expect(translation(page)).to_have_text(answer["translation"])
    page.get_by_role("button", name="We saw the bank.").first.click()
    second = ask(url, q="We saw the bank.")
    expect(translation(page)).to_have_text(second["translation"])
    assert listed[1].endswith(second["translation"])
    expect(page.locator(".sentences [aria-pressed=true]")).to_have_text("We saw the bank.")
    write(page, SENTENCE)
    expect(page.locator(".sentences li")).to_have_count(0)


def test_target_tokens_have_their_probabilities(page, url):
    shown = page.locator(".target .token").all_inner_texts()
    tokens = ask(url)["target"]
    assert [text.split("\n")[0] for text in shown] == [readable(token) for token in tokens]
    for text, token in zip(shown, tokens, strict=True):
        probability = float(re.search(r"[\d.]+(?=%)", text)[0]) / 100
        assert probability == pytest.approx(token["probability"], abs=0.0051)


@pytest.mark.parametrize("way", ["hover", "focus", "click"])
def test_alternatives_are_shown_and_one_is_chosen(way, page, url):
    tokens = ask(url)["target"]
    getattr(page.locator(".target .token").nth(2), way)()
    alternatives = page.get_by_label("Alternatives", exact=True).get_by_role("button")
    expect(alternatives).to_have_count(10)
    assert [text.split("\n")[0] for text in alternatives.all_inner_texts()] == [
        readable(token) for token in tokens[2]["alternatives"]
    ]
    alternatives.nth(4).click()
    prefix = [tokens[0]["id"], tokens[1]["id"], tokens[2]["alternatives"][4]["id"]]
    expect(translation(page)).to_have_text(ask(url, prefix=prefix)["translation"])
    expect(page.locator(".comparison dd").first).to_have_text(ask(url)["translation"])
    page.get_by_role("button", name="Undo: chosen tokens").click()
    expect(translation(page)).to_have_text(ask(url)["translation"])


def test_alternatives_are_usable_by_keyboard(page, url):
    tokens = ask(url)["target"]
    page.locator(".target .token").nth(1).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Escape")
    expect(page.locator(".target .token").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    prefix = [tokens[0]["id"], tokens[1]["alternatives"][1]["id"]]
    expect(translation(page)).to_have_text(ask(url, prefix=prefix)["translation"])


def test_alternatives_are_usable_by_touch(open_page, url):
    page = open_page(width=390, has_touch=True, is_mobile=True)
    write(page, SENTENCE)
    page.locator(".target .token").last.tap()
    alternatives = page.get_by_label("Alternatives", exact=True)
    expect(alternatives).to_be_visible()
    box = alternatives.bounding_box()
    assert 0 <= box["x"] <= 390 - box["width"]
    tokens = ask(url)["target"]
    alternatives.get_by_role("button").nth(1).tap()
    prefix = [token["id"] for token in tokens[:-1]] + [tokens[-1]["alternatives"][1]["id"]]
    expect(translation(page)).to_have_text(ask(url, prefix=prefix)["translation"])


def test_masked_source_tokens(page, url):
    source = ask(url)["source"]
    for position in (4, 1):
        page.get_by_label("Source tokens").get_by_role("button").nth(position).click()
        expect(page.get_by_role("button", name=f"Undo: masked: {readable(source[position])}")).to_be_visible()
    expect(translation(page)).to_have_text(ask(url, masked=[4, 1])["translation"])
    expect(page.get_by_label("Source tokens").locator("[aria-pressed=true]")).to_have_count(2)
    page.get_by_label("Source tokens").get_by_role("button").nth(4).click()
    expect(translation(page)).to_have_text(ask(url, masked=[1])["translation"])
    write(page, "The bat is hungry.")
    expect(page.get_by_label("Source tokens").locator("[aria-pressed=true]")).to_have_count(0)


def test_tokens_are_hidden_and_shown_by_keyboard(page):
    """Enter shows again what it has hidden, even if another token has the same name; so do the buttons, if all are."""
    write(page, "the river the bank")
    tokens = page.get_by_label("Source tokens").get_by_role("button")
    names = [token.get_attribute("aria-label") for token in tokens.all()]
    last = max(i for i, name in enumerate(names) if names.index(name) < i)
    tokens.nth(last).focus()
    for pressed in (1, 0):
        page.keyboard.press("Enter")
        expect(page.get_by_label("Source tokens").locator("[aria-pressed=true]")).to_have_count(pressed)
        expect(tokens.nth(last)).to_be_focused()
    before = translation(page).inner_text()
    for position in range(len(names) - 1):
        tokens.nth(position).click()
        expect(page.get_by_label("Source tokens").locator("[aria-pressed=true]")).to_have_count(position + 1)
    tokens.nth(len(names) - 1).click()
    expect(page.locator(".message")).to_contain_text("at least one source token must remain visible")
    undo = page.get_by_role("button", name="Undo: masked")
    expect(undo).to_have_count(len(names))
    for left in reversed(range(len(names))):
        undo.first.click()
        expect(undo).to_have_count(left)
    expect(translation(page)).to_have_text(before)


def test_unknown_words_are_marked(page):
    write(page, "I swam in pizza.")
    expect(page.locator("mark")).to_have_text(["pizza"])
    expect(page.locator("p.unknown")).to_have_text("I swam in pizza.")
    expect(page.get_by_text("was never trained on the marked words")).to_be_visible()
    check_accessibility(page)
    write(page, "Ich mag Ananas.")
    expect(page.locator("mark")).to_have_text(["Ich", "mag", "Ananas"])
    expect(page.get_by_text("its translation is a guess")).to_be_visible()
    write(page, SENTENCE)
    expect(page.locator("mark")).to_have_count(0)


def test_sentence_in_unknown_characters_stays_as_it_is(page):
    """The others of the text can still be chosen."""
    page.get_by_label("Sentence", exact=True).first.fill(f"Привет мир. {SENTENCE}")
    expect(page.locator(".message")).to_contain_text("stays as it is")
    expect(translation(page)).to_have_count(0)
    page.get_by_role("button", name=SENTENCE).last.click()
    expect(page.get_by_label("Source tokens")).to_be_visible()
    expect(page.locator(".message")).to_be_empty()


def test_text_is_laid_out_as_its_script_is(page):
    """The full stop of a Hebrew sentence stands to the left of it, and characters of columns lie on their sides."""
    page.get_by_label("Sentence", exact=True).first.fill("שלום עולם.")
    places = page.get_by_label("Sentence", exact=True).first.evaluate("""(area) => {
      const text = document.createElement("p");
      text.className = "text";
      area.after(Object.assign(text, { textContent: area.value }));
      const left = [0, area.value.length - 1].map((at) => {
        const range = document.createRange();
        range.setStart(text.firstChild, at);
        range.setEnd(text.firstChild, at + 1);
        return range.getBoundingClientRect().x;
      });
      text.remove();
      return left;
    }""")
    assert places[1] < places[0]
    write(page, SENTENCE)
    tab(page, "Attention")
    expect(page.locator(".heat thead th span").last).to_have_css("text-orientation", "sideways")


@pytest.mark.parametrize("kind", NAMES)
def test_heat_map_has_the_weights_of_tokens(kind, page, url):
    tab(page, "Attention")
    page.get_by_role("button", name=NAMES[kind], exact=True).click()
    show_tokens(page)
    maps = weights(ask(url), kind)
    check_heat_map(page, kind, maps[clearest(maps)])
    page.get_by_role("button", name=f"{NAMES[kind]}, mean of all heads", exact=True).click()
    check_heat_map(page, kind, maps.mean((0, 1)))
    page.get_by_role("button", name=f"{NAMES[kind]}, layer 2, head 3", exact=True).click()
    check_heat_map(page, kind, maps[1, 2])
    page.get_by_role("button", name=f"{NAMES[kind]}, layer 1, mean", exact=True).click()
    check_heat_map(page, kind, maps[0].mean(0))
    expect(page.get_by_role("checkbox", name=": on")).to_have_count(maps.shape[0] * maps.shape[1])


@pytest.mark.parametrize("kind", NAMES)
def test_heat_map_has_the_weights_of_words(kind, page, url):
    """The mean over the pieces of a word that looks of the sums over those of a word that is looked at."""
    tab(page, "Attention")
    page.get_by_role("button", name=NAMES[kind], exact=True).click()
    page.get_by_role("button", name=f"{NAMES[kind]}, layer 2, head 1", exact=True).click()
    answer = ask(url)
    read = [{"piece": "<s>", "word": -1}, *answer["target"][:-1]]
    attend, attended = {
        "encoder": (answer["source"], answer["source"]),
        "decoder": (read, read),
        "cross": (answer["target"], answer["source"]),
    }[kind]
    own = weights(answer, kind)[1, 0]
    expected = []
    for query in dict.fromkeys(token["word"] for token in attend):
        for key in dict.fromkeys(token["word"] for token in attended):
            rows, columns = ([t["word"] == w for t in side] for side, w in ((attend, query), (attended, key)))
            names = [
                readable({"piece": "".join(t["piece"] for t, is_own in zip(side, mask, strict=True) if is_own)})
                for side, mask in ((attend, rows), (attended, columns))
            ]
            hidden = kind == "decoder" and key > query
            if all(name != "</s>" and re.search(r"\w", name) for name in names) and not hidden:
                expected.append((*names, f"{own[rows][:, columns].sum(1).mean():.3f}"))
    assert cells(page) == expected
    expect(page.locator(".heat .masked")).to_have_count(
        0 if kind != "decoder" else len(expected) - len(read_words(read))
    )
    page.get_by_role("checkbox", name="</s> and punctuation").check()
    page.get_by_role("checkbox", name="whole words").uncheck()
    expect(page.locator(".heat tbody tr")).to_have_count(len(attend))
    assert sum(float(weight) for *_, weight in cells(page)) == pytest.approx(len(attend), abs=0.05)


def read_words(tokens):
    """Returns the words without punctuation."""
    names = {}
    for token in tokens:
        names[token["word"]] = names.get(token["word"], "") + token["piece"]
    return [name for name in names.values() if re.search(r"\w", name)]


def test_heat_map_is_usable_by_keyboard(page):
    tab(page, "Attention")
    page.locator(".heat button").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    cell = page.locator(".heat tbody tr").first.get_by_role("button").nth(1)
    expect(cell).to_be_focused()
    expect(page.locator(".readout")).to_have_text(cell.get_attribute("aria-label"))
    page.locator(".heat tbody th").nth(2).hover()
    expect(page.locator(".readout")).to_contain_text("looks at")
    page.locator(".heat thead th").nth(2).hover()
    expect(page.locator(".readout")).to_contain_text("is looked at by")
    cell.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("How this weight is made")).to_be_visible()


@pytest.mark.parametrize("kind", NAMES)
def test_every_number_of_a_weight_is_that_of_the_network(kind, page, url):
    tab(page, "Attention")
    page.get_by_role("button", name=NAMES[kind], exact=True).click()
    page.get_by_role("button", name=f"{NAMES[kind]}, layer 2, head 2", exact=True).click()
    page.get_by_role(
        "checkbox", name="</s> and punctuation"
    ).check()  # the network of a few steps may write nothing else
    page.get_by_role("checkbox", name="whole words").uncheck()
    rows = page.locator(".heat tbody tr")
    rows.nth(rows.count() // 2).get_by_role("button").nth(0 if kind == "decoder" else 2).click()
    steps = page.get_by_label("How this weight is made")
    expect(steps).to_be_visible()
    shown = json.loads(urllib.parse.unquote(page.url.split("#")[1]))["panels"][0]["pair"]
    place = {"attention": kind, "layer": 1, "head": 1, "query": shown["query"]}
    network = ask(url, explain=place)["explanation"]
    key = shown["key"]
    query, keys, values = (np.array(network[name]) for name in ("query_vector", "keys", "values"))
    close = {"atol": 6e-4, "rtol": 0}

    def name(pattern):
        return steps.get_by_role("slider", name=re.compile(pattern)).first.get_attribute("aria-label")

    np.testing.assert_allclose(vector(page, "query"), query, **close)
    np.testing.assert_allclose(vector(page, "key"), keys[key], **close)
    np.testing.assert_allclose(vector(page, "query × key"), query * keys[key], **close)
    np.testing.assert_allclose(vector(page, name("^x, layer normalized")), network["read"], **close)
    np.testing.assert_allclose(vector(page, "all heads"), network["heads"], **close)
    np.testing.assert_allclose(vector(page, "times W_O"), network["output"], **close)
    np.testing.assert_allclose(vector(page, "x"), network["stream"], **close)
    np.testing.assert_allclose(vector(page, "sum: x for what follows"), network["after"], **close)
    head = np.array(network["heads"]).reshape(-1, len(query))[1]
    np.testing.assert_allclose(vector(page, "their sum: what this head says"), head, **close)
    best = int(np.argmax(network["weights"]))
    np.testing.assert_allclose(
        vector(page, name(r"^[0-9.]+ × value of")), network["weights"][best] * values[best], **close
    )
    rows = [row.split("\t") for row in steps.locator(".scores").first.locator("tbody tr").all_inner_texts()]
    scores = keys @ query
    for (_, raw, scaled, weight), score, own, seen in zip(
        rows, scores, network["weights"], network["mask"], strict=True
    ):
        assert float(raw.replace("−", "-")) == pytest.approx(score, abs=6e-4)
        assert weight == f"{own:.3f}"
        if seen:
            assert float(scaled.replace("−", "-")) == pytest.approx(score / len(query) ** 0.5, abs=6e-4)
        else:
            assert scaled == "−∞ (masked)"
    if kind != "encoder":
        logits = [row.split("\t") for row in steps.locator(".scores").last.locator("tbody tr").all_inner_texts()]
        for (piece, logit, probability), own in zip(logits, network["logits"], strict=False):
            assert (piece, probability) == (readable(own), f"{own['probability']:.3f}")
            assert float(logit.replace("−", "-")) == pytest.approx(own["logit"], abs=6e-4)
        np.testing.assert_allclose(vector(page, "decoder's output"), network["hidden"], **close)
    steps.get_by_role("row").nth(2).get_by_role("button").click()
    expect(steps.locator(".scores .current")).to_have_text(re.compile(rows[1][0]))
    page.get_by_role("button", name="Close").click()
    expect(steps).to_have_count(0)


def test_translation_grows_word_by_word(page, url):
    target = ask(url)["target"]
    tab(page, "Attention")
    page.get_by_role("checkbox", name="whole words").uncheck()
    page.get_by_role("checkbox", name="</s> and punctuation").check()
    page.get_by_role("button", name="From the start").click()
    progress = page.get_by_label("Word by word")
    for number, token in enumerate(target, 1):
        expect(progress).to_contain_text(f"Step {number} of {len(target)}")
        expect(progress).to_contain_text(f"the network writes “{readable(token)}”")
        expect(page.locator(".heat tbody tr")).to_have_count(number)
        if number == 3:
            page.locator(".heat tbody tr").last.get_by_role("button").first.click()
        if number >= 3:
            best = page.get_by_label("How this weight is made").locator(".scores").last.locator("tbody tr")
            expect(best.first).to_contain_text(f"{target[number - 1]['alternatives'][0]['probability']:.3f}")
        if number < len(target):
            page.get_by_role("button", name="Next step").click()
    expect(page.get_by_role("button", name="Next step")).to_be_disabled()
    page.get_by_role("button", name="Back").click()
    expect(page.locator(".heat tbody tr")).to_have_count(len(target) - 1)
    page.get_by_role("button", name="Whole sentence").click()
    expect(page.locator(".heat tbody tr")).to_have_count(len(target))


def test_diagram_shows_and_opens_every_attention(page):
    tab(page, "Attention")
    diagram = page.get_by_label("Architecture")
    for layer in (2, 1):
        for text, kind in (
            ("self-attention", "encoder"),
            ("masked self-attention", "decoder"),
            ("cross-attention", "cross"),
        ):
            button = diagram.get_by_role("button", name=f"Open layer {layer}, {text}", exact=True)
            button.click()
            expect(button).to_have_attribute("aria-pressed", "true")
            expect(diagram.locator("[aria-pressed=true]")).to_have_count(1)
            expect(page.locator("figcaption")).to_contain_text(f"{NAMES[kind]}, layer {layer}, head")


def test_words_light_up_what_they_look_at(page, url):
    answer = ask(url)
    mean = weights(answer, "cross").mean((0, 1))
    query = 2
    words = [token["word"] for token in answer["source"]]
    rows = [token["word"] == answer["target"][query]["word"] for token in answer["target"]]
    page.locator(".target .token").nth(query).hover()
    shares = {word: mean[rows][:, [w == word for w in words]].sum(1).mean() for word in words}
    first = {word: words.index(word) for word in words}
    for word, share in shares.items():
        said = page.locator(".tokens").first.get_by_role("button").nth(first[word]).get_attribute("data-share")
        assert said is None if share < 0.02 else float(said.strip("%")) / 100 == pytest.approx(share, abs=0.0051)
    expect(page.locator(".looks")).to_contain_text("(mean of all heads)")
    position = 5
    page.locator(".tokens").first.get_by_role("button").nth(position).hover()
    expect(page.locator(".looks")).to_contain_text(f"“{readable(answer['source'][position])}” was looked at by")


def test_failed_answers_leave_no_old_translation(open_page, workdir):
    process, url = serve(workdir)
    assert "ready\n" in iter(process.stderr.readline, "")
    page = open_page(url)
    write(page, SENTENCE)
    page.get_by_label("Sentence", exact=True).fill("river " * 1000)
    expect(page.locator(".message")).to_contain_text("exceed the limit")
    expect(page.locator(".text")).to_have_count(0)
    write(page, SENTENCE)
    expect(translation(page)).not_to_be_empty()
    process.kill()
    process.communicate()
    page.get_by_label("Sentence", exact=True).fill("The bat is hungry.")
    expect(page.locator(".message")).to_have_text("The server does not answer.")
    expect(page.locator(".text")).to_have_count(0)


def test_lines_are_translated_as_by_the_interface(page, url):
    text = "The bat is hungry.\n\nWe saw the bank"
    page.get_by_label("Sentence", exact=True).fill(text)
    lines = page.locator(".sentences li")
    expect(lines).to_have_count(2)
    given = ask(url, "/translate", q=text, source="en", target="fr")["translatedText"]
    both = [
        f"{source} {own}".strip() for source, own in zip(text.split("\n"), given.split("\n"), strict=True) if source
    ]
    assert lines.all_inner_texts() == both


def test_maps_and_heads_are_those_of_both_sentences(page, url):
    page.get_by_label("Examples").get_by_role("button", name="bank", exact=True).click()
    tab(page, "Attention")
    page.get_by_role("button", name="Encoder self-attention, layer 2, head 3", exact=True).or_(
        page.get_by_role("button", name="Encoder self-attention", exact=True)
    ).first.click()
    expect(page.locator("figcaption").nth(1)).to_contain_text("Encoder self-attention")
    assert page.locator("figcaption").first.inner_text() == page.locator("figcaption").nth(1).inner_text()
    page.get_by_role("button", name="Encoder self-attention, layer 2, head 3", exact=True).nth(1).click()
    expect(page.locator("figcaption").first).to_have_text("Encoder self-attention, layer 2, head 3")
    page.get_by_role("checkbox", name="Encoder self-attention, layer 2, head 3: on").first.uncheck()
    expect(page.get_by_role("checkbox", name="Encoder self-attention, layer 2, head 3: on").nth(1)).not_to_be_checked()
    tab(page, "Translation")
    off = [{"attention": "encoder", "layer": 1, "head": 2}]
    (sentences,) = (entry["sentences"] for entry in ask(url, "/examples")["ambiguous"] if entry["word"] == "bank")
    for number, sentence in enumerate(sentences):
        expect(translation(page, number)).to_have_text(ask(url, q=sentence, heads_off=off)["translation"])


def test_address_holds_what_is_shown(page, open_page, url):
    page.get_by_label("Source tokens").get_by_role("button").nth(1).click()
    tab(page, "Attention")
    page.get_by_role("button", name="Cross-attention, layer 2, head 2", exact=True).click()
    page.get_by_role("checkbox", name="Cross-attention, layer 1, head 3: on").uncheck()
    page.get_by_role("checkbox", name="whole words").uncheck()
    page.locator(".heat tbody tr").nth(3).get_by_role("button").nth(2).click()
    expect(page.get_by_label("How this weight is made")).to_be_visible()
    page.get_by_role("button", name="Compare with a second").click()
    expect(page.locator(".heat")).to_have_count(2)
    other = open_page(page.url)
    expect(other.locator(".heat")).to_have_count(2)
    for shown in (page, other):
        expect(shown.locator("figcaption").first).to_have_text("Cross-attention, layer 2, head 2")
        expect(shown.get_by_role("checkbox", name="Cross-attention, layer 1, head 3: on").first).not_to_be_checked()
        expect(shown.get_by_role("checkbox", name="whole words").first).not_to_be_checked()
    assert cells(page) == cells(other)
    assert other.get_by_label("Sentence", exact=True).nth(1).input_value() == SENTENCE
    for hash in (
        "nonsense",
        "%",
        '{"panels":3}',
        '{"view":"x","selection":{"kind":"y"},"panels":[{"text":"The bat."}]}',
    ):
        shown = open_page(f"{url}/#{hash}")
        expect(translation(shown)).not_to_be_empty()


def test_tour_is_played(page):
    page.get_by_role("button", name="Guided tour").click()
    tour = page.get_by_label("Tour")
    total = int(re.match(r"1 of (\d+)", tour.inner_text())[1])
    for number in range(1, total + 1):
        expect(tour).to_contain_text(f"{number} of {total}: ")
        expect(page.locator(".text, .heat, .beam").first).to_be_visible()
        tour.get_by_role("button", name="End" if number == total else "Next").click()
    expect(tour.get_by_role("button")).to_have_count(0)


def test_node_of_the_beam_tells_its_hypothesis(page, url):
    tab(page, "Beam")
    steps = ask(url, beam=True)["beam"]
    index = next(i for i, node in enumerate(steps[2]) if node["parent"] != 0)
    pieces, parent = [], index
    for step in (2, 1, 0):
        pieces.insert(0, steps[step][parent]["piece"])
        parent = steps[step][parent]["parent"]
    page.locator(".beam g[role=button]").nth(len(steps[0]) + len(steps[1]) + index).click()
    said = page.get_by_text(f"Step 3, {steps[2][index]['outcome']}: “{readable({'piece': ''.join(pieces)})}”, ")
    expect(said).to_contain_text(f"{steps[2][index]['score']:.3f}")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".beam g[role=button]").nth(len(steps[0]) + steps[2][index]["parent"])).to_be_focused()


@pytest.mark.skipif("LINGUA_PHRASEBOOK_RUN" not in os.environ, reason="LINGUA_PHRASEBOOK_RUN names no trained network")
def test_stranger_finds_in_five_clicks_why_bank_became_rive(open_page):
    page = open_page()
    page.get_by_label("Examples").get_by_role("button", name="I walked along the river to the bank.").click()
    expect(translation(page)).to_contain_text("rive.")
    page.get_by_role("button", name="rive, probability").click()
    river = page.get_by_role("button", name="rive looks at river: Cross-attention")
    expect(river).to_be_visible()
    page.keyboard.press("Escape")
    river.click()
    expect(page.get_by_role("heading", name="How “rive” comes to look at “river”")).to_be_visible()
    row = [(key, float(weight)) for query, key, weight in cells(page) if query == "rive"]
    assert max(row, key=lambda cell: cell[1])[0] == "river"
    tab(page, "Translation")
    page.get_by_role("button", name="Hide river").click()
    expect(page.locator(".comparison del").last).to_have_text("rive.")
    expect(page.locator(".comparison ins").last).to_have_text("banque.")


def test_head_is_switched_off(page, url):
    tab(page, "Attention")
    page.get_by_role("checkbox", name="Cross-attention, layer 1, head 2: on").uncheck()
    page.get_by_role("checkbox", name="Cross-attention, layer 2, head 1: on").uncheck()
    tab(page, "Translation")
    heads = [{"attention": "cross", "layer": 0, "head": 1}, {"attention": "cross", "layer": 1, "head": 0}]
    expect(translation(page)).to_have_text(ask(url, heads_off=heads)["translation"])
    page.get_by_role("button", name="Undo: off: Cross-attention, layer 1, head 2").click()
    expect(translation(page)).to_have_text(ask(url, heads_off=heads[1:])["translation"])


def test_beam_is_that_of_the_server(page, url):
    tab(page, "Beam")
    steps = ask(url, beam=True)["beam"]
    expect(page.locator(".beam g[role=button]")).to_have_count(sum(map(len, steps)))
    labels = [node.get_attribute("aria-label") for node in page.locator(".beam g[role=button]").all()]
    expected = [
        f"step {number}: {readable(node)}, {node['score']:.2f}, {node['outcome']}"
        for number, step in enumerate(steps, 1)
        for node in step
    ]
    assert [label.removesuffix(", best") for label in labels] == expected
    best = [re.search(": (.*?), ", label)[1] for label in labels if label.endswith(", best")]
    assert best == [readable(token) for token in ask(url)["target"]]


def test_run_is_shown_and_moves_while_training_goes_on(workdir, open_page, tmp_path):
    """Of a workdir without a checkpoint yet."""
    growing = tmp_path / "growing"
    shutil.copytree(workdir, growing, ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (growing / "metrics.jsonl").write_text("".join(lines[:30]))
    process, url = serve(growing)
    page = open_page(url)
    tab(page, "Run")
    expect(page.get_by_text(f"step {json.loads(lines[29])['step']:,} of")).to_be_visible()
    expect(page.get_by_text("none yet")).to_have_count(2)
    (growing / "metrics.jsonl").write_text("".join(lines))
    last = next(json.loads(line) for line in reversed(lines) if "validation_bleu" in line)
    chart = page.get_by_role("img", name=f"Validation BLEU: BLEU {last['validation_bleu']:.2f}")
    expect(chart).to_be_visible()
    for sample in last.get("samples", []):
        expect(page.get_by_text(sample["translation"], exact=True).first).to_be_visible()
    page.close()
    process.terminate()
    process.communicate()


def test_two_checkpoints_side_by_side(page, url):
    steps = ask(url, "/run", **{})["checkpoints"]
    tab(page, "Run")
    page.get_by_role("button", name="Compare the first with the best").click()
    for number, step in enumerate((steps[0], ask(url, "/run")["best_checkpoint"])):
        expect(page.get_by_label("Checkpoint").nth(number)).to_have_value(str(step))
        expect(translation(page, number)).to_have_text(ask(url, checkpoint=step)["translation"])


def test_examples_are_one_click_away(page, url):
    page.get_by_role("button", name="The mouse sat on the cushion because it was comfortable.").click()
    wide = "The mouse sat on the cushion because it was comfortable."
    expect(translation(page)).to_have_text(ask(url, q=wide)["translation"])
    examples = ask(url, "/examples")
    assert len(examples["ambiguous"]) == 24
    for word in ("bank", "it"):
        page.get_by_label("Examples").get_by_role("button", name=word, exact=True).click()
        (sentences,) = (entry["sentences"] for entry in examples["ambiguous"] if entry["word"] == word)
        for number, sentence in enumerate(sentences):
            expect(translation(page, number)).to_have_text(ask(url, q=sentence)["translation"])
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".text")).to_have_count(1)
    page.get_by_role("button", name="Compare with a second sentence or checkpoint").click()
    expect(page.locator(".text")).to_have_count(2)
    page.get_by_role("button", name=wide).click()
    expect(page.locator(".text")).to_have_count(1)
    expect(page.get_by_role("button", name="Compare with a second sentence or checkpoint")).to_be_visible()


def test_theme_is_kept(page):
    body = page.locator("body")
    button = page.locator("#theme")
    light, dark = ({"name": "background-color", "value": value} for value in ("rgb(255, 255, 255)", "rgb(18, 24, 22)"))
    expect(body).to_have_css(**light)
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    page.reload()
    expect(body).to_have_css(**dark)
    page.emulate_media(color_scheme="dark")
    button.click()
    page.emulate_media(color_scheme="light")
    expect(body).to_have_css(**light)


def test_refusals_are_shown(page):
    page.get_by_label("Sentence", exact=True).fill("river " * 1000)
    expect(page.locator(".message")).to_contain_text("6,000 characters exceed the limit of 5,000")


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_views_are_accessible_and_fit(width, theme, open_page):
    page = open_page(width=width, theme=theme)
    write(page, SENTENCE)
    for view in VIEWS:
        tab(page, view)
        page.wait_for_selector({"Beam": ".beam", "Run": ".chart", "Attention": ".heat"}.get(view, ".target"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        check_accessibility(page)
        if pictures := os.environ.get("LINGUA_PICTURES"):
            page.screenshot(path=Path(pictures) / f"{view.lower()}-{width}-{theme}.png", full_page=True)
    tab(page, "Translation")
    page.get_by_role("button", name="Guided tour").click()
    tab(page, "Attention")
    page.locator(".heat button").first.click()
    expect(page.get_by_label("How this weight is made")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_accessibility(page)


def test_views_are_reached_by_keyboard(page):
    page.get_by_role("tab", name="Translation").focus()
    for view in (*VIEWS[1:], VIEWS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=view)).to_be_focused()
        expect(page.get_by_role("tab", name=view)).to_have_attribute("aria-selected", "true")


def test_attention_page_opens_without_a_server(workdir, run, open_page, url, tmp_path):
    line = "The bank </script><script>alert(1)</script> & river."
    path = tmp_path / "page.html"
    run("translate", "--workdir", workdir, "--attention", path, input=line + "\n")
    page = open_page(path.as_uri())
    expect(page.locator("h1")).to_have_text(line)
    maps = weights(ask(url, q=line), "cross")
    page.get_by_role("button", name="Cross-attention, mean of all heads", exact=True).click()
    show_tokens(page)
    check_heat_map(page, "cross", maps.mean((0, 1)))
    page.get_by_role("button", name="Encoder self-attention", exact=True).click()
    layer, head = clearest(weights(ask(url, q=line), "encoder"))
    expect(page.locator("figcaption")).to_have_text(f"Encoder self-attention, layer {layer + 1}, head {head + 1}")
    check_accessibility(page)


@pytest.fixture(scope="module")
def exported(workdir, run, tmp_path_factory):
    """Returns the HTML file of the network, with its exact weights."""
    path = tmp_path_factory.mktemp("exported") / "translator.html"
    line = path.with_suffix(".txt")  # to compare, instead of 100, which takes half a minute
    line.write_text(f"{SENTENCE}\n")
    options = ("--quantization", "float32", "--verify", line)  # as many beams as the server has
    done = run("export", "--workdir", workdir, "--format", "html", "--output", path, *options)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (375, "light"), (375, "dark")])
def test_file_shows_offline_what_the_server_shows(width, theme, exported, open_page, url):
    page = open_page(exported.as_uri(), width=width, theme=theme, offline=True)
    page.get_by_label("Sentence", exact=True).fill(SENTENCE)
    answer = ask(url, explain={"attention": "cross", "layer": 0, "head": 0, "query": 0})
    expect(page.locator("p.text")).to_have_text(re.sub(r"\s+", " ", answer["translation"]).strip())
    for view in VIEWS:
        tab(page, view)
        page.wait_for_selector({"Beam": ".beam", "Run": ".chart", "Attention": ".heat"}.get(view, ".target"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        check_accessibility(page)
        if pictures := os.environ.get("LINGUA_PICTURES"):
            page.screenshot(path=Path(pictures) / f"file-{view.lower()}-{width}-{theme}.png", full_page=True)
    tab(page, "Attention")
    page.get_by_role("button", name="Cross-attention, layer 1, head 1", exact=True).click()
    page.locator(".heat button").first.click()
    expect(page.get_by_label("How this weight is made")).to_contain_text("Softmax of the row")
    page.reload()  # the address has it all
    expect(page.get_by_label("How this weight is made")).to_contain_text("Softmax of the row")


def test_file_says_what_it_cannot_translate(exported, open_page):
    page = open_page(exported.as_uri(), offline=True)
    page.get_by_label("Sentence", exact=True).fill("river " * 100)
    expect(page.get_by_text("the network reads at most 64")).to_be_visible()
    expect(page.locator("p.text")).to_have_count(0)
    page.get_by_label("Sentence", exact=True).fill(SENTENCE)
    expect(page.locator("p.text")).to_be_visible()
    page.get_by_label("Sentence", exact=True).fill("I swam in pizza.")
    expect(page.locator("mark")).to_have_text(["pizza"])
    page.get_by_label("Sentence", exact=True).fill("Привет мир.")
    expect(page.locator(".message")).to_contain_text("stays as it is")


ASK_WORKER = """async (lines) => {
  const code = new Blob([document.getElementById("worker").textContent]);
  const worker = new Worker(URL.createObjectURL(code));
  worker.postMessage({ packed: document.getElementById("network").textContent });
  const translations = [];
  for (const q of lines) {
    const answer = new Promise((resolve) => worker.onmessage = ({ data }) => resolve(data.answer));
    worker.postMessage({ question: { q } });
    translations.push((await answer).translation);
  }
  return translations;
}"""


@pytest.mark.slow
def test_file_translates_as_the_command(workdir, run, exported, open_page, tmp_path):
    """With exact weights, 100 lines are the same; with integers, BLEU on the test set is."""
    pairs = list(open_corpus(read_workdir_config(workdir).data).split("test"))[:500]
    lines = [pair.source for pair in pairs]
    done = run("translate", "--workdir", workdir, "--beam-size", 4, input="\n".join(lines) + "\n")
    expected = done.stdout.splitlines()
    page = open_page(exported.as_uri(), offline=True)
    assert page.evaluate(ASK_WORKER, lines[:100]) == expected[:100]
    rounded = tmp_path / "rounded.html"
    done = run("export", "--workdir", workdir, "--format", "html", "--output", rounded, "--beam-size", 4)
    assert done.returncode == 0, done.stderr
    translations = open_page(rounded.as_uri(), offline=True).evaluate(ASK_WORKER, lines)
    scores = [sacrebleu.corpus_bleu(each, [[pair.target for pair in pairs]]).score for each in (expected, translations)]
    assert scores[1] == pytest.approx(scores[0], abs=0.3)


def test_page_and_documentation_work_below_another_path(open_page, url):
    """Whatever they ask for is below it, too: `open_page` checks that."""
    page = open_page(f"{url}/mt/")
    write(page, SENTENCE)
    page.get_by_role("link", name="HTTP interface").click()
    page.get_by_role("button", name="GET /languages").first.click()
    page.get_by_role("button", name="Try it out").click()
    with page.expect_response(f"{url}/mt/languages") as answer:
        page.get_by_role("button", name="Execute").click()
    assert answer.value.json()[0]["code"] == "en"
