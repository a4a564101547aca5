"""The garbage collector's turn: seldom in the middle of a batch or a commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (1_000_000, 50, 100)
"""Objects made since the last collection, and collections of the young until one of the older: `gc.set_threshold`."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collections are rare inside.

    A batch or a commit makes thousands of objects that all stay: looking at each of them several times, and at all
    that a process has loaded besides, was a fifth of the time of commits, and of that of reading from Kafka. Nothing
    happens where somebody has turned the collector off, or down already.
    """
    usual = gc.get_threshold()
    if not gc.isenabled() or usual[0] >= SELDOM[0] or usual[0] == 0:
        yield
        return
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
