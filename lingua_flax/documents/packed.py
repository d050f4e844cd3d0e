"""Documents that are archives of XML files: Word, PowerPoint, OpenDocument and EPUB.

Of an archive, only the files with text are parsed. All others, such as pictures, are copied, and so are their names,
under which nothing is ever written.
"""

import copy
import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence

from lingua_flax.documents.document import Document
from lingua_flax.documents.text_runs import FIELD, RUN
from lingua_flax.documents.xml_text import Markup, XmlText, check_nodes, parse_xml, write_xml
from lingua_flax.host.errors import UserError
from lingua_flax.translation.html_text import INLINE, UNSEEN, WORDS, names
from lingua_flax.translation.inline_tags import Translations

MAX_FILES = 5000
MAX_UNPACKED = 200 * 2**20  # bytes
MAX_TEXT = 16 * 2**20  # bytes of all files with text, which are in memory as trees
_ENTRY = b"PK\1\2"  # begins the entry of a file in the table of contents

_OFFICE = Markup(
    paragraphs=names("p sdtContent"),
    inline=names(f"{RUN} hyperlink ins moveTo smartTag customXml bdo dir"),
    words=names(f"{FIELD} fld fldSimple sym oMath oMathPara"),
    breaks=names("br cr endParaRPr fldChar instrText p pPr ptab sdt sdtContent tab"),
    has_runs=True,
)
_OPEN_DOCUMENT = Markup(
    paragraphs=names("p h"),
    inline=names("span a meta ruby ruby-base"),
    words=names(
        "author-name bookmark-ref chapter date expression file-name note-ref page-count page-number placeholder "
        "reference-ref sequence sequence-ref text-input time user-field-get variable-get variable-set"
    ),
    breaks=names("p h line-break tab"),
    closed=names("tracked-changes"),
)
_BLOCKS = names(
    "address article aside blockquote body caption center dd div dt fieldset figcaption footer form h1 h2 h3 h4 h5 h6 "
    "header legend li main nav p section summary td text th title"
)
_EPUB = Markup(
    paragraphs=_BLOCKS,
    inline=INLINE,
    words=WORDS,
    breaks=_BLOCKS | names("br details dl figure hr iframe ol pre table tbody textarea tfoot thead tr ul"),
    closed=UNSEEN | names("docAuthor iframe pre textarea"),
)


# By their suffixes: the names of files with text in them, and their markup.
FORMATS = {
    ".docx": (r"word/(?:document|header|footer|footnotes|endnotes|comments)\d*\.xml", _OFFICE),
    ".odt": (r"(?:content|styles)\.xml", _OPEN_DOCUMENT),
    ".pptx": (r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/data|diagrams/drawing)\d+\.xml", _OFFICE),
    ".odp": (r"(?:content|styles)\.xml", _OPEN_DOCUMENT),
    ".epub": (r"(?i:[^\x00-\x1f\x7f]*\.(?:x?html?|ncx))", _EPUB),
}


def read_archive(content: bytes, suffix: str, name: str) -> Document:
    """Reads an archive; raises UserError, with its name, if it is damaged, too large, or of another kind."""
    texts, markup = FORMATS[suffix]
    try:
        if content.count(_ENTRY) > 2 * MAX_FILES:  # before a table of them is made
            raise UserError(f"{name}: more than {MAX_FILES:,} files in it; divide it")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist(), name)
            if archive.testzip():
                raise zipfile.BadZipFile("a file in it has changed")
            parts = [own for own in archive.infolist() if re.fullmatch(texts, own.filename)]
            if sum(own.file_size for own in parts) > MAX_TEXT:
                raise UserError(f"{name}: more than {MAX_TEXT:,} bytes of text; divide it")
            contents = {own.filename: archive.read(own) for own in parts}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise UserError(f"{name}: not a {suffix} file, damaged or encrypted ({error}); save it again") from error
    if not contents:
        raise UserError(f"{name}: no text where {suffix} files have theirs; is its suffix right?")
    check_nodes(contents.values(), name)
    roots = {part: parse_xml(own, f"{name}, {part}") for part, own in contents.items()}
    files = [XmlText(root, markup) for root in roots.values()]

    def translated(translations: Translations) -> bytes:
        for file in files:
            file.translate(translations)
        return _packed(content, {part: write_xml(root) for part, root in roots.items()})

    all_texts = [text for file in files for text in file.texts]
    return Document(all_texts, [needed for file in files for needed in file.needs_links], translated)


def _packed(content: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Returns an archive with some files in place of those of the same names."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            copied = copy.copy(entry)
            copied.extra = b""  # such as the times of a file, which are written anew
            with new.open(copied, "w") as file, old.open(entry) as part:
                own = changed.get(entry.filename)
                shutil.copyfileobj(part if own is None else io.BytesIO(own), file)
    return out.getvalue()


def _check(entries: Sequence[zipfile.ZipInfo], name: str) -> None:
    """Raises UserError for an archive that needs too much space or time, or whose files have names for an attack."""
    paths = [entry.filename for entry in entries]
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED:
        raise UserError(f"{name}: more than {MAX_UNPACKED:,} bytes when unpacked; take pictures out of it")
    if any(entry.flag_bits & 1 for entry in entries):
        raise UserError(f"{name}: encrypted; save it without a password")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise NotImplementedError("its files are not packed by deflate")
    if any(own.startswith("/") or ".." in re.split(r"[/\\]", own) for own in paths) or len(set(paths)) < len(paths):
        raise UserError(f"{name}: has files whose names lead out of it, or are the same; save it again")
