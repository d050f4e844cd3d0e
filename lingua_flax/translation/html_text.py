"""HTML whose text is translated: what is in it to translate, and the same HTML with the translations.

Text is translated run by run: a run is what a paragraph, a heading or a table cell says, with the inline elements in
it, such as a bold word or a link. Scripts, code and what is marked with translate="no" stay as they are, and so do
attributes, except for those whose text is shown or read aloud.
"""

import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lingua_flax.data.placeholders import PLACEHOLDERS, has_letters
from lingua_flax.host.errors import UserError
from lingua_flax.host.installation import install_command
from lingua_flax.options.schema import DecodingOptions
from lingua_flax.translation.inline_tags import Element, TaggedText, Translations, is_kept
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link, align_translations

try:
    from selectolax.lexbor import LexborHTMLParser, LexborNode
except ModuleNotFoundError as error:
    raise UserError(f"translating HTML needs the extra text: {install_command('text')}") from error

ATTRIBUTES = ("title", "alt", "placeholder", "aria-label")
MAX_DEPTH = 200  # elements in each other; several functions here call themselves for each
_IN_SCRIPTS = "|".join(  # and other elements in which tags are text
    rf"<{tag}\b(?>.*?(?:</{tag}|\Z))"
    for tag in ("iframe", "noembed", "noframes", "noscript", "script", "style", "textarea", "title", "xmp")
)
# Up to the first tag that makes HTML a document; not one in a comment, a script or an attribute.
_DOCUMENT = re.compile(
    rf"(?:[^<]++|<!--(?>-?>|.*?(?:--!?>|\Z))|{_IN_SCRIPTS}|"
    r"<(?!!doctype|(?:html|head|body|frameset)\b)(?:/?[a-z](?:=\s*(?:\"[^\"]*\"|'[^']*')|[^>])*+)?+)*+"
    r"<(?P<doctype>!doctype[^>]*>)?",
    re.IGNORECASE | re.DOTALL,
)
_CHARSET = re.compile(r"(?<=charset=)[^;]*", re.IGNORECASE)


def names(text: str) -> frozenset[str]:
    """Returns the names of elements, given with spaces between them."""
    return frozenset(text.split())


# Those that may stand around words of a sentence.
INLINE = names(
    "a abbr acronym b bdi bdo big button cite del dfn em font i ins label mark q s small span strike strong sub sup "
    "time tt u"
)
# Those whose content is not translated. Those that show something within a line count as words of the sentence.
WORDS = names("audio canvas code embed img input kbd math meter object progress samp svg var video")
UNSEEN = names("link meta noembed noframes script style template wbr")
_OPAQUE = WORDS | UNSEEN | names("iframe listing plaintext pre textarea xmp")
_WITHOUT_END = names("area base br col embed hr img input link meta param source track wbr")


def translate_html(translator: Translator, text: str, options: DecodingOptions = DecodingOptions(), **how: Any) -> str:
    """Returns HTML, a document or a fragment, with its text translated; further arguments as in `translate`.

    Raises UserError if an option is invalid, or elements are nested too deep.
    """
    page = HtmlText(text)
    return page.rendered(translated(translator, page.texts, page.needs_links, options, **how))


def translated(
    translator: Translator, texts: Sequence[str], needs_links: Sequence[bool], options: DecodingOptions, **how: Any
) -> Translations:
    """Returns the translations of texts, with links of those that need them; further arguments as in `translate`."""
    translations = translator.translate(texts, options, are_lines=False, **how)
    links = align_translations(translator, translations, wanted=needs_links)
    return zip([own.text for own in translations], links, strict=True)


class _Run(TaggedText):
    """Consecutive inline nodes."""

    def __init__(self, nodes: Sequence[LexborNode], marks: str):
        """Reads the nodes; `marks` as in TaggedText."""
        super().__init__(marks)
        for node in nodes:
            self._add(node, self.top)

    def _add(self, node: LexborNode, parent: Element) -> None:
        is_word = _is_opaque(node) and node.tag not in UNSEEN
        if node.is_text_node:
            self.add_text(_said(node.text_content))
        elif is_word and self.add_word(node.html or ""):
            return
        elif not node.is_element_node or _is_opaque(node) or self._is_note(node):
            parent.children.append(Element(node.html or "", "", len(self.text), len(self.text)))
        else:
            element = Element(_start_tag(node), f"</{node.tag}>", len(self.text))
            for child in _children(node):
                self._add(child, element)
            element.end = len(self.text)
            parent.children.append(element)

    def _is_note(self, node: LexborNode) -> bool:
        return self.is_note(node.tag or "", node.text(), node.next.text() if node.next else "")


