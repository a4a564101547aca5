"""Fold record batches into a state: aggregate them by key in Arrow, then combine the result with the state's values."""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.errors import StateError
from txstorm.storage.rows.columns import Column
from txstorm.storage.rows.forms import Key, KeyForm, ValueForm
from txstorm.typed import EXACT, python_values, sum_bounds, sum_may_overflow

HOW = ("sum", "count", "min", "max", "last")
_SUMMABLE = (int, float, decimal.Decimal)
# Older Arrow versions have no grouped minimum for these types.
_WITHOUT_KERNEL = (str, bytes)
_LIMITS = np.iinfo(np.int64)
_STARTS = {"sum": 0, "min": _LIMITS.max, "max": _LIMITS.min}
_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
Positions = npt.NDArray[np.int64]


def check_how(form: ValueForm, how: Mapping[str, str], where: str) -> None:
    """Raise `StateError` unless `how` maps every value column to a known aggregation that is valid for its type."""
    faults = []
    if how.keys() != set(form.names):
        faults.append(f"expected a way for each of the value columns {form.names}, got {sorted(how)}")
    for column in form.columns:
        way = how.get(column.name, "last")
        if way not in HOW:
            faults.append(f"column {column.name!r}: expected one of {', '.join(HOW)}, got {way!r}")
        elif (way == "sum" and column.exact not in _SUMMABLE) or (way == "count" and column.exact is not int):
            kind = "an integer" if way == "count" else "a number"
            faults.append(f"column {column.name!r}: {column.exact.__name__} values have no {way}; declare {kind}")
        elif way in ("min", "max") and column.exact in (list, dict):
            faults.append(f"column {column.name!r}: {column.exact.__name__} values have no {way}; use last")
    if faults:
        raise StateError(f"{form.owner} ({where}), merge: {'; '.join(faults)}")


def aggregated(
    keys: KeyForm, values: ValueForm, batch: pa.Table, how: Mapping[str, str], where: str
) -> tuple[list[Key], list[list[Any]]]:
    """Aggregate `batch` by key; return the keys in order of first appearance, and the partial values of each column.

    Sums, minima and maxima ignore nulls; ``count`` counts rows; ``last`` takes the value of the last row, even if null.

    Raises:
        StateError: a column is missing, or its values are incompatible with the declared type.
    """
    if batch.num_rows == 0:
        return [], [[] for _ in values.columns]
    key_arrays = [_whole(_column(batch, column, values.owner, where)) for column in keys.columns]
    groups = _Groups.of(key_arrays, batch.num_rows)
    ways = [_Way(how[column.name], column) for column in values.columns]
    found = {
        way.column.name: _whole(_column(batch, way.column, values.owner, where)) for way in ways if way.how != "count"
    }
    partials = [way.partials(found.get(way.column.name), groups) for way in ways]
    if len(groups.first) < batch.num_rows:
        key_arrays = [column.take(pa.array(groups.first)) for column in key_arrays]
    return keys.of_table(pa.table(key_arrays, names=keys.names)) if key_arrays else [()], partials


@dataclass(frozen=True)
class _Groups:
    """The rows of a batch grouped by key; groups are numbered in order of first appearance.

    Attributes:
        of_row: the group number of each row.
        first, last: the index of each group's first and last row.
    """

    of_row: Positions
    first: Positions
    last: Positions

    @classmethod
    def of(cls, columns: Sequence[pa.Array], rows: int) -> _Groups:
        """Group `rows` rows (at least one) by the key columns."""
        of_row = np.zeros(rows, np.int64)
        for i, column in enumerate(columns):
            codes, count = _codes(column)
            of_row = _codes(pa.array(of_row * count + codes))[0] if i else codes
        first = np.empty(int(of_row.max()) + 1, np.int64)
        last = np.empty_like(first)
        last[of_row] = np.arange(rows)  # the last assignment wins
        first[of_row[::-1]] = np.arange(rows)[::-1]
        return cls(of_row, first, last)

    def folded(self, ufunc: np.ufunc, values: npt.NDArray[Any], start: Any) -> list[Any]:
        """Fold the values of each group, in order, with `ufunc`, starting from `start`."""
        result = np.full(len(self.first), start, values.dtype)
        ufunc.at(result, self.of_row, values)
        folded: list[Any] = result.tolist()
        return folded

    def aggregate(self, values: pa.Array, how: str) -> pa.ChunkedArray:
        """Aggregate the values of each group with Arrow's function `how`."""
        table = pa.table({"group": self.of_row, "value": values})
        result = table.group_by("group", use_threads=False).aggregate([("value", how)]).sort_by("group")
        return result[f"value_{how}"]


