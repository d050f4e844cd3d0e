"""HTML files: the exported network computes what the server does, without a browser, and all works in one, offline.

Its tokenizer and its words are those of SentencePiece and of Python, whatever the text.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from lingua_flax.data.known_words import known_words
from lingua_flax.data.placeholders import TO_KEEP
from lingua_flax.export import html_file
from lingua_flax.export.description import Export
from lingua_flax.export.html_file import _tokenizer, html_document
from lingua_flax.export.parity import NOT_COMPARED, check_parity
from lingua_flax.host.errors import RunError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.serving.inspector import inspected
from lingua_flax.serving.protocol import InspectRequest
from lingua_flax.translation.translator import Translator
from tests.helpers.browser import (
    browser,
    cells,
    check_accessibility,
    check_views,
    choose_map,
    needs_chromium,
    open_page,
    sentence_field,
    show_tokens,
    tab,
    translation,
)
from tests.helpers.commands import succeed
from tests.helpers.deno import ask, conversation
from tests.helpers.inspections import HEADS, assert_same, pad_alike
from tests.helpers.networks import LINES, random_translator, small_tokenizer
from tests.helpers.texts import LETTERS, MARKS, OTHERS

__all__ = ["browser", "open_page"]  # fixtures

BEAM = {"q": LINES[3], "beam": True}
SCRIPT = Path(__file__).parent / "scripts" / "answer.js"
TOKENIZERS = [
    {},
    {"byte_fallback": True, "vocab_size": 300, "lowercase": True, "placeholders": 3},
    {"kind": "bpe", "byte_fallback": True, "vocab_size": 300, "normalization": "nfkc", "placeholders": 2},
    {"kind": "bpe", "normalization": "identity"},
]
ROTARY = {"positions": "rotary", "position_base": 50.0}
BIASED = {"activation": "silu", "attention_bias": True, "output_bias": True, "norm_epsilon": 0.01}


def place(attention, layer, head, query):
    return {"explain": {"attention": attention, "layer": layer, "head": head, "query": query}}


QUESTIONS = [
    BEAM,
    {"q": LINES[0]} | place("encoder", 1, 1, 2),
    BEAM | {"masked": [1, 2]} | place("cross", 1, 0, 0),
    BEAM | {"q": LINES[1], "prefix": [9, 8]} | place("decoder", 1, 1, 2),
    BEAM | {"heads_off": HEADS} | place("cross", 0, 1, 0),
    {"q": "The cat eats fish. \r\n\n A dog sleeps. ", "sentence": 1, "heads_off": HEADS[:1]},
    {"q": f" {LINES[3]} "},
    {"q": "👍 The CAT eats pizza,  ananas {kiwi}"},
    *[{"q": text} for text in ("1. (2) – 3", "3 – 4\nThe cat eats fish.")],  # without letters
    # Sentences of which most characters have no piece, or not quite
    *[{"q": text} for text in ("Привет мир", "the cat Ж", "Жж a", "Жжж aé", "👍", "Привет мир. The cat eats fish.")],
]


def document_of(translator, *, language="en", quantized=False):
    translator = dataclasses.replace(translator, languages=(language, "fr"))
    return html_document(Export(translator, "html", "int8" if quantized else "float32", beam_size=4), {})


def served(translator, question):
    """Returns what the server answers."""
    answer = inspected({"": translator}, Mock(), DecodingOptions(beam_size=4), InspectRequest(**question), Mock())
    assert answer.pop("checkpoint") == 0
    return answer


def attended(answer):
    """Returns an answer without what a query may not attend to: nothing reads what hidden words compute."""
    if explanation := answer.get("explanation"):
        for name in ("memory", "keys", "values"):
            explanation[name] = [row for row, may in zip(explanation[name], explanation["mask"], strict=True) if may]
    return answer


@pytest.mark.parametrize(
    ("language", "joint", "options"),  # with codes of languages as users write them
    [
        ("en_US", False, ROTARY | {"norm": "post", "activation": "gelu", "qk_norm": True, "tied_embeddings": "none"}),
        ("x", True, BIASED | {"positions": "learned", "qk_norm": "self", "tied_embeddings": "decoder"}),
        pytest.param("en", True, {}, marks=pytest.mark.slow),
        pytest.param("eng_Latn", True, ROTARY | {"rotary_cross_attention": False}, marks=pytest.mark.slow),
    ],
)
def test_file_answers_as_the_server(tmp_path, monkeypatch, language, joint, options):
    pad_alike(monkeypatch)
    translator = random_translator(joint, num_decoder_layers=2, **options)
    answers = ask(document_of(translator, language=language), tmp_path / "file.html", QUESTIONS)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert "error" not in answer, answer
        assert_same(attended(answer["answer"]), attended(served(translator, question)), 2e-4)


def test_the_code_in_the_file_is_compared_with_the_run(trained, tmp_path, monkeypatch, caplog):
    path, lines = tmp_path / "file.html", ["one two three.", "nine."]
    export = Export(Translator.load(trained[0]), "html", beam_size=3, run=trained[0])
    html_file.write(export, path)
    engine = partial(html_file.translate, export, path)
    check_parity(export, engine, lines)
    changed = path.read_text(encoding="utf-8").replace("Math.max(value, 0)", "value")
    path.write_text(changed, encoding="utf-8")
    with pytest.raises(RunError, match="does not translate as"):
        check_parity(export, engine, lines)
    monkeypatch.setattr(html_file, "SECONDS", 0.0)
    assert len(list(engine(lines, 1))) == 1
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    check_parity(export, engine, lines)
    assert caplog.messages == [NOT_COMPARED % "Deno, which runs JavaScript, is not installed; pip install deno"]


def test_integers_are_the_nearest(tmp_path):
    """The largest number of each row of a matrix is 127, and the others differ by half a step at most."""
    documents = (document_of(random_translator(), quantized=quantized) for quantized in (False, True))
    answers = [ask(document, tmp_path / "file.html", QUESTIONS[1:2])[0]["answer"] for document in documents]
    exact, rounded = (np.array(answer["explanation"]["stream"]) for answer in answers)
    assert 0 < np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_what_cannot_be_translated_and_damage_are_refused_in_a_sentence(tmp_path):
    translator = dataclasses.replace(random_translator(), languages=("en", "fr"))
    document, long = document_of(translator, quantized=True), "the cat " * 100
    questions = [{"q": long}, {"q": "milk", "masked": list(range(30))}]
    tokens = len(translator.tokenizer.encode_source([long])[0])
    assert [answer["error"] for answer in ask(document, tmp_path / "file.html", questions)] == [
        f"“the cat the cat the cat the ca…” has {tokens} tokens; the network reads at most 64",
        "at least one source token must remain visible",
    ]
    start = document.index('id="network">') + 4000
    other = "A" if document[start] != "A" else "B"
    (answer,) = ask(document[:start] + other + document[start + 1 :], tmp_path / "file.html", QUESTIONS[:1])
    assert answer == {"error": "this file is damaged; copy it again"}


@needs_chromium
def test_exported_network_has_all_views_offline(trained, run, open_page, tmp_path):
    exported, lines = tmp_path / "translator.html", tmp_path / "lines"
    lines.write_text("one two three.\n")  # to compare, instead of the validation split
    options = ("--format", "html", "--output", exported, "--quantization", "float32", "--verify", lines)
    succeed(run, "export", "--workdir", trained[0], *options)
    expected = succeed(run, "translate", "--workdir", trained[0], input=lines.read_text())
    page = open_page(exported.as_uri(), offline=True)
    sentence_field(page).fill(lines.read_text().strip())
    expect(translation(page)).to_have_text(expected.stdout.strip())
    check_views(page, 800, "light")
    tab(page, "Attention")
    choose_map(page, "Cross-attention, layer 1, head 1")
    steps = page.get_by_label("How this weight is made")
    expect(steps).to_contain_text("Softmax of the row")
    page.reload()  # the address has it all
    expect(steps).to_contain_text("Softmax of the row")
    tab(page, "Run")
    assert page.get_by_role("img", name="Learning curves").evaluate("image => image.naturalWidth") == 1080
    tab(page, "Translation")
    sentence_field(page).fill("one " * 50)
    expect(page.get_by_text("the network reads at most 32")).to_be_visible()
    expect(translation(page)).to_have_count(0)


@needs_chromium
def test_attention_of_a_sentence_opens_without_a_server(trained, run, open_page, tmp_path):
    line, path = "one <script>two</script> & three.", tmp_path / "page.html"
    succeed(run, "translate", "--workdir", trained[0], "--attention", path, "--translate-unknown", input=f"{line}\n")
    page = open_page(path.as_uri(), offline=True)
    expect(page.locator("h1")).to_have_text(line)
    choose_map(page, "Cross-attention, mean of all heads")
    show_tokens(page)
    shown = cells(page)
    rows = page.locator(".heat tbody tr").count()
    assert sum(float(weight) for *_, weight in shown) == pytest.approx(rows, abs=0.0005 * len(shown))
    check_accessibility(page)


@pytest.fixture(scope="module")
def find_unknown():
    """Returns a function that asks the code of the file for unknown words."""
    with conversation(SCRIPT) as ask:
        yield ask


# Letters of many scripts, and what stays as it is, in ASCII: the classes of JavaScript's patterns have nothing else.
CHARACTERS = st.sampled_from(LETTERS + MARKS + OTHERS)
KEPT = st.sampled_from(
    [
        " {name} ",
        " %s ",
        " %{a-b} ",
        " {{ a | b }} ",
        " <0> ",
        " :name ",
        " {a, plural, one {# b} other {b}} ",
        " https://example.org/a?b=c ",
        " a@b.org ",
        " `code` ",
        '<x id="1">',
        " a/b.py ",
    ]
)
ASSIGNED = st.text(st.characters(exclude_categories=["Cs", "Cn"]))
TEXTS = st.lists(st.lists(CHARACTERS | KEPT).map("".join) | ASSIGNED)


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_file_finds_the_unknown_words_that_python_finds(find_unknown, lines, texts):
    words = known_words(lines)
    answers = find_unknown(words=list(words.counts), kept=TO_KEEP.pattern, texts=texts + lines)
    for text, answer in zip(texts + lines, answers, strict=True):
        places, are_most = words.unknown_in(text)
        assert answer == {"unknown_words": list(map(list, places)), "mostly_unknown": are_most}


@pytest.fixture(scope="module", params=TOKENIZERS, ids=str)
def tokenizers(request, tmp_path_factory):
    """Returns a tokenizer, and a function that asks the one in JavaScript."""
    tokenizer = small_tokenizer(**{"vocab_size": 60, **request.param}).source
    model, charsmap = _tokenizer(tokenizer)
    path = tmp_path_factory.mktemp("tokenizer") / "model.json"
    path.write_text(json.dumps({"model": model, "charsmap": list(charsmap)}))
    with conversation(SCRIPT, path) as ask:
        yield tokenizer, ask


WORDS = st.sampled_from(
    [*" ".join(LINES).split(), " ", "  ", "\u3000", "\u2581", "ﬁ", "①", "e\u0301", "<0x41>", "</s>"]
)
ANY_TEXTS = st.lists(st.text() | st.lists(WORDS | st.text(max_size=3)).map("".join), min_size=10)


@given(ANY_TEXTS, st.lists(st.lists(st.integers(4, 59)), min_size=10))
@settings(deadline=None)
def test_any_text_has_the_same_tokens_and_any_tokens_the_same_text(tokenizers, texts, sentences):
    tokenizer, ask = tokenizers
    answer = ask(texts=texts, sentences=sentences)
    assert answer["ids"] == tokenizer.encode(texts)
    expected = [tokenizer.decode(ids).replace("\n", " ").replace("\r", " ") for ids in sentences]
    assert answer["texts"] == expected
