"""Plain text as a document, line by line, and subtitles, SubRip (.srt) and WebVTT (.vtt), each as a text by itself."""

import html
import io
import re
from typing import Any

from lingua_flax.data.placeholders import has_letters
from lingua_flax.data.text_files import decode_lines
from lingua_flax.documents.document import Document
from lingua_flax.translation.inline_tags import Element, TaggedText, Translations

MOST = 50  # lines of a subtitle, and tags around text of it; more would take too long
# A line with times, and the lines of text after it, up to an empty one; found in linear time, whatever a line has.
_CUE = re.compile(
    r"((?<=\n)[ \t]*[\d:,.]*[:,.]\d+[ \t]*-->[ \t]*\d[^\n]*\n)"
    r"((?:[^\n\S]*\S[^\n]*\n)+)"
)
_TAG = re.compile(r"(</?[A-Za-z][^<>\n]*>|<[\d:.]+>|\{\\[^{}\n]*\})")  # {\an8} is an instruction of SubStation Alpha
_TAG_OR_SPACE = re.compile(r"<[^<>]*>| ")


def decode_text(content: bytes, name: str) -> str:
    """Returns a text in which all lines end, as UTF-8; raises UserError, with its name, if it is not."""
    return "".join(f"{line}\n" for line in decode_lines(io.BytesIO(content), name))


def read_text(content: bytes, _: str, name: str) -> Document:
    """Reads a text; raises UserError, with its name, if it is not UTF-8."""
    lines = list(decode_lines(io.BytesIO(content), name))
    return Document(lines, [False] * len(lines), lambda own: "".join(f"{line}\n" for line, _ in own).encode())


def read_subtitles(content: bytes, suffix: str, name: str) -> Document:
    """Reads subtitles; raises UserError, with their name, if they are not UTF-8."""
    pieces = _CUE.split("\n" + decode_text(content, name))  # what is before one, its times, its text, and so on
    subtitles = [_Subtitle(text, is_escaped=suffix == ".vtt") for text in pieces[2::3]]
    spoken = [own for own in subtitles if has_letters(own.text)]

    def translated(translations: Translations) -> bytes:
        new = [own.lines(*next(translations)) if has_letters(own.text) else own.old for own in subtitles]
        pieces[2::3] = new
        return "".join(pieces)[1:].encode()

    return Document([own.text.strip(" ") for own in spoken], [own.needs_links for own in spoken], translated)


class _Subtitle(TaggedText):
    def __init__(self, old: str, *, is_escaped: bool):
        """Reads the lines of a subtitle, in which tags need not end; only WebVTT escapes "<" and "&"."""
        super().__init__("")
        self.old, self._is_escaped = old, is_escaped
        around = [self.top]
        for number, piece in enumerate(_TAG.split(old)):
            tag = piece if is_escaped else html.escape(piece)
            if number % 2 == 0:
                self.add_text(html.unescape(piece) if is_escaped else piece)
            elif piece.startswith("</") and len(around) > 1:
                around[-1].end_tag, around.pop().end = tag, len(self.text)
            else:
                around[-1].children.append(element := Element(tag, "", len(self.text), len(self.text)))
                around += [element] if re.match("<[A-Za-z]", piece) and len(around) < MOST else []
        for element in around:
            element.end = len(self.text)

    def lines(self, *translation: Any) -> str:
        """Returns the translation in as many lines as there were, of about the same length."""
        text = self.rendered(*translation).strip(" ")
        text = text if self._is_escaped else html.unescape(text)
        count = min(self.old.count("\n"), MOST)
        spaces = [own.start() for own in _TAG_OR_SPACE.finditer(text) if own[0] == " "] or [len(text)]
        wanted = [number * len(text) / count for number in range(1, count)]
        ends = {min(spaces, key=lambda space: abs(space - place)) for place in wanted}
        return "".join("\n" if place in ends else sign for place, sign in enumerate(text)) + "\n"
