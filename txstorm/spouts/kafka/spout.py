"""Spouts over Kafka topics: exact ranges of offsets, planned in the driver and read by the tasks.

How they work, and why so: docs/design/024-kafka-spouts.md. The metadata: `txstorm.spouts.kafka.ranges`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.clients.kafka.cluster import Cluster, Partition, Range, Unavailable, Unreadable
from txstorm.errors import FailedException, SpoutError
from txstorm.spouts.kafka.coordinator import KafkaCoordinator
from txstorm.spouts.kafka.decode import decoder
from txstorm.spouts.kafka.options import FIELDS, KafkaSource, Start, checked_source, listed
from txstorm.spouts.kafka.ranges import ids_of, named, ranges_of
from txstorm.spouts.kafka.readers import READERS, cluster_of
from txstorm.spouts.kafka.records import emit_records

CHECK = 5.0
"""Seconds that `check` waits for the brokers."""


class TransactionalKafkaSpout(TransactionalSpout):
    """Reads Kafka topics; every replay of a transaction reads exactly the same records.

    Example::

        TransactionalKafkaSpout("tweets", "broker:9092", fields=["value"])
        TransactionalKafkaSpout(["^web-", "orders"], "broker:9092", start="latest", value="json",
                                settings={"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", …})

    The driver plans a range of offsets of every partition; tasks read them with consumers that belong to no group.
    Positions are in the ledger. A range that cannot be read again exactly, because of retention, ``delete_records``,
    compaction, or a topic that was deleted and made anew, ends the topology with a `SpoutError` that names it. A
    broker that is away is waited for. A new partition, or a new topic that a pattern matches, joins between two
    transactions, from its beginning.

    Args:
        topics: a topic, a pattern that begins with ``^``, or a list of them. Topics must exist; patterns may match
            nothing yet, and never match internal topics.
        bootstrap_servers: ``HOST:PORT``, or several with commas.
        start: where the partitions begin that are there at the first transaction: ``earliest``, ``latest``, an
            aware datetime (the first record not before it), or ``{topic: {partition: offset}}`` (others begin at
            their beginning). Without meaning later.
        max_batch_rows: the most offsets of each topic in a transaction.
        max_batch_bytes: the most bytes of each topic in a transaction, estimated from samples.
        fields: those emitted, of ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and
            ``headers`` (a list of ``{"key": text, "value": bytes}``).
        key: how keys are decoded; as `value`.
        value: how values are decoded: ``bytes``, ``utf-8``, ``json``, `Avro`, or a function of bytes, which raises
            for what it cannot decode. None stays None.
        isolation_level: ``read_committed``, or ``read_uncommitted`` to see records of transactions that are open or
            aborted too.
        consumer_group: a group that committed positions are also written to, for tools that show the lag. Never read.
        discover_seconds: seconds between two looks for new partitions and topics.
        patience: seconds that a task waits while nothing comes of its partitions, before the batch is replayed.
        settings: client settings of librdkafka, among them those for SASL and SSL. They are shipped to the workers
            and stored nowhere.

    Raises:
        SettingError: an argument is impossible.
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
        fields: Sequence[str] = FIELDS,
        key: Any = "utf-8",
        value: Any = "utf-8",
        isolation_level: str = "read_committed",
        consumer_group: str | None = None,
        discover_seconds: float = 10.0,
        patience: float = 5.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = checked_source(
            KafkaSource(
                opaque=self.opaque,
                topics=listed(topics),
                settings={**(settings or {}), "bootstrap.servers": bootstrap_servers},
                start=start,
                rows=max_batch_rows,
                size=max_batch_bytes,
                fields=(fields,) if isinstance(fields, str) else tuple(fields),
                key=decoder(key, "key"),
                value=decoder(value, "value"),
                isolation=isolation_level,
                group=consumer_group,
                discover=discover_seconds,
                patience=patience,
            )
        )

    def check(self) -> None:
        """Ask the brokers for the topics, before anything is written.

        Raises:
            SpoutError: no broker answers, the credentials or the certificate are refused, or a topic does not exist.
        """
        source = self._source
        for one in (source.key, source.value):
            one.check()
        try:
            cluster = Cluster(source.settings, source.isolation)
            found = cluster.topics(source.named, CHECK)
            if source.patterns:
                cluster.names(CHECK)
        except Unavailable as error:
            what = "credentials, certificate and rights" if error.refused else "bootstrap_servers and security.protocol"
            msg = f"kafka spout: the brokers cannot be asked: {error}; check {what}"
            raise SpoutError(msg) from None
        absent = [name for name in source.named if name not in found]
        if absent:
            msg = f"kafka spout: {source.servers} has no topic {', '.join(absent)}; create it, or mind the name"
            raise SpoutError(msg)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declares the fields chosen."""
        declarer.declare(self._source.fields)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Plans ranges."""
        return KafkaCoordinator(self._source, context.component)

    def emitter(self, context: TaskContext) -> Emitter:
        """Reads ranges."""
        return _KafkaEmitter(self._source, context)


