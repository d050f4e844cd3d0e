"""Cleaning is as good in any script as in Latin; what it rests on, on generated text of all of them."""

import random
import unicodedata

import pytest

from lingua_flax.data.cleaning.encodings import code_page, read_lines
from lingua_flax.data.cleaning.lexical_scores import _hashed_words
from lingua_flax.data.cleaning.pair_filters import has_other_numbers, mend
from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.options.schema import CleaningOptions
from tests.data.many_scripts import damage, draw_sentence, measure, read_languages, write

ENGLISH, *LANGUAGES = read_languages()
SCRIPTS = {language.script: language for language in LANGUAGES}
POINTED = {"Arabic with vowels", "Hebrew with vowels"}  # of which the code pages lack some characters
WITH_CODE_PAGE = [each for each in LANGUAGES if code_page([each.code]) != code_page([]) and each.script not in POINTED]


def check_like_latin(scripts, good, faults):
    (usual, usually_kept), *others = (measure(SCRIPTS[script], good, faults) for script in ("Latin", *scripts))
    assert usual.total() > 0.95 * faults
    assert usually_kept > 0.99 * good
    for script, (found, kept) in zip(scripts, others, strict=True):
        assert found.total() >= usual.total() - 0.03 * faults, (script, found)
        assert kept >= usually_kept - 0.03 * good, script


def test_faults_are_found_as_in_latin():
    check_like_latin(["Arabic with vowels", "Hebrew with vowels", "Kannada", "Khmer"], 1200, 210)
    words_alone, _ = measure(SCRIPTS["Latin"], 1200, 210, numbers=False)
    assert words_alone["other numbers"] < 5  # of 30


@pytest.mark.slow
def test_faults_are_found_in_every_script_as_in_latin():
    assert len(SCRIPTS) > 20
    check_like_latin([*SCRIPTS], 2000, 350)


def sentences(language, count, seed):
    draw = random.Random(seed)
    return [write(draw_sentence(draw), language) for _ in range(count)]


@pytest.mark.parametrize("language", [SCRIPTS["Latin"], *WITH_CODE_PAGE], ids=lambda language: language.script)
def test_damaged_lines_never_become_other_letters(language, tmp_path):
    """Of a file in UTF-8, or most of which is; lines in the code page that Windows used are still read in it."""
    page, draw, path = code_page([language.code]), random.Random(2), tmp_path / "text"
    texts = [text for text in sentences(language, 600, 3) if text.encode(page, "ignore").decode(page) == text]
    kinds = [draw.choice(("cut character", "lost byte", "page", "", "", "", "")) for _ in texts]
    lines = [
        text.encode(page) if kind == "page" else damage(kind, text.encode(), draw) if kind else text.encode()
        for text, kind in zip(texts, kinds, strict=True)
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    for text, kind, line, read in zip(texts, kinds, lines, read_lines(path, page), strict=True):
        expected = line.decode("utf-8", "replace") if kind in ("cut character", "lost byte") else text
        assert (read.text, bool(read.garbled)) == (expected, kind == "page" and not text.isascii())
    path.write_bytes(b"".join(text.encode(page) + b"\n" for text in texts))
    assert [line.text for line in read_lines(path, page)] == texts


def test_words_keep_their_marks():
    for language in LANGUAGES:
        words = [word for kind in language.words.values() for word in kind]
        spaced = [word for phrase in words for word in phrase.split()]
        counts = _hashed_words([Pair(word, word) for word in spaced])[0].counts
        assert counts.max() == 1 or not language.space, language.script
    for letters in ("दिन दीन", "ดี ดู", "כֹּל כָּל", "كَتَبَ كُتُب", "ক্ষ ক্ষা"):
        assert len(set(_hashed_words([Pair(letters, "x")] * 2)[0].ids)) == 2


def test_numbers_that_are_written_in_another_way_are_the_same():
    draw = random.Random(4)
    for language in LANGUAGES:
        for _ in range(200):
            sentence = draw_sentence(draw)._replace(year=0, hour=0)
            assert not has_other_numbers(Pair(write(sentence, ENGLISH), write(sentence, language))), language.script


# Pieces of text and what mending makes of them.
PIECES = {
    "If a <b and c> d": "If a <b and c> d",
    "x <a, y> z <p; q> and 1 <s": "x <a, y> z <p; q> and 1 <s",
    '<x id="1"/>': '<x id="1"/>',
    "&lt;sub&gt; elements &amp;lt;": "<sub> elements &lt;",
    "&lt;a href=&quot;x&quot;&gt;": '<a href="x">',
    "AT&T; R&D": "AT&T; R&D",
    "Caf&eacute;&nbsp;&#8211;": "Café –",
    "<a href=\"x?a>b\" title='<i>' class=c>link</a>": "link",
    "H<sub>2</sub>O<br/>": "H2O",
    '<P ALIGN="left" >word</p>': "word",
}


def test_mending_takes_out_tags_and_no_text():
    draw = random.Random(5)
    words = [word for language in LANGUAGES for kind in language.words.values() for word in kind]
    pieces = PIECES | {word: unicodedata.normalize("NFC", word) for word in words}
    for _ in range(2000):
        chosen = [draw.choice((draw.choice([*PIECES]), draw.choice(words))) for _ in range(draw.randrange(1, 8))]
        assert mend(" ".join(chosen), CleaningOptions())[0] == " ".join(pieces[piece] for piece in chosen)
