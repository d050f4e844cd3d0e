"""Compiled programs: each once in a process, kept on disk between processes, and counted."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from host.cache import cache_directory

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


_programs: dict[Any, Future[jax.stages.Compiled]] = {}
_adding_program = threading.Lock()


def compiled_program(function: jax.stages.Wrapped, *arguments: Any, **static: Any) -> jax.stages.Compiled:
    """A jitted function's program for such arguments, which is then called with the likes of them alone.

    The first thread that asks for a program compiles it, and the others wait; several programs are compiled at once.
    A jitted function that is called from two threads would be compiled twice.

    Args:
      arguments: trees of arrays, or of jax.ShapeDtypeStructs that say where they will lie; static: those that
        static_argnames lists.
    """
    leaves, tree = jax.tree.flatten(arguments)
    kinds = tuple(tuple(getattr(leaf, name, None) for name in ("shape", "dtype", "sharding")) for leaf in leaves)
    key = (function, tree, kinds, *static.items())
    with _adding_program:
        is_first_process = key not in _programs
        program = _programs.setdefault(key, Future())
    if is_first_process:
        try:
            program.set_result(function.lower(*arguments, **static).compile())
        except BaseException as error:
            program.set_exception(error)
    return program.result()


def compile_concurrently(*compilations: Callable[[], object]) -> None:
    """Calls them all at once, and returns when they are done; several processes, whose compilers may share out work,
    keep to one order instead."""
    at_once = 1 if jax.process_count() > 1 else max(1, len(compilations))
    with ThreadPoolExecutor(at_once) as threads:
        for done in [threads.submit(each) for each in compilations]:
            done.result()
