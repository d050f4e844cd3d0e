"""Files from the web as they were published: no host is waited for endlessly, and no other file is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

from data.corpora.pair_files import sha256
from host.errors import UserError

_WAIT_SECONDS = (3, 60)  # for a connection, and for the next bytes
_PART = 1 << 20  # bytes


class DownloadFailedError(Exception):
    """A file could not be had, for a reason of a few words, from its URL, if that is known."""

    def __init__(self, reason: str, url: str | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.reason = reason
        self.url = url


class Session(requests.Session):
    """Waits for a limited time, and says which URL it could not get."""

    def request(self, method: Any, url: Any, *arguments: Any, **options: Any) -> requests.Response:
        """Do what requests does, or raise DownloadFailedError."""
        try:
            response = super().request(method, url, *arguments, **{"timeout": _WAIT_SECONDS, **options})
        except requests.RequestException as error:
            raise DownloadFailedError("no connection", url) from error
        if response.status_code != 200:
            raise DownloadFailedError(f"status {response.status_code}", url)
        return response


def download(url: str, path: Path, digest: str) -> None:
    """Download a file, unless it is there; its SHA-256 has to be the digest.

    Raises:
        DownloadFailedError: there is no network, or it does not deliver the published file.
        UserError: what is there is not the published file.
    """
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        try:
            with Session() as session, session.get(url, stream=True) as response, partial.open("wb") as stream:
                for part in response.iter_content(_PART):
                    stream.write(part)
            if sha256(partial) != digest:
                raise DownloadFailedError("it does not deliver the published files", url)
            partial.rename(path)
        except requests.RequestException as error:
            raise DownloadFailedError("the connection broke off", url) from error
        finally:
            partial.unlink(missing_ok=True)
    check_published(path, path.name, digest)


def check_published(path: Path, name: str, digest: str) -> None:
    """Refuse a file that is not the published one of that name.

    Raises:
        UserError: its SHA-256 is not the digest, or it cannot be read.
    """
    if sha256(path) != digest:
        raise wrong_file(path, name)


def wrong_file(path: Path, name: str) -> UserError:
    """The error for a file that is not the published one of that name."""
    remedy = 'delete it and fetch it again (data.name = "text" is for files of your own)'
    return UserError(f"{path}: not the published {name}, its SHA-256 differs; {remedy}")
