"""Make garbage collections rare during a batch or a commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = (1_000_000, 50, 100)
"""Objects made since the last collection, and collections of the young until one of the older: `gc.set_threshold`."""
BETWEEN = (100_000, 20, 100)
"""The same setting between the batches and commits of a run."""


class _Inside:
    """Counts of the threads inside a batch or commit, and inside a run; the last to leave restores the collector."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = {SELDOM: 0, BETWEEN: 0}
        self._usual: tuple[int, int, int] | None = None

    def enter(self, how: tuple[int, int, int]) -> None:
        with self._lock:
            self._threads[how] += 1
            usual = gc.get_threshold()
            if self._usual is None and gc.isenabled() and 0 < usual[0] < how[0]:
                self._usual = usual
            self._turn()

    def leave(self, how: tuple[int, int, int]) -> None:
        with self._lock:
            self._threads[how] -= 1
            self._turn()
            if not any(self._threads.values()):
                self._usual = None

    def _turn(self) -> None:
        if self._usual is not None:
            wanted = next((how for how, threads in self._threads.items() if threads), self._usual)
            if gc.get_threshold() != wanted:
                gc.set_threshold(*wanted)


_INSIDE = _Inside()


@contextmanager
def seldom_collected(how: tuple[int, int, int] = SELDOM) -> Iterator[None]:
    """Make garbage collections rare while a thread is inside this context; with `BETWEEN` (a run), somewhat less rare.

    A batch or a commit creates thousands of objects, all of which survive. Traversing them repeatedly, along with
    everything else that the process has loaded, took a fifth of the time of commits and of reading from Kafka. Fully
    restoring the collector after each commit cost an eighth of its time, so a run restores it only partially. Has no
    effect if the user has disabled the collector or already made collections rarer.
    """
    _INSIDE.enter(how)
    try:
        yield
    finally:
        _INSIDE.leave(how)
