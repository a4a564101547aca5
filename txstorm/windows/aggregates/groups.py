"""Groups of rows, and reductions over them, on columns of NumPy and Arrow; there is no Python object per row.

Reductions take rows in their order of arrival and are functions of each group's rows alone, so a replay of the same
rows gives the same bits, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.keys import KEY_GROUPS, tasks_of
from txstorm.typed import EXACT, restored, sum_bounds, sum_may_overflow

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Rest = list[tuple[int, Any]]
"""What the sums of some groups lack, since one value of their type cannot hold them: groups and values to add."""
_EXACT_FLOATS = float(1 << 53)
"""Whole numbers below this are added as floats without rounding."""
_SPARSE = 4
"""Codes of at most this many times the number of rows are used as they are, without looking for distinct ones."""


@dataclass(frozen=True)
class Groups:
    """Groups of rows, numbered from 0.

    Attributes:
        of_row: the group of each row.
        first: the index of each group's first row.
    """

    of_row: Numbers
    first: Numbers

    @classmethod
    def of(cls, codes: Numbers, limit: int) -> Groups:
        """Group rows by codes from 0 to `limit`, excluded; groups are in the order of their codes."""
        rows = np.arange(len(codes))
        if limit > _SPARSE * len(codes) + 1024:
            _, first, of_row = np.unique(codes, return_index=True, return_inverse=True)
            return cls(of_row.astype(np.int64), first.astype(np.int64))
        first = np.full(limit, -1, np.int64)
        first[codes[::-1]] = rows[::-1]
        there = first >= 0
        return cls((np.cumsum(there) - 1)[codes], first[there])

    @classmethod
    def numbered(cls, of_row: Numbers, count: int) -> Groups:
        """Return groups that are numbered already; each of the `count` groups has a row."""
        first = np.empty(count, np.int64)
        first[of_row[::-1]] = np.arange(len(of_row))[::-1]
        return cls(of_row, first)

    def __len__(self) -> int:
        return len(self.first)

    def least(self, values: Numbers, chosen: Mask | None = None) -> Numbers:
        """Return the row with the lowest value of each group, the first of several; -1 if none of it is `chosen`."""
        rows = np.arange(len(values)) if chosen is None else np.flatnonzero(chosen)
        low = np.full(len(self), np.iinfo(np.int64).max)
        np.minimum.at(low, self.of_row[rows], values[rows])
        rows = rows[values[rows] == low[self.of_row[rows]]]
        found = np.full(len(self), -1, np.int64)
        found[self.of_row[rows[::-1]]] = rows[::-1]
        return found

    def greatest(self, values: Numbers) -> Numbers:
        """Return the row with the highest value of each group, the last of several."""
        return len(values) - 1 - Groups(self.of_row[::-1], self.first).least(-values[::-1])

    def sums(self, column: pa.Array) -> tuple[pa.Array, Rest]:
        """Return the sums of a column, and what they lack: see `Rest`.

        Nulls are left out, and a group of nothing else has the sum null.
        """
        valid = _valid(column)
        if sum_may_overflow(column):
            return self._exact_sums(column, valid)
        if pa.types.is_decimal(column.type):
            return self._decimal_sums(column), []
        values = np.asarray(column.fill_null(0) if column.null_count else column)
        if np.issubdtype(values.dtype, np.integer):
            values = values.astype(np.int64)
        total = np.zeros(len(self), values.dtype)
        np.add.at(total, self.of_row, values)
        return pa.array(total, column.type, mask=self._empty(valid)), []

    def whole_sums(self, column: pa.Array) -> tuple[pa.Array, Rest]:
        """Like `sums`, for floats: exact as long as all of them are whole numbers."""
        values = np.asarray(column.fill_null(0) if column.null_count else column)
        if np.abs(values).sum() < _EXACT_FLOATS or not np.all(values == np.floor(values)) or np.isinf(values).any():
            return self.sums(column)
        rest: Rest = []
        total = self._totals(map(int, values.tolist()))
        made = [float(one) for one in total]
        for group, one in enumerate(total):
            left = one - int(made[group])
            while left:
                rest.append((group, float(left)))
                left -= int(float(left))
        return pa.array(made, column.type, mask=self._empty(_valid(column))), rest

    def extremes(self, column: pa.Array, *, highest: bool) -> pa.Array:
        """Return the lowest or highest values of a column; nulls and NaN are left out."""
        if pa.types.is_int64(column.type) and not column.null_count:
            values = np.asarray(column)
            limits = np.iinfo(np.int64)
            found = np.full(len(self), limits.min if highest else limits.max)
            (np.maximum if highest else np.minimum).at(found, self.of_row, values)
            return pa.array(found)
        ranks = ranked(column)
        return taken(column, self.least(-ranks if highest else ranks, ranks >= 0))

    def _empty(self, valid: Mask | None) -> Mask | None:
        """Return which groups have no valid row."""
        if valid is None:
            return None
        there = np.zeros(len(self), bool)
        there[self.of_row[valid]] = True
        return ~there

    def _exact_sums(self, column: pa.Array, valid: Mask | None) -> tuple[pa.Array, Rest]:
        kind, rest = column.type, list[tuple[int, Any]]()
        low, high = sum_bounds(kind)
        with localcontext(EXACT):
            total = self._totals(0 if value is None else value for value in column.to_pylist())
            for group, one in enumerate(total):
                total[group] = min(max(one, low), high)
                left = one - total[group]
                while left:
                    part = min(max(left, low), high)
                    rest.append((group, part))
                    left -= part
        for group in () if (empty := self._empty(valid)) is None else np.flatnonzero(empty).tolist():
            total[group] = None
        return pa.array(total, kind), rest

    def _totals(self, values: Iterable[Any]) -> list[Any]:
        total = [0] * len(self)
        for group, value in zip(self.of_row.tolist(), values, strict=True):
            total[group] += value
        return total

    def _decimal_sums(self, column: pa.Array) -> pa.Array:
        table = pa.table({"group": self.of_row, "value": column})
        result = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
        return restored(whole(result["value_sum"]), column.type)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def own_groups(column: str, task: int, tasks: int, *, to_first: bool = False) -> pa.Table | None:
    """Return the key groups whose rows a task gets, as a table with one `column`; None for all.

    `to_first`: whether the first task gets everything.
    """
    if tasks == 1 or (to_first and task == 0):
        return None
    every = np.arange(0 if to_first else KEY_GROUPS)
    return pa.table({column: every[tasks_of(every, tasks) == task]})


def taken(column: pa.Array, rows: Numbers) -> pa.Array:
    """Return rows of a column by their index; null for an index of -1."""
    missing = rows < 0
    return column.take(pa.array(rows, mask=missing if missing.any() else None))


def numbered(columns: Sequence[pa.Array], rows: int) -> tuple[Numbers, int]:
    """Number the rows by their values in `columns`; return the numbers and a limit that none of them reaches."""
    codes, limit = np.zeros(rows, np.int64), 1
    for i, column in enumerate(columns):
        found, size = _codes(column)
        codes, limit = (codes * size + found, limit * size) if i else (found, size)
        if i and limit > max(rows, 1 << 20):
            codes, limit = _codes(pa.array(codes))
    return codes, limit


def ranked(column: pa.Array) -> Numbers:
    """Return a number for each value, in the order of the values, equal for equal ones; -1 for null and NaN."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, 0.0)  # -0.0 becomes 0.0
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    ranks = np.empty(len(values) + 1, np.int64)
    ranks[np.asarray(pc.sort_indices(values))] = np.arange(len(values))
    ranks[-1] = -1  # the place of nulls
    if pa.types.is_floating(column.type):
        ranks[:-1][np.isnan(np.asarray(values))] = -1
    found: Numbers = ranks[np.asarray(encoded.indices.fill_null(len(values)))]
    return found


def _codes(column: pa.Array) -> tuple[Numbers, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)


def _valid(column: pa.Array) -> Mask | None:
    return np.asarray(column.is_valid()) if column.null_count else None


def integers(column: Any) -> Numbers:
    """Return a column of integers or times, without nulls, as 64-bit integers."""
    array: Numbers = np.asarray(whole(column).cast(pa.int64()))
    return array
