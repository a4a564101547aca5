"""Lossless conversion of tuples to Arrow record batches and back.

Columns of a single plain type become Arrow columns of that type. Values that Arrow would coerce (an int among floats, a
tuple into a list, dicts into one struct) are encoded as tagged JSON, marked in the field's metadata, and decoded to
exactly the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import EmitError
from txstorm.misfits import Misfit
from txstorm.tagged import MARK, check_aware, no_time, text_of, value_of
from txstorm.typed import NO_TIME, restored, rows_out_of_range, text_at

_PLAIN: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", tz="UTC"),
}
_NONE = type(None)
_LISTS = {list, tuple, set, frozenset}
_WIDENED = ({int, float}, {int, Decimal})
"""Types whose values Arrow makes one type, and each of which stays what it is."""


def batch_of_rows(rows: Sequence[Sequence[Any]], fields: Sequence[str]) -> pa.RecordBatch:
    """Convert `rows`, each with one value per field, to a record batch; raises `EmitError` if one cannot be sent."""
    if not fields:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    return batch_of_columns([list(values) for values in columns], fields)


def batch_of_columns(values: Sequence[list[Any]], fields: Sequence[str]) -> pa.RecordBatch:
    """Convert one list of values per field to a record batch; raises `EmitError` for a value that cannot be sent."""
    columns = [_column(name, column) for name, column in zip(fields, values, strict=True)]
    return pa.RecordBatch.from_arrays([column for _, column in columns], schema=pa.schema([f for f, _ in columns]))


def _column(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if len(kinds) == 1:
        plain = _plain_column(name, values, kinds.pop())
        if plain is not None:
            return pa.field(name, plain.type), plain
    elif not kinds:
        return pa.field(name, pa.null()), pa.nulls(len(values))
    for value in values:
        if isinstance(value, str) and not value.isascii():
            _check_text(value, name)
    try:
        texts = [None if value is None else text_of(value, name) for value in values]
    except RecursionError:
        msg = f"field {name!r}: a value that contains itself, or is nested too deep; emit plain values, lists or dicts"
        raise EmitError(msg) from None
    return pa.field(name, pa.string(), metadata=MARK), pa.array(texts, pa.string())


def _plain_column(name: str, values: list[Any], kind: type) -> pa.Array | None:
    wanted = _PLAIN.get(kind)
    if wanted is None:
        return None
    if kind is datetime:
        for value in values:
            check_aware(value, name)
    try:
        column = pa.array(values, wanted)
    except OverflowError:
        return None
    except UnicodeEncodeError:
        for value in values:
            _check_text(value or "", name)
        raise
    for row in rows_out_of_range(column):
        raise no_time(values[row], name)
    return column


def _check_text(text: str, name: str) -> None:
    """Raise `EmitError` for a text that is not Unicode, whatever stands beside it in a column."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EmitError(f"field {name!r}: a string cannot be encoded as UTF-8 ({error}); emit bytes instead") from None


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Convert the rows of `batch` to tuples of Python values."""
    columns = columns_of_batch(batch)
    return zip(*columns, strict=True) if batch.num_columns else iter(columns[0])


def columns_of_batch(batch: pa.RecordBatch) -> list[list[Any]]:
    """Convert the columns of `batch` to Python values; one without columns has one list of its rows, empty tuples."""
    if batch.num_columns == 0:
        return [[()] * batch.num_rows]
    return [column_values(batch, i) for i in range(batch.num_columns)]


def column_values(batch: pa.RecordBatch, index: int) -> list[Any]:
    """Convert one column to Python values."""
    values: list[Any] = batch.column(index).to_pylist()
    if batch.schema.field(index).metadata == MARK:
        return [None if text is None else value_of(text) for text in values]
    return values


def is_tagged(batch: pa.RecordBatch) -> bool:
    """Return whether `batch` has a tagged column, that is, one with values that Arrow would coerce."""
    return any(field.metadata == MARK for field in batch.schema)


def is_tagged_column(batch: pa.RecordBatch, index: int) -> bool:
    """Return whether the column of `batch` at `index` is tagged."""
    return bool(batch.schema.field(index).metadata == MARK)


def as_columns(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Convert the tagged columns of `batch` to the types that Arrow infers, for bolts that process record batches.

    Raises:
        EmitError: the values of a column have no common type.
    """
    for index, field in enumerate(batch.schema):
        if field.metadata == MARK:
            try:
                values = column_values(batch, index)
                _check_types(values)
                column = pa.array(values)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                first = next((value for value in values if value is not None), None)
                raise EmitError(
                    f"{where}: the values of field {field.name!r}, such as {str(first)[:80]!r}, have no common Arrow "
                    f"type ({error}), expected one for a bolt that takes record batches: emit values of one type, or "
                    "write execute for tuples"
                ) from None
            batch = batch.set_column(index, field.name, column)
    return batch


