"""The HTTP interface: LibreTranslate's protocol, health, metrics, its own documentation, and the page at /."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from lingua_flax.data.glossary import Glossary
from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.inspection.page_files import PAGE_FILES
from lingua_flax.inspection.run_report import RunReport, example_sentences, sample_sentence
from lingua_flax.serving.batcher import Batcher, RefusedError
from lingua_flax.serving.documentation import DOCS_FILES, DOCS_PAGE, DOCS_SCRIPT, request_body
from lingua_flax.serving.engine import Engine, Item, Result
from lingua_flax.serving.inspector import Inspector
from lingua_flax.serving.languages import Language
from lingua_flax.serving.prometheus import Metrics
from lingua_flax.serving.protocol import DetectRequest, InspectRequest, Limits, TranslateRequest, check_size
from lingua_flax.translation.html_text import HtmlText, Translated
from lingua_flax.translation.word_alignment import moved, pharaoh, word_links

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

RETRY = {"Retry-After": "1"}  # seconds


class Server:
    """The state of the server: an engine, once there is one, and the queue in front of it."""

    def __init__(self, languages: list[Language], limits: Limits, *, max_waiting: int, timeout: float):
        """Creates a server without an engine.

        At most `max_waiting` lines may wait for a batch. A request is given up after `timeout` seconds.
        """
        self.languages = languages
        self.limits = limits
        self.timeout = timeout
        self.status = "loading"  # then what the server waits for, or "ok"
        self.failure: BaseException | None = None  # why there is no engine, if it could not be loaded
        self.on_failure: Callable[[], None] = lambda: None
        self._max_waiting = max_waiting
        self._takes_glossaries = False
        self._batcher: Batcher[Item, Result] | None = None
        self.inspector: Inspector | None = None
        self._inspections: Batcher[InspectRequest, dict[str, Any]] | None = None
        self.metrics = Metrics(lambda: self._batcher.waiting if self._batcher else 0)

    async def run(self, load: Callable[[Server], Engine]) -> None:
        """Loads an engine and translates with it until the task is cancelled or `stop` is called."""
        engine = await asyncio.to_thread(load, self)
        self._takes_glossaries = engine.takes_glossaries

        def translate(items: list[Item]) -> list[Result]:
            self.metrics.batch_lines.observe(len(items))
            return engine.translate(items)

        self._batcher = Batcher(
            translate, max_batch=engine.max_batch, max_waiting=self._max_waiting, workers=engine.workers
        )
        if self.inspector:
            self._inspections = Batcher(self.inspector, max_batch=1, max_waiting=self._max_waiting, window=0.0)
        self.status = "ok"
        log.info("ready")
        await asyncio.gather(*(batcher.run() for batcher in (self._batcher, self._inspections) if batcher))

    def stop(self) -> None:
        """Refuses further requests; those that wait are still answered."""
        for batcher in (self._batcher, self._inspections):
            if batcher:
                batcher.stop()

    def fail(self, task: asyncio.Task[None]) -> None:
        """Takes note of the task's failure, if it has failed."""
        if not task.cancelled() and (error := task.exception()):
            self.failure, self.status = error, "failed"
            self.on_failure()

    async def translate(self, request: Request) -> dict[str, Any]:
        """Translates a text or a list of texts, line by line, or HTML."""
        parameters = await TranslateRequest.read(request)
        parameters.check(self.limits)
        source = self.languages[0].code if parameters.source == "auto" else parameters.source
        language = next((known for known in self.languages if known.code == source), None)
        if not language:
            raise HTTPException(400, f"{source} is not supported")
        if parameters.target not in language.targets:
            raise HTTPException(400, f"{parameters.target} is not available as a target language from {source}")
        if parameters.glossary and not self._takes_glossaries:
            raise HTTPException(400, "Invalid request: the network was trained without placeholders for a glossary")
        pages = [HtmlText(text) for text in parameters.texts] if parameters.format == "html" else []
        lines = [page.texts for page in pages] or [text.replace("\r\n", "\n").split("\n") for text in parameters.texts]
        aligned = [page.needs_links for page in pages] or [[parameters.alignments] * len(own) for own in lines]
        count = 1 if pages else 1 + parameters.alternatives  # LibreTranslate has no alternatives for HTML either
        glossary = Glossary(tuple(parameters.glossary.items())) if parameters.glossary else None
        items = [
            Item(line, parameters.target, count, is_aligned, glossary)
            for pair in zip(lines, aligned, strict=True)
            for line, is_aligned in zip(*pair, strict=True)
        ]
        check_size(len(items), "lines", self._max_waiting)
        results = iter(await self._answered(request, self._batcher, items))
        results_of = [[next(results) for _ in own] for own in lines]
        if pages:
            translated = [[_rendered(*pair)] for pair in zip(pages, results_of, strict=True)]
        else:
            translated = [_joined(own, count) for own in results_of]
        answer: dict[str, Any] = {"translatedText": [texts[0] for texts in translated]}
        if parameters.source == "auto":
            answer["detectedLanguage"] = [self.detected() for _ in translated]
        if parameters.alternatives:
            answer["alternatives"] = [list(dict.fromkeys(texts))[1:] for texts in translated]
        if parameters.alignments:
            answer["alignments"] = [_joined_links(*pair) for pair in zip(lines, results_of, strict=True)]
        return answer if isinstance(parameters.q, list) else {name: values[0] for name, values in answer.items()}

    async def inspect(self, request: Request) -> Response:
        """Translates a sentence, and returns what the network did; see the documentation for the format."""
        parameters = await InspectRequest.read(request)
        check_size(len(parameters.q), "characters", self.limits.characters)
        if parameters.target not in ("", *(target for language in self.languages for target in language.targets)):
            raise HTTPException(400, f"{parameters.target} is not available as a target language")
        (result,) = await self._answered(request, self._inspections, [parameters])
        return JSONResponse(result)

    def detected(self) -> dict[str, Any]:
        """Returns the language that texts are taken for: the first that the run translates from."""
        return {"confidence": 100.0 if len(self.languages) == 1 else 0.0, "language": self.languages[0].code}

    async def _answered(self, request: Request, batcher: Batcher[Any, Answer] | None, items: list[Any]) -> list[Answer]:
        """Waits for the results of the items, but no longer than the client does and the deadline allows.

        Raises HTTPException if there is no result, whatever the reason.
        """
        if not batcher:
            raise HTTPException(503, f"the server is not ready: {_without_folders(self.status)}", RETRY)
        answer = asyncio.ensure_future(batcher.submit(items))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({answer, gone}, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        except RefusedError as error:
            raise HTTPException(503, str(error), RETRY) from error
        except UserError as error:
            raise HTTPException(400, f"Invalid request: {_without_folders(str(error))}") from error
        except Exception as error:
            log.exception("a batch could not be translated")
            raise HTTPException(500, "the text could not be translated") from error
        finally:
            answer.cancel()
            gone.cancel()
        raise HTTPException(504, f"no translation within {self.timeout:g} seconds")


def _without_folders(message: str) -> str:
    """Returns a message in which of absolute paths only the names are left: clients need not know where files lie."""
    return re.sub(r"(?<![\w:/])/(?:[^\s/]+/)+", "", message)


async def _disconnected(request: Request) -> None:
    """Waits until the client closes its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _rendered(page: HtmlText, results: list[Result]) -> str:
    return page.rendered([Translated(own.texts[0], own.links) for own in results])


def _joined(lines: list[Result], count: int) -> list[str]:
    """Joins the lines of a text, rank by rank; a line with fewer translations repeats its last one."""
    return ["\n".join(own.texts[min(rank, len(own.texts) - 1)] for own in lines) for rank in range(count)]


def _joined_links(lines: list[str], results: list[Result]) -> str:
    """Returns the links of the lines of a text, whose words are counted from its beginning."""
    joined = []
    source_start = target_start = 0
    for line, result in zip(lines, results, strict=True):
        joined += [moved(link, source_start, target_start) for link in result.links]
        source_start, target_start = source_start + len(line) + 1, target_start + len(result.texts[0]) + 1
    return pharaoh(word_links(joined, "\n".join(lines), "\n".join(result.texts[0] for result in results)))


def make_app(server: Server, load: Callable[[Server], Engine], workdir: Path | None = None) -> FastAPI:
    """Returns the application, which calls `load` when it starts.

    The page at / shows the run in `workdir`; without it there is none.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(server.run(load))
        running.add_done_callback(server.fail)
        yield
        server.stop()
        if server.status == "ok":
            await running
        running.cancel()

    app = FastAPI(title="Lingua Flax", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.mount("/docs/files", StaticFiles(directory=DOCS_FILES))
    # The page /docs shows the docstrings of all functions that answer requests.
    sentence = sample_sentence(workdir) if workdir else None
    app.post("/translate", openapi_extra=request_body(TranslateRequest, sentence))(server.translate)
    app.post("/inspect", openapi_extra=request_body(InspectRequest, sentence, forms=False))(server.inspect)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(UserError)
    async def unavailable(_: Request, error: UserError) -> Response:
        return JSONResponse({"error": _without_folders(str(error))}, 503, RETRY)

    @app.post("/detect", openapi_extra=request_body(DetectRequest))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """Returns the language that a text is taken for."""
        await DetectRequest.read(request)
        return [server.detected()]

    @app.get("/languages")
    async def languages() -> list[Language]:
        """Returns the languages and what they can be translated into."""
        return server.languages

    @app.get("/health")
    async def health() -> Response:
        """Returns status 200 once the server translates, and 503 before."""
        return JSONResponse({"status": _without_folders(server.status)}, 200 if server.status == "ok" else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(DOCS_PAGE)

    @app.get("/docs/show.js", include_in_schema=False)
    async def docs_script() -> Response:
        return Response(DOCS_SCRIPT, media_type="text/javascript")

    if workdir:
        _add_page(app, workdir)
    return app


def _add_page(app: FastAPI, workdir: Path) -> None:
    """Adds the page of a run, and what it asks for besides translations."""
    report = RunReport(workdir)
    reading = threading.Lock()
    examples = functools.cache(example_sentences)
    threading.Thread(target=examples, args=(workdir,), daemon=True).start()  # takes some seconds

    @app.get("/run")
    def run() -> dict[str, Any]:
        """Returns the state of the run: progress, learning curves, samples of the last validation, checkpoints."""
        with reading:
            return report.read()

    @app.get("/examples")
    def example() -> dict[str, Any]:
        """Returns sentences to begin with."""
        return examples(workdir)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(PAGE_FILES / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE_FILES))  # not at /, where it would answer wrong methods of all paths
