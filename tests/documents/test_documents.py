"""Documents: their text is translated, with what stands around words of it; all else stays, or they are refused."""

import re

import pytest

from lingua_flax.data.tokenizer import Characters
from lingua_flax.documents import packed as packed_documents
from lingua_flax.documents import xml_text
from lingua_flax.documents.formats import READERS, SUFFIXES, read_document
from lingua_flax.host.errors import UserError
from lingua_flax.translation.word_alignment import Link
from tests.helpers.archives import PICTURE, docx, epub, odt, packed, pptx, unpacked
from tests.helpers.commands import succeed


def translated(content, suffix, change=str.upper, links=None):
    """Returns the document with its texts changed, every word linked with itself, unless others are given."""
    document = read_document(content, suffix, f"some{suffix}")
    translations = []
    for text in document.texts:
        new = change(text)
        words = [[Characters(*word.span()) for word in re.finditer(r"\w+|[^\w\s]", side)] for side in (text, new)]
        partners = range(len(words[1])) if links is None else links
        translations.append((new, [Link(words[0][i], own) for i, own in zip(partners, words[1], strict=False)]))
    return document.translated(iter(translations))


def body_of(content, part, tag):
    """Returns what is in an element of a part of an archive, without declarations of namespaces."""
    text = re.sub(' xmlns(?::[a-z0-9]+)?="[^"]*"', "", unpacked(content)[part].decode())
    return re.search(f"<{tag}[^>]*>(.*)</{tag}>", text, re.DOTALL)[1]


def word(body, **how):
    after = body_of(translated(docx(body), ".docx", **how), "word/document.xml", "w:body")
    return after.replace(' xml:space="preserve"', "")


def run(text, properties=""):
    own = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f"<w:r>{own}<w:t>{text}</w:t></w:r>"


BOLD = "<w:b/>"


def field(instruction, result):
    parts = ('<w:fldChar w:fldCharType="begin"/>', f"<w:instrText>{instruction}</w:instrText>")
    parts += ('<w:fldChar w:fldCharType="separate"/>', f"<w:t>{result}</w:t>", '<w:fldChar w:fldCharType="end"/>')
    return "".join(f"<w:r>{part}</w:r>" for part in parts)


NOTE = '<w:r><w:footnoteReference w:id="1"/></w:r>'
RANGE = '<w:bookmarkStart w:id="1"/>{}<w:bookmarkEnd w:id="1"/>{}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (run("one &amp; ") + run("two", BOLD) + run(" x"), run("ONE &amp; ") + run("TWO", BOLD) + run(" X")),
        # Runs in one format are joined, whatever the spelling checker and the language of the text.
        (run("o") + '<w:proofErr w:type="spellStart"/>' + run("ne", '<w:lang w:val="en"/>'), run("ONE")),
        (run("a ") + run("bold", BOLD) + run(" b c"), run("A ") + run("BOLD", BOLD) + run(" B C")),
        (f"<w:pPr>{BOLD}</w:pPr>" + run("one"), f"<w:pPr>{BOLD}</w:pPr>" + run("ONE")),
        (f"<w:hyperlink>{run('a', BOLD)}</w:hyperlink>{run(' b')}",
         f"<w:hyperlink>{run('A', BOLD)}</w:hyperlink>{run(' B')}"),
        (run("one") + "<w:r><w:tab/><w:t>two</w:t></w:r>", run("ONE") + "<w:r><w:tab/></w:r>" + run("TWO")),
        ("<w:r><w:t>a</w:t><w:noBreakHyphen/><w:t>b</w:t></w:r>", run("A\u2011B")),
        (run("page ") + field("PAGE", "one") + run(" of"), run("PAGE ") + field("PAGE", "one") + run(" OF")),
        (run("a ") + field("HYPERLINK x", "one"), run("A ") + field("HYPERLINK x", "ONE")),
        (f"<w:r><w:t>one</w:t>{NOTE[5:-6]}</w:r>{run('.')}", run("ONE") + NOTE + run(".")),
        (f"<w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:ins>{run('new')}</w:ins>",
         f"<w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:ins>{run('NEW')}</w:ins>"),
        (f"<w:sdt><w:sdtContent>{run('one')}</w:sdtContent></w:sdt>",
         f"<w:sdt><w:sdtContent>{run('ONE')}</w:sdtContent></w:sdt>"),
        (f"<w:r><w:pict><w:p>{run('in a box')}</w:p></w:pict></w:r>{run('beside')}",
         f"<w:r><w:pict><w:p>{run('IN A BOX')}</w:p></w:pict></w:r>{run('BESIDE')}"),
        (run("one") + f"<w:p>{run('two')}</w:p>", run("ONE") + f"<w:p>{run('TWO')}</w:p>"),
        (f"<run format='x'/>{run('one')}", f'<run format="x"/>{run("ONE")}'),
        (run("12.50", BOLD) + run(" ") + run("3"), run("12.50", BOLD) + run(" ") + run("3")),
    ],
)  # fmt: skip
def test_runs_of_word(before, after):
    assert word(f"<w:p>{before}</w:p>") == f"<w:p>{after}</w:p>"


