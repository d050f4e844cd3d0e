"""Downloads published files: waiting is limited, and a file with another SHA-256 is refused."""

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import requests

from lingua_flax.data.corpora.pair_files import sha256
from lingua_flax.host.errors import UserError

_WAIT_SECONDS = (3, 60)  # for a connection, and for the next bytes
_CHUNK_BYTES = 1 << 20
_is_offline = False


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
    """A file could not be downloaded; the reason is a few words."""

    def __init__(self, reason: str, url: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.reason = reason
        self.url = url


def download(url: str, path: Path, digest: str, advance: Callable[[int], object] = lambda size: None) -> None:
    """Downloads a file unless it exists already; `advance` is told how many more bytes have come.

    Raises DownloadFailedError if the published file cannot be had, and UserError if the existing one is another.
    """
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        try:
            with partial.open("wb") as stream:
                for chunk in _contents(url):
                    stream.write(chunk)
                    advance(len(chunk))
            if sha256(partial) != digest:
                raise DownloadFailedError("the server does not deliver the published files", url)
            partial.rename(path)
        except requests.RequestException as error:
            raise DownloadFailedError("the connection was lost", url) from error
        finally:
            partial.unlink(missing_ok=True)
    check_published(path, url.rpartition("/")[2], digest)


def _contents(url: str) -> Iterator[bytes]:
    if _is_offline:
        raise DownloadFailedError("it is not on this machine", url)
    try:
        if url.startswith("ftp:"):  # requests does not know it
            response = urllib.request.urlopen(url, timeout=_WAIT_SECONDS[1])
            return iter(lambda: response.read(_CHUNK_BYTES), b"")
        response = requests.get(url, stream=True, timeout=_WAIT_SECONDS)
    except (requests.RequestException, URLError) as error:
        raise DownloadFailedError("no connection", url) from error
    if response.status_code != 200:
        raise DownloadFailedError(f"status {response.status_code}", url)
    return response.iter_content(_CHUNK_BYTES)


def check_published(path: Path, name: str, digest: str) -> None:
    """Raises UserError if the SHA-256 of a file is not that of the published one, or if it cannot be read."""
    if sha256(path) != digest:
        remedy = 'delete it and fetch it again (for your own files, set data.name = "text")'
        raise UserError(f"{path}: not the published {name} (its SHA-256 differs); {remedy}")