def _codes(column: pa.Array) -> tuple[Positions, int]:
    """Number the values of a column by first appearance; return the numbers and the number of distinct values."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)


@dataclass(frozen=True)
class _Way:
    """Aggregation of one value column: the column and the name of the aggregation."""

    how: str
    column: Column

    def partials(self, values: pa.Array | None, groups: _Groups) -> list[Any]:
        """Return the partial value of each group; `values` may be None for a count of rows."""
        if self.how == "count" or values is None:
            counts: list[int] = np.bincount(groups.of_row).tolist()
            return counts
        if self.how == "last":
            return python_values(values.take(pa.array(groups.last)))
        if self.column.exact in _WITHOUT_KERNEL or (self.how == "sum" and sum_may_overflow(values)):
            lists = groups.aggregate(values, "list").to_pylist()
            present = ([value for value in of_group if value is not None] for of_group in lists)
            return [reduce(_COMBINE[self.how], values) if values else None for values in present]
        if pa.types.is_integer(values.type) and not values.null_count:  # Arrow's grouping has a high fixed cost
            numbers = np.asarray(values.cast(pa.int64()))
            return groups.folded(_UFUNCS[self.how], numbers, _STARTS[self.how])
        return python_values(groups.aggregate(values, self.how))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _column(batch: pa.Table, column: Column, owner: str, where: str) -> pa.ChunkedArray:
    if batch.column_names.count(column.name) != 1:
        raise StateError(f"{owner} ({where}), merge: expected one column {column.name!r}, got {batch.column_names}")
    return column.conformed(batch[column.name], where)


def rows_beyond(
    keys: KeyForm,
    values: ValueForm,
    batch: pa.Table,
    how: Mapping[str, str],
    olds: Sequence[Sequence[Any]],
    where: str,
) -> list[int]:
    """Return the rows of `batch` with which a sum leaves its range, added to the `olds` and the good rows before.

    `olds`: for each value column, the values of the keys in order of first appearance, None for no value.
    """
    arrays = [_whole(_column(batch, column, values.owner, where)) for column in keys.columns]
    sums = [
        ([value or 0 for value in old], sum_bounds(column.field.type), batch[column.name].to_pylist())
        for column, old in zip(values.columns, olds, strict=True)
        if how[column.name] == "sum" and column.exact is not float
    ]
    found = []
    for row, group in enumerate(_Groups.of(arrays, batch.num_rows).of_row.tolist()):
        added = [_add(total[group], given[row] or 0) for total, _, given in sums]
        if all(low <= one <= high for one, (_, (low, high), _) in zip(added, sums, strict=True)):
            for one, (total, _, _) in zip(added, sums, strict=True):
                total[group] = one
        else:
            found.append(row)
    return found


def combined(way: str, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Combine the `old` values of one state column with the `new` partial values by the aggregation `way`.

    None stands for no value.
    """
    if way == "last":
        return list(new)
    combine = _COMBINE["sum" if way == "count" else way]
    if combine is _add and not isinstance(next((value for value in new if value is not None), None), decimal.Decimal):
        combine = operator.add  # the values of a column are of one type
    return [p if o is None else o if p is None else combine(o, p) for o, p in zip(old, new, strict=True)]


def _add(one: Any, other: Any) -> Any:
    return EXACT.add(one, other) if decimal.Decimal in (type(one), type(other)) else one + other


def _least(one: Any, other: Any) -> Any:
    return other if other < one or one != one else one  # noqa: PLR0124 - NaN, ignored by minima, is unequal to itself


def _greatest(one: Any, other: Any) -> Any:
    return other if other > one or one != one else one  # noqa: PLR0124 - as above


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"sum": _add, "min": _least, "max": _greatest}
