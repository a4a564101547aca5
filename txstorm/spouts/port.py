"""Spout port, the runtime's interface to spouts of every kind: a planner in the driver, tasks in the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.output import Collector

Parts = dict[str, Any]


class SpoutPlanner:
    """Plans transactions in the driver, whatever the kind of the spout; made by `planner`.

    Attributes:
        opaque: an undecided txid may be planned anew after a failure or restart.
        task_planned: the extents of a txid are known only when its tasks have run.
    """

    opaque: bool = False
    task_planned: bool = False

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        """The spout document of `txid`, or `NOT_READY`.

        Called before `txid` is emitted, in txid order. A stored document of a spout that is not opaque is used
        again instead of asking.

        Args:
            txid: the transaction.
            previous: the document of ``txid - 1``; None for the first.
            replay: an earlier attempt existed: the spout is not asked whether it is ready.
        """
        raise NotImplementedError

    def payload(self, document: Any) -> Any:
        """Data shipped with the batch (`TaskContext.payload`) and never stored."""
        return None

    def latest(self) -> Any:
        """A mark of what the source holds now; None if that is unknown."""
        return None

    def reached(self, document: Any, mark: Any) -> bool:
        """Whether the txids up to that of `document` (None: none yet) cover all of `mark`."""
        return False

    def finish(self, document: Any, parts: Parts) -> Any:
        """`document` with the real extents: `parts` is the union of what the tasks' `SpoutTask.run` returned."""
        return document

    def skip(self, previous: Any) -> Any:
        """Return the document of a txid in which this spout emits nothing, after the txid with document `previous`."""
        raise NotImplementedError

    def carried(self, document: Any) -> Parts:
        """Return the state of each partition after the txid of `document`; empty for driver-planned spouts."""
        return {}

    def notices(self) -> list[str]:
        """Return notices about the documents finished since the last call; each notice is given once a run."""
        return []

    def committed(self, document: Any) -> None:
        """The txids up to that of `document` are committed; never raises."""

    def close(self) -> None:
        """Called once, when the topology stops."""
        raise NotImplementedError


class SpoutTask:
    """Emits one task's share of a batch, in a worker; made by `spout_task`, once per task and job.

    Attributes:
        sources: the sources it emits of; one without a name, but for composite spouts.
    """

    sources: Sequence[str] = ("",)

    def source_of(self, stream: str) -> str:
        """The source that emits to `stream`."""
        return ""

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        """Emit this task's share of the batch of `attempt`; return what was read.

        Called in txid order within a pack; `TaskContext.payload` holds the payload of this txid.

        Args:
            attempt: the attempt to emit for.
            document: the txid's spout document.
            carried: where each partition stands: a copy of the `parts` of the txid before the pack ({} when it
                has none); updated here, so the txids of a pack chain. Unused by driver-planned spouts.
            collector: receives the tuples.

        Returns:
            The `parts` of this task's partitions, for `SpoutPlanner.finish`. Of a committer spout: task → what its
            emitter returned, for `SpoutCommitter.commit`. Empty for other driver-planned spouts.

        Raises:
            MetadataError: the emitter returned something JSON cannot hold, or tuples without metadata.
        """
        raise NotImplementedError

    def cleanup_before(self, txid: int) -> None:
        """Release what is kept for transactions before `txid`: they are committed."""

    def close(self) -> None:
        """Called once, when the task ends."""
        raise NotImplementedError


class SpoutCommitter(Protocol):
    """The commit phase of a committer spout, in the driver; made by `spout_committer`, once per run."""

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
        component, task: whose emitter it was.
        error: what it raised.
    """

    def __init__(self, component: str, task: int, error: BaseException) -> None:
        self.component = component
        self.task = task
        self.error = error
        super().__init__(f"{component}[{task}]: {error!r}")
