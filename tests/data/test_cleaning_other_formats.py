"""Spreadsheets and files of translators: their pairs, where they are, and what is wrong with the others."""

import datetime

import openpyxl
import pytest

from lingua_flax.data.cleaning.readers import Row, read_rows
from lingua_flax.host.errors import UserError

PO = r"""
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

msgid "house"
msgstr "Haus"

#, fuzzy
msgid "dog"
msgstr "Katze"

msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d Hund"
msgstr[1] "%d Hunde"

msgid "first "
"second"
msgstr ""

#~ msgid "old"
#~ msgstr "alt"
"""
XLIFF_1 = """<?xml version="1.0" encoding="utf-8"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file><body>
<trans-unit id="1"><source>the <g id="1">red</g> house<bpt id="2">&lt;b&gt;</bpt></source><target>das rote Haus</target>
<alt-trans><target>das Haus</target></alt-trans></trans-unit>
<trans-unit id="2"><source>dog</source></trans-unit></body></file></xliff>"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><file><unit><segment>
<source>one<ph id="1"/>two</source><target>eins zwei</target></segment></unit></file></xliff>"""


def write_sheet(path, rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes").append(["other", "andere"])
    book.save(path)


def test_rows_of_spreadsheets(tmp_path):
    path = tmp_path / "sheet.xlsx"
    rows = [
        ["id", "English", "German"],
        [1, "a house", "ein\nHaus"],
        [],
        [2, 3.5, None],
        [3, datetime.date(2026, 1, 2), "x"],
    ]
    write_sheet(path, [*rows, [4, "a", "b", "c"]])
    assert list(read_rows([path], ("", ""), ["English", "German"])) == [
        Row(2, "a house", "ein\nHaus"),
        Row(4, "3.5", ""),
        Row(5, "2026-01-02 00:00:00", "x"),
        Row(6, "4\ta\tb\tc", "", "4 columns, not 3"),
    ]
    write_sheet(path, [["English", "German"], ["a house", "ein Haus"]])
    assert list(read_rows([path], ("", ""))) == [Row(2, "a house", "ein Haus")]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"sheet\.xlsx: truncated or damaged"):
        list(read_rows([path], ("", "")))
    with pytest.raises(UserError, match=r"x\.xlsx\.gz: spreadsheets are packed already"):
        read_rows([tmp_path / "x.xlsx.gz"], ("", ""))


def test_messages_of_po_files(tmp_path):
    path = tmp_path / "de.po"
    path.write_text(PO, encoding="utf-8")
    assert list(read_rows([path], ("en", "de"))) == [
        Row(5, "house", "Haus"),
        Row(8, "dog", "Katze", "fuzzy"),
        Row(12, "%d dog", "%d Hund"),
        Row(12, "%d dogs", "%d Hunde"),
        Row(17, "first second", "", "not translated"),
        Row(21, "old", "alt", "obsolete"),
    ]
    path.write_text('msgid "dog"\nmsgid_plural "dogs"\nmsgstr[0] "inu"\n')
    assert list(read_rows([path], ("en", "ja"))) == [Row(1, "dogs", "inu")]
    for text in ("/etc/passwd", "msgid"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"de\.po: not a PO file"):
            list(read_rows([path], ("en", "de")))


def test_segments_of_xliff_files(tmp_path):
    path = tmp_path / "de.xlf"
    path.write_text(XLIFF_1, encoding="utf-8")
    expected = [Row(3, "the red house", "das rote Haus"), Row(5, "dog", "", "not translated")]
    assert list(read_rows([path], ("en", "de"))) == expected
    path.write_text(XLIFF_1.replace("utf-8", "utf-16"), encoding="utf-16")
    assert [row[:3] for row in read_rows([path], ("en", "de"))] == [row[:3] for row in expected]
    path.write_text(XLIFF_1[:-40], encoding="utf-8")
    *rows, last = read_rows([path], ("en", "de"))
    assert rows == expected
    assert last.fault.startswith("not valid XML (")
    path.write_text(XLIFF_2)
    assert list(read_rows([path], ("en", "de"))) == [Row(1, "one two", "eins zwei")]
    path.write_text('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>')
    with pytest.raises(UserError, match=r"de\.xlf: not an XLIFF file"):
        list(read_rows([path], ("en", "de")))


def test_a_table_of_more_columns_says_which_there_are(tmp_path, run):
    path = tmp_path / "sheet.csv"
    path.write_text("id,English,German\n1,a house,ein Haus\n")
    done = run("clean", path, "--dry-run")
    assert done.returncode == 2
    assert "(line 2: 3 columns, not 2; choose two with --columns, of id, English, German)" in done.stderr
