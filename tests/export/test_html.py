"""The HTML file: its JavaScript computes what the network and SentencePiece compute, run by Deno, without a browser."""

import base64
import dataclasses
import json
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from deno import find_deno_bin
from hypothesis import given, settings
from hypothesis import strategies as st

from lingua_flax.data.known_words import known_words
from lingua_flax.data.placeholders import TO_KEEP
from lingua_flax.data.tokenizer import parse_tokenizers, train_tokenizer
from lingua_flax.export.html_file import _tokenizer, html_document
from lingua_flax.host.errors import UserError
from lingua_flax.inspection.explanation import Place
from lingua_flax.inspection.interventions import Head, Intervention, inspect
from lingua_flax.options.schema import DataConfig, DecodingOptions, TokenizerConfig
from lingua_flax.serving.inspector import inspected as served
from lingua_flax.serving.protocol import InspectRequest
from tests.export.test_export_formats import LINES, random_translator
from tests.helpers.pairs import PAIRS
from tests.helpers.texts import LETTERS, MARKS, OTHERS

SCRIPTS = Path(__file__).parent / "scripts"
NETWORKS = {
    "pre-norm": (True, {}),
    "post-norm, learned positions, two tokenizers": (
        False,
        {"norm": "post", "activation": "gelu", "positions": "learned", "tied_embeddings": "none", "embed_dim": 18},
    ),
    "rotary": (True, {"positions": "rotary", "qk_norm": True, "position_base": 50.0, "tied_embeddings": "decoder"}),
    "rotary in self-attention": (True, {"positions": "rotary", "rotary_cross_attention": False, "qk_norm": "self"}),
}
QUESTIONS = [
    {"q": LINES[0], "beam": True},
    {"q": LINES[0], "explain": {"attention": "encoder", "layer": 1, "head": 1, "query": 2}},
    {"q": LINES[0], "masked": [1, 2], "explain": {"attention": "cross", "layer": 0, "head": 0, "query": 0}},
    {"q": LINES[1], "prefix": [9, 8], "explain": {"attention": "decoder", "layer": 0, "head": 1, "query": 2}},
    {
        "q": LINES[0],
        "heads_off": [
            {"attention": "encoder", "layer": 0, "head": 1},
            {"attention": "decoder", "layer": 0, "head": 0},
            {"attention": "cross", "layer": 0, "head": 1},
        ],
        "explain": {"attention": "cross", "layer": 0, "head": 1, "query": 0},
    },
    {"q": LINES[3]},
    {"q": "👍 The CAT eats pizza,  ananas {kiwi}"},
]
TOKENIZERS = {
    "unigram": {},
    "BPE": {"kind": "bpe"},
    "bytes": {"byte_fallback": True, "vocab_size": 300},
    "bytes, BPE": {"kind": "bpe", "byte_fallback": True, "vocab_size": 300},
    "lower case": {"lowercase": True, "placeholders": 3},
    "NFKC, BPE": {"kind": "bpe", "normalization": "nfkc", "placeholders": 2},
    "as it is": {"normalization": "identity"},
}


def deno(script, *arguments):
    return [find_deno_bin(), "run", "--allow-read", "--no-lock", SCRIPTS / script, *arguments]


