"""Aggregates and their cells: the columns that hold a partial aggregate, so that partial aggregates can be combined.

It is one module, as what an aggregate is called, what its cells hold and how they are combined are one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.names import field_fault
from txstorm.api.state import arrow_type
from txstorm.errors import InputError
from txstorm.misfits import Misfit
from txstorm.typed import column_of, converted, python_type
from txstorm.windows.aggregates.groups import Groups, Numbers, Rest, integers, numbered, ranked, taken, whole
from txstorm.windows.rules.forms import BOUNDS, BoundNames

COUNT = "count"
OF_ONE_FIELD = ("sum", "min", "max", "mean", "first", "last")
OF_SINGLE_VALUES = ("min", "max", "first", "last")
"""Ways whose result is one of the values."""
WAYS = (COUNT, *OF_ONE_FIELD, "argmax")
TUPLES = "window_tuples"
"""The cell with the number of tuples, which every partial aggregate has; 0: it has just a part of a sum."""
LAST = np.iinfo(np.int64).max
_EXACT_FLOATS = float(1 << 53)


@dataclass(frozen=True)
class Field:
    """A field that is aggregated, with the type of its values.

    Attributes:
        declared: whether the type is declared, and not the default.
    """

    name: str
    kind: pa.DataType
    declared: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Aggregate:
    """One aggregate.

    Attributes:
        name: the output field.
        way: one of `WAYS`.
        field: the field; None for a count.
        by: for ``argmax``, the field that is to be greatest.
    """

    name: str
    way: str
    field: Field | None = None
    by: Field | None = None

    def __str__(self) -> str:
        of = "" if self.field is None else f" of {self.field.name}"
        return f"{self.name}: {self.way}{of}{'' if self.by is None else f' by {self.by.name}'}"

    @property
    def kind(self) -> pa.DataType:
        """The type of the result."""
        if self.way == "mean":
            return pa.float64()
        return pa.int64() if self.field is None else self.field.kind

    def cells(self) -> dict[str, pa.DataType]:
        """Return the cells of a partial aggregate, by column name, with their types."""
        if self.field is None:
            return {}
        kind = self.field.kind
        if self.way == "mean":
            return {self.cell("sum"): pa.float64(), self.cell("valid"): pa.int64()}
        if self.way in ("first", "last"):
            return {self.cell("value"): kind, self.cell("time"): pa.int64()}
        if self.by is not None:
            return {self.cell("value"): kind, self.cell("by"): self.by.kind, self.cell("time"): pa.int64()}
        return {self.cell(self.way): kind}

    def cell(self, part: str) -> str:
        """Return the column name of a cell."""
        return f"window_{self.name}_{part}"

    def of_rows(self, values: Mapping[str, pa.Array], times: Numbers) -> dict[str, pa.Array]:
        """Return the cells of single tuples; `values`: field → column."""
        if self.field is None:
            return {}
        column, stamps = values[self.field.name], pa.array(times)
        if self.way == "mean":
            numbers = column.cast(pa.float64(), safe=False)
            return {self.cell("sum"): numbers, self.cell("valid"): numbers.is_valid().cast(pa.int64())}
        if self.way in ("first", "last"):
            return {self.cell("value"): column, self.cell("time"): stamps}
        if self.by is not None:
            return {self.cell("value"): column, self.cell("by"): values[self.by.name], self.cell("time"): stamps}
        return {self.cell(self.way): column}

    def rest_of_rows(self, column: pa.Array) -> dict[str, Rest]:
        """Return what the cells of single tuples lack: the digits of integers that a float does not have."""
        if self.way != "mean" or not pa.types.is_integer(column.type):
            return {}
        floats = np.asarray(column.cast(pa.float64(), safe=False).fill_null(0))
        rows = np.flatnonzero(np.abs(floats) >= _EXACT_FLOATS)
        parts = ((int(row), column[row].as_py() - int(floats[row])) for row in rows)
        return {self.cell("sum"): [(row, float(left)) for row, left in parts if left]}

    def sums(self, table: pa.Table, groups: Groups) -> dict[str, tuple[pa.Array, Rest]]:
        """Return the sums of each group of partial aggregates by cell, and what they lack."""
        if self.way not in ("sum", "mean"):
            return {}
        cells = {name: whole(table.column(name)) for name in self.cells()}
        if self.way == "sum":
            return {name: groups.sums(column) for name, column in cells.items()}
        total, valid = cells[self.cell("sum")], cells[self.cell("valid")]
        return {self.cell("sum"): groups.whole_sums(total), self.cell("valid"): groups.sums(valid)}

    def combined(self, table: pa.Table, groups: Groups) -> dict[str, pa.Array]:
        """Return the cells of each group of partial aggregates, which are in their order of arrival, but for sums."""
        cells = {name: whole(table.column(name)) for name in self.cells()}
        if self.way in ("sum", "mean"):
            return {}
        if self.way in ("min", "max"):
            return {name: groups.extremes(one, highest=self.way == "max") for name, one in cells.items()}
        if self.way in ("first", "last"):
            least = self.way == "first"  # a row that has just a part of a sum has no time
            times = integers(cells[self.cell("time")].fill_null(LAST if least else -LAST))
            picked = groups.least(times) if least else groups.greatest(times)
        elif self.by is not None:
            picked = self._greatest(cells, groups)
        return {name: taken(column, picked) for name, column in cells.items()}

    def _greatest(self, cells: Mapping[str, pa.Array], groups: Groups) -> Numbers:
        """Return the row with the greatest value of each group: of equal ones the earliest; -1 if all are null."""
        ranks = ranked(cells[self.cell("by")])
        best = np.full(len(groups), -1, np.int64)
        np.maximum.at(best, groups.of_row, ranks)
        times = integers(cells[self.cell("time")].fill_null(0))
        return groups.least(times, (ranks >= 0) & (ranks == best[groups.of_row]))

    def result(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the results of partial aggregates that have no rest."""
        if self.way == COUNT:
            return table.column(TUPLES)
        if self.way == "mean":
            valid = table.column(self.cell("valid"))
            some = pc.if_else(pc.greater(valid, 0), valid, None)
            return pc.divide(table.column(self.cell("sum")), some.cast(pa.float64()))
        return table.column(self.cell(self.way if self.way in ("sum", "min", "max") else "value"))

    def exact_means(self, table: pa.Table, rest: pa.Table, of_rest: Numbers) -> pa.Array:
        """Return the means, correctly rounded, of sums of which parts are in `rest`; see `Cells.results`."""
        means, sums = self.result(table).to_pylist(), dict[int, int]()
        total, valid = table.column(self.cell("sum")), table.column(self.cell("valid"))
        for row, part in zip(of_rest.tolist(), rest.column(self.cell("sum")).to_pylist(), strict=True):
            if part is not None:
                sums[row] = (sums[row] if row in sums else int(total[row].as_py())) + int(part)
                means[row] = sums[row] / valid[row].as_py()
        return pa.array(means, pa.float64())


