"""The garbage collector's turn: seldom in the middle of a batch or a commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = (1_000_000, 50, 100)
"""Objects made since the last collection, and collections of the young until one of the older: `gc.set_threshold`."""
BETWEEN = (100_000, 20, 100)
"""The same between the batches and commits of a run."""


class _Inside:
    """The threads that are in the middle of something, and those of runs; the last ones turn the collector up again."""

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
    """Collections are rare while any thread is inside; with `BETWEEN`, a run, somewhat less so.

    A batch or a commit makes thousands of objects that all stay: looking at each of them several times, and at all
    that a process has loaded besides, was a fifth of the time of commits, and of that of reading from Kafka. Turned
    up at the end of each commit the collector looked at all that it had made, an eighth of its time, so in a run it is
    turned up in part only. Nothing happens where somebody has turned the collector off, or down already.
    """
    _INSIDE.enter(how)
    try:
        yield
    finally:
        _INSIDE.leave(how)
