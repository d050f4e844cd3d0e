"""Files as people have them: compression, encodings, tables, JSON lines and TMX, each row with its line."""

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import lzma
import os
import random
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingua_flax.data.cleaning import tmx
from lingua_flax.data.cleaning.encodings import Line, code_page, read_lines, zstd
from lingua_flax.data.cleaning.readers import Row, read_rows, tmx_languages
from lingua_flax.host.errors import UserError

TMX = Path(__file__).parent / "translate_toolkit_3_20.tmx"
COMPRESSED = (gzip.compress, bz2.compress, lzma.compress, zstd.compress)


def pairs(rows) -> list[tuple[int, str, str]]:
    return [(row.line, row.source, row.target) for row in rows if not row.fault]


def faults(rows) -> dict[int, str]:
    return {row.line: row.fault for row in rows if row.fault}


# Lines.


ENCODINGS = ("utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")


def test_compression_and_encoding_are_known_by_content(tmp_path):
    lines, path = ["Anfang", "Größe", "", "plain", "„Fuß“ – 5 €"], tmp_path / "a name that tells nothing"
    for compress, encoding, end in itertools.product((bytes, *COMPRESSED), ENCODINGS, ("\n", "\r\n")):
        mark = "\ufeff" if encoding == "utf-32-be" else ""
        path.write_bytes(compress((mark + end.join(lines) + end).encode(encoding)))
        read = []
        found = list(read_lines(path, code_page(["de"]), read.append))
        assert [line.text for line in found] == lines
        assert [line.number for line in found] == [1, 2, 3, 4, 5]
        assert sum(read) == path.stat().st_size
        changed = {"cp1252": [2, 5]}.get(encoding, [] if encoding.startswith("utf-8") else [1, 2, 3, 4, 5])
        assert [line.number for line in found if line.garbled] == changed


def test_every_line_is_decoded_as_what_it_is(tmp_path):
    for language, encoding, text in (
        ("de", "cp1252", "Größe"),
        ("ru", "cp1251", "Привет, мир"),
        ("rus", "cp1251", "Привет, мир"),
        ("cs", "cp1250", "Příliš žluťoučký kůň"),
        ("el-GR", "cp1253", "Καλημέρα"),
        ("ja", "cp932", "これは日本語です"),
        ("zh", "gb18030", "这是中文"),
        ("ko", "cp949", "안녕하세요"),
        ("th", "cp874", "สวัสดี"),
    ):
        (tmp_path / "mixed").write_bytes(b"\n".join([text.encode(encoding), text.encode()] * 5))
        found = list(read_lines(tmp_path / "mixed", code_page(["en", language])))
        assert [line.text for line in found] == [text] * 10
        assert [bool(line.garbled) for line in found] == [True, False] * 5