class HtmlText:
    """A document, or a fragment of one: its `texts`, without spaces around them, and whether each `needs_links`.

    These are the links between a text and its translation. What is declared as the encoding becomes UTF-8.
    """

    def __init__(self, text: str):
        """Reads HTML as browsers do; raises UserError if elements are nested more than MAX_DEPTH levels deep."""
        said = html.unescape(text)
        self._marks = "".join(mark for mark in PLACEHOLDERS if mark not in said)
        self._nodes, self._doctype = _parsed(text)
        self._inline: dict[int, bool] = {}  # whether a node is, looked up again for every level above it
        _check_depth(self._nodes)
        self._attributes = [own for node in self._nodes for own in _translated_attributes(node)]
        self.texts = [_said(node.attributes[name]) for node, name in self._attributes]
        self.needs_links = [False for _ in self.texts]
        for piece in self._pieces(self._nodes):
            if isinstance(piece, _Run):
                self.texts.append(piece.text.strip(" "))
                self.needs_links.append(piece.needs_links)
            elif isinstance(piece, HtmlText):
                self.texts += piece.texts
                self.needs_links += piece.needs_links

    def rendered(self, translations: Iterable[tuple[str, Sequence[Link]]]) -> str:
        """Returns the HTML with a translation in the place of each of the texts, given with its links."""
        results = iter(translations)
        for node, name in self._attributes:
            node.attrs[name], _ = next(results)
        rendered = []
        for piece in self._pieces(self._nodes):
            if isinstance(piece, _Run):
                piece = piece.rendered(*next(results))
            elif isinstance(piece, HtmlText):
                piece = piece.rendered(itertools.islice(results, len(piece.texts)))
            rendered.append(piece)
        return "".join(rendered).replace("\r", "&#13;")  # only as a reference does it survive parsing

    def _pieces(self, nodes: Iterable[LexborNode]) -> Iterator["str | _Run | HtmlText"]:
        """Yields what the HTML of the nodes consists of: what is to be translated, and the rest."""
        for is_inline, group in itertools.groupby(nodes, self._is_inline):
            if is_inline:
                run = _Run(own := list(group), self._marks)
                yield run if has_letters(run.text) else "".join(node.html or "" for node in own)
                continue
            for node in group:
                if node.tag == "-doctype":
                    yield self._doctype
                elif _is_opaque(node) or not node.is_element_node:
                    yield node.html or ""
                else:
                    yield _start_tag(node)
                    if node.tag == "noscript":  # what is in it is text where scripts are run, as in browsers
                        yield HtmlText(node.text())
                    else:
                        yield from self._pieces(_children(node))
                    yield "" if node.tag in _WITHOUT_END else f"</{node.tag}>"

    def _is_inline(self, node: LexborNode) -> bool:
        if not node.is_element_node:
            return node.is_text_node or node.is_comment_node
        if _is_opaque(node):
            return node.tag in INLINE | WORDS | UNSEEN
        if node.mem_id not in self._inline:
            self._inline[node.mem_id] = node.tag in INLINE and all(map(self._is_inline, _children(node)))
        return self._inline[node.mem_id]


def decode_html(content: bytes, name: str) -> str:
    """Returns HTML that is in the encoding it declares; raises UserError, with its name, if it is not valid UTF-8."""
    try:
        return LexborHTMLParser(content, encoding=True).raw_html.decode()
    except UnicodeDecodeError as error:
        remedy = 'declare its encoding at its beginning, such as <meta charset="iso-8859-1">'
        raise UserError(f"{name}: not valid UTF-8 (byte 0x{error.object[error.start]:02x}); {remedy}") from error


def _parsed(text: str) -> tuple[list[LexborNode], str]:
    """Returns the top nodes of a document, or of a fragment that may have parts of tables; and the document type."""
    document = _DOCUMENT.match(text)
    # selectolax takes the HTML of the first node of a fragment for that of all nodes.
    text = text if document else f"<!---->{text}"
    parser = LexborHTMLParser(text, is_fragment=not document, fragment_tag="template", scripting=True)
    _keep_line_breaks(parser)
    for meta in parser.css("meta[charset]"):
        meta.attrs["charset"] = "utf-8"
    for meta in parser.css("meta[http-equiv='content-type' i][content]"):
        meta.attrs["content"] = _CHARSET.sub("utf-8", meta.attributes["content"] or "")
    root: Any = parser.root
    nodes, node = [], root.parent.first_child if document else root.next
    while node:
        nodes.append(node)
        node = node.next
    return nodes, f"<{(document and document['doctype']) or '!DOCTYPE html>'}"


def _keep_line_breaks(part: LexborHTMLParser | LexborNode) -> None:
    """Doubles line breaks that parsers skip at the beginning of an element, in the templates of a page, too."""
    for element in part.css("pre, textarea, listing"):
        first = element.first_child
        if first and first.is_text_node and (first.text_content or "").startswith("\n"):
            first.replace_with(f"\n{first.text_content}")
    for template in part.template_fragments():
        _keep_line_breaks(template)


def _check_depth(nodes: Iterable[LexborNode], levels: int = MAX_DEPTH) -> None:
    for node in nodes:
        if not levels:
            raise UserError(f"the HTML has elements that are nested more than {MAX_DEPTH} levels deep; take some out")
        _check_depth(_children(node), levels - 1)


def _children(node: LexborNode) -> Iterator[LexborNode]:
    return node.iter(include_text=True)  # and comments


def _is_opaque(node: LexborNode) -> bool:
    """Returns whether the content of an element is not translated."""
    return node.is_element_node and (node.tag in _OPAQUE or _is_not_to_be_translated(node))


def _is_not_to_be_translated(node: LexborNode) -> bool:
    return is_kept(node.attributes.get("translate"), node.attributes.get("class"))


def _translated_attributes(node: LexborNode) -> Iterator[tuple[LexborNode, str]]:
    """Yields elements and the names of their attributes whose text is to be translated."""
    if not node.is_element_node or _is_not_to_be_translated(node):
        return
    yield from ((node, name) for name in ATTRIBUTES if has_letters(node.attributes.get(name) or ""))
    if not _is_opaque(node):
        for child in _children(node):
            yield from _translated_attributes(child)


def _start_tag(node: LexborNode) -> str:
    tag = f"<{node.tag}"
    for name, value in node.attributes.items():
        quoted = html.escape(value or "", quote=False).replace('"', "&quot;")
        tag += f' {name}="{quoted}"'
    return f"{tag}>"


def _said(text: str | None) -> str:
    """Returns a text without soft hyphens, which are not for the words of its translation."""
    return (text or "").replace("\xad", "")