def test_what_begins_and_ends_keeps_its_order():
    """The words of the range change places with those before it, around which its end and its beginning would stand."""
    body = f"<w:p>{run('one ')}{RANGE.format(run('two'), run(' three four'))}</w:p>"
    after = word(body, change=lambda _: "two four three one", links=[1, 3, 2, 0])
    assert after.index("bookmarkStart") < after.index("bookmarkEnd")
    assert "".join(re.findall("<w:t>(.*?)</w:t>", after)) == "two four three one"


def test_words_in_another_format_take_it_along():
    after = word(f"<w:p>{run('a ')}{run('big', BOLD)}{run(' dog')}</w:p>", change=lambda _: "chien gros", links=[2, 1])
    assert after == f"<w:p>{run('chien ')}{run('gros', BOLD)}</w:p>"


@pytest.mark.parametrize(
    ("suffix", "content", "part", "tag", "after"),
    [
        (".pptx", pptx('<a:p><a:r><a:rPr lang="en" b="1"/><a:t>one</a:t></a:r><a:br/><a:endParaRPr/></a:p>'),
         "ppt/slides/slide1.xml", "p:sld", '<a:p><a:r><a:rPr b="1"/><a:t>ONE</a:t></a:r><a:br/><a:endParaRPr/></a:p>'),
        (".odt", odt("<text:p>a<text:s/><text:span>b</text:span> on <text:page-number>x</text:page-number></text:p>"),
         "content.xml", "office:document-content",
         "<text:p>A <text:span>B</text:span> ON <text:page-number>x</text:page-number></text:p>"),
        (".odt", odt("<text:p>a<text:note><text:note-body><text:p>b</text:p></text:note-body></text:note>.</text:p>"
                     "<text:tracked-changes><text:p>c</text:p></text:tracked-changes>"),
         "content.xml", "office:document-content",
         "<text:p>A<text:note><text:note-body><text:p>B</text:p></text:note-body></text:note>.</text:p>"
         "<text:tracked-changes><text:p>c</text:p></text:tracked-changes>"),
        (".epub", epub('<p>H<sub>2</sub>O&nbsp;is <i translate="no">wet</i><sup>3</sup>.</p><pre>x</pre><!-- y -->'),
         "OEBPS/page 1.xhtml", "body",
         '<p>H<sub>2</sub>O\xa0IS <i translate="no">wet</i><sup>3</sup>.</p><pre>x</pre><!-- y -->'),
        (".epub", epub('<p translate="NO">one</p>'), "OEBPS/page 1.xhtml", "body", '<p translate="NO">one</p>'),
        (".epub", epub("<ul><li>one<ul><li>two <img/><br/>three</li></ul></li></ul><a><div>four</div></a>"),
         "OEBPS/page 1.xhtml", "body",
         "<ul><li>ONE<ul><li>TWO <img/><br/>THREE</li></ul></li></ul><a><div>FOUR</div></a>"),
    ],
)  # fmt: skip
def test_other_archives(suffix, content, part, tag, after):
    assert body_of(translated(content, suffix), part, tag) == after


