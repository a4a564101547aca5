"""A transaction in flight: the one object that is handed from its job to its commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WindowProgress
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.monitor.progress import TransactionProgress
from txstorm.spouts.facts import with_waiting
from txstorm.storage.tables.intent import TxidRecord


@dataclass(slots=True, eq=False)
class Txn:
    """One attempt at a transaction, from P4 (processed) to P8 (complete); another attempt is another object.

    It belongs to one lane at a time. The driver thread sets what is known at P4 before it hands the transaction to the
    commit line; the commit lane sets the rest, once, when its committers have finished and no other lane can have taken
    the turn away; the publishing lane and then the driver thread read it.

    Attributes:
        processed: what its job has returned.
        document: the spout document, with the extents actually read.
        job_seconds: duration of the job that processed it.
        pack: number of txids in that job.
        size: bytes of the committers' input.
        failure: the error because of which the whole batch is one dead letter; None if it is not a dead letter.
        failures: number of earlier failures of the txid, over all runs.
        cause: the error of the last of these failures; None if there were none.
        counts: component → number of tuples it emitted in both phases.
        reported: errors that were reported without making the batch fail.
        letters: number of dead letters.
        timers: times, in UTC microseconds, at which committers want to be called.
        windows: (component, task) → progress of its windows.
    """

    input: TxidInput
    processed: Processed
    document: Any = None
    job_seconds: float = 0.0
    pack: int = 1
    size: int = 0
    failure: ErrorRow | None = None
    failures: int = 0
    cause: str | None = None
    # set in P5
    counts: dict[str, int] = field(default_factory=dict)
    reported: tuple[str, ...] = ()
    letters: int = 0
    timers: Sequence[int] = ()
    windows: Mapping[tuple[str, int], WindowProgress] = field(default_factory=dict)

    @property
    def attempt(self) -> TransactionAttempt:
        """The attempt."""
        return self.input.attempt

    @property
    def left_out(self) -> bool:
        """Whether records of its input are dead letters, or may become some in the commit phase."""
        return bool(self.input.divert or self.processed.diverted)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The components with window ends to fire that their watermark has reached."""
        return tuple(sorted({component for (component, _), one in self.windows.items() if one.waiting}))

    @property
    def extents(self) -> Any:
        """The spout document, which says which components have more window ends to fire."""
        waiting = self.waiting
        return with_waiting(self.document, waiting) if waiting else self.document

    def empty(self, spout: str) -> bool:
        """Return whether the source was asked and had no data. A batch with dead-lettered records is not empty."""
        return self.counts.get(spout, 0) == 0 and not self.left_out and not self.input.facts.system

    def record(self) -> TxidRecord:
        """Return what the intent of its group says of it."""
        txid, attempt_id = self.input.attempt
        return TxidRecord(txid, attempt_id, batch_digest(self.processed.digests), self.extents, self.input.stamp)

    def progress(
        self, spout: str, group: int, milliseconds: Mapping[str, float], notices: Sequence[str] = ()
    ) -> TransactionProgress:
        """Return its progress record.

        Args:
            spout: the spout's id.
            group: number of txids in its group.
            milliseconds: step of the group's commit → its duration.
            notices: messages of the spout.
        """
        windows = dict[str, WindowProgress]()
        for (component, _), one in self.windows.items():
            windows[component] = one.after(windows.get(component))
        txid, attempt_id = self.input.attempt
        return TransactionProgress(
            txid=txid,
            attempt=attempt_id,
            stamp=self.input.stamp,
            spout=spout,
            tuples=self.counts,
            pack=self.pack,
            group=group,
            job_ms=self.job_seconds * 1000,
            commit_ms=milliseconds,
            reported=(*self.reported, *notices),
            dead_letters=self.letters,
            failures=self.failures,
            cause=self.cause,
            windows=windows,
        )


def batch_digest(digests: Mapping[str, str]) -> str:
    """Combine the digests of a batch, keyed by partition, into a single digest."""
    text = json.dumps(digests, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
