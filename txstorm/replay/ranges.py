"""Replay of a range of committed txids, in packs on an engine: the common part of audits and backfills."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txstorm.engine.port import Engine, ErrorRow, Pack, Processed, TxidInput
from txstorm.errors import EngineError, InputError
from txstorm.replay.recording import Recorded, Recording, Source
from txstorm.topology.settings import Settings

PACK = 16
"""Default number of txids in one job, unless the topology sets it."""

TRIES = 3
"""Maximum number of attempts at a batch that raises `FailedException`, or whose worker dies."""


@dataclass(frozen=True)
class Span:
    """Committed txids `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class Result:
    """Result of replaying a range, as in the last line of ``jobs/replay.py``.

    Attributes:
        tuples: number of tuples emitted by spout and bolts.
        equal: number of txids equal to the committed ones: the same input and, in an audit, the same rows.
        different: the other txids.
        into: the new data directory of a backfill.
    """

    topology: str
    span: Span
    txids: int = 0
    tuples: int = 0
    equal: int = 0
    different: list[int] = field(default_factory=list)
    into: Path | None = None

    def count(self, txid: int, tuples: int, *, equal: bool) -> None:
        """Count one more txid."""
        self.txids += 1
        self.tuples += tuples
        if equal:
            self.equal += 1
        else:
            self.different.append(txid)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the fields, and the duration."""
        return {
            "topology": self.topology,
            "from_txid": self.span.first,
            "to_txid": self.span.last,
            "txids": self.txids,
            "tuples": self.tuples,
            "seconds": round(seconds, 3),
            "equal": self.equal,
            "different": self.different,
            "into": None if self.into is None else str(self.into),
        }


@dataclass(frozen=True)
class Done:
    """One processed txid of a range."""

    recorded: Recorded
    txid_input: TxidInput
    processed: Processed


def span_of(recording: Recording, first: int | None, last: int | None) -> Span:
    """Return the requested range, by default all committed txids; raise `InputError` unless all are kept."""
    span = Span(1 if first is None else first, recording.committed if last is None else last)
    recording.check(span.first)
    recording.check(span.last)
    if len(span) < 1:
        msg = f"txids {span.first} to {span.last}: expected a range, got one that ends before it begins"
        raise InputError(msg)
    return span


class Packs:
    """Processes the txids of a range on an engine, several packs at once, and yields the outcomes in txid order.

    Args:
        engine: an engine started with the program of the topology.
        source: the recorded batches.
        settings: settings of the topology, of which `max_pack_txids` and `max_jobs` are used.
    """

    def __init__(self, engine: Engine, source: Source, settings: Settings) -> None:
        self._engine = engine
        self._source = source
        # A spout that continues from the previous txid must begin each pack where the recorded txid began.
        self.size = 1 if source.chained else settings.max_pack_txids or PACK
        self._jobs = settings.max_jobs

    def run(self, span: Span) -> Iterator[Done]:
        """Yield the outcome of every txid of `span`, that of the last attempt if it failed."""
        waiting = deque(
            list(range(first, min(first + self.size, span.last + 1)))
            for first in range(span.first, span.last + 1, self.size)
        )
        running: deque[_Job] = deque()
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    running.append(self._submit(waiting.popleft()))
                job = running.popleft()
                found, again = _outcomes(job)
                yield from found
                running.extendleft(self._submit(txids, tries) for txids, tries in reversed(again))
        finally:
            for job in running:
                self._engine.cancel(job.future)

    def _submit(self, txids: Sequence[int], tries: int = 1) -> _Job:
        recorded = [self._source.recording.of(txid) for txid in txids]
        pack = self._source.pack(recorded)
        return _Job(recorded, pack, self._engine.submit(pack), tries)


@dataclass(frozen=True)
class _Job:
    recorded: Sequence[Recorded]
    pack: Pack
    future: Future[list[Processed]]
    tries: int

    @property
    def txids(self) -> list[int]:
        return [one.txid for one in self.recorded]


Again = list[tuple[list[int], int]]


def _outcomes(job: _Job) -> tuple[list[Done], Again]:
    """Return the outcomes of a job, and the txids to retry, in packs with their attempt numbers."""
    try:
        processed = job.future.result()
    except EngineError as error:
        if len(job.txids) > 1:
            half = len(job.txids) // 2
            return [], [(job.txids[:half], 1), (job.txids[half:], 1)]
        processed = [Processed(job.pack.inputs[0].attempt, error=_lost(str(error)))]
    done = [Done(*one) for one in zip(job.recorded, job.pack.inputs, processed, strict=False)]
    rest = job.txids[len(done) :]
    if processed[-1].error is not None and processed[-1].error.kind in ("failed", "lost") and job.tries < TRIES:
        again: Again = [([job.txids[len(done) - 1]], job.tries + 1)]
        return done[:-1], again + ([(rest, 1)] if rest else [])
    return done, [(rest, 1)] if rest else []


def _lost(cause: str) -> ErrorRow:
    return ErrorRow("the worker", 0, "lost", "EngineError", cause, "", "")
