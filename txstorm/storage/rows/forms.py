"""Conversion of keys and values between three forms: the form that users see, tuples, and Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import repeat
from operator import is_, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionState, KeyedState
from txstorm.errors import StateError
from txstorm.keys import key_groups
from txstorm.misfits import shown
from txstorm.storage.rows.columns import Column
from txstorm.storage.rows.schema import KEY_GROUP, PLACE, PREV, STAMP, TXID, key_fields, value_fields
from txstorm.typed import python_values, restored

Key = Any
Value = tuple[Any, ...]
Arrays = Sequence[pa.Array | None]
"""One Arrow array per column, with None for a column whose array is not built yet; empty if none is built."""


class KeyForm:
    """Converter for a state's keys: bare values for one key column, tuples for several, ``()`` for none.

    Attributes:
        owner: the state, as named in messages.
        columns, names: the key columns, and their names.
        grouped: number of leading key columns that determine the key group; a collection's position columns do not
            count, so all rows of a collection are in one group.
    """

    def __init__(self, state: KeyedState) -> None:
        self.owner = f"state {state.name!r}"
        self.columns = [Column(self.owner, "key column", field) for field in key_fields(state)]
        self.names = [column.name for column in self.columns]
        self.grouped = len(self.columns) - (PLACE if isinstance(state, CollectionState) else 0)

    def canonical(self, keys: Iterable[Key], where: str) -> list[Key]:
        """Check `keys` and convert them to canonical form; raise `StateError`, naming key and column, if invalid."""
        return self.checked(keys, where)[0]

    def checked(self, keys: Iterable[Key], where: str) -> tuple[list[Key], Arrays]:
        """Like `canonical`, but also return the Arrow arrays of key columns that were built by the check."""
        given = keys if isinstance(keys, list) else list(keys)
        if not given:
            return given, [None] * len(self.columns)
        if len(self.columns) != 1:
            self._check_shape(given, where)
        columns = self._split(given)
        checked = [
            column.checked(values, lambda i: f"key {shown(given[i])} ({where})")
            for column, values in zip(self.columns, columns, strict=True)
        ]
        kept, arrays = [values for values, _ in checked], [array for _, array in checked]
        return given if all(map(is_, kept, columns)) else self._joined(kept), arrays

    def arrays(self, keys: Sequence[Key], made: Arrays = ()) -> list[pa.Array]:
        """Convert canonical `keys` to one Arrow array per key column, reusing the arrays already in `made`."""
        columns = self._split(keys) if keys else [()] * len(self.columns)
        return _arrays(self.columns, columns, made)

    def of_table(self, table: pa.Table) -> list[Key]:
        """Return the keys of the rows of `table`, which must have the key columns."""
        columns = [python_values(_typed(table[column.name], column.field.type)) for column in self.columns]
        return self._joined(columns) if columns else [()] * table.num_rows

    def _split(self, keys: Sequence[Key]) -> Sequence[Sequence[Any]]:
        return [keys] if len(self.columns) == 1 else list(zip(*keys, strict=True))

    def _joined(self, columns: Sequence[Sequence[Any]]) -> list[Key]:
        return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))

    def _check_shape(self, keys: Sequence[Key], where: str) -> None:
        size = len(self.columns)
        for key in keys if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {size} else ():
            if not isinstance(key, tuple) or len(key) != size:
                msg = f"{self.owner}, {where}: expected a key that is a tuple of {size} {self.names}, got {shown(key)}"
                raise StateError(msg)


class ValueForm:
    """Converter for a state's values, which are stored as tuples.

    Users see bare values if there is one value column, and dicts if there are several. If keys have a time to live, the
    tuples end with the stamp of the txid that wrote them, which users do not see.

    Attributes:
        owner: the state, as named in messages.
        columns, names: the value columns that users see, and their names.
        stored: these columns, followed by the stamp if there is one.
        struct: the Arrow fields of `stored`.
    """

    def __init__(self, state: KeyedState) -> None:
        self.owner = f"state {state.name!r}"
        self.columns = [Column(self.owner, "value column", field) for field in value_fields(state)]
        self.names = [column.name for column in self.columns]
        stamp = [Column(self.owner, "value column", STAMP)] if state.ttl is not None else []
        self.stored = [*self.columns, *stamp]
        self.struct = [column.field for column in self.stored]
        self._nested = any(column.exact in (list, dict) for column in self.columns)

    def canonical(self, values: Sequence[Any], keys: Sequence[Key], where: str) -> list[Value]:
        """Check the `values` of `keys` and convert them to tuples.

        Raises `StateError`, naming the key and the column, if a value is invalid.
        """
        return self.checked(values, keys, where)[0]

    def checked(self, values: Sequence[Any], keys: Sequence[Key], where: str) -> tuple[list[Value], Arrays]:
        """Like `canonical`, but also return the Arrow arrays of value columns that were built by the check."""
        if not values:
            return [], [None] * len(self.columns)
        return self.rows([values] if len(self.columns) == 1 else self._split(values, keys, where), keys, where)

    def rows(self, columns: Sequence[Sequence[Any]], keys: Sequence[Key], where: str) -> tuple[list[Value], Arrays]:
        """Like `checked`, for values passed column by column."""
        checked = [
            column.checked(column_values, lambda i: f"key {shown(keys[i])} ({where})")
            for column, column_values in zip(self.columns, columns, strict=True)
        ]
        return list(zip(*(kept for kept, _ in checked), strict=True)), [array for _, array in checked]

    def public(self, values: Sequence[Value | None]) -> list[Any]:
        """Convert stored `values` to the form that users see; None stands for no value; nested objects are copied."""
        if self._nested:
            values = deepcopy(values)
        if len(self.columns) == 1:
            return [None if value is None else value[0] for value in values]
        names = self.names
        return [None if value is None else dict(zip(names, value, strict=False)) for value in values]

    def tuples(self, values: Sequence[Value]) -> list[Value]:
        """Strip the stamp, which users do not see, from stored `values`; nested objects are copied."""
        if self._nested:
            values = deepcopy(values)
        return list(values) if len(self.stored) == len(self.columns) else [value[:-1] for value in values]

    def arrays(self, values: Sequence[Value | None], made: Arrays = ()) -> list[pa.Array]:
        """Convert canonical `values` to one Arrow array per stored column, with null for no value.

        Arrays already in `made` are reused.
        """
        complete = made and all(array is not None for array in made)
        return _arrays(self.stored, made if complete else self.columns_of(values, len(self.stored)), made)

    def columns_of(self, values: Sequence[Value | None], columns: int | None = None) -> list[list[Any]]:
        """Transpose canonical `values` into lists of column values, with None for no value.

        `columns`: the number of leading columns; None: the columns that users see.
        """
        size = len(self.columns) if columns is None else columns
        if not all(values):  # a non-empty tuple is true, None is not
            return [[None if value is None else value[i] for value in values] for i in range(size)]
        return [list(map(itemgetter(i), values)) for i in range(size)]  # type: ignore[arg-type]

    def struct_array(self, values: Sequence[Value | None]) -> pa.StructArray:
        """Convert canonical `values` to a struct array, with null for no value."""
        mask = None if all(values) else absences(values)
        return pa.StructArray.from_arrays(self.arrays(values), fields=self.struct, mask=mask)

    def of_table(self, table: pa.Table) -> list[Value]:
        """Return the values of the rows of `table`, which must have the stored columns."""
        columns = [python_values(_typed(table[column.name], column.field.type)) for column in self.stored]
        return list(zip(*columns, strict=True))

    def of_struct(self, column: pa.ChunkedArray) -> list[Value | None]:
        """Return the values in a struct column, with None for null."""
        names = [field.name for field in self.struct]
        parts = [pc.struct_field(column, [i]) for i in (column.type.get_field_index(name) for name in names)]
        values = self.of_table(pa.table(dict(zip(names, parts, strict=True))))
        valid = column.is_valid().to_pylist() if column.null_count else repeat(True, len(column))
        return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]

    def _split(self, values: Sequence[Any], keys: Sequence[Key], where: str) -> list[Sequence[Any]]:
        take: Callable[[Any], tuple[Any, ...]] = itemgetter(*self.names)
        if set(map(type, values)) == {dict} and set(map(len, values)) == {len(self.names)}:
            with suppress(KeyError):
                return list(zip(*map(take, values), strict=True))
        names = set(self.names)
        for key, value in zip(keys, values, strict=True):
            if not isinstance(value, Mapping) or value.keys() != names:
                msg = f"{self.owner}, key {shown(key)} ({where}): expected a dict with {self.names}, got {shown(value)}"
                raise StateError(msg)
        return list(zip(*map(take, values), strict=True))


@dataclass(frozen=True)
class RowBatch:
    """Rows of a state, as parallel sequences of equal length.

    Attributes:
        keys: the canonical keys.
        values: the values of the keys; None for a removal.
        txids: the transactions that wrote the rows.
        before: the values before those transactions; None if there was no value.
        key_arrays, value_arrays: the Arrow arrays of the columns, as far as they are already built.
    """

    keys: Sequence[Key]
    values: Sequence[Value | None]
    txids: Sequence[int] | npt.NDArray[np.int64]
    before: Sequence[Value | None]
    key_arrays: Arrays = ()
    value_arrays: Arrays = ()


def absences(values: Sequence[Value | None]) -> pa.BooleanArray:
    """Return a mask that is true where `values` has None."""
    return pa.array([value is None for value in values], pa.bool_())


def row_arrays(keys: KeyForm, values: ValueForm, rows: RowBatch) -> dict[str, pa.Array]:
    """Build the Arrow columns that state tables and changes tables have in common, by name."""
    of_key = keys.arrays(rows.keys, rows.key_arrays)
    groups = key_groups(of_key[: keys.grouped], len(rows.keys)).astype(np.int32)
    stored = (column.name for column in values.stored)
    return {
        **dict(zip(keys.names, of_key, strict=True)),
        **dict(zip(stored, values.arrays(rows.values, rows.value_arrays), strict=True)),
        TXID.name: pa.array(rows.txids, TXID.type),
        PREV: values.struct_array(rows.before),
        KEY_GROUP.name: pa.array(groups, KEY_GROUP.type),
    }


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Concatenate the arrays of `parts` column by column; None for a column that is missing from any part."""
    columns = zip(*parts, strict=True) if all(parts) else ()
    return [None if any(array is None for array in column) else pa.concat_arrays(column) for column in columns]


def _arrays(columns: Sequence[Column], values: Sequence[Any], made: Arrays) -> list[pa.Array]:
    made = made or [None] * len(columns)
    triples = zip(columns, values, made, strict=True)
    return [column.array(cells) if array is None else array for column, cells, array in triples]


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else restored(column, kind)
