"""Folding record batches into a state: aggregated per key in Arrow, then combined with what the state holds."""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import StateError
from txstorm.state.columns import Column, python_values
from txstorm.state.form import Key, KeyForm, ValueForm

HOW = ("sum", "count", "min", "max", "last")
_SUMMABLE = (int, float, decimal.Decimal)
# Below this a sum of absolute values, taken as floats, is safe from the silent overflow of 64-bit sums.
_SAFE_SUM = float(1 << 62)
# Older Arrow versions have no grouped minimum of these.
_WITHOUT_KERNEL = (str, bytes)
_EXACT = decimal.Context(prec=76)
_ROW, _ALL = "row", "all"


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
    # Own names: users' column names may clash with the suffixes of aggregates. The constant serves states without key.
    table = pa.table({_ROW: pa.array(np.arange(batch.num_rows)), _ALL: pa.nulls(batch.num_rows, pa.int8())})
    for i, column in enumerate(keys.columns):
        table = table.append_column(f"k{i}", _column(batch, column, values.owner, where))
    ways = [_Way(f"v{i}", how[column.name], column) for i, column in enumerate(values.columns)]
    for way in ways:
        if way.how != "count":
            table = table.append_column(way.name, _column(batch, way.column, values.owner, where))
    names = [f"k{i}" for i in range(len(keys.columns))]
    asked = dict.fromkeys([(_ROW, "min"), *(way.aggregate(table) for way in ways)])
    groups = table.group_by([_ALL, *names], use_threads=False).aggregate(list(asked)).sort_by(f"{_ROW}_min")
    return keys.of_table(groups.select(names).rename_columns(keys.names)), [way.partials(table, groups) for way in ways]


@dataclass(frozen=True)
class _Way:
    """How one value column is folded: what Arrow is asked for, and the partial values from its answer."""

    name: str
    how: str
    column: Column

    def aggregate(self, table: pa.Table) -> tuple[str, str]:
        if self.how == "count":
            return (_ROW, "count")
        if self.how == "last":
            return (_ROW, "max")
        in_python = self._may_overflow(table[self.name]) if self.how == "sum" else self.column.exact in _WITHOUT_KERNEL
        return (self.name, "list" if in_python else self.how)

    def partials(self, table: pa.Table, groups: pa.Table) -> list[Any]:
        name = "_".join(self.aggregate(table))
        if self.how == "last":
            return python_values(table[self.name].take(groups[name]))
        if name.endswith("_list"):
            return [_folded(_COMBINE[self.how], values) for values in groups[name].to_pylist()]
        return python_values(groups[name])

    def _may_overflow(self, values: pa.ChunkedArray) -> bool:
        """Arrow's sums of integers and decimals wrap around in silence, so only those that cannot are left to it."""
        kind = self.column.field.type
        if pa.types.is_floating(kind):
            return False
        limit = 10.0 ** (kind.precision - kind.scale - 1) if pa.types.is_decimal(kind) else _SAFE_SUM
        total = pc.sum(pc.abs(values.cast(pa.float64(), safe=False))).as_py()
        return total is not None and total >= limit


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
