"""Aggregates and their cells: the columns that hold a partial aggregate, so that partial aggregates can be combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.names import field_fault
from txstorm.api.state import arrow_type
from txstorm.errors import InputError
from txstorm.windows.aggregates.groups import Groups, Numbers, integers, numbered, ranked, taken, whole

COUNT = "count"
OF_ONE_FIELD = ("sum", "min", "max", "mean", "first", "last")
WAYS = (COUNT, *OF_ONE_FIELD, "argmax")
TUPLES = "window_tuples"
"""The cell with the number of tuples, which every partial aggregate has."""


@dataclass(frozen=True)
class Field:
    """A field that is aggregated, with the declared type of its values."""

    name: str
    kind: pa.DataType


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

    def combined(self, table: pa.Table, groups: Groups) -> dict[str, pa.Array]:
        """Return the cells of each group of partial aggregates, which are in their order of arrival."""
        cells = {name: whole(table.column(name)) for name in self.cells()}
        if self.way in ("sum", "mean"):
            return {name: groups.sums(column) for name, column in cells.items()}
        if self.way in ("min", "max"):
            return {name: groups.extremes(one, highest=self.way == "max") for name, one in cells.items()}
        if self.way in ("first", "last"):
            times = integers(cells[self.cell("time")])
            picked = groups.least(times) if self.way == "first" else groups.greatest(times)
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
        """Return the results of partial aggregates."""
        if self.way == COUNT:
            return table.column(TUPLES)
        if self.way == "mean":
            valid = table.column(self.cell("valid"))
            some = pc.if_else(pc.greater(valid, 0), valid, None)
            return pc.divide(table.column(self.cell("sum")), some.cast(pa.float64()))
        return table.column(self.cell(self.way if self.way in ("sum", "min", "max") else "value"))


@dataclass(frozen=True)
class Cells:
    """The aggregates of a component.

    Attributes:
        keys: the fields of the key.
        aggregates: the aggregates, in the order of their output.
    """

    keys: tuple[Field, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def key_names(self) -> list[str]:
        """The names of the fields of the key."""
        return [one.name for one in self.keys]

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

    def of_batch(self, batch: Any, times: Numbers, where: str) -> pa.Table:
        """Return the partial aggregates of single tuples; raise `ValueError` if values do not fit their types."""
        keys = {one.name: self._typed(batch, one, where) for one in self.keys}
        made = {**keys, TUPLES: pa.array(np.ones(len(times), np.int64))}
        for one in self.aggregates:
            read = {field.name: self._typed(batch, field, where) for field in (one.field, one.by) if field is not None}
            made.update(one.of_rows(read, times))
        return pa.table(made)

    def combined(self, table: pa.Table, groups: Groups) -> dict[str, pa.Array]:
        """Return the cells of each group of partial aggregates, which are in their order of arrival."""
        made = {TUPLES: groups.sums(whole(table.column(TUPLES)))}
        for one in self.aggregates:
            made.update(one.combined(table, groups))
        return made

    def keys_of(self, table: pa.Table, rows: Numbers) -> dict[str, pa.Array]:
        """Return the keys of rows of a table, by index."""
        picked = pa.array(rows)
        return {name: whole(table.column(name)).take(picked) for name in self.key_names}

    def numbered(self, table: pa.Table) -> tuple[Numbers, int]:
        """Number the rows of a table by key; return the numbers and a limit that none of them reaches."""
        return numbered([whole(table.column(name)) for name in self.key_names], table.num_rows)

    def results(self, table: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the results of partial aggregates, by output field."""
        return {one.name: one.result(table) for one in self.aggregates}

    def empty(self, **extra: pa.DataType) -> pa.Table:
        """Return a table of no partial aggregates, with the columns `extra` before theirs."""
        columns = {**extra, **self.columns}
        return pa.table({name: pa.array([], kind) for name, kind in columns.items()})

    def _typed(self, batch: Any, field: Field, where: str) -> pa.Array:
        column = whole(batch.column(field.name))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.type == field.kind:
            return column
        if not _fits(column.type, field.kind):
            msg = (
                f"{where}: field {field.name!r} has values of type {column.type}, but WindowAggregate takes it as "
                f"{field.kind}; give its type with the field, such as {{{field.name!r}: {_python(column.type)}}}"
            )
            raise ValueError(msg)
        try:
            return column.cast(field.kind)
        except (pa.ArrowException, OverflowError) as error:
            msg = f"{where}: a value of field {field.name!r} does not fit its type {field.kind}: {error}"
            raise ValueError(msg) from None


