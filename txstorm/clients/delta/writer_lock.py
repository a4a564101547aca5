"""Writer lock of a Delta table on a local disk that Spark commits to.

Spark's log store for ``file://`` checks whether an entry exists and then renames over it: an entry written by another
writer between the two steps would be lost. So every writer of txstorm commits to such a table under a file lock, which
the operating system releases when the process ends. A table that Spark has never written to has no lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txstorm.errors import BlockedError

LOCK = "_txstorm/writer.lock"
PATIENCE = 60.0
"""Seconds that a commit waits for the lock; a commit by Spark takes a few seconds."""
_STEP = 0.02
# POSIX locks belong to a process: they do not exclude other threads.
_threads: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def is_shared(table: Path) -> bool:
    """Return whether Spark commits to `table`, or has ever done so."""
    return os.path.exists(f"{table}/{LOCK}")


def share(table: Path) -> bool:
    """Require all commits to `table` to hold its lock from now on; return False if this is already required."""
    if is_shared(table):
        return False
    (table / LOCK).parent.mkdir(parents=True, exist_ok=True)
    (table / LOCK).touch()
    return True


@contextmanager
def locked(table: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Context manager that holds the lock of `table`, if it has one.

    Raises `BlockedError` if the lock is not free within `patience` seconds.
    """
    if not is_shared(table):
        yield
        return
    with one_thread(table, patience), (table / LOCK).open("rb+") as file:
        wait_for(lambda: _try_lock(file.fileno()), table, patience)
        yield  # closing the file releases the lock


@contextmanager
def one_thread(table: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Context manager that excludes other threads of this process from committing to `table`.

    Raises `BlockedError` if it cannot be entered within `patience` seconds.
    """
    lock = _threads[str(table.absolute())]
    if not lock.acquire(timeout=patience):
        raise held(table, patience)
    try:
        yield
    finally:
        lock.release()


def wait_for(
    attempt: Callable[[], bool],
    table: Path,
    patience: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Retry `attempt` until it has acquired the lock of `table`; raise `BlockedError` after `patience` seconds."""
    until = clock() + patience
    while not attempt():
        if clock() >= until:
            raise held(table, patience)
        sleep(_STEP)


def is_held(table: Path) -> bool:
    """Return whether another process holds the lock of `table`; call within `one_thread`."""
    with (table / LOCK).open("rb+") as file:
        return not _try_lock(file.fileno())


def held(table: Path, patience: float) -> BlockedError:
    """Return the error for a lock of `table` that another process has held for more than `patience` seconds."""
    return BlockedError(
        f"table {table}: cannot commit to it: for {patience:g} s another process has held {table / LOCK}; expected a "
        "commit with Spark to end within that: end the process that makes it (fuser names it)"
    )


def _try_lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
