"""Digests for comparing configs, corpora and checkpoints."""

import hashlib
import json
from typing import Any


def json_digest(value: Any) -> str:
    """Returns the SHA-256, in hexadecimal, of a JSON-serializable value, regardless of the order of object keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def short_digest(content: bytes) -> int:
    """Returns a digest of 64 bits, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
