"""Those who wait until everything the source held when they asked is committed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from txstorm.coordinator.machine import State
from txstorm.errors import StoppedError
from txstorm.runtime.planning import Planning


class Waiters:
    """Marks of the source and the futures to complete once they are reached; used on the driver thread only."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._waiting: list[tuple[Any, Future[None]]] = []

    def add(self, done: Future[None]) -> None:
        """Complete `done` when all that the source holds now is committed."""
        self._waiting.append((self._planning.planner.latest(), done))

    def answer(self, state: State, *, empty: bool = False) -> None:
        """Complete those whose mark is reached.

        A source that cannot tell what it holds has given everything once a batch was `empty`, or it has nothing more.
        """
        if not self._waiting:
            return
        document = self._planning.document(state.currtx - 1)
        nothing = empty or (state.idle and state.not_ready is not None)
        reached = self._planning.planner.reached
        for waiter in list(self._waiting):
            mark, done = waiter
            if nothing if mark is None else reached(document, mark):
                self._waiting.remove(waiter)
                done.set_result(None)

    def end(self, error: BaseException | None) -> None:
        """The run is over."""
        for _, done in self._waiting:
            done.set_exception(error or StoppedError("the run was stopped before everything available was committed"))
        self._waiting.clear()
