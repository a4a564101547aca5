"""Several tables at once: to stage and to publish is to wait for a disk, most of the time."""

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
    """Make `calls`, which do not depend on each other, at the same time; returns their answers in their order.

    Returns, or raises, when all of them have ended: the first on this thread, each other one on another, which does
    not keep the process from ending.

    Raises:
        FencedError: one of them did; otherwise whatever the first of those that failed has raised.
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
    """A thread that waits for the next call: to start one takes a millisecond while the others are busy."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[Callable[[], None]]()
        threading.Thread(target=self._work, name="txstorm-table", daemon=True).start()

    @classmethod
    def free(cls) -> _Hand:
        """One that has nothing to do."""
        with suppress(IndexError):
            return _FREE.pop()
        return cls()

    def take(self, call: Callable[[], None]) -> None:
        """Have it make `call`, which raises nothing."""
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            _FREE.append(self)


_FREE: deque[_Hand] = deque()
os.register_at_fork(after_in_child=_FREE.clear)  # threads stay behind


def _answer(call: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for all
        answer.set_exception(error)
