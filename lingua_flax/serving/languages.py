"""The languages that a run translates between, and which of them a text is in."""

import functools
from typing import Any

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import BaseModel

from lingua_flax.options.schema import DataConfig

MAX_CHARACTERS = 2000  # that are looked at, in about 5 ms


class Language(BaseModel):
    """A language of a run, with the codes of those that it can be translated into."""

    code: str
    name: str
    targets: list[str]


def languages(data: DataConfig) -> list[Language]:
    """Returns the languages that the run was trained to translate, those that it translates from first."""
    targets: dict[str, list[str]] = {}
    directions = data.directions if data.tag_target else data.directions[:1]
    for source, target in directions:
        targets.setdefault(source, []).append(target)
    for _, target in directions:
        targets.setdefault(target, [])
    return [Language(code=source, name=_name(source), targets=own) for source, own in targets.items()]


@functools.cache
def _identifier(codes: tuple[str, ...]) -> tuple[LanguageIdentifier, dict[str, str]]:
    """Returns what identifies those of the languages that it knows, and their codes by its own."""
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    known = {code.partition("-")[0].lower(): code for code in reversed(codes)}
    known = {own: code for own, code in known.items() if own in identifier.labels}
    identifier.set_languages(list(known) or None)
    return identifier, known


def detect(text: str, languages: list[Language]) -> list[dict[str, Any]]:
    """Returns which of the languages a text may be in, with percentages, as POST /detect does."""
    identifier, known = _identifier(tuple(language.code for language in languages))
    ranked = identifier.rank(text[:MAX_CHARACTERS]) if known else [(languages[0].code, 0.0)]
    return [{"confidence": float(round(100 * share)), "language": known.get(own, own)} for own, share in ranked[:3]]


def _name(code: str) -> str:
    try:
        return Locale.parse(code).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
