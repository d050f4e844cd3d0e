"""The HTML file: its JavaScript computes what the network and the server compute, run by Deno, without a browser."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from lingua_flax.export.html_file import html_document
from lingua_flax.options.schema import DataConfig, DecodingOptions
from lingua_flax.serving.inspector import inspected
from lingua_flax.serving.protocol import InspectRequest
from tests.helpers.deno import ask
from tests.helpers.inspections import HEADS, assert_same
from tests.helpers.networks import LINES, random_translator

NETWORKS = {  # with codes of languages as users write them
    "en": (True, {}),
    "en_US": (
        False,
        {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "none", "embed_dim": 18},
    ),
    "eng_Latn": (True, {"positions": "rotary", "qk_norm": True, "position_base": 50.0, "tied_embeddings": "decoder"}),
    "x": (True, {"positions": "rotary", "rotary_cross_attention": False, "qk_norm": "self"}),
}
SENTENCES = "The cat eats fish.\n\nA dog sleeps."
BEAM = {"q": LINES[0], "beam": True}


def place(attention, layer, head, query):
    return {"explain": {"attention": attention, "layer": layer, "head": head, "query": query}}


QUESTIONS = [
    BEAM,
    {"q": LINES[0]} | place("encoder", 1, 1, 2),
    BEAM | {"masked": [1, 2]} | place("cross", 1, 0, 0),
    BEAM | {"q": LINES[1], "prefix": [9, 8]} | place("decoder", 1, 1, 2),
    BEAM | {"heads_off": HEADS} | place("cross", 0, 1, 0),
    {"q": SENTENCES, "sentence": 1, "heads_off": HEADS[:1]},
    {"q": LINES[3]},
    {"q": "👍 The CAT eats pizza,  ananas {kiwi}"},
    # Sentences of which most characters have no piece, or not quite
    *[{"q": text} for text in ("Привет мир", "the cat Ж", "Жж a", "Жжж aé", "👍", "Привет мир. The cat eats fish.")],
]


def document_of(translator, *, language="en", quantized=False):
    return html_document(translator, DataConfig(source_language=language), {}, quantized=quantized, beam_size=4)


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


@pytest.mark.parametrize("language", NETWORKS)
def test_file_answers_as_the_server(tmp_path, language):
    joint, options = NETWORKS[language]
    translator = random_translator(joint, num_decoder_layers=2, **options)
    answers = ask(document_of(translator, language=language), tmp_path / "file.html", QUESTIONS)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert "error" not in answer, answer
        assert_same(attended(answer["answer"]), attended(served(translator, question)), 2e-4)


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
    assert "answer" not in answer
    assert answer["error"] == "this file is damaged; copy it again"
