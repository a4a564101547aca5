"""The garbage collector's turn: seldom in the middle of a batch or a commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = (1_000_000, 50, 100)
"""Objects made since the last collection, and collections of the young until one of the older: `gc.set_threshold`."""


class _Inside:
    """The threads that are in the middle of something; the last one that leaves turns the collector up again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = 0
        self._usual: tuple[int, int, int] | None = None

    def enter(self) -> None:
        with self._lock:
            self._threads += 1
            usual = gc.get_threshold()
            if self._usual is None and gc.isenabled() and 0 < usual[0] < SELDOM[0]:
                self._usual = usual
                gc.set_threshold(*SELDOM)

    def leave(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0 and self._usual is not None:
                gc.set_threshold(*self._usual)
                self._usual = None


_INSIDE = _Inside()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collections are rare while any thread is inside.

    A batch or a commit makes thousands of objects that all stay: looking at each of them several times, and at all
    that a process has loaded besides, was a fifth of the time of commits, and of that of reading from Kafka. Nothing
    happens where somebody has turned the collector off, or down already.
    """
    _INSIDE.enter()
    try:
        yield
    finally:
        _INSIDE.leave()
