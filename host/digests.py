"""Digests by which configs, corpora and checkpoints are compared."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def json_digest(value: Any) -> str:
    """SHA-256, in hex, of a value that JSON can hold; the order of an object's keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
