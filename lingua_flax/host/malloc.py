"""How the process obtains memory from the operating system."""

import contextlib
import ctypes

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory instead of returning it to the kernel; must be called before JAX has devices.

    On a CPU, XLA allocates its large buffers anew in every step. By default, glibc maps and unmaps each of them, which
    costs time in page faults. Keeping the memory is faster but increases the peak (measured: docs/results/index.md).
    Only on Linux with glibc.
    """
    with contextlib.suppress(OSError, AttributeError):  # there is no such library, or it is not glibc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_ARENA_MAX, 1)  # only the main arena can grow to any size without mmap
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_TOP_PAD, 1 << 26)


def release_freed_memory() -> None:
    """Returns freed memory to the kernel once, such as that of a compilation; only on Linux with glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
