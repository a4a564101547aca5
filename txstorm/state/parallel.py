"""Parallel calls for several tables, since staging and publishing mostly wait for the disk."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from txstorm.errors import FencedError
from txstorm.threads import Worker, complete

Answer = TypeVar("Answer")


def together(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make independent `calls` in parallel; return their results in order.

    Blocks until all calls have ended: the first runs on this thread, every other call on a daemon thread.

    Raises:
        FencedError: any of the calls raised it; otherwise, the error of the first failed call is raised.
    """
    answers: list[Future[Answer]] = [Future() for _ in calls]
    pairs = list(zip(calls, answers, strict=True))
    for call, answer in pairs[1:]:
        _delegate(call, answer)
    for call, answer in pairs[:1]:
        complete(answer, call)
    failures = [failure for answer in answers if (failure := answer.exception()) is not None]
    for failure in sorted(failures, key=lambda one: not isinstance(one, FencedError)):
        raise failure
    return [answer.result() for answer in answers]


_IDLE: deque[Worker] = deque()
"""Idle threads kept for later calls, since starting a thread takes a millisecond while others are busy."""
os.register_at_fork(after_in_child=_IDLE.clear)  # threads do not survive a fork


def _delegate(call: Callable[[], Answer], answer: Future[Answer]) -> None:
    """Make `call` on an idle thread, or on a new one."""
    try:
        worker = _IDLE.pop()
    except IndexError:
        worker = Worker("txstorm-table")

    def work() -> None:
        complete(answer, call)
        _IDLE.append(worker)

    worker.queue(work)
