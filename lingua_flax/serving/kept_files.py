"""Translated files, which wait in memory for their clients, so that none survives the server."""

import asyncio
import secrets

MAX_SECONDS = 600
MAX_BYTES = 200 * 2**20  # of all


class KeptFiles:
    """Files by names that nobody can guess."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def add(self, name: str, content: bytes) -> str:
        """Keeps a file, instead of the oldest ones if there is no room, and returns the name that it gets."""
        while self._files and sum(map(len, self._files.values())) + len(content) > MAX_BYTES:
            del self._files[next(iter(self._files))]
        self._files[kept := f"{secrets.token_urlsafe(16)}.{name}"] = content
        asyncio.get_running_loop().call_later(MAX_SECONDS, self._files.pop, kept, None)
        return kept

    def get(self, name: str) -> bytes | None:
        """Returns a file, or None if it is not there, or not any more."""
        return self._files.get(name)
