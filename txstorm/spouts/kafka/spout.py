"""Spouts over Kafka topics: exact ranges of offsets, planned in the driver and read by the tasks.

Design: docs/design/024-kafka-spouts.md. Metadata: `txstorm.spouts.kafka.ranges`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.clients.kafka.cluster import Cluster, Partition, Range, Unavailable, Unreadable
from txstorm.errors import FailedException, SpoutError
from txstorm.spouts.kafka.coordinator import KafkaCoordinator
from txstorm.spouts.kafka.decode import Bytes, Fields, Text, decoder
from txstorm.spouts.kafka.options import FIELDS, KafkaSource, Start, checked_source, listed
from txstorm.spouts.kafka.ranges import ids_of, named, ranges_of
from txstorm.spouts.kafka.reader_pool import READERS, cluster_of
from txstorm.spouts.kafka.records import emit_records

CHECK = 5.0
"""Timeout of `check`, in seconds."""


class TransactionalKafkaSpout(TransactionalSpout):
    """Kafka spout; every replay of a transaction reads exactly the same records.

    Example::

        TransactionalKafkaSpout("tweets", "broker:9092", fields=["value"])
        TransactionalKafkaSpout(["^web-", "orders"], "broker:9092", start="latest", value="json",
                                settings={"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", …})
        TransactionalKafkaSpout("views", "broker:9092", value={"view": int, "ad": str, "at": datetime})

    The driver plans a range of offsets of every partition; tasks read the ranges with consumers that belong to no
    group. Positions are in the ledger. If a range cannot be read again exactly, because of retention,
    ``delete_records``, compaction, or a topic that was deleted and recreated, the topology ends with a `SpoutError`
    that names the range. Reading waits for unavailable brokers. A new partition, or a new topic that a pattern
    matches, is read from its beginning, starting with one of the next transactions.

    Args:
        topics: a topic, a pattern that begins with ``^``, or a list of them. Topics must exist; patterns may match
            nothing yet, and never match internal topics.
        bootstrap_servers: ``HOST:PORT``, or several with commas.
        start: where to begin in partitions that exist at the first transaction: ``earliest``, ``latest``, an aware
            datetime (the first record not before it), or ``{topic: {partition: offset}}`` (partitions not listed: at
            their beginning). No effect after the first transaction.
        max_batch_rows: maximum number of offsets of each topic in a transaction.
        max_batch_bytes: maximum number of bytes of each topic in a transaction, estimated from samples.
        fields: the fields to emit: some of ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and
            ``headers`` (a list of ``{"key": text, "value": bytes}``), by default all; with types of fields as `value`,
            also these, which then are the default, and no ``value``.
        key: how keys are decoded; as `value`.
        value: how values are decoded: ``bytes``, ``utf-8``, ``json``, `Avro`, or a function of bytes, which raises
            for bytes that it cannot decode. None stays None. Or field → type (Python or Arrow): values are JSON
            objects, and records have these fields in place of the value; a missing key is None.
        isolation_level: ``read_committed``, or ``read_uncommitted`` to also read records of open and aborted
            transactions.
        consumer_group: a group to which committed positions are also written, for tools that show the lag. Never read.
        discover_seconds: seconds between two searches for new partitions and topics.
        patience: seconds that a task waits without receiving records before its batch is replayed.
        settings: client settings of librdkafka, including those for SASL and SSL. They are shipped to the workers
            and stored nowhere.

    Raises:
        SettingError: an argument is invalid.
        MissingDependency: confluent-kafka is not installed.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        bootstrap_servers: str,
        *,
        start: Start = "earliest",
        max_batch_rows: int = 10_000,
        max_batch_bytes: int = 64 << 20,
        fields: str | Sequence[str] | None = None,
        key: Any = "utf-8",
        value: Any = "utf-8",
        isolation_level: str = "read_committed",
        consumer_group: str | None = None,
        discover_seconds: float = 10.0,
        patience: float = 5.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = tuple(value if isinstance(value, Mapping) else FIELDS) if fields is None else fields
        source = checked_source(
            KafkaSource(
                opaque=self.opaque,
                topics=listed(topics),
                settings={**(settings or {}), "bootstrap.servers": bootstrap_servers},
                start=start,
                rows=max_batch_rows,
                size=max_batch_bytes,
                fields=(chosen,) if isinstance(chosen, str) else tuple(chosen),
                key=decoder(key, "key"),
                value=decoder(value, "value"),
                isolation=isolation_level,
                group=consumer_group,
                discover=discover_seconds,
                patience=patience,
            )
        )
        read = source.value.only(source.fields) if isinstance(source.value, Fields) else source.value
        self._source = replace(source, value=read)

    def check(self) -> None:
        """Ask the brokers for the topics, before anything is written.

        Raises:
            SpoutError: no broker answers, the credentials or the certificate are refused, or a topic does not exist.
        """
        source = self._source
        for decoding in (source.key, source.value):
            decoding.check()
        try:
            cluster = Cluster(source.settings, source.isolation)
            found = cluster.topics(source.named, CHECK)
            if source.patterns:
                cluster.names(CHECK)
        except Unavailable as error:
            what = "credentials, certificate and rights" if error.refused else "bootstrap_servers and security.protocol"
            raise SpoutError(f"kafka spout: the brokers cannot be asked: {error}; check {what}") from None
        absent = [name for name in source.named if name not in found]
        if absent:
            msg = f"kafka spout: {source.servers} has no topic {', '.join(absent)}; create it, or correct the name"
            raise SpoutError(msg)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields chosen."""
        declarer.declare(self._source.fields)

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the fields, but of keys and values with other decoders than for bytes and text."""
        decoded = {Bytes: bytes, Text: str}
        found = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
        parts = {"key": decoded.get(type(self._source.key)), "value": decoded.get(type(self._source.value))}
        every = {**found, **parts, **self._source.typed}
        return {name: every[name] for name in self._source.fields if every.get(name) is not None}

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which plans the ranges."""
        return KafkaCoordinator(self._source, context.component)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads ranges."""
        return _KafkaEmitter(self._source, context)


