"""Those who wait until everything the source held when they asked is committed."""

from __future__ import annotations

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
