"""Spout port, the runtime's interface to spouts of every kind: a planner in the driver, tasks in the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts
from txstorm.api.output import Collector
from txstorm.clocks import Clock
from txstorm.errors import SpoutError

Parts = dict[str, Any]
ReadKept = Callable[[str], Any]
"""Reads the committed rows that a source keeps, as an Arrow table; the name is empty in a spout of one source."""
Plans = Callable[[], Mapping[int, Any]]
"""Returns txid → its document."""


class RecordedPlan(NamedTuple):
    """Recorded facts of a transaction that is being replayed, besides its document.

    Attributes:
        attempt_id: id of the committed attempt, which every attempt of the replay uses.
        stamp: processing time, microseconds since 1970 (UTC).
        divert: which errors turned records into dead letters; see `txstorm.engine.port.TxidInput.divert`.
    """

    attempt_id: int
    stamp: int
    divert: tuple[str, ...]


class SpoutPlanner:
    """Plans the transactions of a spout of any kind, in the driver; created by `planner`.

    Attributes:
        opaque: whether an undecided txid may be planned differently after a failure or restart.
        task_planned: whether the extents of a txid are known only after its tasks have run.
        sources: names of the sources of a composite spout; otherwise the spout's id.
        aligns: whether `plan` takes a clock that no transaction may pass.
    """

    opaque: bool = False
    task_planned: bool = False
    aligns: bool = False
    sources: Sequence[str] = ()

    def load_kept(self, read: ReadKept, plans: Plans) -> None:
        """Load the rows that the spout keeps; called once, before anything else.

        Args:
            read: reads the committed rows.
            plans: returns the documents of the undecided txids that keep their plans, and of the last committed one.
        """

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        """Return the spout document of `txid`, or `NOT_READY`.

        Called before `txid` is emitted, in txid order. Not called for a txid of a non-opaque spout whose document is
        already stored: that document is reused.

        Args:
            txid: the transaction.
            previous: the document of ``txid - 1``; None for the first.
            replay: whether there was an earlier attempt; the spout is then not asked whether it is ready.
            upto: the clock that the transaction must not pass, if the planner `aligns`.
        """
        raise NotImplementedError

    def payload(self, document: Any) -> Any:
        """Return data to ship with the batch (`TaskContext.payload`); it is never stored."""
        return None

    def is_at_hand(self, document: Any) -> bool:
        """Return whether the batch of an undecided txid, planned by an earlier run, can be read now."""
        return True

    def latest(self) -> Any:
        """Return a mark of how far the source's data extends now; None if that is unknown."""
        return None

    def reached(self, document: Any, mark: Any) -> bool:
        """Return whether the txids up to that of `document` (None: none yet) cover all of `mark`."""
        return False

    def caught_up(self, document: Any) -> bool:
        """Return whether the source is known to have nothing after the txid of `document`."""
        mark = self.latest()
        return mark is not None and self.reached(document, mark)

    def finish(self, document: Any, parts: Parts) -> Any:
        """Return `document` with the actual extents; `parts` is the union of all results of `SpoutTask.run`."""
        return document

    def skip(self, previous: Any) -> Any:
        """Return the document of a txid in which this spout emits nothing, after the txid with document `previous`."""
        raise NotImplementedError

    def facts(self, document: Any) -> Mapping[str, SourceFacts]:
        """Return name of a source → its facts as of now, for the txid of `document`; what is missing is unknown."""
        return {}

    def clock(self, document: Any) -> Mapping[str, int] | None:
        """Return partition → the last offset counted up to the txid of `document`; None: the source has no clocks."""
        return None

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        """Return the document as of a txid that has exactly this clock, from which the next one is planned.

        Raises:
            SpoutError: the source has no clocks, cannot begin at one, or cannot have had this one.
        """
        raise SpoutError(f"spout {', '.join(self.sources)}: has no clocks, so it cannot begin at one")

    def end_clock(self) -> Mapping[str, int]:
        """Return partition → its last offset, for the partitions that end."""
        return {}

    def offsets(self, document: Any) -> Mapping[str, int]:
        """Return partition → the offset after the txid of `document`, for the partitions of `offsets_at`."""
        return {}

    def offsets_at(self, when: int) -> Mapping[str, int] | None:
        """Return partition → its first offset of time `when` or later, else its end; None: the source has no times."""
        return None

    def recorded(self, txid: int) -> RecordedPlan | None:
        """Return the recorded facts of `txid`, whose document `plan` returns; None unless it is being replayed."""
        return None

    def carried(self, document: Any) -> Parts:
        """Return the position of each partition after the txid of `document`; empty for driver-planned spouts."""
        return {}

    def notices(self) -> list[str]:
        """Return notices about the documents finished since the last call; each notice appears once per run."""
        return []

    def remarks(self) -> list[str]:
        """Return what holds of the source now and users should know."""
        return []

    def committed(self, document: Any) -> None:
        """Notify the spout that the txids up to that of `document` are committed; never raises."""

    def close(self) -> None:
        """Release all resources; called once, when the topology stops."""
        raise NotImplementedError


class SpoutTask:
    """Emits one task's share of a batch, in a worker; created by `spout_task`, once per task and job.

    Attributes:
        sources: names of the sources of a composite spout; otherwise one empty name.
    """

    sources: Sequence[str] = ("",)

    def source_of(self, stream: str) -> str:
        """Return the source that emits to `stream`."""
        return ""

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        """Emit this task's share of the batch of `attempt`; return the extents read.

        Called in txid order within a pack; `TaskContext.payload` holds the payload of this txid.

        Args:
            attempt: the attempt to emit for.
            document: the txid's spout document.
            carried: position of each partition: at first a copy of the `parts` of the txid before the pack ({} if it
                has none); updated here for the next txid of the pack. Unused by driver-planned spouts.
            collector: receives the tuples.

        Returns:
            The `parts` of this task's partitions, for `SpoutPlanner.finish`. For a committer spout: task → what its
            emitter returned, for `SpoutCommitter.commit`. Empty for other driver-planned spouts.

        Raises:
            MetadataError: the emitter returned something JSON cannot represent, or emitted tuples without metadata.
        """
        raise NotImplementedError

    def cleanup_before(self, txid: int) -> None:
        """Release resources held for transactions before `txid`, which are committed."""

    def close(self) -> None:
        """Release all resources; called once, when the task ends."""
        raise NotImplementedError


class SpoutCommitter(Protocol):
    """Commit phase of a committer spout, in the driver; created by `spout_committer`, once per run."""

    def commit(self, attempt: TransactionAttempt, stamp: int, parts: Parts) -> None:
        """Call `commit` of every task's emitter, in task order; `parts` is the union of the results of `SpoutTask.run`.

        Raises:
            SpoutCommitError: an emitter raised.
        """

    def close(self) -> None:
        """Close the emitters; called once, on the thread that called `commit`."""


class SpoutCommitError(Exception):
    """An emitter raised in `commit`; its exception is the cause.

    Attributes:
        component, task: the component and task of the emitter.
        error: the exception that it raised.
    """

    def __init__(self, component: str, task: int, error: BaseException) -> None:
        self.component = component
        self.task = task
        self.error = error
        super().__init__(f"{component}[{task}]: {error!r}")
