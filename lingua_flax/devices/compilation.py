"""Compilation: programs shared within a process, cached on disk between processes, and counted."""

import contextlib
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from lingua_flax.host.cache import cache_directory
from lingua_flax.host.errors import UserError
from lingua_flax.host.wording import counted

_COMPILED = "/jax/core/compile/backend_compile_duration"  # also recorded for cache hits
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass
class Compilations:
    """Counts the programs that this process compiled or fetched from the persistent cache, and the seconds it took."""

    programs: int = 0
    cache_hits: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{counted(self.programs, 'program')}, {self.cache_hits} from the cache, {self.seconds:.1f} s"


def set_up_compilation() -> Compilations:
    """Enables the persistent compilation cache and returns a count that JAX updates with each compilation."""
    count = Compilations()

    def on_duration(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            count.programs += 1
            count.seconds += duration_secs

    def on_event(event: str, **_: str | int) -> None:
        count.cache_hits += event == _CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        with contextlib.suppress(UserError):  # without a home directory, programs are compiled anew
            jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
            compilation_cache.reset_cache()  # or JAX has no cache if it has compiled anything without one
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # An unreadable or unwritable cache only costs time.
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    return count


_programs: dict[Any, Future[jax.stages.Compiled]] = {}
_programs_lock = threading.Lock()


def compiled_program(function: jax.stages.Wrapped, *arguments: Any, **static: Any) -> jax.stages.Compiled:
    """Returns the program of a jitted function for arguments of these shapes, dtypes and shardings.

    The program takes such arguments without the static ones. The first thread that requests it compiles it and other
    threads wait; calling the jitted function itself from two threads would compile it twice.
    """
    leaves, tree = jax.tree.flatten(arguments)
    types = tuple(tuple(getattr(leaf, name, None) for name in ("shape", "dtype", "sharding")) for leaf in leaves)
    key = (function, tree, types, *static.items())
    with _programs_lock:
        is_first_request = key not in _programs
        program = _programs.setdefault(key, Future())
    if is_first_request:
        try:
            program.set_result(function.lower(*arguments, **static).compile())
        except BaseException as error:
            program.set_exception(error)
    return program.result()


def compile_concurrently(*compilations: Callable[[], object]) -> None:
    """Calls the functions concurrently, or in order in a run of several processes, whose compilers may share work."""
    num_threads = 1 if jax.process_count() > 1 else max(1, len(compilations))
    with ThreadPoolExecutor(num_threads) as threads:
        for future in [threads.submit(compilation) for compilation in compilations]:
            future.result()
