"""The HTTP interface: LibreTranslate's protocol, health, metrics, its own documentation, and the page at /."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from lingua_flax.documents.formats import SUFFIXES, read_document
from lingua_flax.host.errors import UserError
from lingua_flax.host.version import VERSION
from lingua_flax.inspection.run_report import RunReport, example_sentences, sample_sentence
from lingua_flax.page.documents import PAGE_FILES
from lingua_flax.runs.learning_curves import CURVES_NAME
from lingua_flax.serving.batcher import Batcher
from lingua_flax.serving.engine import Engine
from lingua_flax.serving.kept_files import KeptFiles
from lingua_flax.serving.languages import Language, detect, served
from lingua_flax.serving.prometheus import CLIENT_LEFT, Metrics
from lingua_flax.serving.protocol import (
    DetectRequest,
    FileRequest,
    InspectRequest,
    Limits,
    TranslateRequest,
    unavailable,
)
from lingua_flax.serving.translations import Translations

log = logging.getLogger(__name__)

Direction = TypeVar("Direction", TranslateRequest, FileRequest)

MAX_FILES = 2  # that are translated at a time: the largest take 200 MB of memory
MAX_DETECTED = 100  # texts that tell the language of a document
MAX_INSPECTIONS = 16  # that wait
SURE = 90  # per cent from which on a text is not translated because it is in the target language
FINISH_SECONDS = 2.5  # to answer what was accepted before the server was stopped


class Server:
    """The state of the server: what answers requests, once there is an engine."""

    def __init__(self, languages: list[Language], limits: Limits, *, max_waiting: int, timeout: float):
        """Creates a server without an engine; `max_waiting` and `timeout` as in `Batcher`."""
        self.languages = languages
        self._targets = {language.code: language.targets for language in languages}
        self.limits = limits
        self.timeout = timeout
        self.status = "loading"  # then what the server waits for, or "ok"
        self.failure: BaseException | None = None  # why there is no engine, if it could not be loaded
        self.on_failure: Callable[[], None] = lambda: None
        self.inspector: Callable[[InspectRequest, Callable[[int], None]], dict[str, Any]] | None = None
        self.metrics = Metrics(lambda: self._batcher.waiting if self._batcher else 0)
        self._max_waiting = max_waiting
        self._batcher: Batcher | None = None
        self._translations: Translations | None = None
        self._given_up = asyncio.Event()  # FINISH_SECONDS after `stop`
        self._inspections = self._files_in_work = 0
        self._files = KeptFiles()
        self._inspecting = ThreadPoolExecutor(1, thread_name_prefix="inspection")

    async def run(self, load: Callable[[Server], Engine]) -> None:
        """Loads an engine and translates with it until the task is cancelled or `stop` is called."""
        engine = await asyncio.to_thread(load, self)
        await asyncio.to_thread(detect, "", self.languages)  # loads a model
        self._batcher = Batcher(engine, self.metrics, max_waiting=self._max_waiting, timeout=self.timeout)
        self._translations = Translations(engine, self._batcher)
        # What stays until the end, 600,000 objects, is not looked through again and again: with 64 clients that took a
        # quarter of the event loop's time, and 1.2 instead of 0.3 s for the 99th percentile of latencies.
        gc.collect()
        gc.freeze()
        # With 700 instead of 10,000, a third of the event loop's time was collection, which also calls JAX. Of what is
        # old, nothing is found: looking through the 160,000 parts of a request held up all others for 0.3 to 0.7 s.
        gc.set_threshold(10_000, 10, 1000)
        self.status = "ok"
        log.info("ready")
        await self._batcher.run()

    def report(self, status: str) -> None:
        """Says, also in the log, what the server waits for."""
        self.status = status
        log.info(status)

    def stop(self) -> None:
        """Refuses further requests; those that wait are still answered, with a refusal after FINISH_SECONDS."""
        if self._batcher:
            self._batcher.stop()
        asyncio.get_running_loop().call_later(FINISH_SECONDS, self._given_up.set)

    @property
    def readiness(self) -> str:
        """What the server waits for, why a small request would not be translated now, or "ok"."""
        refusal = self._batcher.refusal if self._batcher and self.status == "ok" else None
        return refusal or _without_folders(self.status)

    def fail(self, task: asyncio.Task[None]) -> None:
        """Takes note of the task's failure, if it has failed."""
        if not task.cancelled() and (error := task.exception()):
            self.failure, self.status = error, "failed"
            self.on_failure()

    async def translate(self, request: Request) -> Response:
        """Translates a text or a list of texts, line by line, or HTML."""
        parameters = await TranslateRequest.read(request)
        parameters.check(self.limits)
        resolved, detected = await self._resolved(parameters, lambda: parameters.plain_text)
        return await self._answered(request, self._translation(resolved, detected))

    async def translate_file(self, request: Request) -> Response:
        """Translates a document; `translatedFileUrl` of the answer is its address for ten minutes."""
        if self._files_in_work >= MAX_FILES:
            await request.body()
            raise unavailable("too many files are being translated; try again later")
        self._files_in_work += 1
        try:
            parameters = await FileRequest.read(request)
            return await self._answered(request, self._file(request, parameters))
        finally:
            self._files_in_work -= 1

    async def _file(self, request: Request, parameters: FileRequest) -> dict[str, Any]:
        if not self._translations:
            raise unavailable(f"the server is not ready: {self.readiness}")
        content, name = await parameters.file.read(), Path((parameters.file.filename or "").replace("\\", "/"))
        if (suffix := name.suffix.lower()) not in SUFFIXES:
            raise HTTPException(400, f"Invalid request: the name of a file must end in {', '.join(SUFFIXES)}")
        document = await asyncio.to_thread(read_document, content, suffix, name.name)
        begin = " ".join(document.texts[:MAX_DETECTED])
        resolved, detected = await self._resolved(parameters, lambda: begin)
        languages = (detected["language"], resolved.target)
        if languages[0] != languages[1]:
            content = await self._translations.file(document, languages)
        kept = self._files.add(f"{re.sub('[^a-zA-Z0-9_-]', '_', name.stem)[:100]}_{languages[1]}{suffix}", content)
        # The path as the client has it, which a reverse proxy may have put the server below.
        path = request.scope["raw_path"].decode().removesuffix("translate_file")
        scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
        return {"translatedFileUrl": f"{scheme}://{request.headers['host']}{path}download_file/{kept}"}

    async def download_file(self, request: Request) -> Response:
        """Returns a translated document."""
        name = request.path_params["name"]
        if (content := self._files.get(name)) is None:
            raise HTTPException(404, "there is no such file, or not any more")
        attachment = {"Content-Disposition": f'attachment; filename="{name.partition(".")[2]}"'}
        return Response(content, media_type="application/octet-stream", headers=attachment)

    async def _resolved(self, parameters: Direction, text: Callable[[], str]) -> tuple[Direction, dict[str, Any]]:
        """Returns the parameters with codes as the run has them, and the language of the text; raises HTTPException."""
        given = {"source": parameters.source, "target": parameters.target}
        codes = {side: served(self.languages, code) for side, code in given.items()}
        parameters = parameters.model_copy(update=codes)
        detected = await self._detected(parameters, text)
        source: str = detected["language"]
        for code in (source, parameters.target):
            if code not in self._targets:
                raise HTTPException(400, f"{code} is not supported")
        if parameters.target not in (source, *self._targets[source]):
            raise HTTPException(400, f"{parameters.target} is not available as a target language from {source}")
        return parameters, detected

    async def _detected(self, parameters: Direction, text: Callable[[], str]) -> dict[str, Any]:
        """Returns the language that texts are in, or else are taken for so that they can be translated."""
        if parameters.source != "auto":
            return {"language": parameters.source}
        for found in await asyncio.to_thread(lambda: detect(text(), self.languages)):
            is_target = found["language"] == parameters.target and found["confidence"] >= SURE
            if is_target or parameters.target in self._targets[found["language"]]:
                return found
        return {"confidence": 0.0, "language": self.languages[0].code}

    async def _translation(self, parameters: TranslateRequest, detected: dict[str, Any]) -> dict[str, Any]:
        if not self._translations:
            raise unavailable(f"the server is not ready: {self.readiness}")
        if parameters.target == detected["language"]:
            answer: dict[str, Any] = {"translatedText": parameters.q}
        else:
            resolved = parameters.model_copy(update={"source": detected["language"]})
            answer = await self._translations.answer(resolved)
        if parameters.source == "auto":
            answer["detectedLanguage"] = detected if isinstance(parameters.q, str) else [detected] * len(parameters.q)
        return answer

    async def inspect(self, request: Request) -> Response:
        """Translates a sentence, and returns what the network did; see the documentation for the format."""
        parameters = await InspectRequest.read(request)
        parameters.check(self.limits)
        if parameters.target:
            parameters = parameters.model_copy(update={"target": served(self.languages, parameters.target)})
        if parameters.target not in ("", *itertools.chain(*self._targets.values())):
            raise HTTPException(400, f"{parameters.target} is not available as a target language")
        return await self._answered(request, self._inspection(parameters))

    async def _inspection(self, parameters: InspectRequest) -> dict[str, Any]:
        if not self.inspector or not self._batcher:
            raise unavailable(f"the server is not ready: {self.readiness}")
        if self._batcher.is_stopping:
            raise unavailable("the server is stopping")
        if self._inspections >= MAX_INSPECTIONS:
            raise unavailable("too many requests are waiting; try again later")
        is_given_up = threading.Event()

        def after_batch(_: int) -> None:
            if is_given_up.is_set():
                raise TimeoutError

        self._inspections += 1
        try:
            loop = asyncio.get_running_loop()
            inspection = loop.run_in_executor(self._inspecting, self.inspector, parameters, after_batch)
            return await asyncio.wait_for(inspection, self.timeout)
        finally:
            is_given_up.set()
            self._inspections -= 1

    async def _answered(self, request: Request, content: Coroutine[Any, Any, dict[str, Any]]) -> Response:
        """Returns the content as JSON; nothing more is computed for a client that has closed its connection."""
        waits = (content, _disconnected(request), self._given_up.wait())
        answer, gone, _ = tasks = [asyncio.ensure_future(own) for own in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and not gone.done():
                raise unavailable("the server is stopping")
            return JSONResponse(answer.result()) if answer.done() else Response(status_code=CLIENT_LEFT)
        except HTTPException:
            raise
        except UserError as error:
            raise HTTPException(400, f"Invalid request: {_without_folders(str(error))}") from error
        except TimeoutError as error:
            raise unavailable(f"nothing was translated for {self.timeout:g} seconds", 504) from error
        except Exception as error:
            log.exception("a batch could not be translated")
            raise HTTPException(500, "the text could not be translated") from error
        finally:
            for task in tasks:
                task.cancel()


def _without_folders(message: str) -> str:
    """Returns a message in which of absolute paths only the names are left: clients need not know where files lie."""
    return re.sub(r"(?<![\w:/])/(?:[^\s/]+/)+", "", message)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(server: Server, load: Callable[[Server], Engine], workdir: Path | None = None) -> FastAPI:
    """Returns the application, which calls `load` when it starts; the page at / shows the run in `workdir`, if any."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(server.run(load))
        running.add_done_callback(server.fail)
        yield
        server.stop()
        if server.status == "ok":
            await running
        running.cancel()

    app = FastAPI(
        title="Lingua Flax",
        version=VERSION,
        servers=[{"url": "."}],  # where this is read: a proxy may have put the server below another path
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.mount("/docs/files", StaticFiles(packages=[("fastapi_offline", "static")]))  # so that /docs works offline
    app.mount("/page", StaticFiles(directory=PAGE_FILES))  # not at /, where it would answer wrong methods of all paths
    # The page /docs shows the docstrings of all functions that answer requests.
    sentence = sample_sentence(workdir) if workdir else None
    app.post("/translate", openapi_extra=TranslateRequest.body(sentence))(server.translate)
    app.post("/translate_file", openapi_extra=FileRequest.body())(server.translate_file)
    app.get("/download_file/{name}")(server.download_file)
    app.post("/inspect", openapi_extra=InspectRequest.body(sentence))(server.inspect)
    # FastAPI's own route to /translate is for the documentation only: it takes a tenth of the event loop's time.
    app.router.routes.insert(0, Route("/translate", server.translate, methods=["POST"]))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)  # before the request was complete
    async def left(*_: object) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(UserError)
    async def without_run(request: Request, error: UserError) -> Response:
        return await refused(request, unavailable(_without_folders(str(error))))

    @app.post("/detect", openapi_extra=DetectRequest.body())
    async def detection(request: Request) -> list[dict[str, Any]]:
        """Returns the languages that a text may be in, of those of the run, the likeliest first."""
        text = "\n".join((await DetectRequest.read(request)).texts)
        return await asyncio.to_thread(detect, text, server.languages)

    @app.get("/languages")
    async def languages() -> list[Language]:
        """Returns the languages and what they can be translated into."""
        return server.languages

    @app.get("/health")
    @app.get("/readyz", include_in_schema=False)
    async def readiness() -> Response:
        """Returns status 200 while the server translates, and 503 while it would not."""
        status = server.readiness
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Returns what LibreTranslate's page is told of a server without keys and suggestions."""
        first = server.languages[0]
        target = next(language for language in server.languages if language.code in first.targets)
        offered = dict.fromkeys(("apiKeys", "keyRequired", "suggestions"), False) | {"filesTranslation": True}
        sides = {"source": first, "target": target}
        language = {side: own.model_dump(exclude={"targets"}) for side, own in sides.items()}
        limits = {"charLimit": server.limits.characters, "frontendTimeout": 500}
        return offered | limits | {"supportedFilesFormat": SUFFIXES, "language": language}

    @app.post("/suggest", include_in_schema=False)
    async def not_offered() -> None:
        raise HTTPException(403, "Suggestions are disabled on this server.")

    answers: dict[str, Callable[[], Response]] = {  # that need nothing of the request, by their paths
        "/livez": lambda: JSONResponse({"status": "ok"}),
        "/metrics": lambda: Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST),
        "/spec": lambda: JSONResponse(app.openapi()),
        "/docs": lambda: FileResponse(PAGE_FILES / "docs.html"),
        "/docs/": lambda: RedirectResponse("../docs"),
    }
    if workdir:
        answers["/"] = lambda: FileResponse(PAGE_FILES / "index.html")
        _add_run(app, workdir)

    async def answer(request: Request) -> Response:
        return answers[request.scope["path"]]()

    for path in answers:
        app.get(path, include_in_schema=False)(answer)
    return app


def _add_run(app: FastAPI, workdir: Path) -> None:
    report = RunReport(workdir)
    reading = threading.Lock()

    @app.get("/run")
    def run() -> dict[str, Any]:
        """Returns the state of the run: progress, the last losses and samples, checkpoints."""
        with reading:
            return report.read()

    @app.get("/run/curves.png", include_in_schema=False)
    def curves() -> FileResponse:
        if not (path := workdir / CURVES_NAME).exists():
            raise HTTPException(404, "The run has no learning curves yet.")
        return FileResponse(path)

    @app.get("/examples")
    def example() -> dict[str, Any]:
        """Returns sentences to begin with."""
        return example_sentences(workdir)
