"""Topics of Kafka as sources of operator networks: values are lines of a data file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.dadstorm.source.blocks import Block, Shape, decoded, is_tuple
from txstorm.errors import InputError
from txstorm.spouts.files.text_lines import without_end


class TopicSpout(TransactionalSpout):
    """Spout of a topic of Kafka whose values are lines of a data file; partition i goes to replica i mod r.

    Args:
        url: ``kafka://HOST:PORT/TOPIC``.
        operator, replicas: the operator that reads it, and the number of its replicas.
        rows: the maximum number of records in a transaction.
        shape: the form in which tuples are emitted.
    """

    def __init__(self, url: str, operator: str, replicas: int, rows: int, shape: Shape) -> None:
        from txstorm.spouts.kafka.spout import TransactionalKafkaSpout

        servers, _, topic = url.removeprefix("kafka://").partition("/")
        if not servers or not topic or "/" in topic:
            raise InputError(f"{url!r}: expected kafka://HOST:PORT/TOPIC")
        fields = ["value", "partition", "offset"]
        self.inner = TransactionalKafkaSpout(topic, servers, fields=fields, value="bytes", max_batch_rows=rows)
        self._receiver = (topic, operator, replicas)
        self._shape = shape

    def check(self) -> None:
        """Ask the brokers for the topic."""
        self.inner.check()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the shape."""
        self._shape.declare(declarer)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator of the topic."""
        return self.inner.coordinator(context)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter of tuples."""
        return _TopicEmitter(self.inner.emitter(context), self._receiver, self._shape)


class _TopicEmitter(Emitter):
    def __init__(self, inner: Emitter, receiver: tuple[str, str, int], shape: Shape) -> None:
        self._inner, self._receiver, self._shape = inner, receiver, shape

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        splitting = _SplittingCollector(collector, self._receiver, self._shape)
        self._inner.emit_batch(attempt, metadata, cast("Collector", splitting))

    def cleanup_before(self, txid: int) -> None:
        self._inner.cleanup_before(txid)

    def close(self) -> None:
        self._inner.close()


class _SplittingCollector:
    """Collector of records, each of which is a line."""

    def __init__(self, inner: Any, receiver: tuple[str, str, int], shape: Shape) -> None:
        self._inner, self._receiver, self._shape = inner, receiver, shape
        self.digest, self.partition, self.note, self.refuse = inner.digest, inner.partition, inner.note, inner.refuse
        self.report_error = self.reportError = inner.report_error
        self.refuse_all = lambda refusals: refusals.give(inner)

    def origin(self, place: Callable[[int], dict[str, Any]]) -> None:
        """Ignore the places of records: `emit_batch` gives those of tuples."""

    def emit_batch(self, batch: Any) -> None:
        """Emit the tuples of the records of one partition."""
        values, offsets = batch.column(0).to_pylist(), batch.column(2).to_pylist()
        if not values:
            return
        topic, operator, replicas = self._receiver
        number = batch.column(1)[0].as_py()
        prefix = f"{topic}-{number}:"
        kept = [row for row, one in enumerate(values) if one and is_tuple(one)]
        raw, numbers = [without_end(values[row]) for row in kept], [offsets[row] for row in kept]
        numbers, texts = decoded(raw, numbers, prefix, self._inner)
        self._inner.origin(lambda row: {"topic": topic, "partition": number, "offset": numbers[row]})
        self._shape.emit(Block(operator, number % replicas, prefix, numbers, texts), self._inner)