def _check_types(values: Iterable[Any]) -> None:
    """Raise `TypeError` for values of types that Arrow would make one: a text would become bytes, a time a date."""
    given = [value for value in values if value is not None]
    kinds = set(map(type, given))
    if kinds and kinds <= _LISTS:
        _check_types(part for value in given for part in value)
    elif kinds == {dict}:
        for name in {name for value in given for name in value}:
            _check_types(value.get(name) for value in given)
    elif len(kinds) > 1 and not any(kinds <= wider for wider in _WIDENED):
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"values of {names}")


def conform(
    batch: Any, fields: Sequence[str], where: str, refuse: Callable[[int, EmitError, dict[str, Any]], None]
) -> Iterable[pa.RecordBatch]:
    """Reorder the columns of an emitted batch or table as the declared `fields`; raises `EmitError` if they differ.

    Dictionaries, runs and views become the values that they stand for, with which all that follows can compute.
    `refuse` is called with each row that cannot be sent, its error and its values; the others are returned.
    """
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        raise EmitError(f"{where}: emit_batch takes a pyarrow.RecordBatch or Table, got {type(batch).__name__}")
    names = batch.schema.names
    if sorted(names) != sorted(fields):
        raise EmitError(f"{where}: emit_batch expects the declared columns {list(fields)}, got {names}")
    for index, (name, kind) in enumerate(zip(names, batch.schema.types, strict=True)):
        if (wanted := _simple(kind)) != kind:
            batch = batch.set_column(index, name, _simplified(batch.column(index), wanted))
    for field in batch.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            raise EmitError(f"{where}: column {field.name!r} is a timestamp without time zone; times are UTC: cast it")
    bad: dict[int, EmitError] = {}
    for name, column in zip(names, batch.columns, strict=True):
        for row in rows_out_of_range(column):
            msg = f"{where}: column {name!r}, row {row}: {text_at(column, row)} is {NO_TIME}"
            if row not in bad:
                bad[row] = EmitError(msg)
                bad[row].__cause__ = fault = Misfit(NO_TIME, row)
                fault.column = name
    for row, error in sorted(bad.items()):
        values = {name: text_at(column, row) for name, column in zip(names, batch.columns, strict=True)}
        refuse(row, error, {"row": values})
    if bad:
        batch = batch.take(pa.array([row for row in range(batch.num_rows) if row not in bad], pa.int64()))
    chosen = batch if names == list(fields) else batch.select(list(fields))
    return chosen.to_batches() if isinstance(chosen, pa.Table) else [chosen]


@cache
def _simple(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries, runs, views and fixed sizes of bytes."""
    kinds = pa.types
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return _simple(kind.value_type)
    if kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_binary_view(kind) or kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_simple(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_simple(kind.key_type), _simple(kind.item_type), kind.keys_sorted)
    if not kinds.is_nested(kind) or kinds.is_union(kind):
        return kind
    inner = kind.value_field.with_type(_simple(kind.value_type))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if kinds.is_large_list(kind) or kinds.is_large_list_view(kind) else pa.list_(inner)


def _simplified(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    with suppress(pa.ArrowNotImplementedError):
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        if "list_view<" not in str(column.type):  # of which Arrow's cast loses the lists after a null
            return restored(column, kind)
    return pa.array(column.to_pylist(), kind)
