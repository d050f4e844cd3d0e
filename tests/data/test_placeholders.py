"""What is kept: examples of every kind and of what only looks like it, and properties of texts with placeholders."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingua_flax.data.corpora.corpus import Pair
from lingua_flax.data.glossary import Glossary, read_glossary
from lingua_flax.data.placeholders import PLACEHOLDERS, TO_KEEP, protect, protect_pair, spans_to_keep
from lingua_flax.host.errors import UserError
from tests.helpers.texts import assert_linear

FEW = PLACEHOLDERS[:4]
TERMS = {"bank": "Ufer", "savings bank": "Sparkasse", "U.S. Army": "US-Armee", "the shore": "das ufer", "銀行": "Bank"}
GLOSSARY = Glossary(tuple(TERMS.items()))


def test_what_is_kept():
    for text, kept in (
        ("See https://a.org/a_(b)?x=1&y=2. Or (http://x.y/z)!", ["https://a.org/a_(b)?x=1&y=2", "http://x.y/z"]),
        ("www.example.org/x, mailto:a@b.de", ["www.example.org/x", "mailto:a@b.de"]),
        ("https://de.wikipedia.org/wiki/Müller ist da", ["https://de.wikipedia.org/wiki/Müller"]),
        ("请看https://a.b/c谢谢，共12345人。", ["https://a.b/c", "12345"]),
        ("Write to jane.doe+x@mail.example.co.uk, please.", ["jane.doe+x@mail.example.co.uk"]),
        ("Thanks @alice and @bob@mastodon.social!", ["@alice", "@bob@mastodon.social"]),
        ("Open /usr/local/bin/x or ./run.sh or ~/a.txt.", ["/usr/local/bin/x", "./run.sh", "~/a.txt"]),
        (r"In C:\Program Files\App\x.exe it is.", [r"C:\Program Files\App\x.exe"]),
        ("src/main.rs and report.pdf, e.g. this. No.", ["src/main.rs", "report.pdf"]),
        ('Run `git commit -m "a b"` and ``x ` y``.', ['`git commit -m "a b"`', "``x ` y``"]),
        ("{name}, {0} of {1:.2f}, ${x}, {{ y.z }}, {}", ["{name}", "{0}", "{1:.2f}", "${x}", "{{ y.z }}", "{}"]),
        ("Got %s of %1$d, %(n)s and %5.2f", ["%s", "%1$d", "%(n)s", "%5.2f"]),
        ('Click <x id="1"/> or <b>here</b>', ['<x id="1"/>', "<b>", "</b>"]),
        ("In 1984, 12,345.67 or 12:30 on 2024-05-01", ["1984", "12,345.67", "12:30", "2024-05-01"]),
        ("100% sure, 50% discount, 100%ige, 3 < 4 and a<5, 3.5, 42, 1990s", []),
        ("he and/or she, he/she/it, 1/2, km/h, 24/7, a.b, The U.S. and i.e. 3.14 p.m. J.R.R. don't", []),
        ("%{count}, {user-name}, #{x.y} or {{ x | upper }}", ["%{count}", "{user-name}", "#{x.y}", "{{ x | upper }}"]),
        ("<0>Go</0>{% if n %} %n of %<n>d, (:name)", ["<0>", "</0>", "{% if n %}", "%n", "%<n>d", ":name"]),
        ("{n, number, #,##0} {{{raw}}} ${{ a.b }}", ["{n, number, #,##0}", "{{{raw}}}", "${{ a.b }}"]),
        ("{n, plural, one {{x}'s file} other {# files}} is", ["{n, plural, one {{x}'s file} other {# files}}"]),
        (":p :-) a:b 12:30 is Note: the, x :class-name, 3 <4 and 5> 4, {a b}", ["12:30"]),
        (f"odd {FEW[3]} character", [FEW[3]]),
    ):
        assert [span.kept for span in spans_to_keep(text)] == kept
        protected = protect(text, PLACEHOLDERS)
        assert protected.restored(protected.text) == text
        assert protected.is_complete(protected.text)
        assert len(protected.masked) == len(text)


THINGS = ["https://a.b/c", "{name}", "%s", "12345", "`a b`", "@me", FEW[0], " ", " x ", ". ", "Hund ", "日本"]
TEXTS = st.lists(st.sampled_from(THINGS) | st.text(max_size=3), max_size=12).map("".join)


@given(TEXTS)
def test_nothing_is_lost_whatever_the_text(text):
    protected = protect(text, FEW)
    if len(protected.spans) <= len(FEW):
        assert protected.restored(protected.text) == text
        assert protected.original(protected.text) == text
    else:
        assert protected.text == text
        assert not protected.is_complete(protected.text)
    assert protected.untranslated == text
    assert "".join(part.source + space for part, space, _ in protected.chunks()) == text.lstrip()
    first = protected.placeholders[:1]
    for translation in (protected.text.replace(first, ""), protected.text + first):
        assert protected.is_complete(translation) == (not protected.spans)


@given(TEXTS, st.integers(0, 30), st.integers(0, 30))
def test_a_part_of_a_text_has_the_spans_that_are_inside_of_it(text, begin, end):
    whole = protect(text, FEW, GLOSSARY)
    part = whole.part(begin, end)
    assert part.source == text[begin:end].strip()
    start = text.find(part.source, begin) if part.source else 0
    inside = [span for span in whole.spans if begin <= span.begin and span.end <= end]
    assert [(span.begin + start, span.end + start, span.kept) for span in part.spans] == [own[:3] for own in inside]
    assert len(inside) > len(FEW) or part.original(part.text) == part.source


@given(st.lists(st.sampled_from(["http://a.b", "http://a.b/c", "1000", "10000", "@ann", "@anna", "21000"]), max_size=4))
def test_spans_in_a_prefix_are_whole_words(things):
    protected = protect(" and ".join(things), FEW)
    prefix = " et ".join([*things[::-1], "91000"])
    placed = protected.placed(prefix)
    assert placed == " et ".join([*sorted(protected.placeholders, key=placed.index), "91000"])
    assert protected.restored(placed) == prefix


# Every sign that a pattern names, letters and digits, and beginnings of what is kept.
SIGNS = sorted({sign for sign in TO_KEEP.pattern if not sign.isalnum() and sign not in PLACEHOLDERS})
UNITS = [*SIGNS, *"a1éß٣ \t", PLACEHOLDERS[0], "http://", "www.", "C:\\", "a.pdf", "{{", "{%", "{a,plural,", "{a}"]


@pytest.mark.parametrize("unit", UNITS)
def test_spans_are_found_in_linear_time(unit):
    """Ten times the characters take at most 15 times as long: with a pattern that is quadratic it is 100 times."""
    others = UNITS[UNITS.index(unit) :]
    runs = [*(unit + other for other in others), "".join("`" * count + unit for count in range(1, 140))]
    for run in [*runs, *("{a,plural," + unit + other * 10_000 for other in others)]:
        assert_linear(spans_to_keep, run)


def test_words_that_meet_without_a_space_get_one():
    for text, pieces in (
        ("请打开https://example.org/页面并点击。", "请打开 | https://example.org/ | 页面并点击。"),
        ("请看(https://example.org/)。", "请看(|https://example.org/|)。"),
        ("<b>页面</b>有{n}个，2024年", "<b>|页面|</b>|有 | {n} | 个，|2024 | 年"),
        ("我在銀行，銀行在那里", "我在 | 銀行|，|銀行 | 在那里"),
        (f"请看{FEW[3]}吧", f"请看 | {FEW[3]} | 吧"),  # an element of HTML that counts as a word
        ("ดู`make`ก่อน", "ดู | `make` | ก่อน"),
        ("example@a.org에서 확인", "example@a.org | 에서 확인"),
        ("pre{name}fix a `b`.", "pre|{name}|fix a |`b`|."),
    ):
        protected = protect(text, FEW, GLOSSARY)
        assert "|".join(part.source + space for part, space, _ in protected.chunks()) == pieces.replace(" | ", "|")
        assert "|".join(part.source + space for part, space, _ in protected.chunks("_")) == pieces.replace(" | ", "_|")


@given(TEXTS, TEXTS)
def test_both_sides_of_a_pair_have_the_same_placeholders(source, target):
    few = PLACEHOLDERS[8:16]
    pair = protect_pair(Pair(source, target), few)
    sides = [sorted(character for character in side if character in few) for side in pair]
    assert sides[0] == sides[1]
    assert protect_pair(Pair(source, source), few)[0] == protect(source, few).text
    assert protect_pair(Pair(source, target), "") == (source, target)


def test_only_what_both_sides_have_equally_often_is_replaced():
    pair = protect_pair(Pair("a {x} b {y} {x} 2000", "{y} c {x} {x} 2000 2000"), FEW)
    x, y, other = pair.source[2], pair.source[6], pair.source[8]
    assert pair == (f"a {x} b {y} {other} 2000", f"{y} c {x} {other} 2000 2000")
    assert len({x, y, other}) == 3


def test_all_placeholders_are_used_equally():
    """So that the network learns all of them, not only the first."""
    first = [protect(f"Sentence number {i}: {{x}}", FEW).placeholders for i in range(1000)]
    assert all(200 < first.count(placeholder) < 300 for placeholder in FEW)


def test_terms_are_whole_words_and_the_longest_is_taken():
    """A first term is capitalized as the source is, also if nothing is translated."""
    for text, translation in (
        ("the bank of the savings  bank, banks", "the Ufer of the Sparkasse, banks"),
        ("Bank of the U.S. Army.", "Ufer of the US-Armee."),
        ("The shore is", "Das ufer is"),
        ("the shore", "das ufer"),
        ("On the shore", "On das ufer"),
        ("我在銀行工作", "我在Bank工作"),
        ("see https://bank.com bank", "see https://bank.com Ufer"),
        ("ba nk, embankment, bank_x", "ba nk, embankment, bank_x"),
        ("बैंक", "बैंक"),
    ):
        protected = protect(text, FEW, GLOSSARY)
        assert protected.restored(protected.text) == protected.untranslated == translation
        assert protected.original(protected.text) == text
    first, *_, last = protect("The shore 12345 The shore", FEW, GLOSSARY).chunks()
    assert (first[0].untranslated, last[0].untranslated) == ("Das ufer", "das ufer")
    with_case = Glossary((("Bank", "Ufer"),), match_case=True)
    assert [span.kept for span in spans_to_keep("bank Bank BANK", with_case)] == ["Ufer"]


WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
WORDS = ["Café", "noir", "C++", "İstanbul", "ısı", "Straße", "ガラス", "한국", "ﬁn", "บ้าน", "e\u0301\u0316t", "-", "a"]


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), st.lists(st.sampled_from(WORDS)), st.booleans())
def test_terms_are_found_in_any_form(term, others, match_case):
    """Composed, decomposed, full-width and, in any language, in capitals."""
    text = " ".join([*others, *term, *others])
    forms = [text.translate(WIDE), *(unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD"))]
    forms += [] if match_case else [text.upper(), text.lower(), text.replace("i", "İ").upper()]
    found = [list(Glossary(((" ".join(term), "X"),), match_case).terms_in(form)) for form in forms]
    assert found[0]
    for form, own in zip(forms, found, strict=True):
        assert len(own) == len(found[0])
        assert all("".join(form[:begin].split(" ")) == "" or form[begin - 1] == " " for begin, _, _ in own)


def test_files_that_are_no_glossaries_are_refused(tmp_path):
    path = tmp_path / "terms.tsv"
    for text, message in (
        ("a\tb\nc\n", "line 2: 1 column; there must be two, source<TAB>target"),
        ("a\t \n", "line 1: a term and its translation are needed, term<TAB>translation"),
        ("a b\tc\na  b\td\n", 'line 2: "a  b" has another translation in line 1; remove one'),
        ("a\tb\nB\tc\nA\tc\n", 'line 3: "A" has another translation in line 1; remove one'),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_glossary(path)
    path.write_text("a\tb\na\tb\nA\tc\n")
    assert read_glossary(path, match_case=True).terms == (("a", "b"), ("a", "b"), ("A", "c"))