@dataclass(frozen=True)
class Cells:
    """The aggregates of a component.

    Attributes:
        keys: the fields of the key.
        aggregates: the aggregates, in the order of their output.
        bounds: what results call the bounds of their window.
    """

    keys: tuple[Field, ...]
    aggregates: tuple[Aggregate, ...]
    bounds: BoundNames = BOUNDS

    @property
    def key_names(self) -> list[str]:
        """The names of the fields of the key."""
        return [one.name for one in self.keys]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns of results."""
        return (*self.key_names, *self.bounds, *(one.name for one in self.aggregates))

    @property
    def exact(self) -> bool:
        """Whether results do not depend on the order in which partial aggregates are combined: no floats are added."""
        return not any(
            one.way == "mean" or (one.way == "sum" and pa.types.is_floating(one.kind)) for one in self.aggregates
        )

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of a partial aggregate: key and cells, with their types."""
        columns = {one.name: one.kind for one in self.keys}
        columns[TUPLES] = pa.int64()
        for one in self.aggregates:
            columns.update(one.cells())
        return columns

    @property
    def fields(self) -> Iterator[Field]:
        """The fields of tuples that are read; a field may occur with several types."""
        yield from self.keys
        for one in self.aggregates:
            yield from (field for field in (one.field, one.by) if field is not None)

    def with_types(self, known: Mapping[str, pa.DataType]) -> Cells:
        """Return the cells with the types of fields that are `known`, where they are a default of a single value."""

        def typed(one: Aggregate) -> Aggregate:
            kind = None if one.field is None or one.field.declared else known.get(one.field.name)
            ways = ("first", "last") if kind is not None and pa.types.is_nested(kind) else OF_SINGLE_VALUES
            if one.field is None or kind is None or one.way not in ways:
                return one
            return replace(one, field=replace(one.field, kind=arrow_type(python_type(kind)) or kind))

        return replace(self, aggregates=tuple(map(typed, self.aggregates)))

    def of_batch(self, batch: Any, times: Numbers, where: str) -> tuple[pa.Table, Numbers]:
        """Return the partial aggregates of single tuples, and the tuple of each row; see `combined`.

        Raises:
            ValueError: values do not fit their types.
        """
        made = {TUPLES: pa.array(np.ones(len(times), np.int64))}
        rest: dict[str, Rest] = {}
        for one in self.aggregates:
            fields = (field for field in (one.field, one.by) if field is not None)
            read = {field.name: typed(batch.column(field.name), field, where) for field in fields}
            made.update(one.of_rows(read, times))
            if one.field is not None:
                rest.update(one.rest_of_rows(read[one.field.name]))
        cells, of_row = self._with_rest(made, rest)
        keys = {one.name: typed(batch.column(one.name), one, where) for one in self.keys}
        if len(of_row) > len(times):
            keys = {name: column.take(pa.array(of_row)) for name, column in keys.items()}
        return pa.table({**keys, **cells}), of_row

    def combined(self, table: pa.Table, groups: Groups) -> tuple[dict[str, pa.Array], Numbers]:
        """Return the cells of groups of partial aggregates, which are in their order of arrival, as rows.

        Also returns the group of each row: first one row for each group, in order; then, for sums that one row cannot
        hold, rows that have nothing but a part of a sum, and no tuples.
        """
        made = {TUPLES: groups.sums(whole(table.column(TUPLES)))[0]}
        rest: dict[str, Rest] = {}
        for one in self.aggregates:
            made.update(one.combined(table, groups))
            for name, (column, lacking) in one.sums(table, groups).items():
                made[name] = column
                rest[name] = lacking
        return self._with_rest(made, rest)

    def _with_rest(self, made: Mapping[str, pa.Array], rest: Mapping[str, Rest]) -> tuple[dict[str, pa.Array], Numbers]:
        """Append rows for what the cells lack; return the cells and, for each row, the one that it belongs to."""
        names = [name for one in self.aggregates for name in one.cells()]
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for name, parts in rest.items():
            seen = Counter[int]()
            for of, value in parts:
                rows.setdefault((of, seen[of]), {TUPLES: 0})[name] = value
                seen[of] += 1
        own = np.arange(len(made[TUPLES]))
        cells = {name: made[name] for name in (TUPLES, *names)}
        if not rows:
            return cells, own
        order = sorted(rows)
        for name, column in cells.items():
            more = pa.array([rows[place].get(name) for place in order], column.type)
            cells[name] = pa.concat_arrays([column, more])
        return cells, np.r_[own, np.array([of for of, _ in order], np.int64)]

    def keys_of(self, table: pa.Table, rows: Numbers) -> dict[str, pa.Array]:
        """Return the keys of rows of a table, by index."""
        picked = pa.array(rows)
        return {name: whole(table.column(name)).take(picked) for name in self.key_names}

    def numbered(self, table: pa.Table) -> tuple[Numbers, int]:
        """Number the rows of a table by key; return the numbers and a limit that none of them reaches."""
        return numbered([whole(table.column(name)) for name in self.key_names], table.num_rows)

    def results(self, table: pa.Table, rest: pa.Table, of_rest: Numbers) -> dict[str, Any]:
        """Return the results of partial aggregates, by output field.

        `rest`: rows with parts of sums, which belong to the rows `of_rest` of `table`; see `combined`.
        """
        found: dict[str, Any] = {one.name: one.result(table) for one in self.aggregates}
        for one in self.aggregates if rest.num_rows else ():
            if one.way == "mean":
                found[one.name] = one.exact_means(table, rest, of_rest)
        return found

    def out_of_range(self, rest: pa.Table, of_rest: Numbers) -> tuple[Numbers, list[str]]:
        """Return the rows with a sum that its type cannot hold, and the first output field of each with such a sum."""
        found: dict[int, str] = {}
        for one in self.aggregates if rest.num_rows else ():
            if one.way == "sum":
                for row in of_rest[np.asarray(whole(rest.column(one.cell("sum"))).is_valid())].tolist():
                    found.setdefault(row, one.name)
        return np.array(sorted(found), np.int64), [found[row] for row in sorted(found)]

    def empty(self, **extra: pa.DataType) -> pa.Table:
        """Return a table of no partial aggregates, with the columns `extra` before theirs."""
        columns = {**extra, **self.columns}
        return pa.table({name: pa.array([], kind) for name, kind in columns.items()})