def ask(document, path, questions):
    """Returns the answers of the worker in a document."""
    path.write_text(document, encoding="utf-8")
    done = subprocess.run(
        deno("ask_worker.js", path), input=json.dumps(questions), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def inspected(translator, question):
    """Returns what the server would answer."""
    heads = tuple(Head(**head) for head in question.get("heads_off", []))
    intervention = Intervention(tuple(question.get("prefix", [])), tuple(question.get("masked", [])), heads)
    place = Place(**question["explain"]) if "explain" in question else None
    options = DecodingOptions(beam_size=4)
    inspection = inspect(
        translator, question["q"], options, intervention, record_beam=question.get("beam", False), explained=place
    )
    return {**inspection.as_json(translator.tokenizer), "sentences": []}


def attended(answer):
    """Returns an answer without what a query may not attend to: nothing reads what hidden words compute."""
    if explanation := answer["explanation"]:
        for name in ("memory", "keys", "values"):
            explanation[name] = [row for row, may in zip(explanation[name], explanation["mask"], strict=True) if may]
    return answer


def assert_same(ours, theirs, place="answer"):
    """Compares JSON with a tolerance for numbers."""
    if isinstance(ours, dict) and "weights" in ours and isinstance(ours["weights"], str):
        ours, theirs = (each | {"weights": decoded(each["weights"])} for each in (ours, theirs))
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), place
        for name in ours:
            assert_same(ours[name], theirs[name], f"{place}.{name}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), place
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{place}[{i}]")
    elif isinstance(ours, float):
        assert theirs == pytest.approx(ours, abs=2e-4, rel=2e-4), place
    else:
        assert theirs == ours, place


def decoded(weights):
    return (np.frombuffer(base64.b64decode(weights), "<u2") / 65535).tolist()


@pytest.mark.parametrize("name", NETWORKS)
def test_file_answers_as_the_server(tmp_path, name):
    joint, options = NETWORKS[name]
    translator = random_translator(joint, **options)
    document = html_document(translator, DataConfig(), {}, quantized=False, beam_size=4)
    answers = ask(document, tmp_path / "file.html", QUESTIONS)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert "error" not in answer, answer
        assert_same(attended(inspected(translator, question)), attended(answer["answer"]))


@pytest.mark.parametrize("language", ["en_US", "deu_Latn", "x"])
def test_file_translates_from_a_language_of_any_code(tmp_path, language):
    document = html_document(
        random_translator(), DataConfig(source_language=language), {}, quantized=False, beam_size=4
    )
    (answer,) = ask(document, tmp_path / "file.html", QUESTIONS[:1])
    assert "answer" in answer


def test_file_refuses_to_hide_everything(tmp_path):
    document = html_document(random_translator(), DataConfig(), {}, quantized=False, beam_size=4)
    (answer,) = ask(document, tmp_path / "file.html", [{"q": "milk", "masked": list(range(30))}])
    assert answer["error"] == "at least one source token must remain visible"


def test_integers_are_the_nearest(tmp_path):
    """The largest number of each row of a matrix is 127, and the others differ by half a step at most."""
    translator = random_translator()
    exact, rounded = (
        ask(
            html_document(translator, DataConfig(), {}, quantized=quantized, beam_size=4),
            tmp_path / "file.html",
            QUESTIONS[1:2],
        )[0]["answer"]
        for quantized in (False, True)
    )
    pairs = np.array([exact["explanation"]["stream"], rounded["explanation"]["stream"]])
    assert 0 < np.abs(pairs[0] - pairs[1]).max() < 0.05 * np.abs(pairs[0]).max()


def test_damaged_and_too_long_are_refused_in_a_sentence(tmp_path):
    translator = random_translator()
    document = html_document(translator, DataConfig(), {}, quantized=True, beam_size=4)
    (answer,) = ask(document, tmp_path / "file.html", [{"q": "the cat " * 100}])
    tokens = len(translator.tokenizer.encode_source(["the cat " * 100])[0])
    assert answer["error"] == f"“the cat the cat the cat the ca…” has {tokens} tokens; the network reads at most 64"
    start = document.index('id="network">') + 4000
    other = "A" if document[start] != "A" else "B"
    (answer,) = ask(document[:start] + other + document[start + 1 :], tmp_path / "file.html", QUESTIONS[:1])
    assert "answer" not in answer
    assert answer["error"] == "this file is damaged; copy it again"


def test_sentences_of_a_text_are_translated_one_by_one(tmp_path):
    translator = random_translator()
    document = html_document(translator, DataConfig(source_language="en"), {}, quantized=False, beam_size=4)
    first, second, whole = ask(
        document,
        tmp_path / "file.html",
        [
            {"q": "the cat eats fish."},
            {"q": "a dog sleeps"},
            {"q": "the cat eats fish. \n\na dog sleeps", "sentence": 1},
        ],
    )
    assert whole["answer"]["text"] == "a dog sleeps"
    expected = [(each["answer"]["text"], each["answer"]["translation"]) for each in (first, second)]
    assert [(each["source"], each["translation"]) for each in whole["answer"]["sentences"]] == expected


@pytest.mark.parametrize("text", ["Привет мир", "the cat Ж", "Жж a", "Жжж aé", "👍", "Привет мир. The cat eats fish."])
def test_file_keeps_what_the_server_keeps(tmp_path, text):
    """A sentence of which most characters have no piece."""
    translator = dataclasses.replace(random_translator(), languages=("en", "fr"))
    document = html_document(translator, DataConfig(source_language="en"), {}, quantized=False, beam_size=4)
    (answer,) = ask(document, tmp_path / "file.html", [{"q": text}])
    theirs = answer["answer"]
    options = DecodingOptions(beam_size=4)
    ours = served({"": translator}, Mock(), options, InspectRequest(q=text), lambda _: None)
    assert ours.pop("checkpoint") == 0
    assert_same(ours, theirs)


@pytest.fixture(scope="module")
def find_unknown():
    """Returns a function that asks the code of the file for unknown words."""
    process = subprocess.Popen(
        deno("unknown_words.js"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )

    def ask(**question):
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait()


# Letters of many scripts, and what stays as it is, in ASCII: the classes of JavaScript's patterns have nothing else.
CHARACTERS = st.sampled_from(LETTERS + MARKS + OTHERS)
KEPT = st.sampled_from(
    [" {name} ", " %s ", " https://example.org/a?b=c ", " a@b.org ", " `code` ", '<x id="1">', " a/b.py "]
)
TEXTS = st.lists(st.lists(CHARACTERS | KEPT).map("".join))


@given(TEXTS, TEXTS)
@settings(deadline=None)
def test_file_finds_the_unknown_words_that_python_finds(find_unknown, lines, texts):
    words = known_words(lines)
    answers = find_unknown(words=list(words.counts), kept=TO_KEEP.pattern, texts=texts + lines)
    for text, answer in zip(texts + lines, answers, strict=True):
        places, are_most = words.unknown_in(text)
        assert answer == {"unknown_words": list(map(list, places)), "mostly_unknown": are_most}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cn"]))))
@settings(deadline=None)
def test_file_splits_any_text_into_the_words_of_python(find_unknown, texts):
    words = known_words([])
    for text, answer in zip(texts, find_unknown(words=[], kept=TO_KEEP.pattern, texts=texts), strict=True):
        assert answer["unknown_words"] == list(map(list, words.unknown_in(text).places))
    every = known_words(texts)
    assert not any(answer["unknown_words"] for answer in find_unknown(words=list(every.counts), kept="$^", texts=texts))


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizers(request, tmp_path_factory):
    """Returns a tokenizer, and a function that asks the one in JavaScript."""
    config = TokenizerConfig(**{"vocab_size": 60, **TOKENIZERS[request.param]})
    tokenizer = parse_tokenizers(train_tokenizer(PAIRS, config)).source
    model, charsmap = _tokenizer(tokenizer)
    path = tmp_path_factory.mktemp("tokenizer") / "model.json"
    path.write_text(json.dumps({"model": model, "charsmap": list(charsmap)}))
    process = subprocess.Popen(
        deno("tokenize.js", path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )

    def ask(**question):
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield tokenizer, ask
    process.stdin.close()
    process.wait()


WORDS = st.sampled_from(
    [*" ".join(LINES).split(), " ", "  ", "\u3000", "\u2581", "ﬁ", "①", "e\u0301", "<0x41>", "</s>"]
)


@given(st.lists(st.text() | st.lists(WORDS | st.text(max_size=3)).map("".join), min_size=10))
def test_any_text_has_the_same_tokens(tokenizers, texts):
    tokenizer, ask = tokenizers
    assert ask(texts=texts, sentences=[])["ids"] == tokenizer.encode(texts)


@given(st.lists(st.lists(st.integers(4, 59)), min_size=10))
def test_any_tokens_have_the_same_text(tokenizers, sentences):
    tokenizer, ask = tokenizers
    expected = [tokenizer.decode(ids).replace("\n", " ").replace("\r", " ") for ids in sentences]
    assert ask(texts=[], sentences=sentences)["texts"] == expected


def test_tokenizers_of_other_kinds_are_refused():
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for pair in PAIRS for line in pair]), model_writer=model, model_type="word",
        vocab_size=30, pad_id=0, eos_id=1, bos_id=2, unk_id=3, treat_whitespace_as_suffix=True, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with pytest.raises(UserError, match="that is neither unigram nor BPE and puts spaces after words; use another"):
        _tokenizer(processor)
