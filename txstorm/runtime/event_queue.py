"""Those who wait until everything the source held when they asked is committed.

What other threads and timers ask of the driver thread.

Timers of the driver loop.
"""

from __future__ import annotations

import heapq
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from txstorm.coordinator.machine import State
from txstorm.errors import StoppedError
from txstorm.runtime.batches.planning import Planning


@dataclass(frozen=True)
class _Waiter:
    mark: Any
    since: int
    done: Future[None]


class Waiters:
    """Marks of the source and the futures to complete once they are reached; used on the driver thread only.

    Attributes:
        dry: since the last one who began to wait, the source was asked and had nothing.
    """

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._waiting: list[_Waiter] = []
        self.dry = False

    def add(self, done: Future[None], state: State) -> None:
        """Complete `done` when all that the source holds now is committed."""
        self.dry = False
        since = state.currtx + len(state.entries)
        self._waiting.append(_Waiter(self._planning.planner.latest(), since, done))

    def answer(self, state: State, *, empty: int = 0) -> None:
        """Complete those whose mark is reached.

        A source that cannot tell what it holds has given everything when it is asked and has nothing, or when a
        batch planned after the call came out `empty`: the highest committed txid without a tuple, 0 for none.
        """
        if not self._waiting:
            return
        document = self._planning.document(state.currtx - 1)
        reached = self._planning.planner.reached
        for waiter in list(self._waiting):
            nothing = empty >= waiter.since or (state.idle and self.dry)
            if nothing if waiter.mark is None else reached(document, waiter.mark):
                self._waiting.remove(waiter)
                waiter.done.set_result(None)

    def end(self, error: BaseException | None) -> None:
        """The run is over."""
        cause = error or StoppedError("the run was stopped before everything available was committed")
        for waiter in self._waiting:
            waiter.done.set_exception(cause)
        self._waiting.clear()


Call = Callable[[], None]


class Timers:
    """Calls to be made later, on the thread that asks for the due ones.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: list[tuple[float, int, Call]] = []
        self._number = 0

    def later(self, seconds: float, call: Call) -> None:
        """Have `call` made after `seconds`."""
        self._number += 1
        heapq.heappush(self._waiting, (self._monotonic() + seconds, self._number, call))

    def wait(self, longest: float) -> float:
        """Seconds until the next call is due, at most `longest`."""
        if not self._waiting:
            return longest
        return max(0.0, min(longest, self._waiting[0][0] - self._monotonic()))

    def run_due(self) -> None:
        """Make the calls that are due."""
        now = self._monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            heapq.heappop(self._waiting)[2]()


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
