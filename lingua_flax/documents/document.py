"""Documents by their names: opened, translated and written."""

from typing import Any, Protocol

from lingua_flax.documents import DOCUMENTS
from lingua_flax.documents.catalogs import PoCatalog, Xliff
from lingua_flax.documents.packed import FORMATS, PackedDocument
from lingua_flax.documents.plain_text import Subtitles, TextLines
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.html_text import HtmlText, decode_html
from lingua_flax.translation.inline_tags import Translations
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import align_translations

MAX_BYTES = 50 * 2**20  # of a file
MAX_TEXT = 10 * 2**20  # of one that is not packed


class Document(Protocol):
    """What is in a file to translate: its `texts`, and whether each `needs_links` with its translation."""

    texts: list[str]
    needs_links: list[bool]

    def translated(self, translations: Translations) -> bytes:
        """Returns the file, once, with a translation in the place of each text."""


class HtmlDocument:
    """A page of HTML; a Document."""

    def __init__(self, content: bytes, _: str, name: str):
        """Reads a page; raises UserError, with its name, if it is not in the encoding it declares, or too deep."""
        self._page = HtmlText(decode_html(content, name))
        self.texts, self.needs_links = self._page.texts, self._page.needs_links

    def translated(self, translations: Translations) -> bytes:
        """Returns the file with translations; see Document."""
        page = self._page.rendered(translations).removesuffix("\n")
        return f"{page}\n".encode()


READERS: dict[str, Any] = {".html": HtmlDocument, ".htm": HtmlDocument, ".txt": TextLines, ".po": PoCatalog}
READERS |= dict.fromkeys(FORMATS, PackedDocument)
READERS |= dict.fromkeys((".srt", ".vtt"), Subtitles) | dict.fromkeys((".xlf", ".xliff"), Xliff)
SUFFIXES = (".txt", *DOCUMENTS)


def open_document(content: bytes, suffix: str, name: str) -> Document:
    """Returns a document of the format of a suffix; raises UserError, with its name, if it cannot be read."""
    limit = MAX_BYTES if suffix in FORMATS else MAX_TEXT
    if len(content) > limit:
        raise UserError(f"{name}: larger than {limit:,} bytes; divide it")
    return READERS[suffix](content, suffix, name)


def translate_document(translator: Translator, document: Document, options: DecodingOptions, **how: Any) -> bytes:
    """Returns a document with its texts translated, as a file; further arguments as in `Translator.translate`."""
    translations = translator.translate(document.texts, options, are_lines=False, **how)
    links = align_translations(translator, translations, wanted=document.needs_links)
    return document.translated(iter(zip([own.text for own in translations], links, strict=True)))
