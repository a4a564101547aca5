"""Frame spouts: sources whose batches are Spark DataFrames; `StreamSpout` takes those of a streaming query.

Metadata of a txid of `StreamSpout`: ``{"query", "batch", "offsets"}``: the id of the query, the number of the batch in
it, and the offsets of its sources at the end of the batch, as the query's checkpoint has them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.ddl import columns_text, frame_columns
from txstorm.errors import SpoutError


class FrameSpout(TransactionalSpout):
    """A spout whose batches are DataFrames: Spark reads them, and the tasks get their rows as record batches.

    Derive from it, give it a coordinator, which plans transactions as that of any `TransactionalSpout`, and `frame`.
    The order of rows within a transaction is not promised. Needs the engine ``spark``.

    Args:
        columns: the columns of the DataFrames, which are the fields, in Spark's DDL.

    Attributes:
        columns: name → type.

    Raises:
        SettingError: `columns` is not DDL, or has a type without values in Python.
    """

    emits_frames: bool = True
    given_names = True

    def __init__(self, columns: str) -> None:
        self.columns = frame_columns(columns)

    def frame(self, spark: Any, metadata: Any) -> Any:
        """Return the batch of the transaction with `metadata` as a DataFrame of the session `spark`.

        Called once for each attempt, on a thread of the driver; for the same metadata it must have the same rows.
        """
        raise NotImplementedError

    def known(self, metadata: Any) -> tuple[str, int] | None:
        """Return a digest of the batch and its number of rows, if they are known without reading it.

        By default None: Spark takes both of the rows, while it computes them.
        """
        return None

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the columns."""
        declarer.declare(self.columns)

    def known_types(self) -> dict[str, Any]:
        """Return the types of the fields."""
        return {name: column.arrow for name, column in self.columns.items()}

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter of the rows that Spark gives to its task."""
        return _FrameEmitter(context)


class _FrameEmitter(Emitter):
    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        for batch in self._context.payload:
            collector.emit_batch(batch)


class MemoryFrames(FrameSpout):
    """Frame spout over batches in the driver's memory, one in each transaction; for tests.

    Example::

        MemoryFrames("country STRING, cents BIGINT", [[("de", 700), ("fr", 450)], [("de", 50)]])

    Args:
        columns: the columns, in Spark's DDL.
        batches: the rows of each transaction; batches can be appended while the topology runs.
    """

    live = False

    def __init__(self, columns: str, batches: Sequence[Sequence[Sequence[Any]]]) -> None:
        super().__init__(columns)
        self.batches: Sequence[Sequence[Sequence[Any]]] | None = batches

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return a coordinator that plans the next batch."""
        assert self.batches is not None, "its batches stay in the driver"
        return _MemoryFramesCoordinator(self.batches)

    def frame(self, spark: Any, metadata: Any) -> Any:
        """Return the batch as a DataFrame."""
        assert self.batches is not None, "its batches stay in the driver"
        return spark.createDataFrame(
            list(self.batches[metadata]), columns_text({name: one.spark for name, one in self.columns.items()})
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batches": None}


class _MemoryFramesCoordinator(SpoutCoordinator):
    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        following = 0 if prev_metadata is None else prev_metadata + 1
        return following if following < len(self._batches) else NOT_READY

    def latest(self) -> Any:
        return len(self._batches)

    def reached(self, metadata: Any, mark: Any) -> bool:
        return bool(mark == 0 or (metadata is not None and metadata >= mark - 1))


class StreamBatch(NamedTuple):
    """A batch that a streaming query hands over.

    Attributes:
        query: the id of the query, which is that of its checkpoint.
        number: Spark's number of the batch.
        offsets: offset of each source of the query at the end of the batch, as JSON values.
        frame: the DataFrame.
        early: whether Spark planned it before the function for the query was made.
    """

    query: str
    number: int
    offsets: list[Any]
    frame: Any
    early: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the transaction of this batch."""
        return {"query": self.query, "batch": self.number, "offsets": self.offsets}

    def is_of(self, metadata: Any) -> bool:
        """Return whether the transaction with `metadata` is that of this batch."""
        return metadata is not None and (metadata["query"], metadata["batch"]) == (self.query, self.number)


class StreamSpout(FrameSpout):
    """Spout of the batches of a Structured Streaming query, one in each transaction; see `txstorm.foreach_batch`.

    Example::

        StreamSpout("country STRING, cents BIGINT")

    Args:
        columns: the columns of the stream, in Spark's DDL.
        opaque: whether a batch that is not decided may come again with other rows, and then counts with those.

    Attributes:
        offers: the batch that the query hands over; only in the process of the driver.
    """

    def __init__(self, columns: str, *, opaque: bool = False) -> None:
        super().__init__(columns)
        self.opaque = opaque
        self.offers = Offers()

    def fed(self) -> StreamSpout:
        """Return a copy that a query of its own is to feed: topologies with one spout may have several."""
        made = copy(self)
        made.offers = Offers()
        made.offers.attached = True
        return made

    def check(self) -> None:
        """Raise `SpoutError` unless a streaming query is to feed this spout."""
        if not self.offers.attached:
            raise SpoutError(
                "a topology with a StreamSpout takes its batches from a streaming query: give it to foreach_batch or "
                "write_stream instead of run (docs/spark.md)"
            )

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return a coordinator that plans the batch at hand."""
        return _StreamCoordinator(self.offers)

    def frame(self, spark: Any, metadata: Any) -> Any:
        """Return the DataFrame of the batch, which is at hand until its transaction is complete."""
        batch = self.offers.batch
        if batch is None or not batch.is_of(metadata):
            raise SpoutError(f"batch {metadata['batch']} of query {metadata['query']} is not at hand any more")
        return batch.frame

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "offers": None}


class Offers:
    """The batch that the query hands over, and notices about batches; thread-safe.

    Attributes:
        attached: whether a function for a query has been made for the spout.
        batch: the batch at hand; None between batches.
    """

    def __init__(self) -> None:
        self.attached = False
        self.batch: StreamBatch | None = None
        self._notices: list[str] = []
        self._lock = threading.Lock()

    def say(self, notice: str) -> None:
        """Add a notice to those of the next commit."""
        with self._lock:
            self._notices.append(notice)

    def take_notices(self) -> list[str]:
        """Return all notices, and forget them."""
        with self._lock:
            taken, self._notices = self._notices, []
            return taken


class _StreamCoordinator(SpoutCoordinator):
    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        batch = self._offers.batch
        return NOT_READY if batch is None or batch.is_of(prev_metadata) else batch.metadata()

    def is_at_hand(self, metadata: Any) -> bool:
        batch = self._offers.batch
        return batch is not None and batch.is_of(metadata)

    def latest(self) -> Any:
        batch = self._offers.batch
        return {} if batch is None else batch.metadata()

    def reached(self, metadata: Any, mark: Any) -> bool:
        return not mark or metadata == mark

    def notices(self) -> list[str]:
        return self._offers.take_notices()