def typed(values: Any, field: Field, where: str) -> pa.Array:
    """Return values of a field, a column or a list, with its type; raise `ValueError` for one that does not fit."""
    try:
        return column_of(values, field.kind) if isinstance(values, list) else converted(whole(values), field.kind)
    except Misfit as error:
        msg = f"{where}: a value of field {field.name!r} does not fit its type: {error}"
        if error.row is None and not isinstance(values, list):
            msg = (
                f"{where}: field {field.name!r} has values of type {values.type}, but WindowAggregate takes it as "
                f"{field.kind}; give its type with the field, such as {{{field.name!r}: {_python(values.type)}}}"
            )
        raise ValueError(msg) from error.of(field.name, field.kind)


_NUMBERS = (int, float, Decimal)


def _python(kind: pa.DataType) -> str:
    made = python_type(kind)
    return str(kind) if made in (type(None), list, dict) else made.__name__


# -- declarations ------------------------------------------------------------------------------------------------------


def key_fields(given: Any) -> tuple[Field, ...]:
    """Return the fields of a key as declared: a name, several names, or field → type."""
    fields = _fields("key", given, str)
    if not fields:
        raise InputError("WindowAggregate: expected at least one field as the key, got none")
    for one in fields:
        if pa.types.is_floating(one.kind) or pa.types.is_nested(one.kind):
            msg = f"WindowAggregate: key field {one.name!r} cannot be {one.kind}; use str, int, bool, bytes or datetime"
            raise InputError(msg)
    return fields


