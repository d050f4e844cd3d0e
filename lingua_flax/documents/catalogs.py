"""Files of translators, PO and XLIFF 1.2 and 2: what has no translation yet gets one, and all others stay."""

import copy
from typing import Any

from lxml import etree

from lingua_flax.data.po_files import parse_po
from lingua_flax.documents.document import Document
from lingua_flax.documents.plain_text import decode_text
from lingua_flax.documents.xml_nodes import contents, local_name, put, said
from lingua_flax.documents.xml_text import Markup, XmlText, check_nodes, parse_xml, write_xml
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


def read_po(content: bytes, _: str, name: str) -> Document:
    """Reads the messages of a PO file, line by line; raises UserError, with its name, if it is not one in UTF-8."""
    catalog = parse_po(decode_text(content, name), name)
    entries = [entry for entry in catalog if not entry.obsolete]
    single = [entry for entry in entries if not entry.msgid_plural and not entry.msgstr]
    several = [entry for entry in entries if entry.msgid_plural and not any(entry.msgstr_plural.values())]
    messages = [entry.msgid for entry in single]
    messages += [text for entry in several for text in (entry.msgid, entry.msgid_plural)]

    def translated(translations: Translations) -> bytes:
        new = ("\n".join(next(translations)[0] for _ in message.split("\n")) for message in messages)
        for entry in single:
            entry.msgstr = next(new)
        for entry in several:
            one, many = next(new), next(new)
            forms = sorted(entry.msgstr_plural) or [0, 1]
            entry.msgstr_plural = {form: one if form == 0 and len(forms) > 1 else many for form in forms}
        catalog.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        return f"{catalog}".encode()

    lines = [line for message in messages for line in message.split("\n")]
    return Document(lines, [False] * len(lines), translated)


def read_xliff(content: bytes, _: str, name: str) -> Document:
    """Reads the segments of an XLIFF file; raises UserError, with its name, if it is not one."""
    check_nodes([content], name)
    root = parse_xml(content, name)
    if local_name(root) != "xliff":
        raise UserError(f"{name}: not an XLIFF file, whose first element is xliff")
    for segment in root.iter("{*}trans-unit", "{*}segment"):
        _add_target(segment)
    text = XmlText(root, _XLIFF)

    def translated(translations: Translations) -> bytes:
        text.translate(translations)
        for target in list(root.iter(f"{{*}}{_NEW}")):
            target.tag = f"{{{etree.QName(target).namespace}}}target"
        return write_xml(root)

    return Document(text.texts, text.needs_links, translated)


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
