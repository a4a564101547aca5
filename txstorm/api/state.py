"""States and sinks: their declarations, and the handles through which committers read and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from txstorm.keys import EQUAL

A = TypeVar("A")
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
    """Return the Arrow type of a column declared with a Python or Arrow type; None if the type is unsupported."""
    return declared if isinstance(declared, pa.DataType) else ARROW_TYPES.get(declared)


@dataclass(frozen=True)
class KeyTexts:
    """Texts of keys in a table: the one form of equal keys, or in a table of an older txstorm each as it was written.

    Attributes:
        column: the column that holds them.
        parts: for texts of ids, the number of parts of an id; None: texts of keys as JSON.
        form: their form, see `txstorm.keys.text`; that of an existing table is recorded as the table's format.
    """

    column: str
    parts: int | None = None
    form: int = EQUAL


@dataclass(frozen=True)
class KeyedState:
    """State with one value per key, in the Delta tables ``state/<name>`` and (layout ``changes``) ``changes/<name>``.

    Set it as an attribute of a committer, one attribute per state; `context.state(name)` returns its handle. With one
    key column a key is a plain value, with several a tuple, with none there is a single row whose key is ``()``. With
    one value column a value is plain, with several it is a dict.

    Attributes:
        name: names the tables; a letter, then letters, digits, ``_`` or ``-``.
        key: key column → type, as for `value`, but no floats.
        value: value column → type: a Python type (str, int, float, bool, bytes, datetime, date, Decimal) or an Arrow
            type.
        ttl: time to live of a key after its last write: it has expired for every txid whose stamp is at least `ttl`
            after the stamp of the txid that last wrote it; None: it never expires. Fixed by the first run, like the
            columns.
        layout: ``changes`` (commits append the changed rows to ``changes/<name>``; compaction updates ``state/<name>``
            from time to time) or ``merge`` (copy-on-write: a commit rewrites the files of ``state/<name>`` that
            contain its keys, so every version of the table is exact). Fixed by the first run.
        writer: the library that commits: ``deltalake``, in the driver, or ``spark``, through delta-spark.
        tasks: the parallelism to which the state is bound, since its keys belong to tasks; None: any. Fixed by the
            first run.
        fixed: what else must be the same at every start, as its rows depend on it: name → text. Fixed by the first
            run.
        key_texts: a column that holds texts of keys of any type; None: none does.
        tasks_of: components whose parallelism is fixed as well, since rows name their tasks.
        derive: for a table of before that does not record `fixed`: returns the facts that some of its rows show.
    """

    name: str
    key: Mapping[str, Any] = field(hash=False)
    value: Mapping[str, Any] = field(hash=False)
    ttl: timedelta | None = None
    layout: str = CHANGES
    writer: str = DELTALAKE
    tasks: int | None = None
    fixed: Mapping[str, str] | None = field(default=None, hash=False)
    key_texts: KeyTexts | None = field(default=None, kw_only=True)
    tasks_of: tuple[str, ...] = ()
    derive: Callable[[Any], Mapping[str, str]] | None = field(default=None, hash=False, compare=False, repr=False)


@dataclass(frozen=True)
class CollectionState(KeyedState):
    """State with an ordered collection of rows per key, in the Delta tables ``state/<name>`` and ``changes/<name>``.

    The rows of a key are sorted by the order column, ties in the order of arrival. Set it as an attribute of a
    committer; ``context.collection(name)`` returns its handle.

    Attributes:
        name, key, value, writer: as for `KeyedState`; each key has one collection.
        ttl: time to live of a row after it was appended, by the stamps of txids; None: until it is removed.
        layout: ``changes``, the only one for collections.
        order: the order column → its type, ``datetime`` or ``int``.
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


def form_of_keys(handle: StateHandle | CollectionHandle) -> int:
    """Return the form of the texts of keys in the table of a state; that of new tables for other handles."""
    state = getattr(handle, "declared", None)
    return EQUAL if state is None or state.key_texts is None else int(state.key_texts.form)


