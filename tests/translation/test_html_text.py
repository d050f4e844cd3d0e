"""HTML: nothing is lost or doubled, whatever the page and whatever the links; tags follow their words."""

import collections
import html
import html.parser
import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.corpora.phrasebook import generate, load_lexicon
from lingua_flax.data.tokenizer import Characters
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.html_text import HtmlText, Translated
from lingua_flax.translation.word_alignment import Link

VOID = {"br", "hr", "img", "input", "wbr"}


class Tags(html.parser.HTMLParser):
    """Counts tags and comments, with Python's parser, and checks that tags are well nested."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.words = collections.Counter(), [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag, *sorted(attributes)] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, comment):
        self.tags["comment", comment] += 1

    def handle_data(self, text):
        if not self.open or self.open[-1] not in ("script", "style", "code", "pre"):
            self.words += re.findall(r"\w+", text)


def word_links(text, translation, partners):
    """Returns the links between the words of two texts, given the number of a source word for each target word."""
    sides = [[Characters(*word.span()) for word in re.finditer(r"\w+", side)] for side in (text, translation)]
    return [Link(sides[0][i], target) for i, target in zip(partners, sides[1], strict=False) if i is not None]


def reversed_words(text):
    """Returns the words in upper case and in reverse order, with links between them; marks stay where they are."""
    words = re.findall(r"\w+", text)
    upside_down = iter([word.upper() for word in words[::-1]])
    translation = re.sub(r"\w+", lambda _: next(upside_down), text)
    return Translated(translation, word_links(text, translation, range(len(words) - 1, -1, -1)))


WORDS = st.text("abc xyzé\u4e2d .,\u00a0&<", max_size=12).map(html.escape)
LEAVES = st.one_of(
    WORDS,
    st.sampled_from(
        ["<br>", "<img src='a'>", "<code>x = 1</code>", "<!-- note -->", "<script>a<b</script>", "<b></b>", "<wbr>"]
        + ['<span translate="no">Acme</span>', "<pre>a\n b</pre>", "<hr>", '<i class="notranslate">Q</i>']
    ),
)
PAGES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.tuples(st.sampled_from(["b", "i", "a href='x'", "span", "u"]), inner).map(
            lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0].split()[0]}>"
        ),
        inner.map(lambda text: f"<div title='Some words'>{text}</div>"),
    ),
    max_leaves=20,
)


@given(PAGES, st.randoms(use_true_random=False))
def test_all_tags_and_all_text_are_there_once(page, generator):
    """The links are any; the original, as the parser understands it, is the page without a change of its texts."""
    parsed = HtmlText(page)
    original = HtmlText(page).rendered([Translated(text) for text in parsed.texts])
    translations = []
    for text in parsed.texts:
        translation, _ = reversed_words(text)
        count = len(re.findall(r"\w+", text))
        partners = [generator.choice([None, *range(count)]) for _ in range(count)]
        translations.append(Translated(translation, word_links(text, translation, partners)))
    rendered = parsed.rendered(translations)
    before, after = Tags(original), Tags(rendered)
    titles = {("title", "Some words"): "title", ("title", "WORDS SOME"): "title"}
    count = [
        collections.Counter(tuple(titles.get(part, part) for part in tag) for tag in side.tags.elements())
        for side in (before, after)
    ]
    assert count[0] == count[1]
    untouched = {"Acme", "Q"}
    changed = [word if word in untouched else word.upper() for word in before.words]
    assert collections.Counter(changed) == collections.Counter(after.words)
