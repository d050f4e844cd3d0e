"""A local web server in place of those from which corpora are downloaded."""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Silent(SimpleHTTPRequestHandler):
    """Delivers files and logs nothing."""

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def delivered(folder: Path, handler: type[SimpleHTTPRequestHandler] = Silent) -> Iterator[str]:
    """Delivers the files of a folder, or what the handler makes of a request; yields the server's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
