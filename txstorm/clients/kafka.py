"""Kafka as a source: what brokers say of topics and offsets, and exact ranges of offsets read.

Of txstorm's modules only those named ``kafka*`` in this package import `confluent_kafka`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import Any

from txstorm.errors import MissingDependency, SettingError

try:
    import confluent_kafka as ck
    from confluent_kafka import admin as ca
except ModuleNotFoundError:
    raise MissingDependency("confluent-kafka", "kafka") from None

log = logging.getLogger("txstorm.kafka")

Partition = tuple[str, int]
Range = tuple[int, int]

LATEST, EARLIEST = -1, -2
"""Asked for in `Cluster.ask` instead of a time."""

CHUNK = 10_000
_SLICE = 0.05
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
_KE = ck.KafkaError
_REFUSED = {_KE._AUTHENTICATION, _KE._SSL, _KE.SASL_AUTHENTICATION_FAILED, _KE.TOPIC_AUTHORIZATION_FAILED}
_REFUSED |= {_KE.CLUSTER_AUTHORIZATION_FAILED, _KE.UNSUPPORTED_SASL_MECHANISM}
_OUT_OF_RANGE = {_KE._AUTO_OFFSET_RESET, _KE.OFFSET_OUT_OF_RANGE}
_UNKNOWN = {_KE._UNKNOWN_TOPIC, _KE._UNKNOWN_PARTITION, _KE.UNKNOWN_TOPIC_OR_PART}


class Unavailable(Exception):
    """No answer within the time given; a later try may get one.

    Attributes:
        refused: the broker did answer: with a refusal of the credentials, the certificate or the right to read.
    """

    def __init__(self, cause: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(cause)


class Unreadable(Exception):
    """A range cannot be read as it was planned.

    Attributes:
        partition: of what.
        offset: where reading had come to.
        unknown: the brokers do not know the partition; else they do not have the offset.
    """

    def __init__(self, partition: Partition, offset: int, cause: str, *, unknown: bool = False) -> None:
        self.partition = partition
        self.offset = offset
        self.unknown = unknown
        super().__init__(cause)


@dataclass(frozen=True)
class Topic:
    """A topic as the brokers describe it.

    Attributes:
        id: differs from that of a topic that had the name before.
        leaders: partition → node id of its leader; None while it has none.
    """

    id: str
    leaders: Mapping[int, int | None]


@dataclass
class Troubles:
    """The last things that a client has complained of, since `clear`."""

    last: list[Any] = field(default_factory=list)

    def __call__(self, error: Any) -> None:
        """As librdkafka's ``error_cb``."""
        log.info("%s", error.str())
        self.last = [*self.last[-4:], error]

    def clear(self) -> None:
        """Forget them."""
        self.last = []

    @property
    def refusal(self) -> Any:
        """One that trying again does not mend, if there is one."""
        return next((error for error in self.last if error.code() in _REFUSED), None)

    def __str__(self) -> str:
        chosen = self.refusal or next((one for one in self.last if one.code() != _KE._ALL_BROKERS_DOWN), None)
        return "" if chosen is None else str(chosen.str())


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `SettingError` for client settings that txstorm sets itself, or that librdkafka does not know."""
    for name in settings:
        if name in _OWN:
            msg = f"kafka: the client setting {name!r} is txstorm's own; use {_OWN[name]}"
            raise SettingError(msg)
    _made(ck.Consumer, {"bootstrap.servers": "", "group.id": "txstorm", **settings}, Troubles()).close()


def _made(kind: Callable[..., Any], settings: Mapping[str, Any], troubles: Troubles) -> Any:
    try:
        return kind({**settings, "error_cb": troubles}, logger=log)
    except (ck.KafkaException, TypeError, ValueError) as error:
        cause = error.args[0].str() if isinstance(error, ck.KafkaException) else str(error)
        msg = f"kafka: the client settings {sorted(settings)} cannot be used: {cause}"
        raise SettingError(msg) from None


class Cluster:
    """Asks brokers for topics and offsets. One thread at a time.

    Args:
        settings: librdkafka's, ``bootstrap.servers`` among them.
        isolation: ``read_committed`` (the end of a partition is its last stable offset) or ``read_uncommitted``.
    """

    def __init__(self, settings: Mapping[str, Any], isolation: str = "read_committed") -> None:
        kept = {name: value for name, value in settings.items() if not name.startswith(_CONSUMER_ONLY)}
        self._troubles = Troubles()
        self._admin = _made(ca.AdminClient, {"reconnect.backoff.max.ms": 1000, **kept}, self._troubles)
        self._isolation = ck.IsolationLevel[isolation.upper()]
        self._servers = settings.get("bootstrap.servers", "")

    def names(self, seconds: float) -> list[str]:
        """All topics but internal ones; raises `Unavailable`."""
        deadline = time.monotonic() + seconds
        self._troubles.clear()
        while True:
            try:
                found = self._admin.list_topics(timeout=min(seconds, 0.5))
                return sorted(name for name in found.topics if not name.startswith("__"))
            except ck.KafkaException as error:
                self._give_up(deadline, error.args[0].str())

    def topics(self, names: Collection[str], seconds: float) -> dict[str, Topic]:
        """Those of `names` that exist; raises `Unavailable`."""
        if not names:
            return {}
        self._troubles.clear()
        asked = self._admin.describe_topics(ck.TopicCollection(sorted(names)), request_timeout=seconds)
        self._await(asked.values(), seconds)
        return {name: _topic(done.result()) for name, done in asked.items() if not self._is_unknown(done)}

    def _is_unknown(self, done: Future[Any]) -> bool:
        error = done.exception()
        if error is None:
            return False
        cause = error.args[0]
        if cause.code() in _UNKNOWN:
            return True
        raise Unavailable(self._said(cause.str()), refused=cause.code() in _REFUSED)

    def ask(self, wanted: Mapping[Partition, int], seconds: float) -> dict[Partition, Future[int | None]]:
        """Ask for offsets, of all partitions in one request to each leader; waits for nothing.

        Args:
            wanted: partition → `LATEST`, `EARLIEST`, or a time in milliseconds: the first offset not before it.
            seconds: after which a request is given up.

        Returns:
            Futures of offsets; None where there is no offset at or after the time. They raise when a leader is away.
        """
        specs = {ck.TopicPartition(*partition): ca.OffsetSpec(spec) for partition, spec in wanted.items()}
        asked = self._admin.list_offsets(specs, isolation_level=self._isolation, request_timeout=seconds)
        return {(one.topic, one.partition): _offset(answer) for one, answer in asked.items()}

    def offsets(self, wanted: Mapping[Partition, int], seconds: float) -> dict[Partition, int | None]:
        """The same, waited for; raises `Unavailable`."""
        if not wanted:
            return {}
        self._troubles.clear()
        asked = self.ask(wanted, seconds)
        self._await(asked.values(), seconds)
        try:
            return {partition: answer.result() for partition, answer in asked.items()}
        except ck.KafkaException as error:
            raise Unavailable(self._said(error.args[0].str())) from None

    def serve(self) -> str:
        """Hear what the client has to complain of; called now and then."""
        self._admin.poll(0)
        return str(self._troubles)

    def _await(self, futures: Iterable[Future[Any]], seconds: float) -> None:
        open_, deadline = set(futures), time.monotonic() + seconds
        while open_:
            open_ = wait(open_, timeout=_SLICE, return_when=FIRST_EXCEPTION).not_done
            if open_:
                self._give_up(deadline, "no answer")

    def _give_up(self, deadline: float, cause: str) -> None:
        self._admin.poll(0)
        refusal = self._troubles.refusal
        if refusal is not None or time.monotonic() > deadline:
            raise Unavailable(self._said(cause), refused=refusal is not None)

    def _said(self, cause: str) -> str:
        self._admin.poll(0)
        return f"{self._servers}: {str(self._troubles) or cause}"


def _topic(found: Any) -> Topic:
    # A partition without a leader has one whose id is -1, or none.
    leaders = {one.id: one.leader.id if one.leader is not None and one.leader.id >= 0 else None for one in found.partitions}
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


class RangeReader:
    """Reads ranges of offsets with one consumer, which is only ever assigned to partitions, never part of a group.

    The next ranges cost no seek when they begin where the last ones ended: what was fetched beyond is kept.

    Args:
        settings: librdkafka's; what is not given is chosen for reading ranges.
        isolation: as of `Cluster`.
    """

    def __init__(self, settings: Mapping[str, Any], isolation: str = "read_committed") -> None:
        self._troubles = Troubles()
        own = {
            "group.id": "txstorm",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
        self._consumer = _made(ck.Consumer, {**_READING, **settings, **own}, self._troubles)
        self._spans: dict[Partition, _Span] = {}
        self._moved = False

    def fits(self, ranges: Mapping[Partition, Range]) -> int:
        """How many of `ranges` begin where this reader stands."""
        return sum(p in self._spans and self._spans[p].holds(start) for p, (start, _) in ranges.items())

    def read(self, ranges: Mapping[Partition, Range], patience: float) -> dict[Partition, list[Any]]:
        """The records of `ranges`, as `confluent_kafka.Message`, in the order of their offsets.

        A range may hold fewer records than offsets: it is over when the consumer is at its end or beyond.

        Args:
            ranges: partition → first offset, and the one after the last.
            patience: how many seconds to wait while nothing comes.

        Raises:
            Unreadable: brokers do not have the offset, or do not know the partition.
            Unavailable: nothing came for `patience` seconds.
        """
        try:
            return self._read(ranges, patience)
        except BaseException:
            self._spans = {}  # wherever the consumer stands now, the next read begins anew
            raise

    def _read(self, ranges: Mapping[Partition, Range], patience: float) -> dict[Partition, list[Any]]:
        self._troubles.clear()
        self._place(ranges)
        deadline, unknown_until = time.monotonic() + patience, time.monotonic() + min(patience, 2.0)
        while any(self._spans[partition].known < stop for partition, (_, stop) in ranges.items()):
            unknown = self._take(self._next(ranges))
            if unknown is not None:
                # A partition made a moment ago, or a client whose metadata are old: it has to ask for the topic.
                self._ask_again(ranges, unknown, unknown_until)
            elif self._moved:
                deadline = time.monotonic() + patience
            elif time.monotonic() > deadline:
                raise Unavailable(self._missing(ranges), refused=self._troubles.refusal is not None)
        return {partition: self._spans[partition].cut(*extent) for partition, extent in ranges.items()}

    def _place(self, ranges: Mapping[Partition, Range]) -> None:
        idle = sum(len(span.ahead) for partition, span in self._spans.items() if partition not in ranges)
        if self.fits(ranges) < len(ranges) or idle > 5 * CHUNK:
            self._spans = {partition: _Span(start, start) for partition, (start, _) in ranges.items()}
            self._consumer.assign([ck.TopicPartition(*partition, start) for partition, (start, _) in ranges.items()])

    def _next(self, ranges: Mapping[Partition, Range]) -> list[Any]:
        left = sum(max(0, stop - self._spans[partition].known) for partition, (_, stop) in ranges.items())
        found = self._consumer.consume(min(left + len(ranges), CHUNK), 0)
        if found:
            return list(found)
        one = self._consumer.poll(_SLICE)
        return [] if one is None else [one]

    def _take(self, messages: Iterable[Any]) -> Partition | None:
        """Keep what came; gives a partition that is not known, if there is one."""
        self._moved = False
        for message in messages:
            error = message.error()
            if error is None:
                span = self._spans.get((message.topic(), message.partition()))
                if span is not None:
                    span.add(message)
                    self._moved = True
            elif error.code() == _KE._PARTITION_EOF:
                self._ended((message.topic(), message.partition()), message.offset())
            elif error.code() in _UNKNOWN and message.topic() is not None:
                return message.topic(), message.partition()
            else:
                self._complain(message, error)
        return None

    def _ended(self, partition: Partition, offset: int) -> None:
        span = self._spans.get(partition)
        if span is not None and offset > span.known:
            span.known = offset
            self._moved = True

    def _complain(self, message: Any, error: Any) -> None:
        partition = (message.topic(), message.partition())
        if error.code() in _OUT_OF_RANGE and partition in self._spans:
            raise Unreadable(partition, self._spans[partition].known, error.str())
        if error.code() in _REFUSED:
            raise Unavailable(error.str(), refused=True)
        self._troubles(error)

    def _ask_again(self, ranges: Mapping[Partition, Range], unknown: Partition, until: float) -> None:
        if time.monotonic() > until:
            raise Unreadable(unknown, ranges.get(unknown, (0, 0))[0], "the brokers do not know it", unknown=True)
        try:
            self._consumer.list_topics(unknown[0], timeout=_SLICE * 10)
        except ck.KafkaException as error:
            self._troubles(error.args[0])
        time.sleep(_SLICE)
        self._spans = {}
        self._place(ranges)

    def _missing(self, ranges: Mapping[Partition, Range]) -> str:
        behind = [
            f"{topic}/{number} from offset {self._spans[topic, number].known} of {start}..{stop - 1}"
            for (topic, number), (start, stop) in ranges.items()
            if self._spans[topic, number].known < stop
        ]
        return f"nothing came of {', '.join(behind)}; {self._troubles}"

    def leave(self) -> None:
        """Fetch nothing more until the next read."""
        self._spans = {}
        self._consumer.unassign()

    def close(self) -> None:
        """Called once, when it is not needed any more."""
        self._consumer.close()


_READING = {
    # A new assignment waits for the answer to the request under way, and this is how long a broker may hold it.
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 100,
    # By default a consumer whose queue was full waits for a second before it fetches on.
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 32768,
    "reconnect.backoff.max.ms": 1000,
}


@dataclass
class _Span:
    """What is read of one partition: of `start` up to `known` all that there is stands in `ahead`."""

    start: int
    known: int
    ahead: list[Any] = field(default_factory=list)

    def holds(self, offset: int) -> bool:
        return self.start <= offset <= self.known

    def add(self, message: Any) -> None:
        offset = message.offset()
        if offset >= self.known:
            self.ahead.append(message)
            self.known = offset + 1

    def cut(self, start: int, stop: int) -> list[Any]:
        """Give the records of a range, and forget what is before its end."""
        taken = [message for message in self.ahead if start <= message.offset() < stop]
        self.ahead = [message for message in self.ahead if message.offset() >= stop]
        self.start = stop
        return taken


class GroupPositions:
    """Writes positions to a consumer group that nobody is a member of, for tools that show how far reading is."""

    def __init__(self, settings: Mapping[str, Any], group: str) -> None:
        self._troubles = Troubles()
        self._consumer = _made(ck.Consumer, {**settings, "group.id": group, "enable.auto.commit": False}, self._troubles)

    def write(self, positions: Mapping[Partition, int], *, waiting: bool = False) -> None:
        """Write them, in the background unless `waiting`; what fails is logged and nothing else."""
        offsets = [ck.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        try:
            self._consumer.poll(0)
            self._consumer.commit(offsets=offsets, asynchronous=not waiting)
        except ck.KafkaException as error:
            log.warning("positions could not be written to the consumer group: %s", error.args[0].str())

    def close(self) -> None:
        """Called once, at the end."""
        self._consumer.close()
