"""Patterns for the two translations of each ambiguous word of the contrast split.

The patterns show which sense a translation has chosen, whatever else it says. Every reference of the split matches the
pattern of its sense and not that of the other sense (tests/data/test_phrasebook.py).
"""

import re

from lingua_flax.data.corpora.corpus import Readings


def _readings(name: str, first: str, second: str, word: str | None = None) -> Readings:
    whole_words = [re.compile(rf"\b(?:{pattern})\b") for pattern in (word or name, first, second)]
    return Readings(name, whole_words[0], (whole_words[1], whole_words[2]))


_PLAY = r"jou\w+(?: (?:pas|jamais|souvent|toujours|parfois|rarement))?"
READINGS = (
    _readings("bat", "chauve-souris", "batte"),
    _readings("spring", "source", "ressort"),
    _readings("seal", "phoque", "sceau"),
    _readings("mole", "taupe", "grain de beauté"),
    _readings("trunk", "tronc", "coffre(?!-)"),
    _readings("keys", "clés", "touches"),
    _readings("match", "allumette", "match"),
    _readings("date", "datte", "date"),
    _readings("square", "carré", "place"),
    _readings("plant", "plante", "usine"),
    _readings("nut", "noix", "écrou"),
    _readings("bulb", "bulbe", "ampoule"),
    _readings("fan", "supporter", "ventilateur"),
    _readings("speaker", "orateur", "haut-parleur"),
    _readings("light", "léger|légère", "claire?"),
    _readings("hard", "dure?", "difficile"),
    _readings("short", "petite?", "courte?"),
    _readings("right", "droite?", "bon|bonne"),
    _readings("visit", r"rend\w*", r"visit(?!e (?:à|aux?)\b)\w+", word=r"visit\w*"),
    _readings("bring", r"am[eè]n\w+", r"apport\w+", word=r"bring\w*|brought"),
    _readings("know", r"sa(?:is|it|v\w+)|su", r"conn\w+", word=r"kn[eo]w\w*"),
    _readings("play", rf"{_PLAY} (?:au|aux|à)", rf"{_PLAY} (?:du|de)", word=r"play\w*"),
    _readings("it", "qu'il", "qu'elle"),
    _readings("bank", "rive", "banque"),
)


def find_readings(sources: tuple[str, str], references: tuple[str, str]) -> tuple[Readings, tuple[int, int]] | None:
    """Returns the ambiguous word of a contrast pair and the sense of each reference, or None for any other pair."""
    for readings in READINGS:
        if all(readings.word.search(source) for source in sources):
            first, second = (readings.of(reference) for reference in references)
            if first is not None and second is not None and first != second:
                return readings, (first, second)
    return None