_FAMILIES = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind), str),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), bytes),
)
_NUMBERS = (int, float, Decimal)


def _family(kind: pa.DataType) -> Any:
    return next((made for fits, made in _FAMILIES if fits(kind)), kind.id)


def _fits(given: pa.DataType, declared: pa.DataType) -> bool:
    if pa.types.is_timestamp(given) and given.tz is None:
        return False
    one, other = _family(given), _family(declared)
    return one == other or pa.types.is_null(given) or (one is int and other in (float, Decimal))


def _python(kind: pa.DataType) -> str:
    made = _family(kind)
    return made.__name__ if isinstance(made, type) else "datetime" if pa.types.is_timestamp(kind) else str(kind)


# -- declarations ------------------------------------------------------------------------------------------------------


def key_fields(given: Any) -> tuple[Field, ...]:
    """Return the fields of a key as declared: a name, several names, or field → type."""
    fields = _fields("key", given, str)
    if not fields:
        msg = "WindowAggregate: expected at least one field as the key, got none"
        raise InputError(msg)
    for one in fields:
        if pa.types.is_floating(one.kind) or pa.types.is_nested(one.kind):
            msg = f"WindowAggregate: key field {one.name!r} cannot be {one.kind}; use str, int, bool, bytes or datetime"
            raise InputError(msg)
    return fields


def aggregate_of(name: str, given: Any) -> Aggregate:
    """Return the aggregate that a keyword argument declares; raise `InputError` with what is expected."""
    fault = field_fault("WindowAggregate", name)
    if fault or name.startswith("window_"):
        msg = fault or f"WindowAggregate: {name!r} starts with 'window_', as its own columns do; rename it"
        raise InputError(msg)
    if given == COUNT:
        return Aggregate(name, COUNT)
    parts = given if isinstance(given, tuple | list) else ()
    way = parts[1] if len(parts) > 1 and isinstance(parts[1], str) else None
    if (len(parts), way in OF_ONE_FIELD, way == "argmax") not in ((2, True, False), (3, False, True)):
        msg = (
            f"WindowAggregate: {name}={given!r}: expected 'count', (field, way) with one of {', '.join(OF_ONE_FIELD)}, "
            "or (field, 'argmax', field); a field is a name, or {name: type}"
        )
        raise InputError(msg)
    assert way is not None
    field = _field(name, parts[0], float if way == "mean" else int)
    by = _field(name, parts[2], float) if way == "argmax" else None
    if way in ("sum", "mean") and _family(field.kind) not in _NUMBERS:
        msg = f"WindowAggregate: {name}={given!r}: {field.kind} values have no {way}; declare a number"
        raise InputError(msg)
    for one in (field if way in ("min", "max") else None, by):
        if one is not None and pa.types.is_nested(one.kind):
            msg = f"WindowAggregate: {name}={given!r}: {one.kind} values have no order"
            raise InputError(msg)
    return Aggregate(name, way, field, by)


def _field(name: str, given: Any, kind: type) -> Field:
    fields = _fields(name, given, kind) if isinstance(given, str | Mapping) else ()
    if len(fields) != 1:
        msg = f"WindowAggregate: {name}: expected one field, a name or {{name: type}}, got {given!r}"
        raise InputError(msg)
    return fields[0]


def _fields(what: str, given: Any, kind: type) -> tuple[Field, ...]:
    if isinstance(given, str):
        given = {given: kind}
    elif isinstance(given, Sequence) and all(isinstance(one, str) for one in given):
        if len(set(given)) < len(given):
            msg = f"WindowAggregate: {what}: expected different fields, got {given!r}"
            raise InputError(msg)
        given = dict.fromkeys(given, kind)
    if not isinstance(given, Mapping):
        msg = f"WindowAggregate: {what}: expected a field, several fields, or {{field: type}}, got {given!r}"
        raise InputError(msg)
    made = []
    for name, declared in given.items():
        arrow = arrow_type(declared)
        fault = field_fault(f"WindowAggregate, {what}", name)
        if fault is None and arrow is None:
            fault = f"WindowAggregate: {what}: field {name!r} has the unknown type {declared!r}; use str, int, float, …"
        if fault is not None or arrow is None:
            raise InputError(fault)
        made.append(Field(name, arrow))
    return tuple(made)
