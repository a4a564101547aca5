"""Declaring state and sinks, and the handles committers work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

CHANGES, MERGE = "changes", "merge"
LAYOUTS = (CHANGES, MERGE)
DECIMAL = pa.decimal128(38, 18)
ARROW_TYPES: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
    Decimal: DECIMAL,
}
DELTALAKE, SPARK = "deltalake", "spark"
WRITERS = (DELTALAKE, SPARK)


def arrow_type(declared: Any) -> pa.DataType | None:
    """The Arrow type of a declared column type (a Python type or an Arrow type), or None if there is none."""
    return declared if isinstance(declared, pa.DataType) else ARROW_TYPES.get(declared)


@dataclass(frozen=True)
class KeyedState:
    """One value per key, kept in the Delta tables ``state/<name>`` and, but for the layout merge, ``changes/<name>``.

    Set it as an attribute of a committer; several attributes are several tables. One key column makes keys bare
    values, several make them tuples, none makes a single row whose key is ``()``. One value column makes values
    bare, several make them dicts.

    Attributes:
        name: names the tables; a letter, then letters, digits, ``_`` or ``-``.
        key: column → type; no floats.
        value: column → type; a Python type (str, int, float, bool, bytes, datetime, date, Decimal) or an Arrow type.
        ttl: how long a key lives that nobody writes: it is gone for the first txid whose stamp is that much after the
            stamp of the txid that wrote it last; None: for ever. Fixed by the first run, as the columns are.
        layout: ``changes`` (commits append the changed rows, ``state/<name>`` follows now and then) or ``merge``
            (``state/<name>`` is exact at every version; a commit writes the files of its keys again). Fixed by the
            first run.
        writer: who publishes: ``deltalake``, in the driver, or ``spark``, through delta-spark.
    """

    name: str
    key: Mapping[str, Any] = field(hash=False)
    value: Mapping[str, Any] = field(hash=False)
    ttl: timedelta | None = None
    layout: str = CHANGES
    writer: str = DELTALAKE


@dataclass(frozen=True)
class CollectionState(KeyedState):
    """Any number of rows per key, ordered, kept in the Delta tables ``state/<name>`` and ``changes/<name>``.

    The rows of a key are ordered by the order column, rows with the same place in the order by when they came. Set it
    as an attribute of a committer; ``context.collection(name)`` gives its handle.

    Attributes:
        name, key, value, writer: as of `KeyedState`; `key` is that of the collections.
        ttl: how long a row lives after it was appended, by the stamps of txids; None: until it is removed.
        layout: ``changes``, the only one for collections.
        order: the order column → its type: ``datetime`` or ``int``.
    """

    order: Mapping[str, Any] = field(hash=False, kw_only=True)


@dataclass(frozen=True)
class SinkTable:
    """An append-only Delta table ``sinks/<name>``: one row per appended tuple, with its ``_txid``.

    Attributes:
        name: names the table.
        columns: column → type, as for `KeyedState`.
        writer: as for `KeyedState`.
    """

    name: str
    columns: Mapping[str, Any] = field(hash=False)
    writer: str = DELTALAKE


class StateHandle(Protocol):
    """A committer's view of one `KeyedState` within one txid.

    A read sees everything up to the previous txid and this task's own writes; writes become visible to others
    with the transaction. Only valid in `finish_batch`; `StateError` elsewhere.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`."""

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """``{key: value}`` of those `keys` that have a value."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set many values."""

    def update(self, key: Any, function: Callable[[Any], Any]) -> Any:
        """Set `key` to ``function(old value or None)`` and return the new value."""

    def update_many(self, partials: Mapping[Any, Any], function: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """Set every key to ``function(old value or None, partial)``; returns the new values."""

    def merge(self, batch: Any, how: Mapping[str, str]) -> dict[Any, Any]:
        """Fold the columns of a record batch into the state: value column → sum, count, min, max or last.

        The batch holds the key columns and, but for ``count``, the value columns. Returns the new values.
        """

    def remove(self, key: Any) -> None:
        """Remove `key`; removing an absent key changes nothing."""

    def remove_many(self, keys: Iterable[Any]) -> None:
        """Remove many keys."""

    def previous(self, key: Any) -> Any:
        """The value `key` had before this txid, or None (Storm's ``prev``)."""


class CollectionHandle(Protocol):
    """A committer's view of one `CollectionState` within one txid.

    A row is ``(at, *values)``: its place in the order, and its values in the order of the columns. A read sees what
    `StateHandle` says. Ranges include both ends; an end that is None is open. Only valid in `finish_batch`.

    Raises:
        StateError: (every method) used elsewhere, a key, place or value does not fit its column, or `start` is
            after `end`.
    """

    def append(self, key: Any, at: Any, *values: Any) -> None:
        """Append one row to the collection of `key`, at place `at` of its order."""

    def append_many(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append many rows: each ``(key, at, *values)``."""

    def append_batch(self, batch: Any) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` that has the key, order and value columns."""

    def scan(
        self, key: Any, start: Any = None, end: Any = None, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[Any, ...]]:
        """The rows of `key` from place `start` to `end`, in order; with `reverse` from the last one back.

        With a `limit` (at least 1) only so many, those that come first; what is behind them is not read.
        """

    def scan_many(
        self,
        keys: Iterable[Any],
        start: Any = None,
        end: Any = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> dict[Any, list[tuple[Any, ...]]]:
        """``{key: rows}`` of those `keys` that have rows from place `start` to `end`; each as `scan` gives them."""

    def scan_table(self, keys: Iterable[Any], start: Any = None, end: Any = None) -> pa.Table:
        """The rows of `keys` from place `start` to `end`, by key as given, each in order, as an Arrow table.

        It has the columns that `append_batch` takes: key, order, values. Rows that are on disk become columns as a
        whole, without a Python object for each.
        """

    def remove(self, key: Any, start: Any = None, end: Any = None) -> int:
        """Remove the rows of `key` from place `start` to `end`; returns how many there were."""

    def remove_many(self, keys: Iterable[Any], start: Any = None, end: Any = None) -> int:
        """Remove the rows of many keys from place `start` to `end`; returns how many there were."""


class SinkHandle(Protocol):
    """A committer's view of one `SinkTable` within one txid."""

    def append(self, *values: Any) -> None:
        """Append one row; `values` in the order of the columns."""

    def append_batch(self, batch: Any) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` that has the columns."""
