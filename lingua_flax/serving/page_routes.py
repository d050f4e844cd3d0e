"""The page at /, which shows what the network does, and what it asks for besides translations."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from lingua_flax.inspection.attention_html import PAGE_FILES
from lingua_flax.serving.run_report import RunReport, example_sentences


def add_page(app: FastAPI, workdir: Path) -> None:
    """Adds the page of a run to the application."""
    report = RunReport(workdir)
    reading = asyncio.Lock()
    examples = functools.cache(example_sentences)
    threading.Thread(target=examples, args=(workdir,), daemon=True).start()  # takes some seconds

    @app.get("/run")
    async def run() -> dict[str, Any]:
        """Returns the state of the run: progress, learning curves, samples of the last validation, checkpoints."""
        async with reading:
            return await asyncio.to_thread(report.read)

    @app.get("/examples")
    async def example() -> dict[str, Any]:
        """Returns sentences to begin with."""
        return await asyncio.to_thread(examples, workdir)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(PAGE_FILES / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE_FILES))  # not at /, where it would answer wrong methods of all paths
