"""What the components of a topology emitted, attempt by attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.task.collector import Emitted


@dataclass(frozen=True)
class Emission:
    """One emitted tuple.

    Attributes:
        task: index of the task that emitted it.
        values: in the order of the stream's fields.
    """

    component: str
    stream: str
    task: int
    attempt: TransactionAttempt
    values: tuple[Any, ...]


class Emissions:
    """All emissions so far, in the order in which tasks finished, and the attempts they belong to.

    Attributes:
        log: the emissions.
        attempts: the attempts that were emitted, oldest first.
        partial: those of them of which not all tasks of the spout have emitted: one failed.
    """

    def __init__(self) -> None:
        self.log: list[Emission] = []
        self.attempts: list[TransactionAttempt] = []
        self.partial: set[TransactionAttempt] = set()

    def observe(self, component: str, task: int, attempt: TransactionAttempt, emitted: Sequence[Emitted]) -> None:
        """Take down what a task emitted; see `txstorm.engine.task.collector.Observe`."""
        for one in emitted:
            rows = rows_of_batch(one.batch)
            self.log += [Emission(component, one.stream, task, attempt, values) for values in rows]

    def of_txid(self, txid: int) -> list[TransactionAttempt]:
        """The attempts at `txid`, oldest first."""
        return [attempt for attempt in self.attempts if attempt.txid == txid]

    def of(self, component: str, stream: str) -> Iterator[Emission]:
        """What `component` emitted on `stream`."""
        return (one for one in self.log if one.component == component and one.stream == stream)
