"""Probes: components that report every tuple they receive and emit, so that a run can be checked tuple by tuple.

A probe emits data on its streams, and observations on the stream ``log``, which the witness, a committer, stores in a
sink. Data tuples are ``(key, n, id)``; `id` is unique within a transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState, SinkTable
from txstorm.api.tuples import Tuple

DATA = ("key", "n", "id")
LOG = ("kind", "seq", "other", "stream", "peer", "id", "key")
KEYS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
MOST = 150
"""Maximum number of data tuples per task, stream and transaction, which bounds graphs with all-groupings."""

Row = tuple[str, int | None, tuple[str, int, str]]
"""A tuple to emit: stream, receiving task (None unless the stream is direct), and data."""


class EvenAndZero:
    """Custom grouping by the number in the tuple; it also sends every fifth tuple to task 0."""

    def prepare(self, component: str, stream: str, targets: int) -> None:
        """Store the number of target tasks."""
        self.targets = targets

    def choose_tasks(self, source_task: int, values: Sequence[Any]) -> list[int]:
        """Return the tasks that receive a tuple."""
        _, n, _ = values
        chosen = {(n + source_task) % self.targets}
        return sorted(chosen | {0} if n % 5 == 0 else chosen)


class Probe:
    """Base class of all probes.

    Args:
        streams: stream → number of tasks of its direct subscribers, 0 if it is not direct.
    """

    def __init__(self, streams: Mapping[str, int]) -> None:
        self.out = dict(streams)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the log and the data streams."""
        declarer.declare_stream("log", LOG)
        for stream, targets in self.out.items():
            declarer.declare_stream(stream, DATA, direct=targets > 0)

    def begin(self, context: TaskContext) -> None:
        """Set up for one batch in one task."""
        self.context = context
        self.seq = 0
        self.emitted = Counter[str]()

    def note(
        self,
        collector: Collector,
        kind: str,
        other: str = "",
        stream: str = "",
        peer: int = -1,
        id: str = "",
        key: str = "",
    ) -> None:
        """Report an observation to the witness."""
        self.seq += 1
        collector.emit(kind, self.seq, other, stream, peer, id, key, stream="log")

    def send(self, collector: Collector, number: int) -> None:
        """Emit tuple `number` of this task on most of its streams (see `rows`)."""
        for row in self.rows(number):
            stream, target, values = row
            self.note_sent(collector, row)
            if target is None:
                collector.emit(*values, stream=stream)
            else:
                collector.emit_direct(target, *values, stream=stream)

    def send_batch(self, collector: Collector, numbers: Iterable[int]) -> None:
        """Emit the tuples with these `numbers`, like `send`, but as one record batch per stream."""
        rows = [row for number in numbers for row in self.rows(number)]
        for stream, targets in self.out.items():
            mine = [row for row in rows if row[0] == stream]
            for row in mine:
                self.note_sent(collector, row)
                if row[1] is not None:
                    collector.emit_direct(row[1], *row[2], stream=stream)
            if mine and not targets:
                columns = zip(*(values for _, _, values in mine), strict=True)
                batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=DATA)
                collector.emit_batch(batch, stream=stream)

    def note_sent(self, collector: Collector, row: Row) -> None:
        """Report an emitted tuple to the witness."""
        stream, target, (key, n, id) = row
        self.note(collector, "emit", str(n), stream, -1 if target is None else target, id, key)

    def note_rows(self, collector: Collector, batch: Any) -> None:
        """Report the rows of a received record batch to the witness."""
        assert self.context.source is not None
        for row in batch.to_pylist():
            self.note(collector, "see", *self.context.source, row["id"], row["key"])

    def rows(self, number: int) -> Iterator[Row]:
        """Yield tuple `number` of this task for each stream, deliberately skipping some, up to the limit `MOST`."""
        for index, (stream, targets) in enumerate(self.out.items()):
            if (number + index) % 4 == 3 or self.emitted[stream] >= MOST:
                continue
            self.emitted[stream] += 1
            here = f"{self.context.component}.{self.context.task}"
            key = KEYS[(number * 5 + index + self.context.task) % len(KEYS)]
            target = (number + self.context.task) % targets if targets else None
            yield stream, target, (key, number, f"{here}/{stream}#{self.emitted[stream]}")


class ProbeBasic(Probe, BasicBolt):
    """Probe that is a basic bolt."""

    def prepare(self, context: TaskContext) -> None:
        """Set up for one batch."""
        self.begin(context)

    def execute(self, tuple: Tuple, collector: Collector) -> None:  # noqa: A002 - Storm's word
        """Report the tuple and emit another."""
        key, n, id = tuple
        self.note(collector, "see", tuple.source_component, tuple.source_stream, tuple.source_task, id, key)
        self.send(collector, n + 1)


