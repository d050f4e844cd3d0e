"""What is mended in a text, step by step, before pairs are compared."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence

import ftfy

from lingua_flax.options.schema import CleaningOptions

_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
_BREAKS = "br|p|div|li|ul|ol|td|th|tr|table|h[1-6]|hr|blockquote"
_INLINE = "a|abbr|b|big|center|cite|code|em|font|i|img|ins|del|mark|small|span|strong|strike|sub|sup|tt|u|s"
_TAG = re.compile(rf"</?(?:(?P<breaks>{_BREAKS})|{_INLINE})(?:\s[^<>]*)?/?>", re.IGNORECASE)
# Joiners without a width (U+200C, U+200D) stay: Persian, Indic scripts and emoji need them.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
_SPACES = re.compile(r"\s+")
_STEPS: dict[str, Callable[[str], str]] = {  # by the option that turns a step off
    "mojibake": ftfy.fix_encoding,
    "entities": lambda text: _ENTITY.sub(lambda entity: html.unescape(entity[0]), text),
    "tags": lambda text: _TAG.sub(lambda tag: " " if tag["breaks"] else "", text),
    "control_characters": lambda text: _CONTROL.sub("", text),
    "whitespace": lambda text: _SPACES.sub(" ", text).strip(),
    "normalize": lambda text: unicodedata.normalize("NFC", text),
}


def steps(options: CleaningOptions) -> list[str]:
    """Returns the names of the steps to take."""
    return [name for name in _STEPS if getattr(options, name)]


def mend(text: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns a text after the named steps, and the names of those that changed it."""
    changed = []
    for name in names:
        before, text = text, _STEPS[name](text)
        if text != before:
            changed.append(name)
    return text, changed