def test_all_else_in_an_archive_stays():
    before = docx(
        f"<w:p>{run('one')}</w:p>", **{"docProps/core.xml": "<title>two</title>", "word/settings.xml": "<a/>"}
    )
    after = translated(before, ".docx")
    assert list(unpacked(after)) == list(unpacked(before))
    assert {name for name, part in unpacked(before).items() if unpacked(after)[name] != part} == {"word/document.xml"}
    assert unpacked(after)["word/media/image1.png"] == PICTURE
    assert unpacked(after)["word/document.xml"].startswith(b"<?xml version='1.0' encoding='UTF-8'")


SRT = """1
00:00:01,000 --> 00:00:02,500
<i>One</i> & two
three.

2
00:00:03,000 --> 00:00:04,000
{\\an8}1 - 2

"""
VTT = """WEBVTT

NOTE one

intro
00:01.000 --> 00:02.500 align:start
<v Ann Lee>One &amp; <00:01.500>two
"""
PO = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"

#. a comment
#: file.c:12
#, c-format
msgid ""
"one\\n"
"%d two\\n"
msgstr ""

msgid "known"
msgstr "bekannt"

msgid "a dog"
msgid_plural "dogs"
msgstr[0] ""
msgstr[1] ""

#~ msgid "old"
#~ msgstr ""
"""
XLIFF_1 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file><body>
<trans-unit id="1"><source xml:lang="en">a <g id="1">b</g> <x id="2"/></source></trans-unit>
<trans-unit id="2"><source>c</source><target>d</target></trans-unit>
<trans-unit id="3" translate="no"><source>e</source><target/></trans-unit></body></file></xliff>"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><file><unit><segment>
<source>a <pc id="1">b</pc></source></segment></unit></file></xliff>"""


@pytest.mark.parametrize(
    ("suffix", "text", "changes"),
    [
        (".txt", "one\n\ntwo\u2028three\n", {"one": "ONE", "two\u2028three": "TWO\u2028THREE"}),
        (".srt", SRT, {"<i>One</i> & two\nthree.": "<i>ONE</i> &\nTWO THREE."}),
        (".srt", SRT[:32] + "<i>" * 2000 + "1:00 --> 1:00 " * 2000 + "one\n", {"one": "ONE"}),
        (".vtt", VTT, {"One &amp; <00:01.500>two": "ONE &amp; <00:01.500>TWO"}),
        (".po", PO, {'"%d two\\n"\nmsgstr ""': '"%d two\\n"\nmsgstr ""\n"ONE\\n"\n"%D TWO\\n"', '[0] ""': '[0] "A DOG"',
                     '[1] ""': '[1] "DOGS"'}),
        (".xliff", XLIFF_1, {"/></source>": '/></source><target>A <g id="1">B</g> <x id="2"/></target>',
                             "<target/>": "<target>e</target>"}),
        (".xlf", XLIFF_2, {"</source>": '</source><target>A <pc id="1">B</pc></target>'}),
        (".html", "<p>one <b>two</b></p>\n", {"one <b>two": "ONE <b>TWO"}),
    ],
)  # fmt: skip
def test_files_of_text(suffix, text, changes):
    expected = text
    for old, new in changes.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    after = translated(text.encode(), suffix).decode()
    if suffix == ".po":  # of which polib writes the header in its own way
        after, expected = (own[own.index("#. a comment") :] for own in (after, expected))
    assert re.sub(r"^<\?xml.*\n", "", after).strip() == expected.strip()


def bomb(size):
    return packed({"word/document.xml": b"0" * size})


