"""Side of a join: a stream with the key, time and identity of its tuples, and what is known of their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.state import arrow_type
from txstorm.errors import InputError
from txstorm.keys import name_of
from txstorm.typed import python_type
from txstorm.windows.rules.event_time import A_DAY, UNITS, ClockRule
from txstorm.windows.rules.forms import Duration, duration


class Side:
    """One side of a join: a stream of a component.

    Example::

        Side("orders", key="customer", time="placed_at", lag=Duration.seconds(5), partition="partition")

    Args:
        component, stream: what is read.
        key: the field or fields of the key, required; tuples with the key None, or with None in it, match nothing.
        time: the field with the time, required: an int in `unit`, or an aware datetime.
        unit: ``s``, ``ms`` or ``us``.
        id: the field that identifies a tuple; None: its txid and position.
        lag: how much the tuples of a partition may be out of order.
        idle: the time without data, by stamps, after which a partition is left out; None: never.
        grace: how far behind the present a right source that is read to its end may still be; None: it holds the left
            side back until it has data.
        partition: the field with the partition; None: the stream is one partition.
        partitions: all partitions that the field may have; None: those of the source, and those that were seen.
        columns: field → type, for the stored rows of the side; None: fields but key, time, id and partition are stored
            as text.
        max_ahead: how far tuples may be ahead of the stamp of their transaction; one further ahead is an error. By
            default none is, but one more than a day ahead moves the position only by a day; None: as far as it says.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        component: str,
        stream: str = DEFAULT_STREAM,
        *,
        key: str | Sequence[str] | None = None,
        time: str | None = None,
        unit: str = "ms",
        id: str | None = None,
        lag: Duration | timedelta | None = None,
        idle: Duration | timedelta | None = None,
        grace: Duration | timedelta | None = None,
        partition: str | None = None,
        partitions: Sequence[Any] | None = None,
        columns: Mapping[str, Any] | None = None,
        max_ahead: Duration | timedelta | None = A_DAY,
    ) -> None:
        for name, given in {"component": component, "stream": stream}.items():
            if not isinstance(given, str) or not given:
                raise InputError(f"Side: {name}: expected a name, got {given!r}")
        if key is None or time is None:
            missing = "key" if key is None else "time"
            msg = f"Side {component!r}: {missing} is missing; name the field, as in Side(…, key='user', time='ts')"
            raise InputError(msg)
        _check_fields(component, key, {"time": time, "id": id, "partition": partition})
        self.component, self.stream = component, stream
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.time, self.unit, self.id = time, unit, id
        where = f"Side {component!r}"
        self.lag = 0 if lag is None else duration(lag, f"{where}: lag", zero=True).microseconds
        self.idle = None if idle is None else duration(idle, f"{where}: idle").microseconds
        self.grace = None if grace is None else duration(grace, f"{where}: grace", zero=True).microseconds
        self.clock = ClockRule.of(max_ahead, f"{where}: max_ahead")
        self.partition = partition
        if isinstance(partitions, str) or not isinstance(partitions, Sequence | None):
            raise InputError(f"Side {component!r}: partitions: expected a list of partitions, got {partitions!r}")
        self.partitions = None if partitions is None else tuple(map(name_of, partitions))
        self.columns = None if columns is None else dict(columns)
        _check_columns(component, self.columns or {}, time)
        if not isinstance(unit, str) or unit not in UNITS:
            raise InputError(f"Side {component!r}: unit: expected {', '.join(UNITS)}, got {unit!r}")

    @property
    def reads(self) -> tuple[str, str]:
        """Component and stream."""
        return self.component, self.stream

    def __repr__(self) -> str:
        stream = "" if self.stream == DEFAULT_STREAM else f", {self.stream!r}"
        return f"Side({self.component!r}{stream}, key={list(self.key)}, time={self.time!r})"


def _check_fields(component: str, key: Any, others: Mapping[str, Any]) -> None:
    """Raise `InputError` if key or one of the others does not name fields."""
    names = [key] if isinstance(key, str) else key
    fault = None
    if not isinstance(names, Sequence) or not names or not all(isinstance(one, str) and one for one in names):
        fault = f"key: expected a field or a list of fields, got {key!r}"
    elif len(set(names)) < len(names):
        fault = f"key: expected different fields, got {key!r}"
    for what, one in others.items():
        if one is not None and (not isinstance(one, str) or not one):
            fault = f"{what}: expected a field, got {one!r}"
    if fault is not None:
        raise InputError(f"Side {component!r}: {fault}")


def _check_columns(component: str, columns: Mapping[str, Any], time: str) -> None:
    """Raise `InputError` for a column of an unsupported type, or one of the time that cannot hold times."""
    fault = None
    for name, declared in columns.items():
        kind = arrow_type(declared)
        if kind is None:
            fault = (
                f"{name!r} has the unsupported type {declared!r}; use str, int, float, bool, bytes, datetime, date, "
                "Decimal or an Arrow type"
            )
        elif name == time and not (pa.types.is_integer(kind) or (pa.types.is_timestamp(kind) and kind.tz)):
            fault = f"{name!r} is the time; expected int or datetime, got {kind}"
    if fault is not None:
        raise InputError(f"Side {component!r}: columns: {fault}")


def key_faults(fields: Iterable[tuple[str, Any]], others: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield a fault for each field of a key whose declared type has no value that is equal to one of the other's.

    `fields`, `others`: the fields of both keys, in order, each with its type; None: not declared.
    """
    for (name, declared), (other, its) in zip(fields, others, strict=False):
        kinds = arrow_type(declared), arrow_type(its)
        if None not in kinds and python_type(kinds[0]) is not python_type(kinds[1]):
            yield (
                f"the key fields {name!r} and {other!r} have the types {kinds[0]} and {kinds[1]}, so none would match; "
                "declare the same type, and convert one of them"
            )


def declared_key(side: Side) -> list[tuple[str, Any]]:
    """Return the fields of the key of a side with their declared types; None: not declared."""
    return [(name, (side.columns or {}).get(name)) for name in side.key]
