"""A committer that sends every tuple it receives to a Kafka topic, exactly once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import EPOCH, TaskContext
from txstorm.api.external import Outlet
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.errors import SettingError, StateError
from txstorm.misfits import decimal_digits
from txstorm.typed import LAST_MICROS

if TYPE_CHECKING:
    from txstorm.clients.kafka.producer import KafkaWriter, Settings

COLUMNS = {"key": bytes, "value": bytes, "timestamp": int}
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64())])
_MILLISECOND = timedelta(milliseconds=1)

Encoder = Callable[[Mapping[str, Any]], bytes | str | None]
Part = str | Sequence[str] | Encoder | None


class KafkaSink(BatchBolt, Committer):
    """Committer that sends each tuple to `topic`, exactly once for ``read_committed`` readers, in txid order.

    Use it with `set_bolt` or `set_committer_bolt`. Records are built, and invalid ones refused, before the transaction
    is decided. The order is kept within each partition.
    Each record has the headers ``txstorm.topology``, ``txstorm.txid`` and ``txstorm.index`` (its position within the
    txid).

    Key and value are derived from a tuple in the same way: a field name selects that field (bytes as they are, a string
    as UTF-8, None as null, all else as JSON); a list of names yields a JSON object of those fields; a function receives
    the tuple as a dict and returns bytes, a string or None. In JSON, times and dates are ISO 8601 and a Decimal is a
    string.

    Args:
        name: name of the sink, unique in the topology.
        topic: the topic, which must exist.
        bootstrap_servers: ``HOST:PORT``, or several separated by commas.
        key: the record key, which determines the partition; if None, a record may go to any partition.
        value: the record value; if None, a JSON object of all fields of the tuple.
        timestamp: a field that holds a datetime or milliseconds since 1970; if None, the transaction's time.
        settings: further client settings of librdkafka, or a function that returns them. They never leave the driver.
        options: see `txstorm.clients.kafka.producer.KafkaWriter`.

    Raises:
        SettingError: an argument is invalid.
        MissingDependency: confluent-kafka is not installed.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        bootstrap_servers: str,
        *,
        key: Part = None,
        value: Part = None,
        timestamp: str | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        writer = _writer(topic, bootstrap_servers, {"settings": settings, **options})
        self.outlet = Outlet(name, COLUMNS, writer)
        self._limit = writer.max_message_bytes
        self._key = _part(name, "key", key)
        self._value = _part(name, "value", value)
        self._timestamp = timestamp
        parts = [part for part in (self._key, self._value, timestamp) if part is not None and not callable(part)]
        self.needed_fields = tuple(name for part in parts for name in ([part] if isinstance(part, str) else part))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._sink = context.sink(self.outlet.name)
        self._where = f"sink {self.outlet.name!r} ({context.component}[{context.task}], txid {attempt.txid})"
        self._stamp = context.stamp // 1000
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._times: list[int] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Build a record from the tuple; raise `StateError` for a value that a record cannot hold."""
        key = None if self._key is None else self._encoded("key", self._key, tuple)
        value = self._encoded("value", self._value, tuple)
        if (size := len(key or b"") + len(value or b"")) > self._limit:
            raise StateError(
                f"{self._where}: a record has {size} bytes, expected at most {self._limit}; raise max_message_bytes, "
                f"and max.message.bytes of the topic, or send less: {tuple!r:.200}"
            )
        self._times.append(self._stamp if self._timestamp is None else self._time(tuple[self._timestamp]))
        self._keys.append(key)
        self._values.append(value)

    def finish_batch(self) -> None:
        """Hand the records of the batch to the outlet, to be sent when the transaction commits."""
        columns = [pa.array(values, field.type) for values, field in zip(self._columns(), _SCHEMA, strict=True)]
        self._sink.append_batch(pa.table(columns, schema=_SCHEMA))

    def _columns(self) -> tuple[list[Any], ...]:
        return self._keys, self._values, self._times

    def _encoded(self, what: str, part: Part, given: Tuple) -> bytes | None:
        try:
            return _bytes(_content(part, given))
        except (TypeError, ValueError) as error:  # includes text that cannot be encoded as UTF-8
            raise StateError(f"{self._where}: the {what} of {given!r:.200} cannot be sent: {error}") from None

    def _time(self, value: Any) -> int:
        """Convert a datetime, or milliseconds since 1970, to milliseconds since 1970."""
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = (value - EPOCH) // _MILLISECOND
        if type(value) is int and 0 <= value <= LAST_MICROS // 1000:
            return value
        raise StateError(
            f"{self._where}: field {self._timestamp!r} is {value!r:.100}; expected a datetime with a time zone or "
            "milliseconds since 1970, up to the year 9999"
        )


def _writer(topic: str, servers: str, options: Mapping[str, Any]) -> KafkaWriter:
    # A copy of the sink may be unpickled where confluent-kafka is not installed, such as in Spark's workers.
    from txstorm.clients.kafka.producer import KafkaWriter

    try:
        return KafkaWriter(topic, servers, **options)
    except TypeError as error:
        raise SettingError(f"topic {topic!r}: {error}; see the arguments of KafkaWriter") from None


def _part(name: str, what: str, given: Any) -> Part:
    if given is None or isinstance(given, str):
        return given
    if callable(given):
        encoder: Encoder = given
        return encoder
    if isinstance(given, Sequence) and given and all(isinstance(field, str) for field in given):
        return tuple(given)
    msg = f"sink {name!r}: {what} is {given!r}; expected a field's name, a list of them, or a function of the tuple"
    raise SettingError(msg)


def _content(part: Part, given: Tuple) -> Any:
    """Return the key or value for a tuple, before encoding: a field, a dict of fields, or a function's result."""
    if part is None:
        return given.as_dict()
    if isinstance(part, str):
        return given[part]
    if callable(part):
        made = part(given.as_dict())
        if made is None or isinstance(made, bytes | str):
            return made
        raise TypeError(f"the function returned {type(made).__name__}, expected bytes, str or None")
    return {field: given[field] for field in part}


def _bytes(value: Any) -> bytes | None:
    """Encode a key or value for Kafka (None: null); raise `TypeError` or `ValueError` if JSON cannot represent it."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case _:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_other)
            return text.encode()


def _other(value: Any) -> str:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal() if math.isfinite(value):
            return decimal_digits(value)
        case bytes():
            msg = "bytes have no JSON form; send them as a field of their own (value='field'), or give a function"
            raise TypeError(msg)
        case _:
            msg = f"{type(value).__name__} {value!r:.100} has no JSON form; give a function that makes bytes of it"
            raise TypeError(msg)
