"""Downloads published files: waiting is limited, and a file with another SHA-256 is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from lingua_flax.data.corpora.pair_files import sha256
from lingua_flax.host.errors import UserError

_WAIT_SECONDS = (3, 60)  # for a connection, and for the next bytes
_CHUNK_BYTES = 1 << 20
_is_offline = False  # in all threads: TFDS downloads in threads of its own


@contextmanager
def offline() -> Iterator[None]:
    """Makes every download fail at once, for a caller that can do without a corpus that is not on this machine."""
    global _is_offline
    before, _is_offline = _is_offline, True
    try:
        yield
    finally:
        _is_offline = before


class DownloadFailedError(Exception):
    """A file could not be downloaded; the reason is a few words, and the URL is None if unknown."""

    def __init__(self, reason: str, url: str | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.reason = reason
        self.url = url


class Session(requests.Session):
    """A session with time limits, whose errors name the URL."""

    def request(self, method: Any, url: Any, *arguments: Any, **options: Any) -> requests.Response:
        """Sends a request; raises DownloadFailedError if there is no connection or the status is not 200."""
        if _is_offline:
            raise DownloadFailedError("it is not on this machine", url)
        try:
            response = super().request(method, url, *arguments, **{"timeout": _WAIT_SECONDS, **options})
        except requests.RequestException as error:
            raise DownloadFailedError("no connection", url) from error
        if response.status_code != 200:
            raise DownloadFailedError(f"status {response.status_code}", url)
        return response


def download(url: str, path: Path, digest: str) -> None:
    """Downloads a file unless it exists already.

    Raises DownloadFailedError if the published file cannot be had, and UserError if the existing one is another.
    """
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        try:
            with Session() as session, session.get(url, stream=True) as response, partial.open("wb") as stream:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    stream.write(chunk)
            if sha256(partial) != digest:
                raise DownloadFailedError("the server does not deliver the published files", url)
            partial.rename(path)
        except requests.RequestException as error:
            raise DownloadFailedError("the connection was lost", url) from error
        finally:
            partial.unlink(missing_ok=True)
    check_published(path, path.name, digest)


def check_published(path: Path, name: str, digest: str) -> None:
    """Raises UserError if the SHA-256 of a file is not that of the published one, or if it cannot be read."""
    if sha256(path) != digest:
        raise wrong_file(path, name)


def wrong_file(path: Path, name: str) -> UserError:
    """Returns the error for a file that is not the published one of this name."""
    remedy = 'delete it and fetch it again (for your own files, set data.name = "text")'
    return UserError(f"{path}: not the published {name} (its SHA-256 differs); {remedy}")
