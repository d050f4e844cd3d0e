"""Whether pages come back unchanged where each text is its own translation: python -m tests.html_pages FOLDER.

Every word that has a letter or a digit is linked with itself, as by a perfect alignment, and no sign is. What may
differ is white space that browsers do not show, soft hyphens, and the encoding that a page declares.
"""

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser, LexborNode

from lingua_flax.data.glossary import WORD
from lingua_flax.data.tokenizer import Characters
from lingua_flax.host.errors import UserError
from lingua_flax.translation.html_text import HtmlText, decode_html
from lingua_flax.translation.word_alignment import Link
from lingua_flax.translation.words import LETTER

AS_IT_IS = ("pre", "textarea", "script", "style", "xmp", "listing")


def unchanged(page: str) -> str:
    """Returns the page with its texts as their own translations."""
    parsed = HtmlText(page)
    words = ([word for word in WORD.finditer(text) if LETTER.search(word[0])] for text in parsed.texts)
    links = ([Link(*(Characters(*word.span()),) * 2) for word in own] for own in words)
    return parsed.rendered(zip(parsed.texts, links, strict=True))


def tree(page: bytes | str, *, is_fragment: bool = False) -> list[str]:
    """Returns the tags, comments and texts of a page in order."""
    if is_fragment:
        page = f"<!---->{page}"
        parser = LexborHTMLParser(page, is_fragment=True, fragment_tag="template", scripting=True)
    else:
        parser = LexborHTMLParser(page, encoding=True, scripting=True)
    nodes, node = [], parser.root.next if is_fragment else parser.root.parent.first_child
    while node:
        nodes.append(node)
        node = node.next
    found = [""]
    for piece in itertools.chain.from_iterable(map(_pieces, nodes)):
        text = piece
        if not piece.startswith(("<", "=")):
            text = re.sub(r"[ \t\n\f\r]+", " ", piece.replace("\xad", ""))
            before = next((own for own in reversed(found) if not own.startswith(("<", "="))), "")
            text = text.removeprefix(" ") if before.endswith(" ") else text
        if text:
            found.append(text)
    return found


def _pieces(node: LexborNode) -> Iterator[str]:
    if node.is_text_node:
        is_raw = node.parent and node.parent.tag in AS_IT_IS
        yield f"={node.text_content}" if is_raw else node.text_content.replace("<", "&lt;").replace("=", "&eq;")
    elif not node.is_element_node:
        yield node.html.replace("\xad", "")
    else:
        attributes = {name: (value or "").replace("\xad", "") for name, value in node.attributes.items()}
        if node.tag == "meta":
            attributes = {name: re.sub("(?<=charset=).*", "utf-8", value) for name, value in attributes.items()}
            attributes |= {"charset": "utf-8"} if "charset" in attributes else {}
        yield f"<{node.tag} {attributes}>"
        if node.tag == "noscript":
            yield from tree(node.text(), is_fragment=True)
        else:
            for child in node.iter(include_text=True):
                yield from _pieces(child)
        yield f"</{node.tag}>"


def main(folder: Path) -> None:
    counts = {"unchanged": 0, "changed": 0, "refused": 0}
    for path in sorted(folder.iterdir()):
        page = path.read_bytes()
        try:
            after = unchanged(decode_html(page, path.name))
        except UserError as error:
            counts["refused"] += 1
            print(error)
            continue
        first, second = tree(page), tree(after)
        counts["unchanged" if first == second else "changed"] += 1
        if first != second:
            place = next(i for i, pair in enumerate(itertools.zip_longest(first, second)) if pair[0] != pair[1])
            print(f"{path.name}: {first[max(0, place - 3) : place + 3]} became {second[max(0, place - 3) : place + 3]}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