class OpaqueTransactionalKafkaSpout(TransactionalKafkaSpout):
    """Opaque Kafka spout; every record is committed once, but a replay may contain other records than before.

    Like `TransactionalKafkaSpout`, but the topology never ends because of missing data: a partition whose leader is
    unavailable emits nothing and keeps its position while the others continue, and offsets that can no longer be read
    are skipped. They are reported, and recorded in the metadata of the txid (``lost``).
    """

    opaque = True


class _KafkaEmitter(Emitter):
    def __init__(self, source: KafkaSource, context: TaskContext) -> None:
        self._source = source
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        mine = ranges_of(metadata, self._context.task, self._context.parallelism)
        if not mine:
            return
        where = f"spout {self._context.component!r}, txid {attempt.txid}"
        if foreign := sorted({topic for topic, _ in mine if not self._source.reads(topic)}):
            # The ledger must not choose which topics are read with the topology's credentials.
            raise SpoutError(
                f"{where}: expected recorded ranges of topics among {list(self._source.topics)}, got {foreign!r}; name "
                "the topics that the transaction was planned with"
            )
        try:
            messages = self._read(mine, ids_of(metadata), where)
        except Unavailable as error:
            msg = f"{where}: {error}"
            raise (SpoutError if error.refused else FailedException)(msg) from None
        everything = {partition: number for number, partition in enumerate(ranges_of(metadata))}
        for partition, extent in mine.items():
            collector.partition(everything[partition])
            emit_records(self._source, where, partition, extent, messages[partition], collector)

    def _read(
        self, mine: Mapping[Partition, Range], ids: Mapping[str, str], where: str
    ) -> Mapping[Partition, Sequence[Any]]:
        source = self._source
        try:
            with READERS.lend(source.settings, source.isolation, mine, ids) as reader:
                messages = reader.read(mine, ids, source.patience)
        except Unreadable as error:
            self._check_ids(mine, ids, where)
            if error.unknown:
                raise Unavailable(str(error)) from None
            cause = f"offset {error.offset}: {error}"
            raise self._unreadable(where, error.partition, mine[error.partition], cause) from None
        # Check after reading: the reader saw this id before, so the topic was not recreated in between.
        self._check_ids(mine, ids, where)
        return messages

    def _check_ids(self, mine: Mapping[Partition, Range], ids: Mapping[str, str], where: str) -> None:
        wanted = {topic for topic, _ in mine}
        try:
            topics = cluster_of(self._source.settings, self._source.isolation).topics(wanted, self._source.patience)
        except Unavailable as error:
            raise FailedException(f"{where}: cannot check the ids of the topics read: {error}") from None
        for partition, extent in mine.items():
            topic = topics.get(partition[0])
            if topic is None or topic.id != ids[partition[0]]:
                state = "no longer exists" if topic is None else f"was recreated: its id is {topic.id}"
                cause = f"the topic {state}, expected the one with id {ids[partition[0]]}"
                raise self._unreadable(where, partition, extent, cause)

    def _unreadable(self, where: str, partition: Partition, extent: Range, cause: str) -> Exception:
        what = f"{where}: {named(partition)}, offsets {extent[0]} to {extent[1] - 1} cannot be read: {cause}"
        if self._source.opaque:
            return FailedException(what)  # planned again, from the offsets that exist
        return SpoutError(
            f"{what}; a transactional spout reads every range it has planned: use OpaqueTransactionalKafkaSpout to "
            "continue without it, or start in a new data directory"
        )
