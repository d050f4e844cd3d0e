"""The languages that a run translates between, and which of them a text is in."""

import functools
from typing import Any

from babel import Locale, UnknownLocaleError
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import BaseModel

from lingua_flax.options.language_codes import language_code
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


def served(languages: list[Language], wanted: str) -> str:
    """Returns the code of a language as the run has it, also of en-US if it has en; auto and others stay."""
    codes = {language.code.lower(): language.code for language in reversed(languages)}
    others = {"auto": "auto"} | {language_code(language.code): language.code for language in reversed(languages)}
    return codes.get(wanted.lower()) or others.get(language_code(wanted), wanted)


@functools.cache
def _identifier(known: tuple[str, ...] | None) -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(known)
    return identifier


def detect(text: str, languages: list[Language]) -> list[dict[str, Any]]:
    """Returns which of the languages a text may be in, with percentages, as POST /detect does.

    Those that the identifier does not know share what it gives to the languages that are not of the run.
    """
    own = {language_code(language.code): language.code for language in reversed(languages)}
    known = own.keys() & set(_identifier(None).labels)
    text = text[:MAX_CHARACTERS]
    shares = dict(_identifier(tuple(sorted(known)) if len(known) == len(own) else None).rank(text))
    found = {own[code]: float(shares[code]) for code in known}
    unknown = [own[code] for code in own if code not in known]
    found |= dict.fromkeys(unknown, (1.0 - sum(found.values())) / max(1, len(unknown)))
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [{"confidence": float(round(100 * share)), "language": code} for code, share in ranked[:3]]


def _name(code: str) -> str:
    try:
        known = language_code(code) if code.isalpha() else code.replace("-", "_")  # eng would be that of a country
        return Locale.parse(known).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
