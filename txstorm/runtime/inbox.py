"""What other threads and timers ask of the driver thread."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from txstorm.runtime.timers import Call, Timers

LONGEST = 0.5
SHORTEST = 0.005
"""Seconds between two looks at the source."""


class Inbox:
    """Calls for one thread, in the order in which they came; any thread may put them there.

    Attributes:
        timers: calls for later; for the thread that reads the inbox only.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.timers = Timers(monotonic)
        self._patience = SHORTEST
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()

    def put(self, call: Call) -> None:
        """Have `call` made by the reader."""
        self._calls.put(call)

    def ask(self, question: Callable[[], Any]) -> Future[Any]:
        """Have `question` answered by the reader; what it raises is the future's exception."""
        answer: Future[Any] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - handed to the asker
                answer.set_exception(error)

        self.put(call)
        return answer

    def next(self, *, idle: bool) -> Call | None:
        """The next call; None when none came before a timer is due, or a while without.

        Who has nothing to do looks again soon, and then less and less often.
        """
        longest = self._patience if idle else LONGEST
        self._patience = min(LONGEST, self._patience * 2) if idle else SHORTEST
        try:
            return self._calls.get(timeout=self.timers.wait(longest))
        except queue.Empty:
            return None

    def drain(self) -> int:
        """Make all calls that are there now; returns how many there were."""
        made = 0
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return made
            call()
            made += 1
