"""Whether pages come back unchanged where each text is its own translation: python -m tests.html_pages FOLDER.

Every word that has a letter or a digit is linked with itself, as by a perfect alignment, and no sign is. What may
differ is white space that browsers do not show, soft hyphens, and the encoding that a page declares.
"""

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from lingua_flax.data.glossary import WORD
from lingua_flax.data.tokenizer import Characters
from lingua_flax.host.errors import UserError
from lingua_flax.translation.html_text import HtmlText, decode_html
from lingua_flax.translation.word_alignment import Link
from lingua_flax.translation.words import LETTER

AS_IT_IS = ("pre", "textarea", "script", "style", "xmp", "listing")  # the white space in it counts


def unchanged(page: str) -> str:
    """Returns the page with its texts as their own translations."""
    parsed = HtmlText(page)
    words = ([word for word in WORD.finditer(text) if LETTER.search(word[0])] for text in parsed.texts)
    links = ([Link(*(Characters(*word.span()),) * 2) for word in own] for own in words)
    return parsed.rendered(zip(parsed.texts, links, strict=True))


def tree(page: str, *, is_fragment: bool = False) -> list[str]:
    """Returns the tags, comments and texts of a page in order."""
    text = f"<!---->{page}" if is_fragment else page
    parser = LexborHTMLParser(text, is_fragment=is_fragment, fragment_tag="template", scripting=True)
    root: Any = parser.root
    node = root.next if is_fragment else root.parent.first_child
    found = []
    is_after_space = False
    while node:
        for piece in _pieces(node, page):
            text = piece
            if not piece.startswith(("<", "=")):
                text = re.sub(r"[ \t\n\f\r]+", " ", piece)
                text = text.removeprefix(" ") if is_after_space else text
                is_after_space = text.endswith(" ") or (is_after_space and not text)
            found += [text] if text else []
        node = node.next
    return found


def _pieces(node: Any, page: str) -> Iterator[str]:
    if node.is_text_node:
        text = node.text_content.replace("\xad", "")
        yield f"={text}" if node.parent and node.parent.tag in AS_IT_IS else re.sub("[<=]", r"&\g<0>", text)
    elif not node.is_element_node:  # selectolax leaves out what type a document is of
        yield re.findall("(?i)<!doctype[^>]*>", page)[0] if node.tag == "-doctype" else node.html
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
                yield from _pieces(child, page)
        yield f"</{node.tag}>"


def main(folder: Path) -> None:
    counts = Counter(unchanged=0, changed=0, refused=0)
    for path in sorted(folder.iterdir()):
        try:
            page = decode_html(path.read_bytes(), path.name)
            pair = [tree(text) for text in (page, unchanged(page))]
        except UserError as error:
            counts["refused"] += 1
            print(error)
            continue
        counts["unchanged" if pair[0] == pair[1] else "changed"] += 1
        differing = (i for i, (before, after) in enumerate(itertools.zip_longest(*pair)) if before != after)
        for place in itertools.islice(differing, 1):
            before, after = (side[max(0, place - 3) : place + 3] for side in pair)
            print(f"{path.name}: {before} became {after}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
