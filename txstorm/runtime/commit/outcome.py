"""What goes into a commit and what comes out of it, and how that is reported and remembered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.monitor.progress import TransactionProgress


@dataclass(frozen=True)
class ProcessedBatch:
    """A processed txid that waits for its turn.

    Attributes:
        digests: of its input; `extents`: what it read, for the history.
        failure: why the batch as a whole is a dead letter, when it is one.
    """

    txid_input: TxidInput
    processed: Processed
    digest: str
    extents: Any
    job_seconds: float = 0.0
    pack: int = 1
    failure: ErrorRow | None = None

    @property
    def attempt(self) -> TransactionAttempt:
        """The attempt that was processed."""
        return self.txid_input.attempt


@dataclass(frozen=True)
class CommittedTxid:
    """What a committed txid did, for progress and history."""

    ready: ProcessedBatch
    counts: dict[str, int]
    reported: tuple[str, ...]
    letters: int = 0

    def empty(self, spout: str) -> bool:
        """Whether the source gave nothing; a batch that is left out has been something."""
        return self.counts.get(spout, 0) == 0 and not self.ready.txid_input.divert


@dataclass
class GroupOutcome:
    """How a group ended: the txids that are committed, and the failure that ended it early.

    Attributes:
        failed: the attempt, and its error; None when the end of the run cut it short.
    """

    committed: list[CommittedTxid] = field(default_factory=list)
    failed: tuple[TransactionAttempt, ErrorRow | None] | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)


def batch_digest(digests: Mapping[str, str]) -> str:
    """One digest of a batch from those of its partitions."""
    text = json.dumps(digests, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def progress_list(
    outcome: GroupOutcome, spout: str, failures_of: Callable[[int], tuple[int, str | None]], notices: Sequence[str] = ()
) -> list[TransactionProgress]:
    """What is reported of the committed transactions; `failures_of` tells how often one had failed before, and why.

    What the spout had to say since the last group, its `notices`, stands with the last transaction. It is no part of a
    batch: what is processed may be discarded yet.
    """
    made = [_progress(one, outcome, spout, *failures_of(one.ready.attempt.txid)) for one in outcome.committed]
    return [*made[:-1], *(replace(one, reported=(*one.reported, *notices)) for one in made[-1:])]


def _progress(
    one: CommittedTxid, outcome: GroupOutcome, spout: str, failures: int, cause: str | None
) -> TransactionProgress:
    ready = one.ready
    return TransactionProgress(
        txid=ready.attempt.txid,
        attempt=ready.attempt.attempt_id,
        stamp=ready.txid_input.stamp,
        spout=spout,
        tuples=one.counts,
        pack=ready.pack,
        group=len(outcome.committed),
        job_ms=ready.job_seconds * 1000,
        commit_ms=outcome.milliseconds,
        reported=one.reported,
        dead_letters=one.letters,
        failures=failures,
        cause=cause,
    )
