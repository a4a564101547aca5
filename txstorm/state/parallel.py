"""Parallel calls for several tables: staging and publishing mostly wait for a disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from txstorm.errors import FencedError

Answer = TypeVar("Answer")


def together(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make independent `calls` in parallel; return their results in order.

    Blocks until all of them have ended: the first runs on this thread, each other one on a daemon thread.

    Raises:
        FencedError: one of them raised it; otherwise the error of the first call that failed.
    """
    answers: list[Future[Answer]] = [Future() for _ in calls]
    pairs = list(zip(calls, answers, strict=True))
    for call, answer in pairs[1:]:
        _Hand.free().take(lambda call=call, answer=answer: _answer(call, answer))  # type: ignore[misc]
    for call, answer in pairs[:1]:
        _answer(call, answer)
    failures = [failure for answer in answers if (failure := answer.exception()) is not None]
    for failure in sorted(failures, key=lambda one: not isinstance(one, FencedError)):
        raise failure
    return [answer.result() for answer in answers]


class _Hand:
    """A pooled thread, kept because starting a new one takes a millisecond while others are busy."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], None]]()
        threading.Thread(target=self._work, name="txstorm-table", daemon=True).start()

    @classmethod
    def free(cls) -> _Hand:
        """Take an idle thread, or start one."""
        with suppress(IndexError):
            return _FREE.pop()
        return cls()

    def take(self, call: Callable[[], None]) -> None:
        """Run `call`, which must not raise, on this thread."""
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            _FREE.append(self)


_FREE: deque[_Hand] = deque()
os.register_at_fork(after_in_child=_FREE.clear)  # a fork has none of the threads


def _answer(call: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for all
        answer.set_exception(error)
