"""The engine port: runs the processing phase of packs of transactions, and large commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import NO_FACTS, PlanFacts, WorkProgress
from txstorm.engine.cargo import Cargo
from txstorm.engine.program import Program
from txstorm.state.target import StagingPlace
from txstorm.storage.tables.intent import Staged

SOURCE = "source"
"""In `TxidInput.divert`: the batch as a whole is a dead letter; nothing of it is emitted."""


BATCH = "batch"
"""Name, among the digests of a txid, of that of a batch of DataFrames."""


LIMIT = "limit"
"""`ErrorRow.kind` of a batch that has too many dead letters."""


@dataclass(frozen=True)
class TxidInput:
    """Input of one txid of a pack.

    Attributes:
        document: the spout document created by the planner.
        stamp: processing time in UTC microseconds.
        payload: rows shipped with the batch, for sources held in the driver's memory; of a frame spout, in the driver,
            a function of the Spark session that returns the DataFrame, and digest and number of its rows if they are
            known (else None), and in a task the task's record batches.
        divert: kinds of errors that lead to dead letters instead of failing the batch. With ``failed`` or ``other``,
            tuples whose handling fails with an error of that kind become dead letters; with `SOURCE`, the whole input
            does. Empty: any failure fails the batch.
        facts: what was fixed when the txid was planned.
    """

    attempt: TransactionAttempt
    document: Any
    stamp: int
    payload: Any = None
    divert: tuple[str, ...] = ()
    facts: PlanFacts = NO_FACTS


@dataclass(frozen=True)
class Pack:
    """Consecutive txids that are processed by one job.

    Attributes:
        carried: for task-planned spouts, the metadata of every partition as of the txid before the first.
        committed: the last committed txid, for the emitters' `cleanup_before`.
        place: where tasks stage the rows of frame sinks; None: all rows go to the driver.
    """

    inputs: tuple[TxidInput, ...]
    carried: Mapping[str, Any] = field(default_factory=dict)
    committed: int = 0
    place: StagingPlace | None = None

    @property
    def system(self) -> bool:
        """Whether no source contributes to these txids; such a pack is processed in the driver, without a job."""
        return all(txid_input.facts.system for txid_input in self.inputs)


@dataclass(frozen=True)
class ErrorRow:
    """Report of a failure of user code, which a task returns instead of raising (R11, errors are rows).

    Attributes:
        kind: ``failed`` (FailedException), ``reported`` (ReportedFailedException), ``other``, ``lost`` if there was no
            answer because the worker died or the batch timed out, or `LIMIT`.
        frame: innermost frame of user code, as ``file:line in function``.
        input: the tuple being handled, shortened, or the rows of a record batch; empty in `finish_batch`.
        column: the column whose declared type a value does not fit; None for other failures.
    """

    component: str
    task: int
    kind: str
    type: str
    message: str
    frame: str
    traceback: str
    level: int = 0
    input: str = ""
    column: str | None = None

    def __str__(self) -> str:
        if self.kind == LIMIT:
            return self.message
        at = f" at {self.frame}" if self.frame else ""
        given = f"; it was given {self.input}" if self.input else ""
        return f"{self.component}[{self.task}] raised {self.type}{at}: {self.message}{given}"


@dataclass
class Processed:
    """The outcome of one txid's processing phase.

    Attributes:
        cargo: the committers' input, in no particular order.
        staged: frame sink → its table → the files that tasks have staged, each durable.
        parts: for task-planned spouts, the metadata of every partition; for committer spouts, what the emitter of
            every task returned.
        digests: source partition → digest of the input read from it.
        counts: component → number of tuples it emitted.
        received: component → number of tuples that it received in this phase.
        reported: errors reported without failing the batch.
        diverted: dead letters, those of a spout in the first attempt, too; their schema is
            `txstorm.storage.rows.dead_letters.SENT_SCHEMA`.
        busy: stage level → seconds of work, summed over its tasks.
        processes: stage level and task → host and pid of the process that ran it.
        reports, emitters: the tasks that have reported, and the tasks of the spout that have emitted.
        error: set if the txid failed. All other fields are then invalid except `digests` and, if all emitters have
            emitted, `parts`: the replay of a transactional spout must match them.
    """

    attempt: TransactionAttempt
    cargo: list[Cargo] = field(default_factory=list)
    staged: dict[str, dict[str, list[Staged]]] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    received: Counter[str] = field(default_factory=Counter)
    reported: list[str] = field(default_factory=list)
    diverted: list[pa.RecordBatch] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    processes: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    reports: int = 0
    emitters: int = 0
    error: ErrorRow | None = None


@dataclass(frozen=True)
class CommitShare:
    """The share of one committer task in a large commit.

    Attributes:
        cargo: the task's input, in files.
        given: state → file, in the same directory, with the current rows of the keys in that input.
    """

    component: str
    task: int
    cargo: tuple[Cargo, ...]
    given: Mapping[str, str]


@dataclass(frozen=True)
class LargeCommit:
    """The part of one txid's commit phase that a job carries out.

    Attributes:
        input: the attempt, its processing time and its `divert`; document and payload are omitted.
        place: where the tasks stage rows.
        shares: one per task of each participating committer, including tasks without input.
    """

    input: TxidInput
    place: StagingPlace
    shares: tuple[CommitShare, ...]


@dataclass(frozen=True)
class ShareDone:
    """Result of one share of a large commit.

    Attributes:
        staged: table → its staged file, which is durable.
        counts: component → number of tuples it emitted.
        sent: files with the rows emitted for downstream bolts, in order.
        reported: errors reported without failing the batch.
        error: set if the committer's code raised, or violated a rule of a state.
        refused: set if a file could not be read or written: errno, message and file name of the `OSError`.
    """

    component: str
    task: int
    staged: Mapping[str, Staged] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    sent: Sequence[Cargo] = ()
    reported: Sequence[str] = ()
    error: ErrorRow | None = None
    refused: tuple[int, str, str] | None = None


class Engine(Protocol):
    """Port: runs the processing phase of packs, several concurrently, and large commits, one at a time."""

    name: str

    def start(self, program: Program) -> None:
        """Prepare to run `program`. Called before `submit`, and again with another program while nothing runs."""

    def warm_up(self) -> None:
        """Warm up before the first packs. Called after `start` if the run is on standby.

        Raises:
            InputError, SessionLost: this engine cannot process anything. Other failures are ignored until a pack runs.
        """

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process a pack; the future returns one outcome per txid, in order, up to and including the first failed one.

        The future raises `EngineError` if the job itself failed (a worker died) or was cancelled.
        """

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Finish the shares of a large commit, one per task, and stage their rows; the results are in share order.

        The future raises `EngineError` if the job itself failed or was cancelled. Files that tasks have staged by then,
        or stage later, are unreferenced.
        """

    def how_far(self, future: Future[Any]) -> WorkProgress | None:
        """Return how far a submitted pack or commit is: rows, tasks and place; None if that is unknown.

        May be called on any thread, and never raises.
        """

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a submitted pack or commit; any result it still returns is ignored."""

    def describe(self) -> Mapping[str, Any]:
        """Describe the engine, for status and logs."""

    def close(self) -> None:
        """Cancel running packs and release resources."""