class ProbeBasicRows(ProbeBasic):
    """Probe that is a basic bolt on record batches."""

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Report the rows and emit new ones."""
        self.note_rows(collector, batch)
        self.send_batch(collector, [n + 1 for n in batch.column("n").to_pylist()])


class ProbeBatch(Probe, BatchBolt):
    """Probe that is a batch bolt or committer."""

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self.begin(context)
        self.collector = collector
        self.numbers: list[int] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Report the tuple; emit another at once if its number is odd, otherwise in `finish_batch`."""
        assert tuple.attempt == self.context.attempt
        key, n, id = tuple
        self.note(self.collector, "see", tuple.source_component, tuple.source_stream, tuple.source_task, id, key)
        if n % 2:
            self.send(self.collector, n + 1)
        else:
            self.numbers.append(n + 1)

    def finish_batch(self) -> None:
        """Report the `finish_batch` call, and emit tuples for the buffered numbers."""
        self.note(self.collector, "finish")
        for number in self.numbers:
            self.send(self.collector, number)
        self.send(self.collector, self.seq)


class ProbeBatchRows(ProbeBatch):
    """Probe that is a batch bolt or committer on record batches."""

    def execute_batch(self, batch: Any) -> None:
        """Report the rows, and buffer their numbers."""
        self.note_rows(self.collector, batch)
        self.numbers += [n + 1 for n in batch.column("n").to_pylist()]

    def finish_batch(self) -> None:
        """Report the `finish_batch` call, and emit tuples for the buffered numbers."""
        self.note(self.collector, "finish")
        self.send_batch(self.collector, [*self.numbers, self.seq])


class Witness(BatchBolt):
    """Committer that stores the reports of all probes in a sink, and their totals in a state."""

    log = SinkTable("log", {"component": str, "task": int, **dict.fromkeys(LOG, str), "seq": int, "peer": int})
    totals = KeyedState("totals", {"component": str, "task": int, "kind": str}, {"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self.context = context
        self.rows: list[tuple[Any, ...]] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Buffer a probe's report."""
        self.rows.append((tuple.source_component, tuple.source_task, *tuple))

    def finish_batch(self) -> None:
        """Write the reports and totals."""
        sink = self.context.sink("log")
        for row in self.rows:
            sink.append(*row)
        counts = Counter(row[:3] for row in self.rows)
        self.context.state("totals").update_many(counts, lambda old, n: (old or 0) + n)


class Numbers(Probe, TransactionalSpout):
    """Probe that is a spout: transaction t emits ``sizes[t - 1]`` numbers, divided among the tasks.

    Args:
        streams: the streams, as for `Probe`.
        sizes: the sizes of the transactions.
        rows_mode: whether to emit record batches.
    """

    def __init__(self, streams: Mapping[str, int], sizes: Sequence[int], rows_mode: bool) -> None:
        super().__init__(streams)
        self.sizes, self.rows_mode = sizes, rows_mode

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Create the coordinator."""
        return NumbersCoordinator(self.sizes)

    def emitter(self, context: TaskContext) -> Emitter:
        """Create the emitter of one task."""
        return NumbersEmitter(self, context)


class NumbersCoordinator(SpoutCoordinator):
    """Coordinator that plans one transaction per size and then no more."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """Plan the range of numbers after the previous one."""
        if txid > len(self.sizes):
            return NOT_READY
        start = 0 if prev_metadata is None else prev_metadata["end"]
        return {"txid": txid, "start": start, "end": start + self.sizes[txid - 1]}

    def latest(self) -> Any:
        """Return the number of transactions that the source has."""
        return len(self.sizes)

    def reached(self, metadata: Any, mark: Any) -> bool:
        """Return whether the transaction with this `metadata` is the last one."""
        return metadata is not None and metadata["txid"] >= mark


class NumbersEmitter(Emitter):
    """Emitter of one of n tasks, which emits every n-th number of a batch."""

    def __init__(self, spout: Numbers, context: TaskContext) -> None:
        self.spout, self.context = spout, context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        """Emit this task's numbers."""
        self.spout.begin(self.context)
        all_of_it = range(metadata["start"], metadata["end"])
        mine = [n for n in all_of_it if n % self.context.parallelism == self.context.task]
        if self.spout.rows_mode:
            self.spout.send_batch(collector, mine)
        else:
            for n in mine:
                self.spout.send(collector, n)