def test_what_is_no_text_is_refused_and_damaged_text_is_not(tmp_path):
    """Archives, which office documents are too, random bytes, and UTF-16 without a mark that has no Latin letters."""
    draw, path = random.Random(2), tmp_path / "file"
    for number in range(1, 50):
        letters = draw.choice([*ALPHABETS.values()])
        text = "\n".join("".join(draw.choices(letters, k=30)) for _ in range(10 * number)).encode()
        archive, tar = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(archive, "w", draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as opened:
            opened.writestr("a.txt", text)
        with tarfile.open(fileobj=tar, mode="w") as opened:
            opened.addfile(tarfile.TarInfo("a.txt"))
        contents = [archive.getvalue(), tar.getvalue(), draw.randbytes(1000), lzma.compress(text, lzma.FORMAT_ALONE)]
        contents += [
            b"%PDF-1.7\n" + text,
            b"7z\xbc\xaf\x27\x1c" + text,
            ("привет мир " * number * 9).encode("utf-16-le"),
        ]
        for content in contents:
            path.write_bytes(draw.choice([bytes, *COMPRESSED])(content))
            with pytest.raises(UserError, match=r"file: not text[;,]"):
                list(read_lines(path, "cp1252"))
        place = draw.randrange(len(text))
        path.write_bytes(text[:place] + draw.choice([b"\0", b"\x1b", b"\x1a", b"\xff"]) + text[place:])
        assert len(list(read_lines(path, "cp1252"))) == 10 * number


def test_files_compressed_one_after_the_other_are_one_text(tmp_path):
    """Whose end must not be missing."""
    lines, path = [f"line {number}" for number in range(5000)], tmp_path / "joined"
    text = "".join(f"{line}\n" for line in lines).encode()
    for compress in COMPRESSED:
        content = b"".join(map(compress, (text, b"", text)))
        path.write_bytes(content)
        assert [line.text for line in read_lines(path, "cp1252")] == 2 * lines
        for cut in (content[:-1], content[: len(content) // 4]):
            path.write_bytes(cut)
            with pytest.raises(UserError, match="joined: truncated or damaged"):
                list(read_lines(path, "cp1252"))


def test_a_pipe_is_read_like_a_file(tmp_path):
    lines, pipe = [f"line {number}" for number in range(2500)], tmp_path / "pipe.tmx"
    os.mkfifo(pipe)
    for compress in (bytes, *COMPRESSED):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(pipe.write_bytes, compress("\n".join(lines).encode()))
            assert [line.text for line in read_lines(pipe, "cp1252")] == lines
    with pytest.raises(UserError, match="pipe can be read only once; give --source-language"):
        tmx_languages(pipe)


# Pairs.


def test_two_files_stay_together_whatever_happens_to_a_line(tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_bytes("zw\u2028ei\ndrei\x0b\n\nfünf\n".encode())
    target.write_bytes(b"two\nthree\nfour\nf\xeff\nsix\n")
    rows = list(read_rows([source, target], ("de", "fr")))
    texts = [("zw\u2028ei", "two"), ("drei\x0b", "three"), ("", "four"), ("fünf", "fïf")]
    assert pairs(rows) == [(line, *pair) for line, pair in enumerate(texts, start=1)]
    assert rows[3].garbled == "f\ufffdf"
    assert rows[4] == Row(5, "", "six", f"{source} has fewer lines")


CELLS = [
    ("Hello", "Hallo"),
    ('He said "no"', "Er sagte „nein“"),
    ("First line\nsecond line", "Erste Zeile\nzweite\n\nvierte"),
    ("with, comma; and semicolon", "mit, Komma; und Strichpunkt"),
    ('"', '""'),
    ("", "leer"),
] * 2


def test_rows_of_csv_files_begin_where_they_say(tmp_path):
    """Quoted as by default in Python, or as LibreOffice quotes cells with text; Excel takes its first line as told."""
    path, draw = tmp_path / "sheet.csv", random.Random(1)
    ends = {",": "\r\n", ";": "\n", "\t": "\n", "|": "\r\n"}
    for (delimiter, end), quoting in itertools.product(ends.items(), (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)):
        stream, expected = io.StringIO(newline=""), []
        stream.write(told := draw.choice(["", f"sep={delimiter}{end}", f'"sep={delimiter}"{end}']))
        writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerow(["Id", "English", "German"])
        for number, (source, target) in enumerate(CELLS):
            expected.append((stream.getvalue().count("\n") + 1, source, target))
            writer.writerow([number, source, target])
        path.write_bytes(stream.getvalue().encode("utf-8-sig"))
        for columns in (["English", "German"], ["2", "German"]):
            assert pairs(read_rows([path], ("", ""), columns)) == expected
        header = (1 + bool(told), "English", "German")
        assert pairs(read_rows([path], ("", ""), ["2", "3"])) == [header, *expected]
    path.write_text("sep=;\nEnglish;German, formal, new\nyes;ja\n")
    assert pairs(read_rows([path], ("", ""))) == [(3, "yes", "ja")]
    path.write_text("Id,English,German\n")
    with pytest.raises(UserError, match=r'there is no column "Dutch"; the first line has Id, English, German'):
        list(read_rows([path], ("", ""), ["English", "Dutch"]))


def test_a_quote_that_is_not_closed_costs_one_row(tmp_path):
    path = tmp_path / "sheet.csv"
    lines = ["English,German", *(f"house {number},Haus {number}" for number in range(500))]
    lines[7] = 'house 6,"Haus 6'
    path.write_text("\n".join(lines) + "\n")
    rows = list(read_rows([path], ("", "")))
    assert [row.line for row in rows] == list(range(2, 502))
    assert rows[6] == Row(8, "house 6", '"Haus 6')


def test_bad_rows_of_tables_and_bad_objects_are_kept_with_their_line(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('one\teins\ntwo\tzwei\t\nthree\n\n"four\tvier\n', encoding="utf-8")
    rows = list(read_rows([path], ("", "")))
    assert pairs(rows) == [(1, "one", "eins"), (5, '"four', "vier")]
    assert faults(rows) == {2: "3 columns, not 2", 3: "1 column, not 2", 4: "1 column, not 2"}
    assert [row.source for row in rows if row.fault] == ["two\tzwei\t", "three", ""]
    path.write_bytes("\ufeffen\tid\tde\r\none\t1\teins\r\ntwo\t2\r\n".encode())
    rows = list(read_rows([path], ("", ""), ["en", "de"]))
    assert (pairs(rows), faults(rows)) == ([(2, "one", "eins")], {3: "2 columns, not 3"})

    path = tmp_path / "pairs.jsonl"
    lines = ['{"en": "one\\ntwo", "de": "eins"}', '{"en": "two"}', '{"en": 3, "de": "drei"}', "{"]
    lines += ['{"en": "\\ud800", "de": "x"}', '{"en": "fünf", "de": "six"}']
    path.write_bytes("\n".join(lines).encode("cp1252"))
    rows = list(read_rows([path], ("en", "de")))
    assert pairs(rows) == [(1, "one\ntwo", "eins"), (6, "fünf", "six")]
    assert list(faults(rows)) == [2, 3, 4, 5]
    assert [row.line for row in rows if row.garbled] == [6]
    assert pairs(read_rows([path], ("", ""), ["de", "en"])) == [(1, "eins", "one\ntwo"), (6, "six", "fünf")]


def test_units_of_translate_toolkit_begin_where_they_say():
    """The file was written with translate-toolkit 3.20.4."""
    lines = TMX.read_text(encoding="utf-8").split("\n")
    begins = [number for number, line in enumerate(lines, start=1) if "<tu " in line]
    texts = [
        ("The red house", "Das rote Haus"),
        ("Press <b>Start</b> & wait", "Drücken Sie <b>Start</b> & warten Sie"),
        ("First line\nsecond line", "Erste Zeile\nzweite Zeile"),
        ('It costs 5 € ("net")', "Es kostet 5 € („netto“)"),
        ("Café", "Café"),
        ("Last", "Letzte"),
    ]
    assert tmx_languages(TMX) == ("en", "de")
    assert pairs(read_rows([TMX], ("en", "de"))) == [(line, *pair) for line, pair in zip(begins, texts, strict=True)]


UNIT = '<tu><tuv {0}="EN-us"><seg>{2}</seg></tuv><tuv {0}="de_DE"><seg>{3}</seg></tuv>{1}</tu>'


def test_regions_and_entities_of_tmx(tmp_path):
    """Entities cannot be declared."""
    more = '<tuv xml:lang="fr"><seg>fr</seg></tuv><tuv xml:lang="de-de"><seg>2</seg></tuv>'
    units = [
        UNIT.format("xml:lang", more, "one", "1"),
        UNIT.format("lang", "", "old", "alt"),
        UNIT.format("xml:lang", "", "&bomb;", "Bombe"),
        UNIT.replace("de_DE", "nl").format("xml:lang", "", "three", "drie"),
    ]
    begin, path = '<!DOCTYPE tmx [<!ENTITY bomb SYSTEM "/etc/hosts">]>\n<tmx>\n', tmp_path / "memory.tmx"
    path.write_text(begin + "".join(units[:2]) + "\n" + "\n\n".join(units[2:]) + "\n</tmx>\n", encoding="utf-8")
    rows = list(read_rows([path], ("en", "de")))
    assert pairs(rows) == [(3, "one", "1"), (3, "old", "alt")]
    no_entity = "not valid XML (Entity 'bomb' not defined)"
    assert faults(rows) == {4: no_entity, 6: "no text in de, only in EN-us, nl"}
    with pytest.raises(UserError, match="it has EN-us, de_DE, fr, nl; choose two with --source-language"):
        tmx_languages(path)
    for unknown in ("latin-99", "base64"):
        path.write_text(f'<?xml version="1.0" encoding="{unknown}"?>' + units[0])
        with pytest.raises(UserError, match=f'unknown encoding "{unknown}"; convert it to UTF-8'):
            tmx_languages(path)
    portuguese = UNIT.replace("EN-us", "pt-BR").replace("de_DE", "PT").format("lang", "", "trem", "comboio")
    path.write_text(portuguese + portuguese.replace("pt-BR", "Pt_br"), encoding="utf-8")
    assert tmx_languages(path) == ("pt-BR", "PT")
    assert pairs(read_rows([path], ("pt", "pt-br"))) == [(1, "comboio", "trem")] * 2


ALPHABETS = {"utf-8": "aé日яüकि", "utf-16": "aé日яü", "ISO-8859-1": "aéüß", "iso-8859-2": "ąžęłőa", "KOI8-R": "абвгд"}
ALPHABETS |= {"EUC-JP": "日本語カナ", "Shift_JIS": "表示ソ能", "GB18030": "一丁七万", "windows-1256": "ابتثج"}
INLINE = [  # what can stand in a segment, W being a word, and the text of that
    ("W", "W"),
    ("<bpt i='1'>&lt;b&gt;</bpt>W<ept i='1'>&lt;/b&gt;</ept>W", "WW"),
    ("W<ph x='1'>{0}<sub>code</sub></ph><ph/>W.", "W W."),
    ("W<x:g x:id='1'/>W <ph/>W<ph/>.", "W W W."),
    ("<hi type='a>b'>W<hi>W <it pos='begin'>code</it>W</hi></hi>", "WW W"),
    ("W<!-- <tu> & </tu> <tuv> -->W<?W <tu> ?>", "WW"),
    ("<![CDATA[W <b> & </tu><tu> <!-- ]]>W&#x41;&amp;W", "W <b> & </tu><tu> <!-- WA&W"),
]
BETWEEN = ["", "", "\n\n", f"<!-- {UNIT} -->\n", "<!--\n<tu>\n-->", "<?x </tu> ?>"]
DAMAGES = [("</seg>", ""), ("</tuv>", ""), ("</tu >", ""), ("<tu ", "< tu "), ("<seg>", "<seg"), ("x:a='1'", "x:a=1")]
DAMAGES += [("<seg>", f"<seg>{text}") for text in (" R & D ", "&nbsp;", "\x0b", "a <b and c> d ")]  # what is no XML


def draw_variant(draw: random.Random, language: str, word: str) -> tuple[str, str]:
    """Returns the XML, which has no line break before <tuv>, and the text of its segment."""
    chosen, gap = draw.choices(INLINE, k=draw.randint(1, 3)), draw.choice(["", " ", "\n"])
    xml, text = (" ".join(each).replace("W", word) for each in zip(*chosen, strict=True))
    spelled = draw.choice([language, language.upper(), f"{language}-Xx", f"{language}_xX"])
    attribute = f"{draw.choice(['xml:lang', 'lang'])}='{spelled}'"
    return f"<tuv{gap or ' '}{attribute} x:b='2'>{gap}<prop>x</prop><seg>{xml}</seg>{gap}</tuv>{gap}", text


@pytest.mark.parametrize("encoding", ALPHABETS)
def test_every_unit_of_any_tmx_is_its_pair_or_counted(tmp_path, encoding):
    draw, path = random.Random(encoding), tmp_path / "memory.tmx"
    for number in range(60):
        xml = f'<?xml version="1.0" encoding="{encoding}"?>\n<tmx xmlns:x="y"><header/><body>'
        expected, damaged, damage = [], [], ("", "")
        for _ in range(draw.randint(1, 20)):
            xml += draw.choice(BETWEEN)
            languages = draw.sample(["en", "de", "fr"], 3) + draw.choices(["en", "de"], k=draw.randint(0, 2))
            words = ["".join(draw.choices(ALPHABETS[encoding], k=draw.randint(1, 3))) for _ in languages]
            variants = [draw_variant(draw, *each) for each in zip(languages, words, strict=True)]
            unit = f"<tu x:a='1'>{''.join(each for each, _ in variants)}</tu >"
            line = xml.count("\n") + 1
            had_end = damage != ("</tu >", "")
            damage = draw.choice(DAMAGES) if draw.random() < 0.2 and had_end else ("", "")
            xml += unit.replace(*damage, 1) if damage[0] else unit
            texts = [variants[languages.index(language)][1] for language in ("en", "de")]
            (damaged if damage[0] else expected).append((line, *texts))
        path.write_bytes((xml + draw.choice(["", "\n</body></tmx>\n"])).encode(encoding))
        rows = list(read_rows([path], ("en", "de")))
        assert pairs(rows) == expected, number
        assert [row.line for row in rows if row.fault] == [line for line, *_ in damaged], number


def test_units_without_end_are_read_in_linear_time():
    """Ten times the lines take at most 15 times as long: what reads all lines again at each takes 100 times."""
    unit = UNIT.format("lang", "", "one & two", "eins")
    shapes = [
        unit[:-5],
        unit[4:],
        unit[4:-5],
        "<!--",
        f"<!-- {unit}",
        "<tu><![CDATA[",
        "<tu ",
        "<" * 50,
        "<a:b:c",
        "<ph/>",
    ]

    def seconds(shape, count):
        started = time.thread_time()
        for line in tmx.read_units(Line(number, shape) for number in range(count)):
            with contextlib.suppress(ValueError):
                tmx.unit_pair(line.text, ("en", "de"))
        return time.thread_time() - started

    for shape in shapes:
        assert any(seconds(shape, 5000) < 15 * seconds(shape, 500) for _ in range(100)), shape
