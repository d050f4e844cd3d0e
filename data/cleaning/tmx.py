"""Translation units of a TMX file, each parsed by itself, so that a damaged one does not take the next ones with it.

libxml2 cannot tell them apart in such a file: fed line by line, it waits after a bare "&" for the next ";", which can
be in another unit. So they are cut at their tags, outside of comments and CDATA, and no file can declare entities.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import regex
from lxml import etree

from lingua_flax.data.cleaning.encodings import Line
from lingua_flax.data.corpora.corpus import Pair

_TOKEN = re.compile(
    r"""(?P<opening><!--|<!\[CDATA\[|<\?) | (?P<closing>-->|\]\]>|\?>)
    | <(?:[^\s<>/:]+:)?(?:(?P<tu>tu)|(?P<tuv>tuv))(?=[\s/>]) | </(?P<end>(?:[^\s<>/:]+:)?tu)(?=[\s>])""",
    re.VERBOSE,
)
_CLOSING = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE_CODE = ("bpt", "ept", "it", "ut", "ph")  # elements of a segment that hold markup of its program
_STANDALONE = "\0"  # in the text, for a code that can be a line break; others, such as for bold, can be within a word
_BETWEEN_WORDS = regex.compile(r"(?<=[\w\p{M}\p{Pe}\p{Pf}.,:;!?…])\0+(?=[\w\p{Ps}\p{Pi}])")
# Of the errors from which it recovers, only prefixes that are not declared are not fatal.
_PARSER = etree.XMLParser(recover=True, resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)


def read_units(lines: Iterable[Line]) -> Iterator[Line]:
    """Yields the translation units as text, each with the line where it begins, as far as that can be told.

    A unit without a tag, and a comment that is not closed, are also yielded: as text that is not XML.
    """
    parts, is_open = list[Line](), False
    skipped: Line | None = None  # the beginning of the comment, CDATA section or instruction that is open
    for line in lines:
        text, begin = f"{line.text}\n", 0
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if skipped:
                if token[0] == skipped.text == "<!--" and not is_open:  # two of them cannot be nested
                    yield skipped
                skipped = None if token[0] == _CLOSING[skipped.text] else skipped
            elif kind == "opening":
                skipped = Line(line.number, token[0])
            elif kind == "end":
                yield _joined([*parts, line._replace(text=f"{text[begin : token.start()]}</{token['end']}>")])
                parts, is_open, begin = [], False, token.end()
            elif kind == "tu" or (kind == "tuv" and not is_open):
                if is_open:
                    yield _joined([*parts, line._replace(text=text[begin : token.start()])])
                parts, is_open, begin = [], True, token.start()
        if is_open:
            parts.append(line._replace(text=text[begin:]))
    if is_open:
        yield _joined(parts)
    elif skipped:
        yield skipped


def _joined(parts: Sequence[Line]) -> Line:
    garbled = next((part.garbled for part in parts if part.garbled and part.text), "")
    return Line(parts[0].number, "".join(part.text for part in parts), garbled)


def read_variants(unit: str) -> list[tuple[str, str]]:
    """Returns the languages and texts of a unit, without codes of programs; raises ValueError if it is no valid XML."""
    try:
        root = etree.fromstring(unit, _PARSER)
        errors = [error.message for error in _PARSER.error_log if error.level == etree.ErrorLevels.FATAL]
    except etree.XMLSyntaxError as error:
        errors = [error.msg]
    if errors:
        raise ValueError(f"not valid XML ({errors[0].splitlines()[0]})")
    variants = []
    for variant in (element for element in root.iter() if _name(element) == "tuv"):
        for segment in (child for child in variant if _name(child) == "seg"):
            variants.append((variant.get(_LANGUAGE) or variant.get("lang") or "", plain_text(segment)))
    return variants


def plain_text(segment: etree._Element) -> str:
    """Returns the text of a segment without the codes of programs."""
    return _BETWEEN_WORDS.sub(" ", "".join(_texts(segment))).replace(_STANDALONE, "")


def _texts(element: etree._Element) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if _name(child) == "ph" or (_name(child) not in _NATIVE_CODE and not len(child) and not child.text):
            yield _STANDALONE
        elif _name(child) not in _NATIVE_CODE:
            yield from _texts(child)
        yield child.tail or ""


def _name(element: etree._Element) -> str:
    return re.split("[}:]", str(element.tag))[-1]


def unit_pair(unit: str, languages: Sequence[str]) -> Pair:
    """Returns the first text in each language, of any region if none is wanted; raises ValueError if one is missing."""
    variants, texts = read_variants(unit), list[str]()
    for wanted in map(code, languages):
        others = tuple(other for other in map(code, languages) if other.startswith(wanted) and other != wanted)
        found = (text for own, text in variants if code(own).startswith(wanted) and not code(own).startswith(others))
        if (text := next(found, None)) is None:
            known = ", ".join(dict.fromkeys(own for own, _ in variants)) or "no language"
            raise ValueError(f"no text in {languages[len(texts)]}, only in {known}")
        texts.append(text)
    return Pair(*texts)


def code(language: str) -> str:
    """Returns what all spellings of the code of a language have in common; that of a region begins with it."""
    return f"{language.strip()}-".replace("_", "-").casefold()
