"""Look-up table: the rows of one version of a Delta table, indexed by key, cached in each process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import eq
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import arrow_type
from txstorm.clients.external_table import ExternalTable
from txstorm.errors import InputError, StateError
from txstorm.keys import Hashes, canonical_value, hash_rows, plain_values
from txstorm.misfits import Misfit, shown
from txstorm.row_order import Numbers
from txstorm.typed import column_of, python_type
from txstorm.windows.aggregates.groups import whole

CACHE_BYTES = 1 << 30
"""Size up to which a process keeps look-up tables that it does not use at the moment."""

_KINDS = {
    "a whole number": pa.types.is_integer,
    "a float": pa.types.is_floating,
    "a bool": pa.types.is_boolean,
    "text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    "a date": pa.types.is_date,
    "a time": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    "a decimal": pa.types.is_decimal,
}
_UNIQUE_HASHES = frozenset({"a whole number", "a float", "a bool", "a date", "a time"})
"""Kinds of values that fit 64 bits, so that those of equal hash are equal."""


def kind_of(column: pa.DataType) -> str | None:
    """Return the kind of values that a column has, in words, as far as they can be keys; None if they cannot."""
    inner = column.value_type if pa.types.is_dictionary(column) else column
    return next((words for words, fits in _KINDS.items() if fits(inner)), None)


def _widest(column: pa.DataType) -> pa.DataType:
    """Return the type that holds all values of the kind of a column."""
    return arrow_type(python_type(column)) or column


class Content(NamedTuple):
    """Part of a table version that is looked up: where it is, the columns of its key, and all columns needed.

    `run` is a number of the run, so that a start reads what is stored by then.
    """

    run: int
    uri: str
    id: str
    version: int
    key: tuple[str, ...]
    columns: tuple[str, ...]


class LookupTable:
    """Rows of a table version, found by key; rows whose key has a null are left out.

    The hashes of the keys are sorted. A directory has the position of the first for each beginning of a hash, and there
    are as many beginnings as rows, so that a key is found with hardly more than one comparison.

    Args:
        rows: the rows.
        key: the columns of the key.

    Attributes:
        rows: the rows.
    """

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        for name in key:
            if rows.column(name).null_count:
                rows = rows.filter(rows.column(name).is_valid())
        hashes = hash_rows([rows.column(name) for name in key], rows.num_rows)
        self.rows = rows.combine_chunks()
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._key = tuple(key)
        self._kinds = [kind_of(rows.schema.field(name).type) for name in key]
        self._bits = max(1, rows.num_rows.bit_length())
        self._starts = np.zeros((1 << self._bits) + 1, np.int64)
        np.cumsum(np.bincount(self._beginnings(hashes), minlength=1 << self._bits), out=self._starts[1:])

    def _beginnings(self, hashes: Hashes) -> Numbers:
        return (hashes >> np.uint64(64 - self._bits)).astype(np.int64)

    @property
    def size(self) -> int:
        """Number of bytes in memory."""
        return int(self.rows.nbytes + self._order.nbytes + self._hashes.nbytes + self._starts.nbytes)

    def find(self, keys: Sequence[pa.Array], names: Sequence[str]) -> tuple[Numbers, Numbers]:
        """Find the rows of many keys.

        Args:
            keys: the columns of the keys, in the order of the table's.
            names: their names, for messages.

        Returns:
            For each pair the index of the key and of the row, ordered by the keys, then by the order of the table.

        Raises:
            InputError: values of another kind than the table's, with which none of them can be equal.
        """
        number = len(keys[0])
        none = np.zeros(number, bool)
        for column, name, own, kind in zip(keys, names, self._key, self._kinds, strict=True):
            if column.null_count:
                none |= np.asarray(column.is_null())
            if column.null_count < number and kind_of(column.type) != kind:
                msg = (
                    f"field {name!r} has values of type {column.type}, but column {own!r}, with which it is joined, "
                    f"has {self.rows.schema.field(own).type}, so none can be equal; convert one of them"
                )
                raise InputError(msg) from Misfit(msg).of(name, _widest(self.rows.schema.field(own).type))
        if none.all():
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        hashes = hash_rows(keys, number)
        beginnings = self._beginnings(hashes)
        low = self._starts[beginnings]
        times = self._starts[beginnings + 1] - low
        times[none] = 0
        left = np.repeat(np.arange(number), times)
        right = np.arange(len(left)) + np.repeat(low - np.cumsum(times) + times, times)
        same = self._hashes[right] == hashes[left]
        left, right = left[same], self._order[right[same]]
        if len(keys) > 1 or self._kinds[0] not in _UNIQUE_HASHES:
            equal = self._equal(keys, left, right)
            if not equal.all():
                left, right = left[equal], right[equal]
        return left, right

    def key_column(self, name: str, values: Sequence[Any], own: str) -> pa.Array:
        """Return the values of the field `name` as a column of the type of the column `own`, with which it is joined.

        A value that its type cannot hold is null, which is equal to none.

        Raises:
            InputError: a value of another type; it does not depend on the other values.
            StateError: a value that cannot be part of a key.
        """
        kind = self.rows.schema.field(own).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        values, exact = plain_values(values), python_type(kind)
        for value in values:
            if value is not None and type(value) is not exact:
                msg = (
                    f"field {name!r} has values of type {type(value).__name__}, such as {shown(value)}, but column "
                    f"{own!r}, with which it is joined, has {kind}, so none can be equal; convert one of them"
                )
                raise InputError(msg) from Misfit(msg).of(name, _widest(kind))
            canonical_value(value)
        try:
            return column_of(values, kind)
        except Misfit:
            return pa.concat_arrays([_alone(value, kind) for value in values])

    def _equal(self, keys: Sequence[pa.Array], left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
        """Return which pairs of equal hash have equal keys."""
        equal = np.ones(len(left), bool)
        for given, name in zip(keys, self._key, strict=True):
            ours = whole(self.rows.column(name)).take(pa.array(right))
            theirs = given.take(pa.array(left))
            if theirs.type != ours.type and not pa.types.is_decimal(ours.type):
                theirs = theirs.cast(ours.type)
            try:
                same = np.asarray(pc.equal(ours, theirs))
            except pa.ArrowException:  # decimals with more digits together than Arrow has, or a negative scale
                same = np.array(list(map(eq, ours.to_pylist(), theirs.to_pylist())), bool)
            if pa.types.is_floating(ours.type):
                same = same | np.asarray(pc.and_(pc.is_nan(ours), pc.is_nan(theirs)))
            equal &= same
        return equal


def _alone(value: Any, kind: pa.DataType) -> pa.Array:
    try:
        return column_of([value], kind)
    except Misfit:
        return pa.nulls(1, kind)


class _Cache:
    """Look-up tables of this process, of which those that were not used for longest are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._tables: OrderedDict[Content, LookupTable] = OrderedDict()
        self._lock = Lock()

    def get(self, content: Content) -> LookupTable:
        with self._lock:
            found = self._tables.get(content)
            if found is None:
                found = self._tables[content] = _loaded(content)
            self._tables.move_to_end(content)
            while len(self._tables) > 1 and sum(one.size for one in self._tables.values()) > CACHE_BYTES:
                self._tables.popitem(last=False)
            return found

    def clear(self) -> None:
        with self._lock:
            self._tables.clear()


