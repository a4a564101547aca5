"""Writer for a Kafka topic: writes rows and their commit mark in one Kafka transaction.

Only this module and `txstorm.clients.kafka.cluster` import `confluent_kafka`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.external import Mark
from txstorm.clients.kafka.cluster import EARLIEST, LATEST, REFUSED, Cluster, Range, Troubles, Unavailable
from txstorm.clients.kafka.reader import RangeReader
from txstorm.errors import AwayError, DataDirectoryError, InputError, MissingDependency, SettingError

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        ConfigResource,
        NewTopic,
        ResourceType,
    )
except ModuleNotFoundError:
    raise MissingDependency("confluent-kafka", "kafka") from None

MARK_FORMAT, MARK_VERSION = "txstorm-mark", 1
_OWN = {
    "acks": "nothing: all replicas acknowledge",
    "bootstrap.servers": "bootstrap_servers=",
    "enable.idempotence": "nothing: it is always on",
    "error_cb": "nothing: errors are part of what is raised",
    "isolation.level": "nothing: marks are read committed",
    "message.max.bytes": "max_message_bytes=",
    "transactional.id": "transactional_id=, its prefix",
}
FRAMING = 256
"""Upper bound on the overhead of a record batch per record, in bytes, including txstorm's headers."""
# A producer that is fenced while producing reports only a fatal error; the next session determines the cause.
_ENDED = (
    KafkaError._FATAL,  # noqa: SLF001
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
_TAIL = 8
OPENING = 5.0
"""Seconds to wait for the first response at a start, so that a wrong address is reported within ten seconds."""
_PRODUCER = {"partitioner": "murmur2_random", "linger.ms": 2, "transaction.timeout.ms": 60_000}
_STAYS_OPEN = (
    ". If the brokers are well, a transaction stays open there: kafka-transactions.sh find-hanging shows it, and abort "
    "ends it"
)

Settings = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class _SessionEnded(ConnectionError):
    """The producer is unusable, most likely because another session of its transactional id has begun."""


class KafkaWriter:
    """`OutletWriter` for one Kafka topic; rows have the columns ``key``, ``value`` and ``timestamp``.

    Every group is written as one Kafka transaction, with its records and a commit mark in a compacted topic: readers
    with ``isolation.level=read_committed`` see both or neither. The transactional id is derived from topology,
    incarnation and outlet, so that a new session fences an older writer and aborts its transaction.

    Args:
        topic: an existing topic.
        bootstrap_servers: ``HOST:PORT``, or several separated by commas.
        settings: additional client settings for librdkafka, or a function that returns them when they are needed, for
            instance to read a password from the environment.
        progress_topic: the topic for the marks, by default ``txstorm.<topology>.<outlet>``; created if missing.
        transactional_id: prefix of the transactional id, for access control by prefix.
        max_message_bytes: maximum size of a record, in bytes; the topic's ``max.message.bytes`` must allow it.
        timeout: maximum number of seconds to wait for a response of the brokers.

    Raises:
        SettingError: `settings` has a setting that the writer sets itself.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str,
        *,
        settings: Settings | None = None,
        progress_topic: str | None = None,
        transactional_id: str = "txstorm",
        max_message_bytes: int = 1_000_000,
        timeout: float = 10.0,
    ) -> None:
        self.topic = topic
        self.max_message_bytes = max_message_bytes
        self._servers = bootstrap_servers
        self._extra = settings or {}
        if not callable(self._extra):
            _check_settings(topic, self._extra)
        self._progress = progress_topic
        self._prefix = transactional_id
        self._timeout = timeout
        self._headers: list[tuple[str, bytes]] = []
        self._marks = self._id = ""
        self._marks_partition = (self._marks, 0)
        self._producer: Producer | None = None
        self._mark: Mark | None = None
        self._troubles = Troubles()

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Check both topics, and create the topic for the marks if it is missing.

        Raises:
            AwayError: no broker responds.
            InputError: the topic does not exist or accepts only smaller records, marks would be deleted after some
                time, or the cluster refuses access with these settings.
        """
        self.close()
        self._id = f"{self._prefix}.{topology}.{outlet}.{incarnation}"
        self._marks = self._progress or f"txstorm.{topology}.{outlet}"
        self._marks_partition = (self._marks, 0)
        self._headers = [("txstorm.topology", topology.encode())]
        try:
            cluster, admin = Cluster(self._settings()), AdminClient(self._settings())
            found = cluster.topics([self.topic, self._marks], min(OPENING, self._timeout))
            self._check_topic(admin, found)
            if self._marks in found:
                self._check_progress_topic(admin)
            else:
                self._make_progress_topic(cluster, admin)
        except (Unavailable, KafkaException) as error:
            raise _opening_error(self.topic, error) from None

    def published(self) -> Mark | None:
        """Return the last commit mark, read in a new session that fences older ones; see `OutletWriter`."""
        if self._producer is None:
            with self._session():
                self._producer = self._fencing_producer()
                faults.point("kafka.fenced")
                self._mark = self._read_mark()
        return self._mark

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """Write `rows` and `mark` in one Kafka transaction, if `expected` is the last mark; see `OutletWriter`.

        Returns whether they were written. The last mark is the one that this writer last read or wrote, until another
        writer begins a session with the transactional id; then this producer is fenced and cannot commit any more.
        """
        producer = self._producer
        if producer is None or self._mark != expected:
            return False
        try:
            with self._session():
                self._transaction(producer, rows, mark)
        except _SessionEnded:
            return False
        self._mark = mark
        return True

    def close(self) -> None:
        """Drop the producer; a transaction that it has not committed never becomes visible."""
        self._drop()

    # -- the transaction ----------------------------------------------------------------------------------------

    def _transaction(self, producer: Producer, rows: pa.Table, mark: Mark) -> None:
        producer.begin_transaction()
        faults.point("kafka.begun")
        for key, value, timestamp, headers in self._records(rows):
            self._produce(producer, self.topic, value=value, key=key, timestamp=timestamp, headers=headers)
        self._produce(producer, self._marks, value=_encoded(mark), key=self._id.encode(), partition=0)
        self._flush(producer)
        faults.point("kafka.sent")
        producer.commit_transaction(self._timeout)
        faults.point("kafka.committed")

    def _records(self, rows: pa.Table) -> Iterator[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]]]]:
        """Yield key, value, timestamp and headers of each row, in order; the headers contain the txid and an index."""
        txid, index, shared = 0, 0, self._headers
        for batch in rows.select(["key", "value", "timestamp", "_txid"]).to_batches():
            for key, value, timestamp, number in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if number != txid:
                    txid, index = number, 0
                    shared = [*self._headers, ("txstorm.txid", str(txid).encode())]
                yield key, value, timestamp, [*shared, ("txstorm.index", str(index).encode())]
                index += 1

    def _produce(self, producer: Producer, topic: str, **record: Any) -> None:
        while True:
            try:
                producer.produce(topic, **record)
            except BufferError:  # the queue is full until some records are delivered
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def _flush(self, producer: Producer) -> None:
        """Block until all records are acknowledged; raise `TimeoutError` if no acknowledgement arrives in time."""
        before = None
        while left := producer.flush(self._timeout):
            if left == before:
                msg = f"none of {left} records was acknowledged in {self._timeout} s{_reported(self._troubles)}"
                raise TimeoutError(msg)
            before = left

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Context manager that drops the producer on a failure: only a new session can determine what is committed."""
        try:
            yield
        except KafkaException as error:
            self._drop()
            kind = _SessionEnded if error.args[0].code() in _ENDED else ConnectionError
            raise kind(f"{error.args[0].str()}{_reported(self._troubles)}") from error
        except BaseException:
            self._drop()
            raise

    def _fencing_producer(self) -> Producer:
        """Create a producer that fences all older ones, whose transactions have ended when this returns."""
        producer = Producer(
            {
                **_PRODUCER,
                **self._settings(),
                "message.max.bytes": self.max_message_bytes + FRAMING,
                "transactional.id": self._id,
                "error_cb": self._troubles,
            }
        )
        until = time.monotonic() + self._timeout
        while True:
            try:
                producer.init_transactions(self._timeout)
            except KafkaException as error:  # for example, the coordinator has just been started
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                producer.poll(0.1)
            else:
                return producer

    def _drop(self) -> None:
        # Not closed: that would abort the transaction and wait for the response, and the next session aborts it anyway.
        producer, self._producer, self._mark = self._producer, None, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge()

    # -- the mark -----------------------------------------------------------------------------------------------

    def _read_mark(self) -> Mark | None:
        """Find the last commit mark by searching backwards from the end of the topic in growing steps."""
        cluster = Cluster(self._settings(), "read_uncommitted")  # so that the end includes uncommitted records
        where = self._marks_partition
        low, high = (cluster.offsets({where: which}, self._timeout)[where] or 0 for which in (EARLIEST, LATEST))
        start = high
        while start > low:
            start = max(low, high - max(_TAIL, 8 * (high - start)))
            for message in reversed(self._committed((start, high))):
                if message.key() == self._id.encode():
                    return _decoded(message.value(), self._marks)
        return None

    def _committed(self, extent: Range) -> list[Any]:
        """Read the committed records in a range of the topic for marks; block while a transaction is open there."""
        reader = RangeReader(self._settings())
        try:
            return reader.read({self._marks_partition: extent}, {self._marks: ""}, self._timeout)[self._marks_partition]
        except Unavailable as error:
            # Brokers can lose track of a transaction and leave it open forever, for example by KAFKA-20734.
            hint = "" if error.refused else _STAYS_OPEN
            raise Unavailable(f"{error}{hint}", refused=error.refused) from error
        finally:
            reader.close()

    # -- topics -------------------------------------------------------------------------------------------------

    def _check_topic(self, admin: AdminClient, found: Collection[str]) -> None:
        if self.topic not in found:
            msg = f"topic {self.topic!r}: {self._servers} has none; create it first, with the partitions it needs"
            raise InputError(msg)
        taken = int(self._configuration(admin, self.topic).get("max.message.bytes") or self.max_message_bytes + FRAMING)
        if taken < self.max_message_bytes + FRAMING:
            raise InputError(
                f"topic {self.topic!r}: its max.message.bytes is {taken}, expected {self.max_message_bytes + FRAMING} "
                f"or more; raise it, or set max_message_bytes={taken - FRAMING}"
            )

    def _make_progress_topic(self, cluster: Cluster, admin: AdminClient) -> None:
        config = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
        (made,) = admin.create_topics([NewTopic(self._marks, 1, -1, config=config)], operation_timeout=10).values()
        try:
            made.result(self._timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        faults.point("kafka.created")
        until = time.monotonic() + self._timeout
        while not cluster.topics([self._marks], self._timeout) and time.monotonic() < until:  # brokers hear of it late
            admin.poll(0.05)

    def _check_progress_topic(self, admin: AdminClient) -> None:
        policy = self._configuration(admin, self._marks).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise InputError(
                f"topic {self._marks!r}: its cleanup.policy is {policy!r}, expected 'compact': the record of what is "
                "written would be deleted some day; change the policy, or name another progress_topic"
            )

    def _configuration(self, admin: AdminClient, topic: str) -> dict[str, str | None]:
        """Return the configuration of a topic; empty if these credentials may not read it."""
        (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        try:
            return {name: entry.value for name, entry in asked.result(self._timeout).items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            return {}

    # -- settings and errors ------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        settings = dict(self._extra() if callable(self._extra) else self._extra)
        _check_settings(self.topic, settings)
        return {"log_level": 0, **settings, "bootstrap.servers": self._servers}


def _opening_error(topic: str, error: Unavailable | KafkaException) -> InputError:
    """Return the error for a writer that cannot be opened because the brokers did not respond or refused access."""
    if isinstance(error, Unavailable):
        cause, refused = str(error), error.refused
    else:
        cause, refused = error.args[0].str(), error.args[0].code() in REFUSED
    what = "credentials, certificate and rights" if refused else "bootstrap_servers and security.protocol"
    msg = f"topic {topic!r}: the brokers cannot be asked: {cause}; check {what}"
    return InputError(msg) if refused else AwayError(msg)


def _reported(troubles: Troubles) -> str:
    """Return the errors that the producer has reported, in parentheses; the failed call itself reports a timeout."""
    said = str(troubles)
    troubles.clear()
    return f" ({said})" if said else ""


def _check_settings(topic: str, settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name in _OWN:
            raise SettingError(f"topic {topic!r}: the client setting {name!r} is txstorm's own; use {_OWN[name]}")


def _encoded(mark: Mark) -> bytes:
    return json.dumps({"format": MARK_FORMAT, "version": MARK_VERSION, **asdict(mark)}, sort_keys=True).encode()


def _decoded(data: bytes | None, topic: str) -> Mark:
    """Decode the result of `_encoded`; raise `DataDirectoryError` for a newer format, or if it is not a mark."""
    try:
        found = json.loads(data or b"")
        version = found.pop("version")
        if found.pop("format") != MARK_FORMAT:
            raise ValueError(MARK_FORMAT)
        if version == MARK_VERSION:
            return Mark(**found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"topic {topic!r}: expected marks of txstorm, got {(data or b'')[:60]!r}; name another progress_topic"
        raise DataDirectoryError(msg) from error
    msg = f"topic {topic!r}: a mark has version {version}, newer than {MARK_VERSION}, which this txstorm reads; upgrade"
    raise DataDirectoryError(msg)