def lying(content):
    """Returns an archive that says that its first file is one byte long."""
    place = content.rindex(b"PK\1\2") + 24
    return content[:place] + b"\1\0\0\0" + content[place + 4 :]


def encrypted(content):
    place = content.rindex(b"PK\1\2") + 8
    return content[:place] + b"\1" + content[place + 1 :]


ENTITIES = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".docx", lambda: bomb(2**20), "more than 1,000,000 bytes when unpacked"),
        (".docx", lambda: lying(bomb(1000)), "damaged or encrypted"),
        (".docx", lambda: docx("")[:-30], "not a .docx file, damaged or encrypted"),
        (".docx", lambda: encrypted(docx("")), "encrypted; save it without a password"),
        (".docx", lambda: docx("", **{"../evil": "x"}), "names lead out of it"),
        (".docx", lambda: docx("", **{"word\\..\\..\\evil": "x"}), "names lead out of it"),
        (".docx", lambda: odt(""), "no text where .docx files have theirs; is its suffix right?"),
        (".odt", lambda: packed({"content.xml": "\x8f\0 encrypted"}), "odt, content.xml: not valid XML"),
        (".odt", lambda: packed({"content.xml": '<a b="\0'}), "content.xml: not valid XML"),
        (".odt", lambda: packed({"content.xml": ENTITIES}), "content.xml: declares entities"),
        (".odt", lambda: packed({"content.xml": EXTERNAL}), "content.xml: declares entities"),
        (".odt", lambda: packed({"content.xml": "<a>" * 1000 + "</a>" * 1000}), "content.xml: not valid XML"),
        (".odt", lambda: packed(dict.fromkeys(("content.xml", "styles.xml"), "<a/>" * 300)), "more than 500 tags"),
        (".html", lambda: b"<p>" * 600, "more than 500 tags"),
        (".epub", lambda: packed({f"{number}.html": "" for number in range(60)}), "more than 20 files"),
        (".docx", lambda: b"PK\3\4" + b"0" * 100, "not a .docx file, damaged or encrypted"),
        (".po", lambda: b"/etc/passwd", "not a PO file"),
        (".xliff", lambda: b"<a/>", "not an XLIFF file"),
        (".srt", lambda: b"1\n\xff", "line 2: not valid UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(suffix, content, message, monkeypatch):
    monkeypatch.setattr(packed_documents, "MAX_UNPACKED", 1_000_000)
    monkeypatch.setattr(packed_documents, "MAX_FILES", 20)
    monkeypatch.setattr(xml_text, "MAX_NODES", 500 if "500" in message else 10_000)
    with pytest.raises(UserError, match=re.escape(message)) as refusal:
        read_document(content(), suffix, f"some{suffix}")
    assert str(refusal.value).startswith(f"some{suffix}")
    assert "\n" not in str(refusal.value)


def test_documents_are_translated_by_the_command(trained, run, tmp_path):
    source, output = tmp_path / "letter.docx", tmp_path / "brief.docx"
    source.write_bytes(docx("<w:p><w:r><w:t>one two.</w:t></w:r></w:p>"))
    command = ("translate", "--workdir", str(trained[0]), "--beam-size", "1", "--input", source)
    assert succeed(run, *command, "--output", output).stdout == ""
    assert b">deux un !</w:t>" in unpacked(output.read_bytes())["word/document.xml"]
    kept = output.read_bytes()
    for given in (["--output", tmp_path / "brief.odt"], []):
        refused = run(*command, *given)
        assert refused.returncode == 2
        assert "needs --input and --output, both with names that end in .docx" in refused.stderr
    source.write_bytes(kept[:-50])
    refused = run(*command, "--output", output)
    assert refused.returncode == 2
    assert "letter.docx: not a .docx file, damaged or encrypted" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brief.docx", "letter.docx"]
    assert output.read_bytes() == kept


def test_all_formats_are_named():
    assert set(READERS) == set(SUFFIXES)
