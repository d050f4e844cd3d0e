"""The two French renderings of each ambiguous word of the phrasebook's contrast split, as patterns.

They tell which sense a translation has chosen, whatever else is in it. Every reference of the split matches the
pattern of its own sense and not the other's (tested).
"""

from __future__ import annotations

import re

from data.corpora.corpus import Readings


def _readings(word: str, first: str, second: str) -> Readings:
    whole = [re.compile(rf"\b(?:{pattern})\b") for pattern in (word, first, second)]
    return Readings(whole[0], (whole[1], whole[2]))


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
    _readings(r"visit\w*", r"rend\w*", r"visit(?!e (?:à|aux?)\b)\w+"),
    _readings(r"bring\w*|brought", r"am[eè]n\w+", r"apport\w+"),
    _readings(r"kn[eo]w\w*", r"sa(?:is|it|v\w+)|su", r"conn\w+"),
    _readings(r"play\w*", rf"{_PLAY} (?:au|aux|à)", rf"{_PLAY} (?:du|de)"),
    _readings("it", "qu'il", "qu'elle"),
    _readings("bank", "rive", "banque"),
)


def find_readings(sources: tuple[str, str], references: tuple[str, str]) -> tuple[Readings, tuple[int, int]] | None:
    """What a contrast pair is about, and the sense of each of its references; None for any other pair of sentences."""
    for readings in READINGS:
        if all(readings.word.search(source) for source in sources):
            first, second = (readings.of(reference) for reference in references)
            if first is not None and second is not None and first != second:
                return readings, (first, second)
    return None
