"""Answers POST /translate: from the parameters of a request to the content of its answer."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lingua_flax.data.glossary import Glossary
from lingua_flax.data.text_files import chunks
from lingua_flax.documents.document import Document
from lingua_flax.serving.batcher import Batcher
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.protocol import TranslateRequest
from lingua_flax.translation.html_text import HtmlText
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.line_splitting import divide_text
from lingua_flax.translation.requests import Part, Request
from lingua_flax.translation.translator import Translator
from lingua_flax.translation.word_alignment import Link, moved, pharaoh, word_links

Value = TypeVar("Value")

CHUNK = 64  # texts of a document
LARGE = 1000  # characters from which on texts are divided in a thread, at about 4 ms a thousand


class Translations:
    """Translates requests: divides texts into sentences, has them searched, and puts the answers together."""

    def __init__(self, engine: Engine, batcher: Batcher):
        self._engine, self._batcher = engine, batcher
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="texts")

    async def answer(self, parameters: TranslateRequest) -> dict[str, Any]:
        """Returns the content of an answer; raises as `Batcher.search` and UserError for a useless glossary."""
        size = sum(map(len, parameters.texts))
        pages: list[HtmlText | None] = [None for _ in parameters.texts]
        if parameters.format == "html":
            pages = [await self._compute(size, HtmlText, text) for text in parameters.texts]
        lines = [
            page.texts if page else text.replace("\r\n", "\n").split("\n")
            for page, text in zip(pages, parameters.texts, strict=True)
        ]
        # LibreTranslate has no alternatives for HTML either.
        options = self._engine.options
        count = 1 if parameters.format == "html" else min(1 + parameters.alternatives, options.beam_size)
        glossary = Glossary(tuple(parameters.glossary.items())) if parameters.glossary else None
        translator = self._engine.translator((parameters.source, parameters.target), glossary)
        request = translator.request(options, count)
        translations = iter(await self._translated(lines, size, translator, request))
        texts = []
        for page, source in zip(pages, lines, strict=True):
            own = list(itertools.islice(translations, len(source)))
            wanted = page.needs_links if page else [parameters.alignments] * len(own)
            links = await self._compute(LARGE * any(wanted), self._engine.align, translator, own, wanted)
            texts.append(await self._compute(size, _text, page, own, links, count))
        names = ["translatedText"]
        names += [name for name in ("alternatives", "alignments") if getattr(parameters, name)]
        names += ["unknownWords"] if any(text["unknownWords"] for text in texts) else []
        answer = {name: [text[name] for text in texts] for name in names}
        return answer if isinstance(parameters.q, list) else {name: values[0] for name, values in answer.items()}

    async def file(self, document: Document, languages: tuple[str, str]) -> bytes:
        """Returns a document with its texts translated; raises as `Batcher.search`."""
        translator = self._engine.translator(languages, None)
        texts = list(chunks(document.texts, CHUNK))  # between which the texts of other requests have their turn
        own = await self._translated(texts, LARGE, translator, translator.request(self._engine.options, 1))
        links: list[list[Link]] = []
        for part in chunks(zip(own, document.needs_links, strict=True), CHUNK):
            links += await self._compute(LARGE, self._engine.align, translator, *map(list, zip(*part, strict=True)))
        translated = iter(zip([line.text for line in own], links, strict=True))
        return await self._compute(LARGE, document.translated, translated)

    async def _translated(
        self, texts: Sequence[Sequence[str]], size: int, translator: Translator, request: Request
    ) -> list[Translation]:
        """Translates the lines of texts as `Translator.translate` does, but with the searches of other requests."""
        divided: list[list[Part]] = []
        for text in texts:  # one after another: the task may be cancelled in between
            divided += await self._compute(size, divide_text, translator, text)
        parts = await self._compute(size, request.parts, divided)
        for is_admitted in (False, True):
            job = await self._compute(size, self._batcher.job, parts)
            found = await self._batcher.search(job, is_admitted=is_admitted)
            parts = await self._compute(size, request.restored, parts, found)
        return await self._compute(size, request.joined, list(itertools.chain(*texts)), parts)

    async def _compute(self, size: int, function: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function, in a thread if that takes long for texts of this size."""
        if size < LARGE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _text(
    page: HtmlText | None, lines: Sequence[Translation], links: Sequence[Sequence[Link]], count: int
) -> dict[str, Any]:
    if page:
        ranked = [page.rendered(zip([own.text for own in lines], links, strict=True))]
    else:
        ranked = [_joined(lines, rank) for rank in range(count)]
    return {
        "translatedText": ranked[0],
        "alternatives": list(dict.fromkeys(ranked))[1:],
        "alignments": _joined_links(lines, links),
        "unknownWords": list(dict.fromkeys(word for own in lines for word in own.unknown_words)),
    }


def _joined(lines: Sequence[Translation], rank: int) -> str:
    """Joins the lines of a text; a line with fewer translations repeats its last one."""
    return "\n".join(own.hypotheses[min(rank, len(own.hypotheses) - 1)].text for own in lines)


def _joined_links(lines: Sequence[Translation], links: Sequence[Sequence[Link]]) -> str:
    """Returns the links of the lines of a text, whose words are counted from its beginning."""
    joined = []
    source_start = target_start = 0
    for line, of_line in zip(lines, links, strict=True):
        joined += [moved(link, source_start, target_start) for link in of_line]
        source_start, target_start = source_start + len(line.source) + 1, target_start + len(line.text) + 1
    return pharaoh(word_links(joined, "\n".join(line.source for line in lines), _joined(lines, 0)))
