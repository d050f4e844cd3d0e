"""Answers POST /translate: from the parameters of a request to the content of its answer."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lingua_flax.data.glossary import Glossary
from lingua_flax.serving.batcher import Batcher
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.protocol import TranslateRequest
from lingua_flax.translation.html_text import HtmlText, Translated
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.line_splitting import divide_text
from lingua_flax.translation.requests import Part, Request, most_hypotheses, to_search
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link, moved, pharaoh, word_links

Value = TypeVar("Value")

Line = tuple[Translation, list[Link]]  # with the links of the best hypothesis if they are wanted

LARGE = 1000  # characters from which on texts are divided in a thread, at about 4 ms a thousand


class Translations:
    """Translates requests: divides texts into sentences, has them searched, and puts the answers together."""

    def __init__(self, engine: Engine, batcher: Batcher):
        self._engine, self._batcher = engine, batcher
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="texts")

    async def answer(self, parameters: TranslateRequest, max_hypotheses: int) -> dict[str, Any]:
        """Returns the content of an answer; raises as `Batcher.search` and UserError for a useless glossary."""
        size = sum(map(len, parameters.texts))
        pages = []
        if parameters.format == "html":
            pages = [await self._compute(size, HtmlText, text) for text in parameters.texts]
        lines = [page.texts for page in pages] or [text.replace("\r\n", "\n").split("\n") for text in parameters.texts]
        aligned = [page.needs_links for page in pages] or [[parameters.alignments] * len(own) for own in lines]
        # LibreTranslate has no alternatives for HTML either.
        count = 1 if pages else min(1 + parameters.alternatives, max_hypotheses)
        glossary = Glossary(tuple(parameters.glossary.items())) if parameters.glossary else None
        translator = self._engine.translator((parameters.source, parameters.target), glossary)
        translations = iter(await self._translated([line for own in lines for line in own], translator, count))
        results = [[await self._line(next(translations), translator, each) for each in own] for own in aligned]
        if pages:
            translated = [[await self._compute(size, _rendered, *pair)] for pair in zip(pages, results, strict=True)]
        else:
            translated = [[_joined(own, rank) for rank in range(count)] for own in results]
        answer: dict[str, Any] = {"translatedText": [texts[0] for texts in translated]}
        if parameters.alternatives:
            answer["alternatives"] = [list(dict.fromkeys(texts))[1:] for texts in translated]
        if parameters.alignments:
            answer["alignments"] = [_joined_links(*pair) for pair in zip(lines, results, strict=True)]
        unknown = [list(dict.fromkeys(word for each, _ in own for word in each.unknown_words)) for own in results]
        if any(unknown):
            answer["unknownWords"] = unknown
        return answer if isinstance(parameters.q, list) else {name: values[0] for name, values in answer.items()}

    async def _translated(self, lines: Sequence[str], translator: Translator, count: int) -> list[Translation]:
        """Translates lines as `Translator.translate` does, but with the searches of other requests."""
        request = translator.request(self._engine.options, count)
        size, first, parts = sum(map(len, lines)), 1, list[Part]()
        for piece in _pieces(lines):  # one after another: the task may be cancelled in between
            own = dataclasses.replace(request, first_line=first)
            parts += await self._compute(size, _divided, translator, own, piece)
            first += len(piece)
        for is_admitted in (False, True):
            searched = to_search(parts)
            found = await self._batcher.search(searched, most_hypotheses(searched), is_admitted=is_admitted)
            parts = await self._compute(size, request.restored, parts, found)
        return await self._compute(size, request.joined, lines, parts)

    async def _line(self, translation: Translation, translator: Translator, is_aligned: bool) -> Line:
        links = await self._compute(LARGE, self._engine.align, translator, translation) if is_aligned else []
        return translation, links

    async def _compute(self, size: int, function: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function, in a thread if that takes long for texts of this size."""
        if size < LARGE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _pieces(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yields lines that are large together, or one that is so by itself."""
    piece: list[str] = []
    for line in lines:
        if piece and sum(map(len, piece)) + len(line) > LARGE:
            yield piece
            piece = []
        piece.append(line)
    yield piece


def _divided(translator: Translator, request: Request, lines: Sequence[str]) -> list[Part]:
    return request.parts(divide_text(translator, lines))


def _rendered(page: HtmlText, lines: list[Line]) -> str:
    return page.rendered([Translated(own.text, links) for own, links in lines])


def _joined(lines: list[Line], rank: int) -> str:
    """Joins the lines of a text; a line with fewer translations repeats its last one."""
    return "\n".join(own.hypotheses[min(rank, len(own.hypotheses) - 1)].text for own, _ in lines)


def _joined_links(lines: list[str], results: list[Line]) -> str:
    """Returns the links of the lines of a text, whose words are counted from its beginning."""
    joined = []
    source_start = target_start = 0
    for line, (translation, links) in zip(lines, results, strict=True):
        joined += [moved(link, source_start, target_start) for link in links]
        source_start, target_start = source_start + len(line) + 1, target_start + len(translation.text) + 1
    return pharaoh(word_links(joined, "\n".join(lines), _joined(results, 0)))
