"""Validated options of a Kafka spout, the same for the driver and the workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from txstorm.clients.kafka.cluster import check_settings
from txstorm.errors import SettingError
from txstorm.spouts.kafka.decode import Decoder, Fields

FIELDS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
ISOLATION = ("read_committed", "read_uncommitted")

Start = str | datetime | Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class KafkaSource:
    """Source of one Kafka spout: topics, client settings, and limits of a transaction.

    Attributes:
        opaque: whether an undecided batch may be planned differently after a failure.
        topics: topic names, and patterns, which begin with ``^``.
        settings: client settings of librdkafka, including ``bootstrap.servers``; never stored.
        start: where to begin in partitions that exist at the first transaction.
        rows: maximum number of offsets of a topic in a transaction.
        size: maximum number of bytes of a topic in a transaction, as an estimate.
        fields: the fields emitted.
        key: decoder of keys.
        value: decoder of values.
        isolation: ``read_committed`` or ``read_uncommitted``.
        group: consumer group to which positions are written, for tools that show the lag.
        discover: seconds between two searches for new partitions and topics.
        patience: seconds that reading waits without receiving records.
    """

    opaque: bool
    topics: tuple[str, ...]
    settings: Mapping[str, Any] = field(repr=False)  # passwords are among them
    start: Start
    rows: int
    size: int
    fields: tuple[str, ...]
    key: Decoder
    value: Decoder
    isolation: str
    group: str | None
    discover: float
    patience: float

    @property
    def typed(self) -> Mapping[str, Any]:
        """The fields that records have in place of the value, with their types."""
        return self.value.objects.types if isinstance(self.value, Fields) else {}

    @property
    def servers(self) -> str:
        """The brokers' addresses, for messages."""
        return str(self.settings["bootstrap.servers"])

    @property
    def named(self) -> list[str]:
        """The topics given by name, which must exist."""
        return [topic for topic in self.topics if not topic.startswith("^")]

    @property
    def patterns(self) -> list[re.Pattern[str]]:
        """The patterns of topics, which may match none."""
        return [re.compile(topic) for topic in self.topics if topic.startswith("^")]

    def reads(self, topic: str) -> bool:
        """Return whether `topic` is read, because it is given by name or matches a pattern."""
        return topic in self.named or any(pattern.search(topic) for pattern in self.patterns)


def listed(topics: str | Sequence[str]) -> tuple[str, ...]:
    """Return `topics` as a tuple; raise `SettingError` for invalid topic names and patterns."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        msg = f"kafka spout: topics is {topics!r}, expected a name, a pattern that begins with ^, or a list of them"
        raise SettingError(msg)
    for name in names:
        if name.startswith("^"):
            try:
                re.compile(name)
            except re.error as error:
                raise SettingError(f"kafka spout: topic pattern {name!r} is no regular expression: {error}") from None
        elif not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
            raise SettingError(f"kafka spout: {name!r} can be no topic; a pattern begins with ^")
    return names


def checked_source(source: KafkaSource) -> KafkaSource:
    """Return `source` if it is valid; raise `SettingError` with all its faults if not."""
    numbers = (
        ("max_batch_rows", source.rows, (int,), "an int"),
        ("max_batch_bytes", source.size, (int,), "an int"),
        ("discover_seconds", source.discover, (int, float), "seconds"),
        ("patience", source.patience, (int, float), "seconds"),
    )
    faults = [
        f"{name} is {value!r}, expected {what} > 0"
        for name, value, kind, what in numbers
        if not isinstance(value, kind) or isinstance(value, bool) or value <= 0
    ]
    faults += [*_field_faults(source), *_start_faults(source)]
    if source.isolation not in ISOLATION:
        faults.append(f"isolation_level is {source.isolation!r}, expected one of {ISOLATION}")
    if faults:
        raise SettingError(f"kafka spout: {'; '.join(faults)}")
    check_settings({name: value for name, value in source.settings.items() if name != "bootstrap.servers"})
    return source


def _field_faults(source: KafkaSource) -> list[str]:
    fields, typed = source.fields, source.typed
    known = [*typed, *(name for name in FIELDS if not (typed and name == "value"))]
    if both := [name for name in typed if known.count(name) > 1]:
        return [f"value has the fields {both}, which records have, too; rename them, or decode the value as 'json'"]
    unknown = [name for name in fields if name not in known]
    if unknown or not fields or len(set(fields)) < len(fields):
        return [f"fields is {list(fields)}, expected some of {known}, each once"]
    return []


def _start_faults(source: KafkaSource) -> list[str]:
    start = source.start
    if isinstance(start, datetime):
        return [] if start.tzinfo else [f"start is {start!r}, which has no time zone; times are UTC, give it one"]
    if isinstance(start, str):
        return [] if start in ("earliest", "latest") else [f"start is {start!r}, {_EXPECTED}"]
    if not isinstance(start, Mapping):
        return [f"start is {start!r}, {_EXPECTED}"]
    faults = []
    for topic, offsets in start.items():
        if topic not in source.topics and not any(pattern.search(topic) for pattern in source.patterns):
            faults.append(f"start names topic {topic!r}, which is not among {list(source.topics)}")
        if not isinstance(offsets, Mapping) or not all(_is_offset(*item) for item in offsets.items()):
            faults.append(f"start[{topic!r}] is {offsets!r}, expected {{partition: offset}} of ints >= 0")
    return faults


def _is_offset(number: Any, offset: Any) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (number, offset))


_EXPECTED = "expected 'earliest', 'latest', a datetime, or {topic: {partition: offset}}"
