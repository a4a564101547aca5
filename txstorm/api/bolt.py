"""Bolts: base classes of user-defined processing steps, from bolts on single tuples to committers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import StormNames
from txstorm.api.output import Collector, OutputFieldsDeclarer, declared
from txstorm.api.tuples import Tuple

EVERYWHERE = "everywhere"
"""Stream of a map-side stage whose tuples go to all tasks of its bolt."""


class Component(StormNames):
    """Base class of spouts and bolts: declares output streams.

    Attributes:
        fields: the fields of the default stream; leave empty if the component emits nothing to it.
        streams: additional streams, name → fields.
    """

    fields: ClassVar[tuple[str, ...] | list[str]] = ()
    streams: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    storm_names: ClassVar[Mapping[str, str]] = {"declareOutputFields": "declare_output_fields"}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the output streams, by default `fields` and `streams`. Called once, when the topology is built."""
        made = declared(self.fields, self.streams)
        declarer.streams.update(made.streams)
        declarer.faults.extend(made.faults)

    def known_types(self) -> Mapping[str, Any]:
        """Return field → type for the fields of the default stream whose types are known before anything is read."""
        return {}


class BasicBolt(Component):
    """A bolt that handles one tuple at a time, unaware of batches; it cannot be a committer.

    Override `execute`, or override `execute_batch` to work on Arrow record batches.
    """

    def prepare(self, context: TaskContext) -> None:
        """Set up this task for one batch; called once per task and batch, before its first tuple."""

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Process one tuple. Raise `FailedException` to have the batch replayed."""
        raise TypeError(f"{type(self).__name__} overrides neither execute nor execute_batch")

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Handle a `pyarrow.RecordBatch` from one source task; if overridden, called instead of `execute`.

        A bolt that overrides both methods still receives single tuples where a conversion to Arrow would change values
        (ints mixed with floats, Python tuples).
        """


class BatchBolt(Component):
    """A bolt that processes a task's whole share of a batch; each task uses a fresh copy of the bolt for every batch.

    Order of calls: `prepare`, then `execute` for each tuple (or `execute_batch` for each record batch), then
    `finish_batch` once, even if no tuple arrived.

    Attributes:
        external: True for a committer whose `finish_batch` has effects outside the transaction (it writes to a database
            or a queue, or sends mail). Transactions are then decided one at a time, and its `finish_batch` is not
            called until the previous transaction is decided. It may be called again for the same txid (a replay), and
            must then skip the effects that have already happened.
        timers: True for a committer that calls `TaskContext.wake_at`.
        also_reads: further streams, each (component, stream), of components that it subscribes to; all their tuples
            reach every task. They do not appear in the topology.
    """

    external: ClassVar[bool] = False
    timers: ClassVar[bool] = False
    also_reads: tuple[tuple[str, str], ...] = ()

    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "finishBatch": "finish_batch",
        "executeBatch": "execute_batch",
    }

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the part of this bolt that runs in the tasks of `source`, before its tuples are distributed.

        Such a part parses, extracts or pre-aggregates, in the processing phase unless `source` is itself downstream of
        a committer. What it emits to its default stream is distributed by the grouping of the input, so it must have
        the grouping fields; what it emits to the stream `EVERYWHERE`, if it declares that, goes to every task.

        Args:
            source: the component that the input reads from.
            stream: the stream it reads.
            fields: the fields of that stream.

        Returns:
            A bolt that is copied for every task and batch; None (the default): tuples come as the source emits them.
        """
        return None

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch; called first. Keep references to what `execute` and `finish_batch` need."""

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Process one tuple of the batch."""
        raise TypeError(f"{type(self).__name__} overrides neither execute nor execute_batch")

    def execute_batch(self, batch: Any) -> None:
        """Handle a `pyarrow.RecordBatch` from one source task; if overridden, called instead of `execute`.

        A bolt that overrides both methods still receives single tuples where a conversion to Arrow would change values
        (ints mixed with floats, Python tuples).
        """

    def finish_batch(self) -> None:
        """Finish the batch; called once all its tuples have arrived and, for a committer, in strict txid order."""


class Committer:
    """Marker for a batch bolt: `finish_batch` runs in the commit phase, in txid order (Storm's ``ICommitter``)."""

    def warm_up(self, context: TaskContext) -> None:
        """Load what the tasks hold in memory, while the first transaction of a run is processed.

        It is called at most once per task and run, before the first `finish_batch`, on a new object. It may read the
        states and collections of `context` as its first txid will see them, expired keys among them, and pass what it
        derives from them to `CollectionHandle.remember`; it must not write. It may fail or be left out, so
        `finish_batch` must not rely on it.
        """

    def not_reproduced(self, changes: Mapping[str, Any]) -> str | None:
        """Return why a replay of a committed transaction need not give the same rows; None, the default: it has to.

        Called by replays and audits, which then say so instead of comparing. `changes`: the `pyarrow.Table` of rows
        that the transaction wrote to each state and sink, by name.
        """
        return None


def takes_batches(bolt: BasicBolt | BatchBolt) -> bool:
    """Return whether `bolt` overrides `execute_batch` to process record batches."""
    base = BasicBolt if isinstance(bolt, BasicBolt) else BatchBolt
    return type(bolt).execute_batch is not base.execute_batch
