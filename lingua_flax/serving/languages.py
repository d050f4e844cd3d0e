"""The languages that a run translates between, as GET /languages lists them."""

from __future__ import annotations

from babel import Locale, UnknownLocaleError
from pydantic import BaseModel

from lingua_flax.options.schema import DataConfig


class Language(BaseModel):
    """A language that can be translated from.

    Attributes:
      code: its code, such as en.
      name: its English name.
      targets: codes of the languages that it can be translated into.
    """

    code: str
    name: str
    targets: list[str]


def languages(data: DataConfig) -> list[Language]:
    """Returns every language that the run was trained to translate from, that of [data] first."""
    targets: dict[str, list[str]] = {}
    for source, target in data.directions if data.tag_target else data.directions[:1]:
        targets.setdefault(source, []).append(target)
    return [Language(code=source, name=_name(source), targets=own) for source, own in targets.items()]


def _name(code: str) -> str:
    try:
        return Locale.parse(code).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
