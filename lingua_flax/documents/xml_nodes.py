"""What is in an XML element, as a list of nodes: texts and elements."""

import html
from collections.abc import Iterable, Iterator
from typing import Any

from lxml import etree

Node = str | Any  # or an lxml element, whose tail is not looked at
_SPACE = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}s"  # or several


def local_name(element: Any) -> str:
    """Returns the name of an element without its namespace, "" of a comment and the like."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def said(element: Any) -> str:
    """Returns all text in an element."""
    return "".join(element.itertext())


def contents(element: Any) -> Iterator[Node]:
    """Yields what is in an element, in order; what stands for a character, such as &nbsp;, becomes that."""
    if element.text:
        yield element.text
    for child in element:
        character = html.unescape(child.text) if child.tag is etree.Entity else " " if child.tag == _SPACE else ""
        yield character or child
        if child.tail:
            yield child.tail


def put(element: Any, nodes: Iterable[Node]) -> None:
    """Makes nodes what is in an element; they may come from there."""
    nodes = list(nodes)
    del element[:]
    element.text = last = None
    for node in nodes:
        if not isinstance(node, str):
            node.tail = None
            element.append(last := node)
        elif last is None:
            element.text = (element.text or "") + node
        else:
            last.tail = (last.tail or "") + node