CACHE = _Cache()


def lookup_table(content: Content) -> LookupTable:
    """Return a look-up table, read from the Delta table unless this process has it.

    Raises:
        StateError: the version cannot be read, or is one of another table.
    """
    return CACHE.get(content)


def _loaded(content: Content) -> LookupTable:
    try:
        table = ExternalTable(Path(content.uri), content.version)
    except StateError as cause:
        raise _lost(content, cause) from cause
    check_id(table, content.uri, content.id)
    missing = [name for name in content.columns if name not in table.schema.names]
    if missing:
        raise _lost(content, f"it has no column {missing[0]!r}, only {', '.join(table.schema.names)}")
    try:
        rows = table.read(content.columns)
    except StateError as cause:
        raise _lost(content, cause) from cause
    return LookupTable(rows, content.key)


def _lost(content: Content, why: object) -> StateError:
    return StateError(
        f"version {content.version} of the table {content.uri}, which is pinned for this transaction, cannot be used: "
        f"{why}; restore the table with this version (a vacuum must keep the versions that were the newest lately), "
        "then start again"
    )


def check_id(table: ExternalTable, uri: str, expected: str) -> None:
    """Raise `StateError` if a table is not the one that is expected."""
    if table.id != expected:
        raise StateError(
            f"the table {uri} was replaced by another one: expected the table with id {expected}, got {table.id}; "
            "put the former table back, or give the new one another path"
        )