class OpaqueTransactionalKafkaSpout(TransactionalKafkaSpout):
    """Reads Kafka topics; every record is committed once, but a replay may be another batch.

    As `TransactionalKafkaSpout`, but nothing stops it: a partition whose leader is away gives nothing and keeps its
    position while the others go on, and offsets that cannot be read any more are passed over. That is reported, and
    recorded with the txid, in its metadata (``lost``).
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
            # A ledger does not choose topics: the credentials are those of the topology.
            msg = (
                f"{where}: expected recorded ranges of topics among {list(self._source.topics)}, got {foreign!r}; name "
                "the topics that the transaction was planned with"
            )
            raise SpoutError(msg)
        try:
            found = self._read(mine, ids_of(metadata), where)
        except Unavailable as error:
            msg = f"{where}: {error}"
            raise (SpoutError if error.refused else FailedException)(msg) from None
        for partition, extent in mine.items():
            emit_records(self._source, where, partition, extent, found[partition], collector)

    def _read(
        self, mine: Mapping[Partition, Range], ids: Mapping[str, str], where: str
    ) -> Mapping[Partition, Sequence[Any]]:
        source = self._source
        try:
            with READERS.lend(source.settings, source.isolation, mine, ids) as reader:
                found = reader.read(mine, ids, source.patience)
        except Unreadable as error:
            self._check_ids(mine, ids, where)
            if error.unknown:
                raise Unavailable(str(error)) from None
            raise self._gone(where, error.partition, mine[error.partition], f"offset {error.offset}: {error}") from None
        # After reading: the reader asked for it when the topic had this id already, and has it still.
        self._check_ids(mine, ids, where)
        return found

    def _check_ids(self, mine: Mapping[Partition, Range], ids: Mapping[str, str], where: str) -> None:
        wanted = {topic for topic, _ in mine}
        try:
            there = cluster_of(self._source.settings, self._source.isolation).topics(wanted, self._source.patience)
        except Unavailable as error:
            msg = f"{where}: the brokers do not say which topic was read: {error}"
            raise FailedException(msg) from None
        for partition, extent in mine.items():
            found = there.get(partition[0])
            if found is None or found.id != ids[partition[0]]:
                state = "no longer exists" if found is None else f"was made anew: its id is {found.id}"
                cause = f"the topic {state}, expected the one with id {ids[partition[0]]}"
                raise self._gone(where, partition, extent, cause)

    def _gone(self, where: str, partition: Partition, extent: Range, cause: str) -> Exception:
        what = f"{where}: {named(partition)}, offsets {extent[0]} to {extent[1] - 1} cannot be read: {cause}"
        if self._source.opaque:
            return FailedException(what)  # planned again, with what there is
        return SpoutError(
            f"{what}; a transactional spout reads every range it has planned: use OpaqueTransactionalKafkaSpout to go "
            "on without, or start in a new data directory"
        )
