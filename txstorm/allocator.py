"""Allocator of the C library: limits what it keeps for threads, and returns free memory to the system.

Both concern the whole process and glibc only; other libraries have no such functions, and nothing is done there.
"""

from __future__ import annotations

import ctypes
import os

ARENAS = 2
"""Number of arenas in a process of the command line: glibc has eight per core, each of which keeps its free memory."""
_ARENA_MAX = -8


def limit_arenas() -> None:
    """Limit the number of arenas, unless the environment sets ``MALLOC_ARENA_MAX``; call before threads are started."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and "MALLOC_ARENA_MAX" not in os.environ:
        library.mallopt(_ARENA_MAX, ARENAS)


def return_free_memory() -> None:
    """Return free memory that is not at the end of the heap to the system, too."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
