"""The persistent compilation cache, and a count of what was compiled."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import jax

from configs.cache import cache_directory

_COMPILED = "/jax/core/compile/backend_compile_duration"  # fires for cache hits too
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass
class Compilations:
    """Programs this process has compiled or fetched from the cache, and the seconds that took."""

    programs: int = 0
    cache_hits: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        plural = "" if self.programs == 1 else "s"
        return f"{self.programs} program{plural}, {self.cache_hits} from the cache, {self.seconds:.1f} s"


def set_up_compilation() -> Compilations:
    """Turns on the persistent cache and returns a count that keeps itself up to date."""
    count = Compilations()

    def on_duration(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            count.programs += 1
            count.seconds += duration_secs

    def on_event(event: str, **_: str | int) -> None:
        count.cache_hits += event == _CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A cache that cannot be read or written only costs time.
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    return count
