"""The lock of a Delta table that Spark commits to, on a local disk.

Spark's log store for ``file://`` looks whether an entry is there and then renames over it: two steps, between which
another writer's entry would be lost. So commits to such a table, by whichever writer of txstorm, are made under a lock
that the operating system takes back when its process ends. A table that Spark has never committed to has none.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txstorm.errors import BlockedError

LOCK = "_txstorm/writer.lock"
PATIENCE = 60.0
"""Seconds a commit waits for another one; a commit of Spark's takes a few."""
_STEP = 0.02
# POSIX locks are a process's own: they hold off no other thread.
_threads: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def is_shared(table: Path) -> bool:
    """Whether Spark commits to the table at `table`, or has."""
    return (table / LOCK).exists()


def share(table: Path) -> bool:
    """From now on commits to `table` are made under its lock; False when they were before."""
    if is_shared(table):
        return False
    (table / LOCK).parent.mkdir(parents=True, exist_ok=True)
    (table / LOCK).touch()
    return True


@contextmanager
def locked(table: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of `table`, if it has one; raises `BlockedError` when it is not to be had in `patience` seconds."""
    if not is_shared(table):
        yield
        return
    with one_thread(table, patience), (table / LOCK).open("rb+") as file:
        wait_for(lambda: _try_lock(file.fileno()), table, patience)
        yield  # closing the file lets the lock go


@contextmanager
def one_thread(table: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep the other threads of this process from committing to `table`."""
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
    """Try until `attempt` has taken the lock of `table`; raises `BlockedError` after `patience` seconds."""
    until = clock() + patience
    while not attempt():
        if clock() >= until:
            raise held(table, patience)
        sleep(_STEP)


def is_held(table: Path) -> bool:
    """Whether another process has the lock of `table`; called within `one_thread`."""
    with (table / LOCK).open("rb+") as file:
        return not _try_lock(file.fileno())


def held(table: Path, patience: float) -> BlockedError:
    """Another process has the lock."""
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
