"""Rows and their mark in one Kafka transaction: the writer of a topic.

Imports `confluent_kafka`, as `txstorm.clients.kafka.cluster` does.
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
    "transactional.id": "transactional_id=, which it begins with",
}
FRAMING = 256
"""Bytes that a record batch adds to one record, at most, headers of txstorm included."""
# Whoever was fenced while it produced hears of a fatal error only; whatever that is, the next session tells.
_ENDED = (
    KafkaError._FATAL,  # noqa: SLF001
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
_TAIL = 8
OPENING = 5.0
"""Seconds for the first answer at a start: an address that is wrong is told within ten."""
_PRODUCER = {"partitioner": "murmur2_random", "linger.ms": 2, "transaction.timeout.ms": 60_000}
_STAYS_OPEN = (
    ". If the brokers are well, a transaction stays open there: kafka-transactions.sh find-hanging shows it, and abort "
    "ends it"
)

Settings = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class _SessionEnded(ConnectionError):
    """The producer is of no more use, most likely since another session of its transactional id has begun."""


class KafkaWriter:
    """A `txstorm.api.external.OutletWriter` to one topic, for rows of ``key``, ``value`` and ``timestamp``.

    Every group is one Kafka transaction of its records and of a mark, in a compacted topic beside it: readers with
    ``isolation.level=read_committed`` see both or neither. The transactional id belongs to topology, incarnation and
    outlet, so that opening it fences an older writer and ends what that one had begun.

    Args:
        topic: must exist.
        bootstrap_servers: ``HOST:PORT``, or several with commas.
        settings: more client settings of librdkafka, or a function that gives them when they are needed, such as one
            that reads a password from the environment.
        progress_topic: where marks are; ``txstorm.<topology>.<outlet>`` by default. It is made when it is missing.
        transactional_id: the beginning of the transactional id, where access is granted by prefix.
        max_message_bytes: the largest record; the topic's ``max.message.bytes`` must allow it.
        timeout: seconds for one answer of the brokers.

    Raises:
        SettingError: a setting that belongs to the writer itself is given.
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
        self._given = settings or {}
        if not callable(self._given):
            _check_settings(topic, self._given)
        self._progress = progress_topic
        self._prefix = transactional_id
        self._timeout = timeout
        self._headers: list[tuple[str, bytes]] = []
        self._marks = self._id = ""
        self._place = (self._marks, 0)
        self._producer: Producer | None = None
        self._found: Mark | None = None
        self._troubles = Troubles()

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Check both topics, and make the one of the marks when it is missing.

        Raises:
            AwayError: no broker answers.
            InputError: the topic is unknown or takes smaller records only, marks would not be kept, or the cluster
                refuses these settings.
        """
        self.close()
        self._id = f"{self._prefix}.{topology}.{outlet}.{incarnation}"
        self._marks = self._progress or f"txstorm.{topology}.{outlet}"
        self._place = (self._marks, 0)
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
            raise _unasked(self.topic, error) from None

    def published(self) -> Mark | None:
        """See `txstorm.api.external.OutletWriter`."""
        if self._producer is None:
            with self._session():
                self._producer = self._led_producer()
                faults.point("kafka.fenced")
                self._found = self._read_mark()
        return self._found

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """See `txstorm.api.external.OutletWriter`.

        As long as nobody else has opened the transactional id, the mark is the one that was found or written last; and
        once somebody has, this producer is fenced, and its transaction cannot be committed.
        """
        producer = self._producer
        if producer is None or self._found != expected:
            return False
        try:
            with self._session():
                self._transaction(producer, rows, mark)
        except _SessionEnded:
            return False
        self._found = mark
        return True

    def close(self) -> None:
        """Drop the producer; a transaction that it has begun never becomes visible."""
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
        """Rows in their order, with their txid and their position in it."""
        txid, index, shared = 0, 0, self._headers
        for batch in rows.select(["key", "value", "timestamp", "_txid"]).to_batches():
            for key, value, timestamp, of in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if of != txid:
                    txid, index = of, 0
                    shared = [*self._headers, ("txstorm.txid", str(txid).encode())]
                yield key, value, timestamp, [*shared, ("txstorm.index", str(index).encode())]
                index += 1

    def _produce(self, producer: Producer, topic: str, **record: Any) -> None:
        while True:
            try:
                producer.produce(topic, **record)
            except BufferError:  # the queue is full until some are delivered
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def _flush(self, producer: Producer) -> None:
        """Wait for all answers, however many, as long as some come."""
        before = None
        while left := producer.flush(self._timeout):
            if left == before:
                msg = f"none of {left} records was acknowledged in {self._timeout} s{_because(self._troubles)}"
                raise TimeoutError(msg)
            before = left

    @contextmanager
    def _session(self) -> Iterator[None]:
        """A failure, whichever it is, ends the session: only another one can tell what was committed."""
        try:
            yield
        except KafkaException as error:
            self._drop()
            kind = _SessionEnded if error.args[0].code() in _ENDED else ConnectionError
            raise kind(f"{error.args[0].str()}{_because(self._troubles)}") from error
        except BaseException:
            self._drop()
            raise

    def _led_producer(self) -> Producer:
        """A producer that alone may write; what an older one had begun has ended when this returns."""
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
            except KafkaException as error:  # such as: the coordinator has just been started
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                producer.poll(0.1)
            else:
                return producer

    def _drop(self) -> None:
        # Not closed: that would abort the transaction and wait for the answer. The next session aborts it anyway.
        producer, self._producer, self._found = self._producer, None, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge()

    # -- the mark -----------------------------------------------------------------------------------------------

    def _read_mark(self) -> Mark | None:
        """The last committed mark; looked for from the end, in growing steps."""
        cluster = Cluster(self._settings(), "read_uncommitted")  # the end with whatever is not committed yet
        low, high = (
            cluster.offsets({self._place: which}, self._timeout)[self._place] or 0 for which in (EARLIEST, LATEST)
        )
        start = high
        while start > low:
            start = max(low, high - max(_TAIL, 8 * (high - start)))
            for message in reversed(self._committed((start, high))):
                if message.key() == self._id.encode():
                    return _decoded(message.value(), self._marks)
        return None

    def _committed(self, extent: Range) -> list[Any]:
        """All committed records in a range of the marks; waits while a transaction of somebody else is open there."""
        reader = RangeReader(self._settings())
        try:
            return reader.read({self._place: extent}, {self._marks: ""}, self._timeout)[self._place]
        except Unavailable as error:
            # Brokers can forget a transaction and leave it open for ever: KAFKA-20734 is one way.
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
            msg = (
                f"topic {self.topic!r}: its max.message.bytes is {taken}, expected {self.max_message_bytes + FRAMING} "
                f"or more; raise it, or set max_message_bytes={taken - FRAMING}"
            )
            raise InputError(msg)

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
            msg = (
                f"topic {self._marks!r}: its cleanup.policy is {policy!r}, expected 'compact': the mark in it would be "
                "deleted some day, and nothing would say what is written; change it, or name another progress_topic"
            )
            raise InputError(msg)

    def _configuration(self, admin: AdminClient, topic: str) -> dict[str, str | None]:
        """The configuration of a topic; empty where these credentials may not ask for it."""
        (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        try:
            return {name: entry.value for name, entry in asked.result(self._timeout).items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            return {}

    # -- settings and errors ------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        settings = dict(self._given() if callable(self._given) else self._given)
        _check_settings(self.topic, settings)
        return {"log_level": 0, **settings, "bootstrap.servers": self._servers}


def _unasked(topic: str, error: Unavailable | KafkaException) -> InputError:
    """The error of a start whose questions the brokers did not answer, or refused to."""
    if isinstance(error, Unavailable):
        cause, refused = str(error), error.refused
    else:
        cause, refused = error.args[0].str(), error.args[0].code() in REFUSED
    what = "credentials, certificate and rights" if refused else "bootstrap_servers and security.protocol"
    msg = f"topic {topic!r}: the brokers cannot be asked: {cause}; check {what}"
    return InputError(msg) if refused else AwayError(msg)


def _because(troubles: Troubles) -> str:
    """What the producer complained of; the call that waited only says that it timed out."""
    said = str(troubles)
    troubles.clear()
    return f" ({said})" if said else ""


def _check_settings(topic: str, settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name in _OWN:
            msg = f"topic {topic!r}: the client setting {name!r} is txstorm's own; use {_OWN[name]}"
            raise SettingError(msg)


def _encoded(mark: Mark) -> bytes:
    return json.dumps({"format": MARK_FORMAT, "version": MARK_VERSION, **asdict(mark)}, sort_keys=True).encode()


def _decoded(data: bytes | None, topic: str) -> Mark:
    """What `_encoded` made; raises `DataDirectoryError` when a newer txstorm wrote it, or it is no mark."""
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