class StateHandle(Protocol):
    """A committer's access to one `KeyedState` within one txid.

    Reads see all writes up to the previous txid, and this task's own; writes become visible to others when the
    transaction commits. Usable in `finish_batch` only; raises `StateError` elsewhere.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`; `default` if it has none."""

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return ``{key: value}`` for those of `keys` that have a value."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    def put_many(self, values: Mapping[Any, Any]) -> None:
        """Set the values of many keys."""

    def update(self, key: Any, function: Callable[[Any], Any]) -> Any:
        """Set the value of `key` to ``function(old value or None)``; return the new value."""

    def update_many(self, partials: Mapping[Any, Any], function: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """Set each key of `partials` to ``function(old value or None, partial)``; return ``{key: new value}``."""

    def merge(self, batch: Any, how: Mapping[str, str]) -> dict[Any, Any]:
        """Fold the rows of a record batch into the state; `how` maps a value column to sum, count, min, max or last.

        The batch must have the key columns and, except for ``count``, the value columns. Returns ``{key: new value}``.
        """

    def remove(self, key: Any) -> None:
        """Remove `key`; does nothing if it is absent."""

    def remove_many(self, keys: Iterable[Any]) -> None:
        """Remove many keys."""

    def previous(self, key: Any) -> Any:
        """Return the value of `key` before this txid (Storm's ``prev``); None if it had none."""


class CollectionHandle(Protocol):
    """A committer's access to one `CollectionState` within one txid.

    A row is ``(at, *values)``: the value of the order column, then the other values in the order of their columns.
    Reads have the same visibility as those of `StateHandle`. Ranges include both bounds; a bound that is None is open.
    Usable in `finish_batch` only.

    Raises:
        StateError: (every method) the handle is used elsewhere; a key, order value or other value does not fit its
            column; or `start` is after `end`.
    """

    def append(self, key: Any, at: Any, *values: Any) -> None:
        """Append one row to the collection of `key`; `at` is its value of the order column."""

    def append_many(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append many rows, each ``(key, at, *values)``."""

    def append_batch(self, batch: Any) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` that has the key, order and value columns."""

    def scan(
        self, key: Any, start: Any = None, end: Any = None, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[Any, ...]]:
        """Return the rows of `key` from `start` to `end` of the order column, ascending, or descending with `reverse`.

        A `limit` (at least 1) returns only the first `limit` rows and does not read the rest.
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
        """Return ``{key: rows}`` for `keys` with rows from `start` to `end`; rows, limit and order as in `scan`."""

    def scan_table(
        self,
        keys: Iterable[Any] | pa.RecordBatch | pa.Table | None = None,
        start: Any = None,
        end: Any = None,
        *,
        last: int | None = None,
    ) -> pa.Table:
        """Return the rows of `keys` from `start` to `end` as an Arrow table, without a Python object per row.

        It has the columns that `append_batch` takes: key, order, values. The keys are in the given order, the rows of
        each key ascend.

        Args:
            keys: the keys, or a record batch or table with the key columns; None: all keys, sorted, None first.
            start: the lowest value of the order column; None: open.
            end: the highest value, included; None: open.
            last: return only the last `last` rows of each key (at least 1) that are not above `end`.
        """

    def remove(self, key: Any, start: Any = None, end: Any = None) -> int:
        """Remove the rows of `key` from `start` to `end` of the order column; return their number."""

    def remove_many(self, keys: Iterable[Any], start: Any = None, end: Any = None) -> int:
        """Remove the rows of `keys` from `start` to `end` of the order column; return their number."""

    def evict_before(self, place: Any, key: Any = None) -> None:
        """Evict the rows of `key`, or of all keys, whose order column is below `place`, for good.

        The cost does not depend on the number of rows: readers of this txid and later ones leave them out, and
        compaction frees their space. A place below an earlier one changes nothing.

        With a `key`: the rows appended up to this txid, at once also for the reads of this task; for the key None use
        `evict_batch`.

        Without a key (None): the rows of all keys, also those that later transactions append below the place. The
        lowest place that the component's tasks give in this txid counts, from the next txid on; if any task gives none,
        nothing is evicted.
        """

    def scan_parts(self, function: Callable[[Iterator[pa.Table]], A], start: Any = None, end: Any = None) -> A:
        """Return what `function` returns for an iterator over the rows of all keys from `start` to `end`, as tables.

        It is the fastest way to read very many rows: they are in no order, and only one table of them need be in memory
        at a time. `function` may be called again, if upkeep replaces the files while it reads.
        """

    def remember(self, value: Any) -> None:
        """Keep a value that was derived from the rows as they are after this txid, for this task in the next txid.

        It is in memory only, and must not be changed afterwards; see `recall`.
        """

    def recall(self) -> Any:
        """Return what this task has remembered in the previous txid; None if that is lost, as after a start.

        `txstorm.api.bolt.Committer.warm_up` may remember values for the first txid of a run.
        """

    def evict_batch(self, batch: Any) -> None:
        """Evict the rows of many keys, as `evict_before` with a key does for each of them.

        `batch`: a `pyarrow.RecordBatch` or `Table` with the key columns, and each key's place in the order column.
        """


class SinkHandle(Protocol):
    """A committer's access to one `SinkTable` or `Outlet` within one txid; usable in `finish_batch` only."""

    def append(self, *values: Any) -> None:
        """Append one row, its `values` in the order of the columns."""

    def append_batch(self, batch: Any) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` with the declared columns."""
