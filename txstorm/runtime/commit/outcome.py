"""Value classes of a commit: processed batch, committed txid and outcome of a group; progress records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WindowProgress
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.monitor.progress import TransactionProgress
from txstorm.spouts.facts import with_waiting


@dataclass(frozen=True)
class ProcessedBatch:
    """A processed txid awaiting its turn to commit.

    Attributes:
        digest: digest of its input batch.
        extents: the ranges of the source that it read, for the history.
        job_seconds: duration of the job that processed it.
        pack: number of txids in that job.
        failure: the error because of which the whole batch is one dead letter; None if it is not a dead letter.
        failures: number of earlier failures of the txid, over all runs.
        cause: the error of the last of these failures; None if there were none.
    """

    txid_input: TxidInput
    processed: Processed
    digest: str
    extents: Any
    job_seconds: float = 0.0
    pack: int = 1
    failure: ErrorRow | None = None
    failures: int = 0
    cause: str | None = None

    @property
    def attempt(self) -> TransactionAttempt:
        """The attempt that was processed."""
        return self.txid_input.attempt

    @property
    def left_out(self) -> bool:
        """Whether records of its input are dead letters, or may become some in the commit phase."""
        return bool(self.txid_input.divert or self.processed.diverted)


@dataclass(frozen=True)
class CommittedTxid:
    """A committed txid, with the data for its progress record and the history.

    Attributes:
        ready: its processed batch.
        counts: component → number of tuples it emitted in both phases.
        reported: errors that were reported without making the batch fail.
        letters: number of dead letters.
        timers: times, in UTC microseconds, at which committers want to be called.
        windows: (component, task) → progress of its windows.
    """

    ready: ProcessedBatch
    counts: dict[str, int]
    reported: tuple[str, ...]
    letters: int = 0
    timers: Sequence[int] = ()
    windows: Mapping[tuple[str, int], WindowProgress] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The components with window ends to fire that their watermark has reached."""
        return tuple(sorted({component for (component, _), one in self.windows.items() if one.waiting}))

    @property
    def extents(self) -> Any:
        """The spout document, which says which components have more window ends to fire."""
        return with_waiting(self.ready.extents, self.waiting) if self.waiting else self.ready.extents

    def empty(self, spout: str) -> bool:
        """Return whether the source was asked and had no data. A batch with dead-lettered records is not empty."""
        ready = self.ready
        return self.counts.get(spout, 0) == 0 and not ready.left_out and not ready.txid_input.facts.system


@dataclass
class GroupOutcome:
    """Outcome of a commit group: the committed txids and, if the group ended early, the failure.

    Attributes:
        committed: the committed txids, in txid order.
        failed: the failed attempt and its error; the error is None if the attempt was cut short by the end of the run.
            None if no txid failed.
        milliseconds: step of the commit → its duration in milliseconds.
    """

    committed: list[CommittedTxid] = field(default_factory=list)
    failed: tuple[TransactionAttempt, ErrorRow | None] | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)


def batch_digest(digests: Mapping[str, str]) -> str:
    """Combine the digests of a batch, keyed by partition, into a single digest."""
    text = json.dumps(digests, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def progress_list(outcome: GroupOutcome, spout: str, notices: Sequence[str] = ()) -> list[TransactionProgress]:
    """Build the progress records of the committed transactions.

    Args:
        outcome: outcome of the group.
        spout: the spout's id.
        notices: messages of the spout since the last group. They are added to the record of the last transaction,
            as a message belongs to no particular batch: a processed batch may still be discarded.
    """
    records = [_progress(done, outcome, spout) for done in outcome.committed]
    return [*records[:-1], *(replace(record, reported=(*record.reported, *notices)) for record in records[-1:])]


def _progress(done: CommittedTxid, outcome: GroupOutcome, spout: str) -> TransactionProgress:
    ready, windows = done.ready, dict[str, WindowProgress]()
    for (component, _), one in done.windows.items():
        windows[component] = one.after(windows.get(component))
    return TransactionProgress(
        txid=ready.attempt.txid,
        attempt=ready.attempt.attempt_id,
        stamp=ready.txid_input.stamp,
        spout=spout,
        tuples=done.counts,
        pack=ready.pack,
        group=len(outcome.committed),
        job_ms=ready.job_seconds * 1000,
        commit_ms=outcome.milliseconds,
        reported=done.reported,
        dead_letters=done.letters,
        failures=ready.failures,
        cause=ready.cause,
        windows=windows,
    )
