"""Bolts: what a user implements between the spout and the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import StormNames
from txstorm.api.output import Collector, OutputFieldsDeclarer, declared
from txstorm.api.tuples import Tuple


class Component(StormNames):
    """What spouts and bolts have in common: the streams they declare.

    Attributes:
        fields: the fields of the default stream; empty when the component emits nothing.
        streams: further streams, name → fields.
    """

    fields: ClassVar[tuple[str, ...] | list[str]] = ()
    streams: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    storm_names: ClassVar[Mapping[str, str]] = {"declareOutputFields": "declare_output_fields"}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the output streams; by default `fields` and `streams`. Called once, when the topology is built."""
        made = declared(self.fields, self.streams)
        declarer.streams.update(made.streams)
        declarer.faults.extend(made.faults)


class BasicBolt(Component):
    """A bolt that handles one tuple at a time and knows nothing of batches; never a committer.

    Override `execute`, or `execute_batch` to work on record batches.
    """

    def prepare(self, context: TaskContext) -> None:
        """Called once per task and batch, before the first tuple."""

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Handle one tuple. Raise `FailedException` to replay the batch."""
        msg = f"{type(self).__name__} overrides neither execute nor execute_batch"
        raise TypeError(msg)

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Handle a `pyarrow.RecordBatch` of one source task; overriding it replaces `execute`.

        A bolt that overrides both gets tuples where Arrow columns would change the values (int among float, tuple).
        """


class BatchBolt(Component):
    """A bolt that sees a whole batch: a fresh object per task and batch.

    Order of calls: `prepare`, then `execute` for each tuple (or `execute_batch` for each record batch), then
    `finish_batch` once, also when no tuple came.

    Attributes:
        external: True for a committer whose `finish_batch` writes where no transaction of txstorm can hold it back (a
            database, a queue, a mail). Transactions are then decided one by one, and its `finish_batch` waits until
            the one before is decided. Replays happen: it must ignore, by its txid, what it has done already.
    """

    external: ClassVar[bool] = False

    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "finishBatch": "finish_batch",
        "executeBatch": "execute_batch",
    }

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Called first; keep what `finish_batch` needs."""

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Handle one tuple of the batch."""
        msg = f"{type(self).__name__} overrides neither execute nor execute_batch"
        raise TypeError(msg)

    def execute_batch(self, batch: Any) -> None:
        """Handle a `pyarrow.RecordBatch` of one source task; overriding it replaces `execute`.

        A bolt that overrides both gets tuples where Arrow columns would change the values (int among float, tuple).
        """

    def finish_batch(self) -> None:
        """All tuples of the batch are in. For a committer: it is this txid's turn, in strong txid order."""


class Committer:
    """Marker: `finish_batch` of this batch bolt runs in the commit phase, in txid order (Storm's ``ICommitter``)."""


def takes_batches(bolt: BasicBolt | BatchBolt) -> bool:
    """Whether `bolt` works on record batches instead of tuples."""
    base = BasicBolt if isinstance(bolt, BasicBolt) else BatchBolt
    return type(bolt).execute_batch is not base.execute_batch
