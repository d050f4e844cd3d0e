"""Dividing text into sentences, and translating them one by one."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.placeholders import PLACEHOLDERS, Protected, protect
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.line_splitting import split_lines, split_text
from lingua_flax.translation.line_warnings import NOT_TRANSLATED
from lingua_flax.translation.requests import Request
from lingua_flax.translation.sentences import split_sentences
from lingua_flax.translation.translator import Translator
from tests.helpers.commands import succeed
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


@given(
    st.sampled_from(["en", "fr", "de", "cs", "kk", "ru", "el", "hy", "pl", "tr", "ro", "ca", "fi", "sv"]),
    st.sampled_from(["Oh. ", "Oh! ", '"Oh." ', "«Oh?» ", "(Oh!) ", "Oh... ", "Oh… ", "«Oh…» "]),
    st.sampled_from(["", "(", "— "]),
    st.characters(categories=["Ll"]).filter(lambda letter: not "ა" <= letter <= "ჿ"),  # Georgian has no capitals
)
def test_small_letters_of_all_scripts_are_alike(language, beginning, opening, letter):
    """And nothing begins with one behind dots or a quotation."""
    one, other = (split_sentences(f"{beginning}{opening}{own}o it goes.", language) for own in ("s", letter))
    assert len(one) == len(other)
    assert len(one) == 1 or beginning in ("Oh. ", "Oh! ")


@given(st.integers(1, 400), st.integers(1, 90))
def test_long_texts_are_divided_as_short_ones_are(words, length):
    sentence = " ".join(["word"] * words) + ". "
    text = sentence * length + "Mr. Smith “came. And left.” "
    short = split_sentences(sentence + "Mr. Smith “came. And left.” ", "en")
    assert split_sentences(text, "en") == [sentence] * (length - 1) + short


@pytest.mark.parametrize("space", "\u0085\u2028")
def test_spaces_before_a_full_stop_are_no_obstacle(space):
    assert split_sentences(f"Choose plan B{space}. Then go on.", "en") == [f"Choose plan B{space}. ", "Then go on."]
    assert split_sentences(f"Written in C{space}.NET.", "en") == [f"Written in C{space}.NET."]


class Characters:
    """A tokenizer with a token for every character, and a placeholder."""

    def encode_source(self, lines):
        return [[*map(ord, line), 3] for line in lines]

    encode_target = encode_source

    def encode_protected(self, sources):
        return self.encode_source([source.text for source in sources])

    def protect(self, line):
        return protect(line, PLACEHOLDERS[:1])


@pytest.mark.parametrize(
    ("line", "languages", "texts", "after"),
    [
        ("One.  Two! \tThree", ("en", "fr"), ["One.", "Two!", "Three"], ["  ", " \t", ""]),
        ("One. Two.  Three.", ("en", "zh-Hans"), ["One.", "Two.", "Three."], ["", "  ", ""]),
        ("他来了。她走了。", ("zh", "en"), ["他来了。", "她走了。"], [" ", ""]),
        ("  One. ", ("en", "fr"), ["One."], [""]),
        ("aaaaaaaa bbbbbbbb. C.", ("en", "th"), ["aaaaaaaa", "bbbbbbbb.", "C."], ["", "", ""]),
        ("", ("en", "fr"), [""], [""]),
    ],
)
def test_white_space_is_that_between_the_sentences(line, languages, texts, after):
    network = SimpleNamespace(tokenizer=Characters(), languages=languages, max_length=10)
    (pieces,) = split_lines(network, [line], one_sentence=False)
    assert [piece.text for piece in pieces] == texts
    assert [piece.after for piece in pieces] == after
    assert [piece.is_cut for piece in pieces] == [len(text) > 7 for text in texts]


@pytest.mark.parametrize(
    ("line", "length", "parts"),
    [
        ('He said "no!" Then he left?! Yes.', 20, ['He said "no!"', "Then he left?!", "Yes."]),
        ("Costs 3.5 or 4.5 euros", 12, ["Costs 3.5", "or 4.5 euros"]),  # without a sentence end: at a space
        ("One. Two three four. Five.", 11, ["One.", "Two", "three four.", "Five."]),
        ("unendingword x", 5, ["une", "ndi", "ngw", "ord", "x"]),  # within a word only if the word is too long
        ("你好。我很好。谢谢。", 5, ["你好。", "我很好。", "谢谢。"]),
        ("  a b \u3000 c ", 3, ["a", "b", "c"]),
        ("x", 0, ["x"]),  # too short to split
    ],
)
def test_sentences_that_are_too_long_are_split_at_spaces_else_within_words(line, length, parts):
    pieces = split_text(Protected(line), "en", lambda part: len(part.source) <= length)
    assert [part.source for part, _, _ in pieces] == parts


@pytest.mark.parametrize(("target", "space"), [("en", " "), ("ja", "")])
def test_pieces_around_what_stays_are_separated_as_the_target_language_wants(target, space):
    line = "请打开https://example.org/页面并发给me@example.org好。谢谢。"
    network = SimpleNamespace(tokenizer=Characters(), languages=("zh", target), max_length=100)
    divided = split_lines(network, [line], one_sentence=False)
    parts = Request(Characters(), 100, DecodingOptions()).parts(divided)
    texts = ["请打开", "https://example.org/", "页面并发给", "me@example.org", "好。", "谢谢。"]
    assert [part.text for part in parts] == texts
    assert [part.after for part in parts] == [*[space] * 5, ""]


def test_hypotheses_of_a_line_consist_of_those_of_its_sentences(trained, run, tmp_path):
    sentences = ["two nine nine eight.", "three zero.", "four eight three two."]
    paragraph = f"{sentences[0]} {sentences[1]}   {sentences[2]}"
    command = ("translate", "--workdir", trained[0], "--beam-size", 2)
    options = ("--num-hypotheses", 2, "--json-lines", "--alignments", tmp_path / "links")
    done = succeed(run, *command, *options, input="\n".join([paragraph, *sentences]))
    assert "cut into" not in done.stderr
    together, *alone = map(json.loads, done.stdout.splitlines())
    for rank, hypothesis in enumerate(together["hypotheses"]):
        first, second, third = own = [sentence["hypotheses"][rank] for sentence in alone]
        assert hypothesis["text"] == f"{first['text']} {second['text']}   {third['text']}"
        assert hypothesis["score"] == pytest.approx(sum(each["score"] for each in own), abs=1e-4)
        assert hypothesis["tokens"] == [*first["tokens"][:-1], *second["tokens"][:-1], *third["tokens"]]
        assert [part["source"] for part in hypothesis["sentences"]] == sentences
        assert [part["tokens"] for part in hypothesis["sentences"]] == [each["tokens"] for each in own]
    assert "sentences" not in alone[0]["hypotheses"][0]
    links = (tmp_path / "links").read_text().splitlines()[0].replace("-", " ")
    assert max(map(int, links.split())) >= 6
    one = run(*command, "--one-sentence-per-line", input=paragraph)
    assert one.stdout.strip() != together["hypotheses"][0]["text"]


def test_sentences_in_unknown_characters_are_returned_as_they_are(trained, run):
    lines = ["two nine.", "Привет мир", "日本語です。 two nine.", "two nine é.", "👍 👍", ""]
    command = ("translate", "--workdir", trained[0], "--beam-size", 2)
    done = succeed(run, *command, "--num-hypotheses", 2, "--json-lines", input="\n".join(lines) + "\n")
    known, cyrillic, mixed, accent, emoji, empty = (json.loads(line)["hypotheses"] for line in done.stdout.splitlines())
    assert mixed[0]["text"] == f"日本語です。 {known[0]['text']}"
    assert accent[0]["text"] != lines[3]
    assert empty[0]["text"] == ""
    for line, hypotheses in ((lines[1], cyrillic), (lines[4], emoji)):
        assert hypotheses == [{"text": line, "score": 0.0, "tokens": []}] * 2
    assert f"{NOT_TRANSLATED}: line 2, 3, 5" in done.stderr.splitlines()
    done = run(*command, "--translate-unknown", input=f"{lines[1]}\n1. two nine. (2) – 3\n")
    invented, numbered = done.stdout.splitlines()
    assert invented not in (lines[1], "")
    assert numbered == f"1. {known[0]['text']} (2) – 3"  # without a letter, there is nothing to translate
    assert "not translated" not in done.stderr
    corpus = Translator.load(trained[0]).translate_sentences(["1.", "Привет мир", "https://a.b 12345"], beam_size=1)
    assert all(line.hypotheses[0].tokens for line in corpus)  # of which every line counts
