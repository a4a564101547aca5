"""Folding record batches into a state: aggregated per key in Arrow, then combined with what the state holds."""

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
import pyarrow.compute as pc

from txstorm.errors import StateError
from txstorm.storage.rows.columns import Column, python_values
from txstorm.storage.rows.forms import Key, KeyForm, ValueForm

HOW = ("sum", "count", "min", "max", "last")
_SUMMABLE = (int, float, decimal.Decimal)
# Below this a sum of absolute values, taken as floats, is safe from the silent overflow of 64-bit sums.
_SAFE_SUM = float(1 << 62)
# Older Arrow versions have no grouped minimum of these.
_WITHOUT_KERNEL = (str, bytes)
_EXACT = decimal.Context(prec=76)
_LIMITS = np.iinfo(np.int64)
_STARTS = {"sum": 0, "min": _LIMITS.max, "max": _LIMITS.min}
_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
Positions = npt.NDArray[np.int64]


def check_how(form: ValueForm, how: Mapping[str, str], where: str) -> None:
    """Raise `StateError` unless `how` names one known way for every value column, and sums only numbers."""
    faults = []
    if how.keys() != set(form.names):
        faults.append(f"expected a way for each of the value columns {form.names}, got {sorted(how)}")
    for column in form.columns:
        way = how.get(column.name, "last")
        if way not in HOW:
            faults.append(f"column {column.name!r}: expected one of {', '.join(HOW)}, got {way!r}")
        elif (way == "sum" and column.exact not in _SUMMABLE) or (way == "count" and column.exact is not int):
            faults.append(f"column {column.name!r}: {column.exact.__name__} values have no {way}; declare a number")
        elif way in ("min", "max") and column.exact in (list, dict):
            faults.append(f"column {column.name!r}: {column.exact.__name__} values have no {way}; use last")
    if faults:
        msg = f"{form.owner} ({where}), merge: {'; '.join(faults)}"
        raise StateError(msg)


def aggregated(
    keys: KeyForm, values: ValueForm, batch: pa.Table, how: Mapping[str, str], where: str
) -> tuple[list[Key], list[list[Any]]]:
    """The distinct keys of `batch` in order of first appearance, and per value column the partial value of each.

    Sums, minima and maxima leave nulls out; ``count`` counts rows; ``last`` takes the last row, null or not.

    Raises:
        StateError: a column is missing or has another kind of values than declared.
    """
    if batch.num_rows == 0:
        return [], [[] for _ in values.columns]
    given = [_whole(_column(batch, column, values.owner, where)) for column in keys.columns]
    groups = _Groups.of(given, batch.num_rows)
    ways = [_Way(how[column.name], column) for column in values.columns]
    found = {
        way.column.name: _whole(_column(batch, way.column, values.owner, where)) for way in ways if way.how != "count"
    }
    partials = [way.partials(found.get(way.column.name), groups) for way in ways]
    if len(groups.first) < batch.num_rows:
        given = [column.take(pa.array(groups.first)) for column in given]
    return keys.of_table(pa.table(given, names=keys.names)) if given else [()], partials


@dataclass(frozen=True)
class _Groups:
    """The rows of a batch by their keys, which are in order of first appearance.

    Attributes:
        of_row: the group of every row.
        first, last: the first and the last row of every group.
    """

    of_row: Positions
    first: Positions
    last: Positions

    @classmethod
    def of(cls, columns: Sequence[pa.Array], rows: int) -> _Groups:
        """The groups of `rows` rows, at least one, that have these key columns."""
        of_row = np.zeros(rows, np.int64)
        for i, column in enumerate(columns):
            codes, count = _codes(column)
            of_row = _codes(pa.array(of_row * count + codes))[0] if i else codes
        first = np.empty(int(of_row.max()) + 1, np.int64)
        last = np.empty_like(first)
        last[of_row] = np.arange(rows)  # of several the last one stays
        first[of_row[::-1]] = np.arange(rows)[::-1]
        return cls(of_row, first, last)

    def folded(self, ufunc: np.ufunc, values: npt.NDArray[Any], start: Any) -> list[Any]:
        """`ufunc` over the values of every group, in their order, from `start` on."""
        result = np.full(len(self.first), start, values.dtype)
        ufunc.at(result, self.of_row, values)
        folded: list[Any] = result.tolist()
        return folded

    def aggregate(self, values: pa.Array, how: str) -> pa.ChunkedArray:
        """What Arrow makes of the values of every group."""
        table = pa.table({"group": self.of_row, "value": values})
        made = table.group_by("group", use_threads=False).aggregate([("value", how)]).sort_by("group")
        return made[f"value_{how}"]


def _codes(column: pa.Array) -> tuple[Positions, int]:
    """A number for every value, those of different values in order of first appearance; and how many there are."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), len(encoded.dictionary)


@dataclass(frozen=True)
class _Way:
    """How one value column is folded."""

    how: str
    column: Column

    def partials(self, values: pa.Array | None, groups: _Groups) -> list[Any]:
        """The partial value of each of `groups`; `values` are not needed to count rows."""
        if self.how == "count" or values is None:
            counts: list[int] = np.bincount(groups.of_row).tolist()
            return counts
        if self.how == "last":
            return python_values(values.take(pa.array(groups.last)))
        if self._in_python(values):
            lists = groups.aggregate(values, "list").to_pylist()
            return [_folded(_COMBINE[self.how], one) for one in lists]
        if pa.types.is_integer(values.type) and not values.null_count:  # Arrow takes a while to begin
            numbers = np.asarray(values.cast(pa.int64()))
            return groups.folded(_UFUNCS[self.how], numbers, _STARTS[self.how])
        return python_values(groups.aggregate(values, self.how))

    def _in_python(self, values: pa.Array) -> bool:
        return self._may_overflow(values) if self.how == "sum" else self.column.exact in _WITHOUT_KERNEL

    def _may_overflow(self, values: pa.Array) -> bool:
        """Sums of integers and decimals wrap around in silence, so only those that cannot are not made in Python."""
        kind = self.column.field.type
        if pa.types.is_floating(kind):
            return False
        limit = 10.0 ** (kind.precision - kind.scale - 1) if pa.types.is_decimal(kind) else _SAFE_SUM
        total = pc.sum(pc.abs(values.cast(pa.float64(), safe=False))).as_py()
        return total is not None and total >= limit


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _column(batch: pa.Table, column: Column, owner: str, where: str) -> pa.ChunkedArray:
    if batch.column_names.count(column.name) != 1:
        msg = f"{owner} ({where}), merge: expected one column {column.name!r}, got {batch.column_names}"
        raise StateError(msg)
    return column.conformed(batch[column.name], where)


def _folded(combine: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    return reduce(combine, there) if there else None


def combined(way: str, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """The new values of one column: those of the state combined with the partial ones; None is no value."""
    if way == "last":
        return list(new)
    combine = _COMBINE["sum" if way == "count" else way]
    if combine is _add and not isinstance(next((one for one in new if one is not None), None), decimal.Decimal):
        combine = operator.add  # the values of a column are of one type
    return [p if o is None else o if p is None else combine(o, p) for o, p in zip(old, new, strict=True)]


def _add(one: Any, other: Any) -> Any:
    return _EXACT.add(one, other) if isinstance(one, decimal.Decimal) else one + other


def _least(one: Any, other: Any) -> Any:
    return other if other < one or one != one else one  # noqa: PLR0124 - NaN, which minima leave out, is unequal to itself


def _greatest(one: Any, other: Any) -> Any:
    return other if other > one or one != one else one  # noqa: PLR0124 - as above


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"sum": _add, "min": _least, "max": _greatest}
