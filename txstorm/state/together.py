"""Several tables at once: to stage and to publish is to wait for a disk, most of the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from txstorm.errors import FencedError

Answer = TypeVar("Answer")


def together(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make `calls`, which do not depend on each other, at the same time; returns their answers in their order.

    Returns, or raises, when all of them have ended: the first on this thread, each other one on its own, which does
    not keep the process from ending.

    Raises:
        FencedError: one of them did; otherwise whatever the first of those that failed has raised.
    """
    answers: list[Future[Answer]] = [Future() for _ in calls]
    threads = [
        threading.Thread(target=_answer, args=pair, name="txstorm-table", daemon=True)
        for pair in zip(calls[1:], answers[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    for call, answer in zip(calls[:1], answers[:1], strict=True):
        _answer(call, answer)
    failures = [failure for answer in answers if (failure := answer.exception()) is not None]
    for failure in sorted(failures, key=lambda one: not isinstance(one, FencedError)):
        raise failure
    return [answer.result() for answer in answers]


def _answer(call: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for all
        answer.set_exception(error)
