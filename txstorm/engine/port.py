"""The engine port: runs the processing phase of packs of transactions, and large commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.cargo import Cargo
from txstorm.engine.program import Program
from txstorm.storage.tables.intent import Staged

SOURCE = "source"
"""In `TxidInput.divert`: the batch as a whole is a dead letter; nothing of it is emitted."""


LIMIT = "limit"
"""`ErrorRow.kind` of a batch that has too many dead letters."""


@dataclass(frozen=True)
class TxidInput:
    """One txid of a pack.

    Attributes:
        document: the spout document created by the planner.
        stamp: processing time, UTC microseconds.
        payload: rows shipped with the batch, for sources in the driver's memory.
        divert: kinds of errors that lead to dead letters instead of failing the batch: of tuples whose handling
            fails with one of these kinds (``failed``, ``other``), or with `SOURCE` of the whole source. Empty:
            nothing, a failure fails the batch.
    """

    attempt: TransactionAttempt
    document: Any
    stamp: int
    payload: Any = None
    divert: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pack:
    """Consecutive txids that are processed by one job.

    Attributes:
        carried: for task-planned spouts, every partition's metadata before the first txid.
        committed: last committed txid, for the emitters' `cleanup_before`.
    """

    inputs: tuple[TxidInput, ...]
    carried: Mapping[str, Any] = field(default_factory=dict)
    committed: int = 0


@dataclass(frozen=True)
class ErrorRow:
    """Report of a failure of user code, which a task returns instead of raising (design.md, R11: errors are rows).

    Attributes:
        kind: ``failed`` (FailedException), ``reported`` (ReportedFailedException), ``other``, ``lost`` when there
            was no answer: the worker died, or the batch timed out; or `LIMIT`.
        frame: ``file:line in function`` of the innermost frame of the user's code.
        input: the tuple being handled, shortened, or the rows of a record batch; empty in `finish_batch`.
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
        parts: for task-planned spouts, the metadata of every partition; for committer spouts, what the emitter of
            every task returned.
        digests: source partition → digest of the input read from it.
        counts: component → tuples emitted.
        reported: errors reported without failing the batch.
        diverted: dead letters, as `txstorm.storage.rows.dead_letters.SCHEMA` has them.
        busy: stage level → seconds of work, summed over its tasks.
        reports, emitters: tasks that reported, and tasks of the spout that emitted.
        error: set when the txid failed; everything else is void then, but for `digests`, and `parts` when all
            emitters had emitted: a transactional spout's replay emits the same again.
    """

    attempt: TransactionAttempt
    cargo: list[Cargo] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)
    diverted: list[pa.RecordBatch] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    reports: int = 0
    emitters: int = 0
    error: ErrorRow | None = None


@dataclass(frozen=True)
class CommitShare:
    """Share of one committer task in a large commit.

    Attributes:
        cargo: its input, in files.
        given: state → the file, in the same directory, with the rows of the keys of that input.
    """

    component: str
    task: int
    cargo: tuple[Cargo, ...]
    given: Mapping[str, str]


@dataclass(frozen=True)
class LargeCommit:
    """The part of one txid's commit phase that a job carries out.

    Attributes:
        input: the attempt, its stamp and divert settings; without document and payload.
        epoch: the coordinator's epoch, for the names of staged files.
        shares: every task of every committer that takes part, also those without input.
    """

    input: TxidInput
    data_dir: str
    epoch: int
    shares: tuple[CommitShare, ...]


@dataclass(frozen=True)
class ShareDone:
    """Result of one share of a large commit.

    Attributes:
        staged: table → its file, durable.
        counts: component → tuples emitted.
        sent: files with the rows emitted for downstream bolts, in order.
        reported: errors reported without failing the batch.
        error: set if its code raised, or violated a rule of the state.
        refused: set if a file could not be read or written: number, text and file of the `OSError`.
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
    """Runs the processing phase of packs, several at once, and large commits, one at a time."""

    name: str

    def start(self, program: Program) -> None:
        """Prepare to run `program`. Called before `submit`, and again with another program while nothing runs."""

    def warm_up(self) -> None:
        """Warm up before the first packs. Called after `start`, for a run that waits to lead.

        Raises:
            InputError, SessionLost: this engine cannot process anything. Other failures are left to the packs.
        """

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process a pack; the future returns one outcome per txid, in order, up to and including the first failed one.

        The future raises `EngineError` if the job itself failed (a worker died) or was cancelled.
        """

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Finish the shares of a large commit and stage their rows, each in a task; one result per share, in order.

        The future raises `EngineError` if the job itself failed or was cancelled. Nothing refers to files that tasks
        have staged by then, or stage later.
        """

    def cancel(self, future: Future[Any]) -> None:
        """Cancel a submitted pack or commit; any later result of it is ignored."""

    def describe(self) -> Mapping[str, Any]:
        """Describe the engine, for status and logs."""

    def close(self) -> None:
        """Cancel running packs and release resources."""
