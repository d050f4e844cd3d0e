"""Documents by the suffixes of their names: read, translated and written."""

from collections.abc import Callable
from typing import Any

from lingua_flax.documents import DOCUMENTS
from lingua_flax.documents.catalogs import read_po, read_xliff
from lingua_flax.documents.document import Document
from lingua_flax.documents.packed import FORMATS, read_archive
from lingua_flax.documents.plain_text import read_subtitles, read_text
from lingua_flax.documents.xml_text import check_nodes
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.html_text import HtmlText, decode_html, translated
from lingua_flax.translation.translator import Translator

MAX_BYTES = 50 * 2**20  # of a file
MAX_TEXT = 10 * 2**20  # of one that is not packed
SUFFIXES = (".txt", *DOCUMENTS)


def _read_html(content: bytes, _: str, name: str) -> Document:
    check_nodes([content], name)
    page = HtmlText(decode_html(content, name))
    return Document(page.texts, page.needs_links, lambda own: (page.rendered(own).removesuffix("\n") + "\n").encode())


READERS: dict[str, Callable[[bytes, str, str], Document]]
READERS = {".html": _read_html, ".htm": _read_html, ".txt": read_text, ".po": read_po}
READERS |= dict.fromkeys(FORMATS, read_archive)
READERS |= dict.fromkeys((".srt", ".vtt"), read_subtitles) | dict.fromkeys((".xlf", ".xliff"), read_xliff)


def read_document(content: bytes, suffix: str, name: str) -> Document:
    """Returns a document of the format of a suffix; raises UserError, with its name, if it cannot be read."""
    limit = MAX_BYTES if suffix in FORMATS else MAX_TEXT
    if len(content) > limit:
        raise UserError(f"{name}: larger than {limit:,} bytes; divide it")
    return READERS[suffix](content, suffix, name)


def translate_document(translator: Translator, document: Document, options: DecodingOptions, **how: Any) -> bytes:
    """Returns a document with its texts translated, as a file; further arguments as in `Translator.translate`."""
    return document.translated(translated(translator, document.texts, document.needs_links, options, **how))
