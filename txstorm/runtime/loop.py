"""The loop that drives a pure machine (`Loop`), and its timers."""

from __future__ import annotations

import heapq
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from txstorm.lanes import Call, Lanes

S = TypeVar("S")
E = TypeVar("E")
C = TypeVar("C")


class Timers:
    """Delayed calls, which run on the thread that calls `run_due`. Not thread-safe.

    Args:
        monotonic: a clock in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: list[tuple[float, int, Call]] = []
        self._number = 0

    def later(self, seconds: float, call: Call) -> None:
        """Schedule `call` to run in `seconds`."""
        self._number += 1
        heapq.heappush(self._waiting, (self._monotonic() + seconds, self._number, call))

    def wait(self, longest: float) -> float:
        """Return the number of seconds until the next call is due, but at most `longest`."""
        if not self._waiting:
            return longest
        return max(0.0, min(longest, self._waiting[0][0] - self._monotonic()))

    def run_due(self) -> None:
        """Run the calls that are due."""
        now = self._monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            heapq.heappop(self._waiting)[2]()


LONGEST = 0.5
SHORTEST = 0.005
"""Bounds, in seconds, of the interval at which the source is polled."""


class Loop(Generic[S, E, C]):
    """Drives a pure machine on one lane: feeds it events, carries out its commands, and records both.

    The coordinator's state machine is one; a machine needs nothing from this module. Calls of other lanes wait in a
    first-in, first-out queue: `put` and `ask` are thread-safe, all else belongs to the lane of the loop.

    Args:
        step: the machine: takes a state and an event; returns the next state, and commands in their order.
        state: the state before the first event.
        carry_out: carries out a command; returns the event that this results in at once, or None.
        lanes: queue the calls, and let time pass.
        record: called with each event and its commands, before they are carried out.
        watch: called with the state after each event and those that followed from it at once.

    Attributes:
        state: the state after the last event.
        timers: delayed calls.
        longest: interval, in seconds, after which `next` returns at the latest.
    """

    def __init__(
        self,
        step: Callable[[S, E], tuple[S, Sequence[C]]],
        state: S,
        carry_out: Callable[[C], E | None],
        lanes: Lanes,
        record: Callable[[E, Sequence[C]], object] | None = None,
        watch: Callable[[S], object] = lambda state: None,
    ) -> None:
        self.state = state
        self.timers = Timers(lanes.monotonic)
        self._step, self._carry_out, self._record, self._watch = step, carry_out, record, watch
        self._patience = SHORTEST
        self.longest = lanes.longest
        self._calls = lanes.calls()

    def feed(self, event: E) -> None:
        """Feed an event to the machine, and carry out what it commands."""
        pending = [event]
        while pending:
            happened = pending.pop(0)
            self.state, commands = self._step(self.state, happened)
            if self._record is not None:
                self._record(happened, commands)
            pending += [answer for one in commands if (answer := self._carry_out(one)) is not None]
        self._watch(self.state)

    def put(self, call: Call) -> None:
        """Queue `call` for the lane of the loop."""
        self._calls.put(call)

    def ask(self, question: Callable[[], Any]) -> Future[Any]:
        """Queue `question` to be called on the lane of the loop; return a future of its result or exception."""
        answer: Future[Any] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                answer.set_exception(error)

        self.put(call)
        return answer

    def next(self, *, idle: bool) -> Call | None:
        """Wait for the next call and return it; return None if a timer is due or the polling interval ends first.

        While the run is `idle`, the interval doubles from `SHORTEST` to `LONGEST`; otherwise it is `longest`.
        """
        longest = min(self._patience, self.longest) if idle else self.longest
        self._patience = min(LONGEST, self._patience * 2) if idle else SHORTEST
        try:
            return self._calls.get(timeout=self.timers.wait(longest))
        except queue.Empty:
            return None

    def drain(self) -> int:
        """Run all queued calls; return their number."""
        count = 0
        while True:
            try:
                call = self._calls.get(block=False)
            except queue.Empty:
                return count
            call()
            count += 1
