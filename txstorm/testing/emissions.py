"""Record of the tuples that the components of a topology have emitted, by attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.task.collector import Emitted
from txstorm.windows.late import AGGREGATED, LATE, LATE_PARTIALS


@dataclass(frozen=True)
class Emission:
    """One emitted tuple.

    Attributes:
        task: index of the task that emitted it.
        values: the values, in the order of the stream's fields.
    """

    component: str
    stream: str
    task: int
    attempt: TransactionAttempt
    values: tuple[Any, ...]


class Emissions:
    """Log of all emissions so far, in the order in which tasks finished, and of their attempts.

    Attributes:
        log: the emissions.
        notes: topic → what was passed to `Collector.note`.
        attempts: the attempts, oldest first.
        partial: attempts in which a task of the spout failed, so that their batches are incomplete.
    """

    def __init__(self) -> None:
        self.log: list[Emission] = []
        self.notes: dict[str, list[Emission]] = {topic: [] for topic in (LATE, AGGREGATED, LATE_PARTIALS)}
        self.attempts: list[TransactionAttempt] = []
        self.partial: set[TransactionAttempt] = set()

    def observe(self, component: str, task: int, attempt: TransactionAttempt, emitted: Sequence[Emitted]) -> None:
        """Record the output of a task; see `txstorm.engine.task.collector.Observe`."""
        for one in emitted:
            rows = rows_of_batch(one.batch)
            kept = self.notes.get(one.stream, self.log)
            kept += [Emission(component, one.stream, task, attempt, values) for values in rows]

    def last_attempts(self) -> dict[int, int]:
        """Return txid → id of its last attempt."""
        return {one.txid: one.attempt_id for one in self.attempts}

    def of_txid(self, txid: int) -> list[TransactionAttempt]:
        """Return the attempts at `txid`, oldest first."""
        return [attempt for attempt in self.attempts if attempt.txid == txid]

    def of(self, component: str, stream: str) -> Iterator[Emission]:
        """Yield the emissions of `component` on `stream`."""
        return (one for one in self.log if one.component == component and one.stream == stream)
