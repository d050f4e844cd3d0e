"""Dividing text into sentences: the library sentencex, and what it does not know about some languages."""

import itertools
from collections.abc import Iterator

import regex
import sentencex

from lingua_flax.options.language_codes import language_code

# The share of the lines of a training corpus with more than one sentence above which a network is given lines as they
# are. In Multi30k it is 0.0% (English) to 0.2% (German), in the phrasebook 0.
MAX_SEVERAL_SENTENCES = 0.1
CONTEXT = 40  # characters on either side of a boundary on which a rule may depend
# Characters that sentencex is given at a time: it takes quadratic time for some of them, such as quotation marks, and
# nothing else is computed meanwhile: 200 ms for 5,000 characters.
WINDOW = 1500


Rule = tuple[regex.Pattern[str], regex.Pattern[str]]  # what ends at a place in a text, and what begins there


def _rule(before: str, after: str = "") -> Rule:
    return regex.compile(rf"(?:{before})\Z"), regex.compile(after)


_OPENING = r"[\"'«“„(¿¡]?"
SMALL = rf"(?:[—–-]\s*)?{_OPENING}(?![ა-ჿ])\p{{Ll}}"  # Georgian has no capitals
CAPITAL = rf"(?!{SMALL}){_OPENING}[^\W\d_]"
# German nouns have capitals, too: only these words show that a sentence begins.
GERMAN_BEGINNING = (
    r"(?:Aber|Als|Am|Auch|Auf|Bei|Bis|Da|Dann|Das|Dem|Den|Der|Die|Dies\w*|Doch|Dort|Du|Ein|Eine\w*|Er|Es|Für|Heute|Hier|"
    r"Ich|Ihr\w*|Im|In|Jetzt|Man|Mit|Nach|Nun|Oder|Sie|So|Und|Von|Wann|Warum|Was|Weil|Wenn|Wer|Wie|Wir|Wo|Zu)\b"
)
# Places at which sentencex begins no sentence, although one does.
BEGINNINGS = {
    "": [
        _rule(r"(?:\.\.\.|…)[\"'»”’)\]]*\s+", CAPITAL),
        _rule(r"[.!?…][\"'»”’]*\)\s+", CAPITAL),
        _rule(r"[。！？][」』”’]*[）)]"),
        _rule(r"\S@\S+\.\s+", CAPITAL),
    ],
    "fr": [_rule(r"\betc\.\s+", CAPITAL)],
    "de": [_rule(r"\b(?:usw|etc)\.\s+", GERMAN_BEGINNING)],
}
# Of small letters, sentencex knows those of ASCII: before them, no sentence begins in some languages.
_BEFORE_SMALL = _rule(r"[.!?…][\"'»”’“)\]]*\s+", SMALL)
# Places at which sentencex begins a sentence, although none does.
CONTINUATIONS = {
    **{code: [_BEFORE_SMALL] for code in ("ca", "cs", "da", "fi", "kk", "kl", "lb", "oc", "rm", "sk")},
    "": [_rule(r"(?:(?:\.\.\.|…|[!?]\.\.)[\"'»”’“)\]]*|[.!?;][\"'»”’“)\]]+)\s*", SMALL)],
    "fr": [
        _rule(
            r"\b(?:MM|Mgr|Mlles?|Mmes?|Drs?|Prs?|[Pp]rof|Ste?|no|nos|art|chap|fig|vol|éd|p|pp|av|bd|env|cf|Cf|vs|tél|"
            r"janv|févr|avr|juil|sept|oct|nov|déc)\.\s*"
        ),
        _rule(r"(?:^|[\s-])[A-ZÀ-Þ]\.\s*", r"-?[A-ZÀ-Þ]\w*"),  # M. Dupont, J.-P. Morel
    ],
    "de": [
        _BEFORE_SMALL,
        _rule(
            r"(?:\b(?:Fa|Frl|Hrn?|Fr|St|ca|evtl|ggf|gegr|vgl|Vgl|Abs|Abb|Abt|Art|Kap|Aufl|Bd|Jh|geb|gest|Std|Min|Sek|Tel|"
            r"inkl|exkl|zzgl|Dipl|Ing|med|phil|rer|nat)|[Ss]tr)\.\s*"
        ),
        _rule(r"\b\d{1,3}\.\s+", rf"(?!{GERMAN_BEGINNING}){CAPITAL}"),  # der 2. Weltkrieg
    ],
    "ja": [_rule(r"[」』]", r"と|って|[「『]"), _rule(r"[。！？]", r"と(?:[一-鿿]|いう|言)")],
    "zh": [_rule(r"[”’」』]", r"[“‘「『]|[^。！？，]{0,5}[说說问問喊道叫答讲講]")],
}


_SPACE_BEFORE_STOP = regex.compile(r"[^\S\x00-\x7f](?=\.)")  # sentencex 1.0.32 panics if it stands after a capital
_POSSIBLE_ENDS = regex.compile(r"(?<=[.!?…\"'»”’)\]])\s+|[）)]")


def split_sentences(text: str, language: str) -> list[str]:
    """Returns the sentences of a text, each with the white space that follows it; joined, they are the text."""
    code = language_code(language)
    places = set(_ends(_SPACE_BEFORE_STOP.sub(" ", text), code))
    places -= {place for place in places if _matches(CONTINUATIONS, code, text, place)}
    more = {match.end() for match in _POSSIBLE_ENDS.finditer(text)} - places
    places |= {place for place in more if _matches(BEGINNINGS, code, text, place)}
    ends = sorted(place for place in places if 0 < place < len(text))
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)])]


def _ends(text: str, code: str) -> Iterator[int]:
    """Yields where sentencex ends a sentence, window by window; each begins where the last sentence began.

    Of a window, only the first half is certain: what begins in the second one may be a quotation that ends behind it.
    """
    begin = 0
    while begin < len(text):
        window = text[begin : begin + WINDOW]
        *ends, last = list(itertools.accumulate(map(len, sentencex.segment(code, window)), initial=begin))[1:]
        if last < len(text):
            certain = [end for end in ends if end - begin <= WINDOW // 2]
            # At least an eighth, or each of many windows would begin a character after the one before.
            is_enough = certain and certain[-1] - begin >= WINDOW // 8
            ends = certain if is_enough else ends[: len(certain) + 1]
            # A sentence that is longer than the window goes on with a whole word.
            last = ends[-1] if len(ends) > len(certain) or is_enough else begin + (window.rfind(" ") + 1 or WINDOW)
        yield from ends
        begin = last


def _matches(rules: dict[str, list[Rule]], code: str, text: str, place: int) -> bool:
    before, after = text[max(0, place - CONTEXT) : place], text[place : place + CONTEXT]
    own = (*rules.get("", ()), *rules.get(code, ()))
    return any(ending.search(before) and beginning.match(after) for ending, beginning in own)
