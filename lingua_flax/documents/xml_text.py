"""The paragraphs of an XML file, translated in place, with the elements within a paragraph around their words.

What is not text of a paragraph stays as it is. Nothing that a file refers to is read, and it may declare no entities.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lxml import etree

from lingua_flax.data.placeholders import PLACEHOLDERS, has_letters
from lingua_flax.documents.text_runs import loosened, tighten
from lingua_flax.documents.xml_nodes import Node, contents, local_name, put, said
from lingua_flax.host.errors import UserError
from lingua_flax.translation.inline_tags import Element, TaggedText, Translations, is_kept
from lingua_flax.translation.word_alignment import Link

MAX_NODES = 500_000  # tags and attributes, which take up to 350 bytes each, and 30 microseconds
_PARSER = etree.XMLParser(resolve_entities=False, no_network=True, encoding="utf-8")
_RENDERED_PARSER = etree.XMLParser(recover=True)  # leaves out characters that XML cannot have


@dataclasses.dataclass(frozen=True)
class Markup:
    """What the elements of a format are, by their names without namespaces."""

    paragraphs: frozenset[str]  # with text that is translated
    inline: frozenset[str]  # around words of it
    words: frozenset[str]  # that count as words, and in which nothing is translated
    breaks: frozenset[str]  # that are between sentences; what else is in a paragraph shows nothing, such as a bookmark
    closed: frozenset[str] = frozenset()  # others in which nothing is translated
    has_runs: bool = False  # whether text stands only in runs; see text_runs.py


def check_nodes(contents: Iterable[bytes], name: str) -> None:
    """Raises UserError if files have too many tags and attributes together."""
    if sum(content.count(b"<") + content.count(b"=") for content in contents) > MAX_NODES:
        raise UserError(f"{name}: more than {MAX_NODES:,} tags and attributes; divide the document")


def parse_xml(content: bytes, name: str) -> Any:
    """Returns the root of an XML file; raises UserError if it is not valid or declares entities."""
    try:
        root = etree.fromstring(content, _PARSER)
    except etree.XMLSyntaxError as error:
        reason = " ".join(error.msg.split())  # some have a line break
        raise UserError(f"{name}: not valid XML ({reason}); it may be damaged or encrypted") from error
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and declared.entities():
        raise UserError(f"{name}: declares entities, which are not read; write out what they stand for")
    return root


def write_xml(root: Any) -> bytes:
    """Returns an XML file in UTF-8."""
    tree = root.getroottree()
    return etree.tostring(tree, encoding="UTF-8", xml_declaration=True, standalone=tree.docinfo.standalone)


class XmlText:
    """The paragraphs of an XML file: their `texts`, and whether each `needs_links`, as in HtmlText."""

    def __init__(self, root: Any, markup: Markup):
        """Reads what is in an element, which `translate` changes."""
        self._markup = markup
        text = said(root)
        marks = [mark for mark in PLACEHOLDERS if mark not in text]
        self._loose = loosened(root, markup.paragraphs, markup.inline) if markup.has_runs else []
        self._inline = self._inline_elements(root)
        self._changed: list[tuple[Any, list[Any]]] = []  # elements, with the nodes in them, and runs in place of some
        runs: list[_Run] = []
        for container in self._containers(root):
            pieces, known = list[Any](), len(runs)
            for is_inline, group in itertools.groupby(contents(container), self._is_inline):
                nodes = list(group)
                run = _Run(nodes if is_inline else (), marks, markup)
                runs += [run] if has_letters(run.text) else []
                pieces += [run] if has_letters(run.text) else nodes
            if len(runs) > known:
                self._changed.append((container, pieces))
        self.texts = [run.text.strip(" ") for run in runs]
        self.needs_links = [run.needs_links for run in runs]

    def translate(self, translations: Translations) -> None:
        """Puts a translation in the place of each text; further ones are left."""
        for container, pieces in self._changed:
            new = (own.nodes(*next(translations)) if isinstance(own, _Run) else [own] for own in pieces)
            put(container, itertools.chain.from_iterable(new))
        for paragraph in self._loose:
            tighten(paragraph)

    def _inline_elements(self, root: Any) -> set[Any]:
        found = set[Any]()
        for element in reversed(list(root.iter())):  # so that what is in an element comes before it
            name = local_name(element)
            is_around_words = name in self._markup.inline and (_is_kept(element) or found.issuperset(element))
            if is_around_words or name not in self._markup.inline | self._markup.breaks:
                found.add(element)
        return found

    def _is_inline(self, node: Node) -> bool:
        return isinstance(node, str) or node in self._inline

    def _containers(self, element: Any) -> Iterator[Any]:
        """Yields the elements whose text may have to be translated, but not those around words of others."""
        name = local_name(element)
        if name in self._markup.words | self._markup.closed or _is_kept(element):
            return
        if name in self._markup.paragraphs or (name in self._markup.inline and element not in self._inline):
            yield element
        for child in element.iterchildren(etree.Element):
            yield from self._containers(child)


class _Run(TaggedText):
    """Consecutive nodes that are text, or stand around or between words of it."""

    def __init__(self, nodes: Iterable[Node], marks: Iterable[str], markup: Markup):
        super().__init__(marks)
        self._markup = markup
        self._elements: list[Any] = []  # around words, or in their places, by the numbers in tags
        self._empty: list[Any] = []  # the others
        for node in nodes:
            self._add(node, self.top)

    def _add(self, node: Node, parent: Element) -> None:
        if isinstance(node, str):
            self.add_text(node)
            return
        name, number = local_name(node), len(self._elements)
        is_word = name in self._markup.words or (name in self._markup.inline and _is_kept(node))
        if is_word and self.add_word(f'<word n="{number}"/>'):
            self._elements.append(node)
        elif is_word or name not in self._markup.inline or self.is_note(name, said(node), node.tail or ""):
            self._empty.append(node)
            parent.children.append(Element("<empty/>", "", len(self.text), len(self.text)))
        else:
            self._elements.append(node)
            element = Element(f'<around n="{number}">', "</around>", len(self.text))
            for child in contents(node):
                self._add(child, element)
            element.end = len(self.text)
            parent.children.append(element)

    def nodes(self, translation: str, links: Sequence[Link]) -> list[Node]:
        """Returns the nodes of a translation; those that are empty keep their order, as beginnings and ends need it."""
        text = self.rendered(translation, links).replace("&nbsp;", "\xa0")
        return list(self._restored(etree.fromstring(f"<top>{text}</top>", _RENDERED_PARSER), iter(self._empty)))

    def _restored(self, element: Any, empty: Iterator[Any]) -> Iterator[Node]:
        for node in contents(element):
            if isinstance(node, str):
                yield node
                continue
            own = next(empty) if node.tag == "empty" else self._elements[int(node.get("n"))]
            if node.tag == "around":
                put(own, list(self._restored(node, empty)))
            yield own


def _is_kept(element: Any) -> bool:
    return is_kept(element.get("translate"), element.get("class"))
