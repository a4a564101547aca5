"""Kafka clusters: topics and offsets as reported by the brokers, and errors shared with the reader and the producer.

Only this module and `txstorm.clients.kafka.producer` import `confluent_kafka`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txstorm.errors import MissingDependency, SettingError
from txstorm.lanes import THREADS

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ca
except ModuleNotFoundError:
    raise MissingDependency("confluent-kafka", "kafka") from None

log = logging.getLogger(__name__)

Partition = tuple[str, int]
Range = tuple[int, int]

LATEST, EARLIEST = -1, -2
"""Values that stand for the latest and the earliest offset, in place of a time, in `Cluster.ask`."""

CHUNK = 10_000
"""Maximum number of records taken from a client at once."""

_TRY = 1.0
SLICE = 0.05
"""Seconds per step of a longer wait."""
GROUP_EVERY = 1.0
"""Seconds between two writes to a consumer group."""
CLOSING = 2.0
"""Maximum seconds that closing a consumer blocks; healthy ones take milliseconds."""

_SPEC: Any = vars(ca)["OffsetSpec"]  # accepts numbers, although its type hints do not say so
_CONSUMER_ONLY = ("fetch.", "queued.", "max.partition.", "check.crcs", "isolation.", "client.rack", "receive.message.")
_OWN = {
    "group.id": "consumer_group=, which is for lag tools only",
    "group.instance.id": "nothing: no group is joined",
    "enable.auto.commit": "nothing: positions are in the ledger",
    "enable.auto.offset.store": "nothing: positions are in the ledger",
    "auto.offset.reset": "start=",
    "enable.partition.eof": "nothing: ranges have ends",
    "isolation.level": "isolation_level=",
    "bootstrap.servers": "bootstrap_servers=",
    "error_cb": "nothing: errors are logged",
    "logger": "nothing: messages go to the logger txstorm.kafka",
}
# librdkafka's own codes are spelt with an underscore.
_KE = ck.KafkaError
END, _ALL_DOWN, _AUTHENTICATION, _SSL = _KE._PARTITION_EOF, _KE._ALL_BROKERS_DOWN, _KE._AUTHENTICATION, _KE._SSL  # noqa: SLF001
OUT_OF_RANGE = {_KE._AUTO_OFFSET_RESET, _KE.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
UNKNOWN = {_KE._UNKNOWN_TOPIC, _KE._UNKNOWN_PARTITION, _KE.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001
DENIED = {_KE.TOPIC_AUTHORIZATION_FAILED, _KE.CLUSTER_AUTHORIZATION_FAILED, _KE.GROUP_AUTHORIZATION_FAILED}
# The errors other than `DENIED` may also be caused by a restarting broker: they are final only at the start.
REFUSED = DENIED | {_AUTHENTICATION, _SSL, _KE.SASL_AUTHENTICATION_FAILED, _KE.UNSUPPORTED_SASL_MECHANISM}


ClientError: Any = ck.KafkaException
"""Exception class of the Kafka client library."""


class Unavailable(Exception):
    """The brokers did not respond in time, or refused the request; without a refusal, a retry may succeed.

    Attributes:
        refused: whether a broker responded, but refused the credentials, the certificate or access.
    """

    def __init__(self, cause: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(cause)


class Unreadable(Exception):
    """A range of offsets cannot be read as planned.

    Attributes:
        partition: topic and partition of the range.
        offset: the offset at which reading stopped.
        unknown: True if the brokers do not know the partition, False if they do not have the offset.
    """

    def __init__(self, partition: Partition, offset: int, cause: str, *, unknown: bool = False) -> None:
        self.partition = partition
        self.offset = offset
        self.unknown = unknown
        super().__init__(cause)


@dataclass(frozen=True)
class Topic:
    """A topic as described by the brokers.

    Attributes:
        id: the topic's id, which differs if the topic is deleted and recreated under the same name.
        leaders: partition → node id of its leader; None while it has no leader.
    """

    id: str
    leaders: Mapping[int, int | None]


@dataclass
class Troubles:
    """Recorder of the errors that a client has reported since the last `clear`; keeps the last five."""

    last: list[Any] = field(default_factory=list)

    def __call__(self, error: Any) -> None:
        """Record `error`; used as librdkafka's ``error_cb``."""
        log.info("%s", error.str())
        self.last = [*self.last[-4:], error]

    def clear(self) -> None:
        """Discard the recorded errors."""
        self.last = []

    @property
    def refusal(self) -> Any:
        """A recorded error that a retry cannot resolve, such as refused credentials; None if there is none."""
        return next((error for error in self.last if error.code() in REFUSED), None)

    def __str__(self) -> str:
        chosen = self.refusal or next((error for error in self.last if error.code() != _ALL_DOWN), None)
        return "" if chosen is None else str(chosen.str())


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `SettingError` if `settings` has a setting that txstorm sets itself, or that librdkafka does not accept."""
    if faults := setting_faults(settings):
        raise SettingError("\n".join(fault for _, fault in faults))


def setting_faults(settings: Mapping[str, Any], *, asked: bool = True) -> list[tuple[str, str]]:
    """Return the faults of client settings, each with the setting without which it is not there; "": there is none.

    They are those of settings that are txstorm's own and, if `asked`, those that librdkafka finds.
    """
    owned = {name: _OWN[name] for name in settings if name in _OWN}
    faults = [(name, f"kafka: the client setting {name!r} is txstorm's own; use {own}") for name, own in owned.items()]
    left = {name: value for name, value in settings.items() if name not in owned}
    while asked and (fault := _refusal(left)):
        reason = fault.partition(_REASON)[2]
        alone = ({other: value for other, value in left.items() if other != name} for name in left)
        causes = [
            name for name, rest in zip(left, alone, strict=True) if _refusal(rest).partition(_REASON)[2] != reason
        ]
        name = next((one for one in causes if one in reason), causes[0] if causes else "")
        faults.append((name, fault))
        if not name:
            break
        del left[name]
    return faults


_REASON = " cannot be used: "


def _refusal(settings: Mapping[str, Any]) -> str:
    """Return why librdkafka does not take client settings; "" if it does."""
    try:
        consumer({"bootstrap.servers": "", "group.id": "txstorm", **settings}, Troubles()).close()
    except SettingError as error:
        return str(error)
    return ""


def _create(kind: Callable[..., Any], settings: Mapping[str, Any], troubles: Troubles) -> Any:
    try:
        return kind({"log_level": 2, **settings, "error_cb": troubles}, logger=log)
    except (ck.KafkaException, AttributeError, TypeError, ValueError) as error:
        cause = " ".join((error.args[0].str() if isinstance(error, ck.KafkaException) else str(error)).split())
        raise SettingError(f"kafka: the client settings {sorted(settings)}{_REASON}{cause}") from None


class _Consumer(ck.Consumer):
    """Consumer whose `close` returns within `CLOSING` seconds.

    That of librdkafka never returns if it meets the response of a broker that an offset is out of range: a thread then
    waits for a lock that it holds itself (confluentinc/librdkafka#4514).
    """

    def close(self) -> None:
        """Close the consumer; one that does not close in time is left behind, with its threads."""
        try:
            closing = THREADS.call(super().close, "txstorm-kafka-close")
        except RuntimeError:  # since Python 3.12, no thread can be started while the interpreter ends
            super().close()
            return
        try:
            closing.result(CLOSING)
        except TimeoutError:
            log.warning("a Kafka consumer has not closed within %g s: left to do so in the background", CLOSING)


def consumer(settings: Mapping[str, Any], troubles: Troubles) -> Any:
    """Create a consumer; raise `SettingError` if librdkafka refuses the settings."""
    return _create(_Consumer, settings, troubles)


def topic_partitions(offsets: Mapping[Partition, int]) -> list[Any]:
    """Convert `offsets` to the list of `confluent_kafka.TopicPartition` that the Kafka client expects."""
    return [ck.TopicPartition(*partition, offset) for partition, offset in offsets.items()]


class Cluster:
    """Client that queries the brokers for topics and offsets. Not thread-safe.

    Args:
        settings: settings of librdkafka, including ``bootstrap.servers``.
        isolation: ``read_committed`` (the end of a partition is its last stable offset) or ``read_uncommitted``.
    """

    def __init__(self, settings: Mapping[str, Any], isolation: str = "read_committed") -> None:
        kept = {name: value for name, value in settings.items() if not name.startswith(_CONSUMER_ONLY)}
        self._troubles = Troubles()
        self._admin = _create(ca.AdminClient, {"reconnect.backoff.max.ms": 1000, **kept}, self._troubles)
        self._isolation = ck.IsolationLevel[isolation.upper()]
        self._servers = settings.get("bootstrap.servers", "")

    def names(self, seconds: float) -> list[str]:
        """Return the names of all topics except internal topics.

        Raises `Unavailable` if no broker responds within `seconds`.
        """
        deadline = time.monotonic() + seconds
        self._troubles.clear()
        while True:
            try:
                found = self._admin.list_topics(timeout=min(seconds, 0.5))
                return sorted(name for name in found.topics if not name.startswith("__"))
            except ck.KafkaException as error:
                self._check_deadline(deadline, error.args[0].str())

    def topics(self, names: Collection[str], seconds: float) -> dict[str, Topic]:
        """Return the existing topics among `names`; raise `Unavailable` if no broker responds within `seconds`."""
        if not names:
            return {}
        deadline = time.monotonic() + seconds
        self._troubles.clear()
        while True:
            left = max(SLICE, min(_TRY, deadline - time.monotonic()))
            asked = self._admin.describe_topics(ck.TopicCollection(sorted(names)), request_timeout=left)
            try:
                self._await(asked.values(), left)
                return {name: _topic(done.result()) for name, done in asked.items() if not self._is_unknown(done)}
            except Unavailable as error:
                if error.refused or time.monotonic() > deadline:
                    raise
                # Discover a new controller: otherwise the client keeps querying the one that it knows.
                with suppress(ck.KafkaException):
                    self._admin.list_topics(timeout=0.5)

    def _is_unknown(self, done: Future[Any]) -> bool:
        error = done.exception()
        if error is None:
            return False
        cause = error.args[0]
        if cause.code() in UNKNOWN:
            return True
        raise Unavailable(self._explained(cause.str()), refused=cause.code() in REFUSED)

    def ask(self, wanted: Mapping[Partition, int], seconds: float) -> dict[Partition, Future[int | None]]:
        """Request offsets of all partitions, with one request per leader, without blocking.

        Args:
            wanted: partition → `LATEST`, `EARLIEST`, or a time in milliseconds, for the first offset at or after it.
            seconds: timeout of the requests.

        Returns:
            Futures of the offsets, None if there is no offset at or after the time; a future raises an exception if
            the leader is unavailable.
        """
        specs = {ck.TopicPartition(*partition): _SPEC(spec) for partition, spec in wanted.items()}
        asked = self._admin.list_offsets(specs, isolation_level=self._isolation, request_timeout=seconds)
        return {(place.topic, place.partition): _offset(answer) for place, answer in asked.items()}

    def offsets(self, wanted: Mapping[Partition, int], seconds: float) -> dict[Partition, int | None]:
        """Request offsets as `ask` does, and block until they are known; raise `Unavailable` on a timeout."""
        if not wanted:
            return {}
        self._troubles.clear()
        asked = self.ask(wanted, seconds)
        self._await(asked.values(), seconds)
        try:
            return {partition: answer.result() for partition, answer in asked.items()}
        except ck.KafkaException as error:
            raise Unavailable(self._explained(error.args[0].str())) from None

    def group_positions(self, group: str, seconds: float) -> dict[Partition, int]:
        """Return the positions that a consumer group has committed: partition → the next offset to consume.

        Raises `Unavailable` if its coordinator does not answer within `seconds`, or refuses the request.
        """
        self._troubles.clear()
        wanted = [ck.ConsumerGroupTopicPartitions(group)]
        answer = self._admin.list_consumer_group_offsets(wanted, request_timeout=seconds)[group]
        self._await([answer], seconds)
        try:
            found = answer.result().topic_partitions
        except ck.KafkaException as error:
            cause = error.args[0]
            raise Unavailable(self._explained(cause.str()), refused=cause.code() in REFUSED) from None
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0 and one.error is None}

    def serve(self) -> str:
        """Process pending events of the client; return the errors it has reported, as text. Call regularly."""
        self._admin.poll(0)
        return str(self._troubles)

    def _await(self, futures: Iterable[Future[Any]], seconds: float) -> None:
        open_, deadline = set(futures), time.monotonic() + seconds
        while open_:
            open_ = wait(open_, timeout=SLICE, return_when=FIRST_EXCEPTION).not_done
            if open_:
                self._check_deadline(deadline, "no answer")

    def _check_deadline(self, deadline: float, cause: str) -> None:
        self._admin.poll(0)
        refusal = self._troubles.refusal
        if refusal is not None or time.monotonic() > deadline:
            raise Unavailable(self._explained(cause), refused=refusal is not None)

    def _explained(self, cause: str) -> str:
        self._admin.poll(0)
        return f"{self._servers}: {str(self._troubles) or cause}"


def _topic(found: Any) -> Topic:
    # For a partition without a leader, the client reports a leader with id -1, or None.
    leaders = {
        partition.id: partition.leader.id if partition.leader is not None and partition.leader.id >= 0 else None
        for partition in found.partitions
    }
    return Topic(str(found.topic_id), leaders)


def _offset(answer: Future[Any]) -> Future[int | None]:
    offset: Future[int | None] = Future()

    def done(found: Future[Any]) -> None:
        error = found.exception()
        if error is not None:
            offset.set_exception(error)
        else:
            value = found.result().offset
            offset.set_result(value if value >= 0 else None)

    answer.add_done_callback(done)
    return offset


class GroupPositions:
    """Writer that commits read positions to a consumer group without members, for tools that show a reader's lag."""

    def __init__(
        self, settings: Mapping[str, Any], group: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = {**settings, "group.id": group, "enable.auto.commit": False}
        self._monotonic = monotonic
        self._consumer: Any = None
        self._next = 0.0
        self._unwritten: Mapping[Partition, int] = {}

    def committed(self, positions: Mapping[Partition, int]) -> None:
        """Note `positions`, and commit them in the background, at most every `GROUP_EVERY` seconds."""
        self._unwritten = positions
        if self._monotonic() >= self._next:
            self._next = self._monotonic() + GROUP_EVERY
            self._write(waiting=False)

    def _write(self, *, waiting: bool) -> None:
        """Commit what is noted; a failure is only logged."""
        if not self._unwritten:
            return
        if self._consumer is None:
            self._consumer = consumer(self._settings, Troubles())
        try:
            self._consumer.poll(0)
            self._consumer.commit(offsets=topic_partitions(self._unwritten), asynchronous=not waiting)
        except ck.KafkaException as error:
            log.warning("positions could not be written to the consumer group: %s", error.args[0].str())
        self._unwritten = {}

    def close(self) -> None:
        """Commit what is noted, and close the consumer; call once, at the end."""
        self._write(waiting=True)
        if self._consumer is not None:
            self._consumer.close()
