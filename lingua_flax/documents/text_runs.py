"""Paragraphs of Office files, whose text stands in runs, each in one format, as text with elements around words of it.

While a paragraph is loosened, text that looks as most of it is plain text in it, and other text is in elements RUN.
Programs divide text into many runs for reasons of their own, such as words misspelt: those in one format are joined.
"""

import itertools
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from lxml import etree

from lingua_flax.data.placeholders import has_letters
from lingua_flax.documents.xml_nodes import Node, contents, local_name, put, said

_TOKEN = secrets.token_hex(8)  # in names that no file can have
RUN, FIELD = f"run-{_TOKEN}", f"field-{_TOKEN}"  # elements of a paragraph that is loosened
_FORMAT = f"format-{_TOKEN}"  # an attribute of what was in a run: the properties of the run, as XML
_USUAL = f"usual-{_TOKEN}"  # an attribute of what is loosened: the properties of plain text in it
_NOT_LOOKS = ("lang", "noProof", "altLang", "dirty", "err", "smtClean")  # properties that are about the old text
_LEFT_OUT = ("rPr", "proofErr", "lastRenderedPageBreak", "softHyphen")
_CHARACTERS = {"noBreakHyphen": "\u2011"}
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def loosened(root: Any, paragraphs: Collection[str], inline: Collection[str]) -> list[Any]:
    """Loosens the paragraphs that have letters, with the elements around words of them, and returns them."""
    found = [own for own in root.iter(etree.Element) if local_name(own) in paragraphs and has_letters(said(own))]
    for paragraph in found:
        _loosen(paragraph, inline)
    return found


def _loosen(parent: Any, inline: Collection[str]) -> None:
    pieces: list[Any] = []
    for child in parent.iterchildren(etree.Element):
        if local_name(child) in inline:
            _loosen(child, inline)
        if local_name(child) not in _LEFT_OUT:
            pieces += _divided(child) if local_name(child) == "r" else [child]
    sizes = Counter[str]()
    for run in (piece for piece in pieces if piece.tag == RUN):
        sizes[run.get(_FORMAT)] += len(run.text)
    usual = max(sizes, key=sizes.__getitem__, default="")
    nodes: list[Node] = []
    for (is_run, own), group in itertools.groupby(pieces, lambda piece: (piece.tag == RUN, piece.get(_FORMAT))):
        if is_run:
            run, *others = group
            run.text = "".join([run.text, *(other.text for other in others)])
            nodes.append(run.text if own == usual else run)
        else:
            nodes += group
    put(parent, _with_fields(nodes))
    parent.set(_USUAL, usual)


def _divided(run: Any) -> Iterator[Any]:
    """Yields the texts of a run, each as an element, and what else is in it, with the properties of the run."""
    properties = run.find("{*}rPr")
    if properties is not None:
        for child in [own for own in properties if local_name(own) in _NOT_LOOKS]:
            properties.remove(child)
        for name in set(properties.attrib).intersection(_NOT_LOOKS):
            del properties.attrib[name]
    has_format = properties is not None and (len(properties) or properties.attrib)
    own = etree.tostring(properties, encoding="unicode", with_tail=False) if has_format else ""
    for child in run.iterchildren(etree.Element):
        name, piece = local_name(child), child
        if name == "t" or name in _CHARACTERS:
            piece = etree.Element(RUN)
            piece.text = _CHARACTERS.get(name, child.text or "")
        if name not in _LEFT_OUT:
            piece.set(_FORMAT, own)
            yield piece


def _with_fields(nodes: Iterable[Node]) -> list[Node]:
    """Returns nodes with fields, such as the number of a page, as one element, but not links, nor what does not end."""
    found, field, depth = list[Node](), list[Node](), 0
    for node in nodes:
        kinds = node.attrib.values() if not isinstance(node, str) and local_name(node) == "fldChar" else ()
        depth += "begin" in kinds
        (field if depth else found).append(node)
        if depth and "end" in kinds:
            depth -= 1
        if field and not depth:
            whole = etree.Element(FIELD)
            put(whole, field)
            found += contents(whole) if "HYPERLINK" in said(whole) else [whole]
            field = []
    return found + field


def tighten(parent: Any) -> None:
    """Puts what is in a paragraph into runs, if it is still loosened."""
    usual = parent.attrib.pop(_USUAL, None)
    if usual is not None:
        put(parent, _in_runs(contents(parent), usual, etree.QName(parent).namespace))


def _in_runs(nodes: Iterable[Node], usual: str, space: str) -> Iterator[Any]:
    for node in list(nodes):
        if isinstance(node, str):
            text = etree.Element(f"{{{space}}}t")
            text.text = node
            if "wordprocessingml" in space:  # in presentations, this attribute is an error
                text.set(_SPACE, "preserve")
            yield _run(text, usual, space)
        elif node.tag in (RUN, FIELD):
            yield from _in_runs(contents(node), node.get(_FORMAT, usual), space)
        elif _FORMAT in node.attrib:
            yield _run(node, node.attrib.pop(_FORMAT), space)
        else:
            tighten(node)
            yield node


def _run(content: Any, properties: str, space: str) -> Any:
    run = etree.Element(f"{{{space}}}r")
    put(run, [*([etree.fromstring(properties)] if properties else []), content])
    return run
