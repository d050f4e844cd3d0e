"""HTML: nothing is lost or doubled, whatever the page and whatever the links; tags follow their words."""

import html
import html.parser
import re
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.commands.translate import TranslateCommand
from lingua_flax.data.tokenizer import Characters
from lingua_flax.host.errors import UserError
from lingua_flax.translation.html_text import HtmlText, translate_html
from lingua_flax.translation.line_warnings import NOT_TRANSLATED
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link
from tests.helpers.commands import succeed
from tests.html_pages import tree, unchanged


class Nesting(html.parser.HTMLParser):
    """Checks with Python's parser that tags are well nested."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("br", "hr", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def word_links(text, translation, partners):
    """Returns the links between the words of two texts, given the number of a source word for each target word."""
    sides = [[Characters(*word.span()) for word in re.finditer(r"\w+", side)] for side in (text, translation)]
    return [Link(sides[0][i], target) for i, target in zip(partners, sides[1], strict=False) if i is not None]


OPAQUE = ["<br>", "<hr>", "<wbr>", "<code>x=1</code>", "<b></b>", "<script>a<b</script>"]
OPAQUE += ["<img src='a'>", "<pre>a\n b</pre>", "<!-- note -->", '<i class="notranslate">Q</i>']
OPAQUE += ['<span translate="no">Acme</span>', "<pre>a&#13;\nb</pre>", "<sup><a>1</a></sup>", "&nbsp;"]
OPAQUE += ["<noscript><p>some</p><img></noscript>", "won&shy;der", "<b> </b>", "&#x10F000;", "<pre>\n\na</pre>"]
LEAVES = st.text("abc xyzé\u4e2d .,\u00a0&<", max_size=12).map(html.escape) | st.sampled_from(OPAQUE)
TAGS = st.sampled_from(["b", "i", "sub", "sup", "a href='x'", "span", "u", "div title='Some words'"])


def put_into(inner):
    many = st.lists(inner, max_size=4).map("".join)
    return many | st.builds(lambda tag, text: f"<{tag}>{text}</{tag.split()[0]}>", TAGS, inner)


PAGES = st.recursive(LEAVES, put_into, max_leaves=20)


def parts_of(page):
    """Returns how often each tag and each character of the text occurs, capital or not."""
    tag = re.compile("<[^>]*>")
    return Counter(tag.findall(page)), Counter("".join(tag.sub("", page).upper().split()))


# Links are not in each other, nor around blocks: what parsers make of those cannot be written as HTML.
WHOLE_PAGES = st.tuples(
    st.sampled_from(["", "<!DOCTYPE html>", '<!DOCTYPE html PUBLIC "x">', "<html lang=en>", "a <!-- <html> -->"]),
    st.sampled_from(
        [
            "",
            "<title>a b</title>",
            "<noscript><img></noscript><title>a</title>",
            "<p title='&#13;<body>'>",
            "<textarea>\n\na</textarea>",
        ]
    ),
    st.text("abc ,.()-", max_size=8).map(lambda text: f"<p>{text}<a href=x>{text}</a> <a><img></a>") | PAGES,
    PAGES,
).map("".join)


@given(WHOLE_PAGES)
def test_a_page_that_is_its_own_translation_stays(page):
    is_fragment = not page.startswith(("<!D", "<html"))
    after = unchanged(page)
    assert tree(after, is_fragment=is_fragment) == tree(page, is_fragment=is_fragment)
    assert unchanged(after) == after


@given(PAGES, st.randoms(use_true_random=False))
def test_all_tags_and_all_text_are_there_once(page, generator):
    """The links are any; the original, as the parser understands it, is the page without a change of its texts."""
    parsed = HtmlText(page)
    before = HtmlText(page).rendered([(text, []) for text in parsed.texts])
    translations = []
    for text in parsed.texts:
        words = re.findall(r"\w+", text)
        backwards = iter([word.upper() for word in words[::-1]])
        translation = re.sub(r"\w+", lambda _: next(backwards), text)  # noqa: B023
        partners = [generator.choice([None, *range(len(words))]) for _ in words]
        translations.append((translation, word_links(text, translation, partners)))
    after = parsed.rendered(translations)
    assert parts_of(after.replace("WORDS SOME", "Some words")) == parts_of(before)
    Nesting(after)


def in_capitals(text):
    """Returns the text in capitals, every word linked with itself."""
    return text.upper(), word_links(text, text, range(text.count(" ") + 1))


@pytest.mark.parametrize(
    ("page", "rendered"),
    [
        ("one <b>two</b>&nbsp;&amp; three", "ONE <b>TWO</b>&nbsp;&amp; THREE"),
        ("<p>one\n  two<p>three", "<p>ONE TWO</p><p>THREE</p>"),
        ("a <i>b <b>c</i> d</b>", "A <i>B <b>C</b></i><b> D</b>"),  # misnested, as browsers understand it
        ("<tr><td>one<td>two", "<tr><td>ONE</td><td>TWO</td></tr>"),
        ("one<br>two<img src=x alt='a dog'>", 'ONE<br>TWO<img src="x" alt="A DOG">'),
        ('<i translate="no" title="x">a <b>b</b></i> c', '<i translate="no" title="x">a <b>b</b></i> C'),
        ('<a href="?a=1&amp;b=2" title="one">two</a>', '<a href="?a=1&amp;b=2" title="ONE">TWO</a>'),
        ("<a href=x><div>one</div> two</a>", '<a href="x"><div>ONE</div> TWO</a>'),
        ('<svg viewBox="0 0 1 1"><text>one</text></svg>', '<svg viewBox="0 0 1 1"><text>one</text></svg>'),
        ('<input placeholder="a"><hr aria-label="b">', '<input placeholder="A"><hr aria-label="B">'),
        (
            "<!DOCTYPE html><title>one &lt; two</title><p>three",
            "<!DOCTYPE html><html><head><title>ONE &lt; TWO</title></head><body><p>THREE</p></body></html>",
        ),
        ("  one  <p>1 &lt; 2 <b></b></p>", " ONE <p>1 &lt; 2 <b></b></p>"),
        ('<p title="a <body>"><i translate=NO>b</i>', '<p title="A &lt;BODY&gt;"><i translate="NO">b</i></p>'),
        ("&#x10F000; one <img>", "\U0010f000 ONE <img>"),
        (
            "<meta content='a; charset=x' http-equiv=Content-Type>",
            '<meta content="a; charset=utf-8" http-equiv="Content-Type">',
        ),
        ("cat<sup><a>1</a></sup> <a>sa&shy;id</a> 9<sub>2</sub>", "CAT<sup><a>1</a></sup> <a>SAID</a> 9<sub>2</sub>"),
    ],
)
def test_structure_stays(page, rendered):
    parsed = HtmlText(page)
    assert parsed.rendered([in_capitals(text) for text in parsed.texts]) == rendered


@pytest.mark.parametrize(
    ("page", "translation", "partners", "rendered"),
    [
        (" the (<b>red</b>) car", "(rouge) la voiture", [1, 0, 2], " (<b>rouge</b>) la voiture"),
        ("<b>a goldfish</b> sleeps.", "un poisson rouge dort.", [0, None, 1, 2], "<b>un poisson rouge</b> dort."),
        ("<b>I am</b> here.", "je suis ici.", [None, 1, 2], "je <b>suis</b> ici."),  # no link, no bold
        ("<b>yes, it is</b>", "oui", [None], "<b>oui</b>"),  # around all of it
        ("a <b>dog</b> x", "un chien y", [None, None, None], "un <b>chien</b> y"),  # as far into the text
        ("a dog <b>is</b>.", "ein Hund.", [0, 1], "ein <b>Hund</b>."),  # rather than the full stop
        ("he <b>got</b> it <b>up</b>", "il l'a levé", [0, 2, 1, 3], "il l'<b>a</b> <b>levé</b>"),
        ("one <!-- x -->two three", "trois deux un", [2, 1, 0], "trois deux un<!-- x -->"),
        ("<b>He ran.</b> She sat.", "Il courait. Elle s'assit.", [0, 1, 2, 3, 3], "<b>Il courait.</b> Elle s'assit."),
        ("x <i>“go”</i> y", "z « va » w", [0, 1, 2], "z <i>« va »</i> w"),
        (" a <b>b</b> c", "x y z", [1, 0, 2], " <b>x</b> y z"),
        ("H<sub>2</sub>O <b>s</b>", "le O2 H2O", [1, None, 0], "<b>le</b> O2 H<sub>2</sub>O"),
        ("a cat.<sup>1</sup> b", "w un chat v", [2, 0, 1, None], "w un chat<sup>1</sup> v"),
        ("<sup>1</sup>a cat", "un chat", [0, 1], "<sup>1</sup>un chat"),
    ],
)
def test_tags_follow_their_words(page, translation, partners, rendered):
    parsed = HtmlText(page)
    (text,) = parsed.texts
    assert parsed.needs_links == [True]
    assert parsed.rendered([(translation, word_links(text, translation, partners))]) == rendered


def test_deep_pages_are_refused_in_a_sentence():
    assert HtmlText("<b>" * 199 + "one").texts == ["one"]
    with pytest.raises(UserError, match="nested more than 200 levels deep"):
        HtmlText("<b>" * 5000 + "one")


UNITS = ["<b>a</b> ", "a <i></i>", "<i></i> ", "a<!-- -->", "a<sup>1</sup> ", "<img> a ", "a-<b>,</b>"]


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize(("unit", "around"), [*((unit, "") for unit in UNITS), ("<b>a</b> ", "<i>" * 150)])
def test_pages_take_linear_time(unit, around, is_linked):
    """Ten times the elements take at most 15 times as long, also in other elements."""

    def seconds(count):
        started = time.thread_time()
        page = HtmlText(around + unit * count)
        seconds = time.thread_time() - started
        translations = [in_capitals(text) if is_linked else (text, []) for text in page.texts]
        started = time.thread_time()
        page.rendered(translations)
        return seconds + time.thread_time() - started

    assert any(seconds(1000) < 15 * seconds(100) for _ in range(10))


def test_pages_are_translated_by_the_command(trained, run, tmp_path):
    page = "<!DOCTYPE html>\n<title>one two.</title>\n<p>One two. <b>three</b> four.</p>\n<pre>one</pre>\n"
    source, output = tmp_path / "page.html", tmp_path / "seite.html"
    source.write_text(page)
    command = ("--workdir", str(trained[0]), "--beam-size", "1")
    assert succeed(run, "translate", *command, "--input", source, "--output", output).stdout == ""
    written = output.read_text()
    assert "<title>deux un !</title>" in written
    assert parts_of(written)[0] == parts_of(f"<html><head></head><body>{page}</body></html>")[0]
    assert succeed(run, "translate", *command, "--format", "html", input=page).stdout == written
    assert not TranslateCommand.read([*command, "--format", "text", "--input", "page.html"]).document
    source.write_bytes('<meta charset="iso-8859-1"><p translate="no">é</p><p>one</p>'.encode("latin-1"))
    succeed(run, "translate", *command, "--input", source, "--output", output)
    assert output.read_text("utf-8").startswith('<meta charset="utf-8"><p translate="no">é</p><p>')
    source.write_bytes(b"<p>\xe9</p>")
    refused = run("translate", *command, "--input", source)
    assert refused.returncode == 2
    assert "page.html: not valid UTF-8 (byte 0xe9); declare" in refused.stderr


def test_warnings_name_texts_and_no_images(trained, caplog):
    page = "<p><img> <img> <img> one <img> <img>.<p><code>x</code> <img>. two.<p><img> Привет мир <b>и</b> всё"
    translate_html(Translator.load(trained[0]), page, beam_size=1)
    assert [text for text in caplog.messages if text.startswith(NOT_TRANSLATED)] == [
        f'{NOT_TRANSLATED}: "Привет мир и всё"'
    ]
