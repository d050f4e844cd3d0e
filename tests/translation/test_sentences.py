"""Dividing text into sentences, and translating them one by one."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.placeholders import PLACEHOLDERS, protect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.line_splitting import split_lines
from lingua_flax.translation.requests import parts_of
from lingua_flax.translation.sentences import split_sentences
from tests.helpers.texts import LINES

CASES = [
    line.split("\t")
    for line in Path(__file__).with_name("sentence_cases.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def test_nineteen_of_twenty_texts_are_divided_correctly():
    right = Counter(
        code
        for code, text in CASES
        if split_sentences(text.replace("|", ""), code) == text.replace("|", "|\0").split("|\0")
    )
    assert Counter(code for code, _ in CASES) == dict.fromkeys(("en", "fr", "de", "ja", "zh"), 40)
    assert min(right.values()) >= 38, right


ABBREVIATIONS = st.text("AÉb. \u0085\u00a0\u2028\u3000", max_size=9)
TEXTS = st.lists(LINES | ABBREVIATIONS, max_size=4).map(" ".join)


@given(TEXTS, st.sampled_from(["en", "fr", "de", "ja", "zh", "pt-BR", "xx", ""]))
def test_sentences_add_up_to_the_text(text, language):
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    assert all(sentences) or not text


@pytest.mark.parametrize("space", "\u0085\u00a0\u2003\u2028\u202f\u3000")
def test_spaces_before_a_full_stop_are_no_obstacle(space):
    assert split_sentences(f"Choose plan B{space}. Then go on.", "en") == [f"Choose plan B{space}. ", "Then go on."]
    assert split_sentences(f"Written in C{space}.NET.", "en") == [f"Written in C{space}.NET."]


class Characters:
    """A tokenizer with a token for every character."""

    def __init__(self, placeholders=""):
        self.placeholders = placeholders

    def encode_source(self, lines):
        return [[*map(ord, line), 3] for line in lines]

    encode_target = encode_source

    def protect(self, line):
        return protect(line, self.placeholders)


@pytest.mark.parametrize(
    ("line", "languages", "texts", "after"),
    [
        ("One.  Two! \tThree", ("en", "fr"), ["One.", "Two!", "Three"], ["  ", " \t", ""]),
        ("One. Two.", ("en", "zh-Hans"), ["One.", "Two."], ["", ""]),
        ("One. Two.", ("en", "chi"), ["One.", "Two."], ["", ""]),
        ("One.  Two.", ("en", "ja"), ["One.", "Two."], ["  ", ""]),
        ("他来了。她走了。", ("zh", "en"), ["他来了。", "她走了。"], [" ", ""]),
        ("  One. ", ("en", "fr"), ["One."], [""]),
        ("aaaaaaaa bbbbbbbb. C.", ("en", "th"), ["aaaaaaaa", "bbbbbbbb.", "C."], ["", "", ""]),
        ("", ("en", "fr"), [""], [""]),
    ],
)
def test_white_space_is_that_between_the_sentences(line, languages, texts, after):
    (pieces,) = split_lines([line], Characters(), languages, max_length=10)
    assert [piece.text for piece in pieces] == texts
    assert [piece.after for piece in pieces] == after
    assert [piece.is_cut for piece in pieces] == [len(text) > 7 for text in texts]


@pytest.mark.parametrize(("target", "after"), [("en", [" ", " ", " ", " ", ""]), ("ja", [""] * 5)])
def test_pieces_around_what_stays_are_separated_as_the_target_language_wants(target, after):
    tokenizer = Characters(PLACEHOLDERS[:1])
    divided = split_lines(["请打开https://example.org/页面并发给me@example.org好。"], tokenizer, ("zh", target), 100)
    parts = parts_of(divided, None, tokenizer, DecodingOptions(), 100)
    assert [part.text for part in parts] == ["请打开", "https://example.org/", "页面并发给", "me@example.org", "好。"]
    assert [part.after for part in parts] == after


@pytest.mark.parametrize(
    ("line", "begun"),
    [
        ("www.a.org one", "www.a.org one"),
        ("www.a.org and me@b.org", "and"),
        ("12345. Two.", "Two."),
        ("www.a.org, me@b.org, two. One.", ", two."),
        ("www.a.org", None),
    ],
)
def test_a_prefix_is_that_of_the_first_piece_that_is_translated(line, begun):
    tokenizer = Characters(PLACEHOLDERS[:1])
    divided = split_lines([line], tokenizer, ("en", "fr"), 100)
    kept = [not tokenizer.protect(part.text).has_words_around_spans for part in divided[0]]
    divided = [[part._replace(is_kept=is_kept) for part, is_kept in zip(divided[0], kept, strict=True)]]
    parts = parts_of(divided, ["un"], tokenizer, DecodingOptions(), 100)
    assert [part.text for part in parts if part.prefix] == ([begun] if begun else [])
    assert [part.prefix for part in parts if part.prefix] == ([[ord("u"), ord("n")]] if begun else [])


SENTENCES = ["two nine nine eight.", "three zero.", "four eight three two."]
PARAGRAPH = "two nine nine eight. three zero.   four eight three two."


@pytest.fixture(scope="module")
def alone(trained, run) -> list[str]:
    """The translations of the sentences, each on a line of its own."""
    done = run("translate", "--workdir", trained[0], input="\n".join(SENTENCES))
    return done.stdout.splitlines()


def test_every_sentence_of_a_line_is_translated_as_by_itself(trained, run, alone, tmp_path):
    first, second, third = alone
    together = f"{first} {second}   {third}"
    command = ("translate", "--workdir", trained[0])
    done = run(*command, "--alignments", tmp_path / "links", input=f"{PARAGRAPH}\n{SENTENCES[1]}\n")
    assert done.stdout.splitlines() == [together, second]
    assert "cut into" not in done.stderr
    words = [{int(end) for end in link.split("-")} for link in (tmp_path / "links").read_text().splitlines()[0].split()]
    assert max(max(ends) for ends in words) >= 6
    one = run(*command, "--one-sentence-per-line", input=PARAGRAPH)
    assert one.stdout.strip() != together


def test_n_best_lists_consist_of_those_of_the_sentences(trained, run):
    options = ("translate", "--workdir", trained[0], "--beam-size", 3, "--num-hypotheses", 3, "--json-lines")
    done = run(*options, input="\n".join([PARAGRAPH, *SENTENCES]))
    together, *alone = map(json.loads, done.stdout.splitlines())
    for rank, hypothesis in enumerate(together["hypotheses"]):
        own = [sentence["hypotheses"][rank] for sentence in alone]
        assert hypothesis["text"].split() == " ".join(each["text"] for each in own).split()
        assert hypothesis["score"] == pytest.approx(sum(each["score"] for each in own), abs=1e-4)
        assert [part["source"] for part in hypothesis["sentences"]] == SENTENCES
        assert [part["tokens"] for part in hypothesis["sentences"]] == [each["tokens"] for each in own]
    assert "sentences" not in alone[0]["hypotheses"][0]


def test_attention_is_that_of_a_single_sentence(trained, run, tmp_path):
    options = ("translate", "--workdir", trained[0], "--attention", tmp_path / "a.json")
    done = run(*options, input=PARAGRAPH)
    assert (done.returncode, done.stdout) == (2, "")
    message = "the line is translated in 3 parts: give one short sentence, or add --one-sentence-per-line"
    assert done.stderr.splitlines()[-1] == f"error: --attention shows one pass of the network, but {message}"
    assert run(*options, "--one-sentence-per-line", input=PARAGRAPH).returncode == 0


def test_lines_are_taken_as_they_are_by_a_network_that_was_trained_on_several(trained, toy, run, tmp_path):
    """The toy corpus, with every two pairs joined to one."""
    for name in ("train.en", "train.fr"):
        lines = (toy.parent / name).read_text().splitlines()
        (tmp_path / name).write_text("".join(f"{a} {b}\n" for a, b in zip(lines[::2], lines[1::2], strict=True)))
    options = ["--data.train-source", tmp_path / "train.en", "--data.train-target", tmp_path / "train.fr"]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options, "--training.num-steps", 2)
    assert done.returncode == 0, done.stderr
    consequence = "translation will take lines as they are, rather than sentence by sentence"
    assert f"100% of the training lines hold several sentences: {consequence}" in done.stderr
    options = ("translate", "--workdir", tmp_path / "w", "--num-hypotheses", 2, "--json-lines")
    (record,) = map(json.loads, run(*options, input=PARAGRAPH).stdout.splitlines())
    assert "sentences" not in record["hypotheses"][0]


def test_sentences_in_unknown_characters_are_returned_as_they_are(trained, run):
    lines = ["two nine.", "Привет мир", "日本語です。 two nine.", "two nine é.", "👍", ""]
    command = ("translate", "--workdir", trained[0], "--beam-size", 2)
    known, *_ = run(*command, input=lines[0]).stdout.splitlines()
    done = run(*command, input="\n".join(lines) + "\n")
    first, cyrillic, mixed, accent, emoji, empty = done.stdout.splitlines()
    assert (first, cyrillic, mixed, emoji, empty) == (known, lines[1], f"日本語です。 {known}", "👍", "")
    assert accent != lines[3]
    warning = "not translated, because the network has never seen most of the characters of a sentence: line 2, 3, 5"
    assert warning in done.stderr.splitlines()
    invented = run(*command, "--translate-unknown", input=lines[1])
    assert invented.stdout.strip() not in (lines[1], "")
    assert "not translated" not in invented.stderr
    (record,) = run(*command, "--num-hypotheses", 2, "--json-lines", input="👍 👍").stdout.splitlines()
    assert json.loads(record)["hypotheses"] == [{"text": "👍 👍", "score": 0.0, "tokens": []}] * 2


def test_run_warns_if_its_tokenizer_is_for_other_text(trained, toy, run, tmp_path):
    (tmp_path / "train.ru").write_text("мама мыла раму\n" * 20)
    (tmp_path / "train.fr").write_text("un deux trois\n" * 20)
    options = ["--data.train-source", tmp_path / "train.ru", "--data.train-target", tmp_path / "train.fr"]
    options += ["--tokenizer.model-file", trained[0] / "tokenizer.model", "--training.num-steps", 1]
    done = run("train", "--config", toy, "--workdir", tmp_path / "w", *options)
    assert done.returncode == 0, done.stderr
    warning = "the tokenizer has no pieces for 100% of the characters in en: is it the right one?"
    assert warning in done.stderr.splitlines()
    assert warning not in trained[1].stderr
