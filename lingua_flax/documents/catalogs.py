"""Files of translators, PO and XLIFF 1.2 and 2: what has no translation yet gets one, and all others stay."""

import copy
from typing import Any

import polib
from lxml import etree

from lingua_flax.documents.plain_text import decode_text
from lingua_flax.documents.xml_nodes import contents, local_name, put, said
from lingua_flax.documents.xml_text import Markup, XmlText, parse_xml, write_xml
from lingua_flax.host.errors import UserError
from lingua_flax.translation.inline_tags import Translations

_NEW = "new-target"  # an element "target" that is to be translated
_XLIFF = Markup(
    paragraphs=frozenset([_NEW]),
    inline=frozenset(["g", "mrk", "pc"]),
    words=frozenset(["x", "ph"]),
    breaks=frozenset([_NEW]),
)
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class PoCatalog:
    """The messages of a PO file that have no translation, line by line; a Document."""

    def __init__(self, content: bytes, _: str, name: str):
        """Reads a PO file; raises UserError, with its name, if it is not one in UTF-8."""
        try:  # with a line break at its end, polib cannot take the text for the name of a file
            self._catalog = polib.pofile(decode_text(content, name) or "\n")
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"{name}: not a PO file ({error})") from error
        entries = [entry for entry in self._catalog if not entry.obsolete]
        self._single = [entry for entry in entries if not entry.msgid_plural and not entry.msgstr]
        self._several = [own for own in entries if own.msgid_plural and not any(own.msgstr_plural.values())]
        messages = [entry.msgid for entry in self._single]
        messages += [text for entry in self._several for text in (entry.msgid, entry.msgid_plural)]
        self._counts = [len(message.split("\n")) for message in messages]
        self.texts = [line for message in messages for line in message.split("\n")]
        self.needs_links = [False for _ in self.texts]

    def translated(self, translations: Translations) -> bytes:
        """Returns the file with translations; see Document."""
        messages = ("\n".join(next(translations)[0] for _ in range(count)) for count in self._counts)
        for entry in self._single:
            entry.msgstr = next(messages)
        for entry in self._several:
            one, many = next(messages), next(messages)
            forms = sorted(entry.msgstr_plural) or [0, 1]
            entry.msgstr_plural = {form: one if form == 0 and len(forms) > 1 else many for form in forms}
        self._catalog.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        return f"{self._catalog}".encode()


class Xliff:
    """The segments of an XLIFF file without a target; a Document."""

    def __init__(self, content: bytes, _: str, name: str):
        """Reads an XLIFF file; raises UserError, with its name, if it is not one."""
        self._root = parse_xml(content, name)
        if local_name(self._root) != "xliff":
            raise UserError(f"{name}: not an XLIFF file, whose first element is xliff")
        for segment in self._root.iter("{*}trans-unit", "{*}segment"):
            _add_target(segment)
        self._text = XmlText(self._root, _XLIFF)
        self.texts, self.needs_links = self._text.texts, self._text.needs_links

    def translated(self, translations: Translations) -> bytes:
        """Returns the file with translations; see Document."""
        self._text.translate(translations)
        for target in list(self._root.iter(f"{{*}}{_NEW}")):
            target.tag = f"{{{etree.QName(target).namespace}}}target"
        return write_xml(self._root)


def _add_target(segment: Any) -> None:
    """Adds a copy of what is to be translated, unless there is a translation."""
    source, target = segment.find("{*}source"), segment.find("{*}target")
    if source is None or (target is not None and said(target).strip()):
        return
    if target is None:
        target = etree.Element(source.tag, {key: text for key, text in source.attrib.items() if key != _LANGUAGE})
        before = segment.find("{*}seg-source")
        (source if before is None else before).addnext(target)
    put(target, list(contents(copy.deepcopy(source))))
    target.tag = f"{{{etree.QName(source).namespace}}}{_NEW}"