def aggregate_of(name: str, given: Any) -> Aggregate:
    """Return the aggregate that a keyword argument declares; raise `InputError` with what is expected."""
    fault = field_fault("WindowAggregate", name)
    if fault or name.startswith("window_"):
        raise InputError(fault or f"WindowAggregate: {name!r} starts with 'window_', as its own columns do; rename it")
    if given == COUNT:
        return Aggregate(name, COUNT)
    parts = given if isinstance(given, tuple | list) else ()
    way = parts[1] if len(parts) > 1 and isinstance(parts[1], str) else None
    if (len(parts), way in OF_ONE_FIELD, way == "argmax") not in ((2, True, False), (3, False, True)):
        raise InputError(
            f"WindowAggregate: {name}={given!r}: expected 'count', (field, way) with one of {', '.join(OF_ONE_FIELD)}, "
            "or (field, 'argmax', field); a field is a name, or {name: type}"
        )
    assert way is not None
    field = _field(name, parts[0], float if way == "mean" else int)
    by = _field(name, parts[2], float) if way == "argmax" else None
    if way in ("sum", "mean") and python_type(field.kind) not in _NUMBERS:
        raise InputError(f"WindowAggregate: {name}={given!r}: {field.kind} values have no {way}; declare a number")
    for one in (field if way in ("min", "max") else None, by):
        if one is not None and pa.types.is_nested(one.kind):
            raise InputError(f"WindowAggregate: {name}={given!r}: {one.kind} values have no order")
    return Aggregate(name, way, field, by)


def _field(name: str, given: Any, kind: type) -> Field:
    fields = _fields(name, given, kind) if isinstance(given, str | Mapping) else ()
    if len(fields) != 1:
        raise InputError(f"WindowAggregate: {name}: expected one field, a name or {{name: type}}, got {given!r}")
    return fields[0]


def _fields(what: str, given: Any, kind: type) -> tuple[Field, ...]:
    declared = isinstance(given, Mapping)
    if isinstance(given, str):
        given = {given: kind}
    elif isinstance(given, Sequence) and all(isinstance(one, str) for one in given):
        if len(set(given)) < len(given):
            raise InputError(f"WindowAggregate: {what}: expected different fields, got {given!r}")
        given = dict.fromkeys(given, kind)
    if not isinstance(given, Mapping):
        msg = f"WindowAggregate: {what}: expected a field, several fields, or {{field: type}}, got {given!r}"
        raise InputError(msg)
    made = []
    for name, one in given.items():
        arrow = arrow_type(one)
        fault = field_fault(f"WindowAggregate, {what}", name)
        if fault is None and arrow is None:
            fault = f"WindowAggregate: {what}: field {name!r} has the unknown type {one!r}; use str, int, float, …"
        if fault is not None or arrow is None:
            raise InputError(fault)
        made.append(Field(name, arrow, declared))
    return tuple(made)
