"""Rows of a share of a Delta table, with the columns of the table: the same on both engines.

Files have physical names or ids, may lack columns that were added later, have narrower types than the table has now,
and no partition columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.files import check_file
from txstorm.errors import SpoutError
from txstorm.spouts.delta.columns import TableColumns, physical_name
from txstorm.spouts.delta.shares import Share, gone

_ID = b"PARQUET:field_id"
_CHANGE = "_change_type"
_DAMAGED = (OSError, ValueError, LookupError, ArithmeticError, pa.ArrowException)
_TIME = pa.timestamp("us", "UTC")
Numbers = np.ndarray[Any, Any]


def read_share(table: Path, columns: TableColumns, share: Share) -> Iterator[tuple[pa.Table, Numbers]]:
    """Yield the rows of `share`, those of a row group at a time, with their numbers in the file.

    Raises:
        SpoutError: the file is missing, damaged, or has a column of a type that does not fit.
    """
    start = 0
    with _opened(table, share) as file:
        taken = _taken(table, share)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            numbers = taken(start, start + rows)
            if len(numbers):
                yield _read(file, group, numbers - start, columns, share), numbers
            start += rows


def rows_in(table: Path, share: Share) -> int:
    """Return the number of rows of `share`; raises as `read_share`."""
    with _opened(table, share) as file:
        rows = int(file.metadata.num_rows)
        return rows if share.without is None and share.only is None else len(_taken(table, share)(0, rows))


def digest_of(shares: Iterable[tuple[Share, int]]) -> str:
    """Return a digest of shares with their numbers of rows: files never change, so it stays as columns come and go."""
    found = hashlib.sha256()
    for share, rows in shares:
        found.update(f"{share.path}\n{share.change}\n{share.without}\n{share.only}\n{rows}\n".encode())
    return f"files:{found.hexdigest()[:32]}"


@contextmanager
def _opened(table: Path, share: Share) -> Iterator[pq.ParquetFile]:
    path = table / share.path
    try:
        check_file(path, share.size)
        yield pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except FileNotFoundError:
        raise gone(table, share) from None
    except _DAMAGED as error:
        raise SpoutError(f"delta spout: {path}, of version {share.version}: {type(error).__name__}: {error}") from None


def _taken(table: Path, share: Share) -> Callable[[int, int], Numbers]:
    """Return a function that returns the numbers of the rows of `share` from a first one to a last."""
    without, only = (None if one is None else one.rows(table) for one in (share.without, share.only))

    def within(start: int, stop: int) -> Numbers:
        rows = np.arange(start, stop) if only is None else only[(only >= start) & (only < stop)]
        return rows if without is None else np.setdiff1d(rows, without, assume_unique=True)

    return within


def _read(file: pq.ParquetFile, group: int, taken: Numbers, columns: TableColumns, share: Share) -> pa.Table:
    """Return rows of one row group, with all columns."""
    stored = list(file.schema_arrow)
    if columns.by_id and not any(_ID in (one.metadata or {}) for one in stored):
        raise ValueError("the table finds columns by their ids, and this file has none")
    wanted = [field for field in columns.fields if field["name"] not in columns.partitions]
    places = {field["name"]: _place(field, stored, by_id=columns.by_id) for field in wanted}
    names = [stored[place].name for place in places.values() if place is not None]
    if columns.changes and not share.change:
        names.append(_CHANGE)
    rows = file.read_row_group(group, columns=names, use_threads=False)
    if names and len(taken) < rows.num_rows:
        rows = rows.take(taken)
    made = []
    for field in columns.fields:
        kind, place = columns.columns[field["name"]].arrow, places.get(field["name"])
        if field["name"] in columns.partitions:
            made.append(_constant(share.partition.get(physical_name(field)), kind, len(taken)))
        elif place is None:
            made.append(pa.nulls(len(taken), kind))
        else:
            column = rows[stored[place].name].combine_chunks()
            made.append(_fitted(column, field, kind, by_id=columns.by_id))
    if columns.changes:
        change = pa.repeat(share.change, len(taken)) if share.change else rows[_CHANGE].cast(pa.string())
        made += [change, pa.repeat(share.version, len(taken)), pa.repeat(_time(share.at), len(taken))]
    return pa.table(dict(zip(columns.columns, made, strict=True)))


def _place(field: Mapping[str, Any], stored: Sequence[pa.Field], *, by_id: bool) -> int | None:
    """Return the place of a column among those of a file, or of a struct in it; None: it was added later."""
    if by_id:
        wanted = str(field["metadata"]["delta.columnMapping.id"]).encode()
        found = (place for place, one in enumerate(stored) if (one.metadata or {}).get(_ID) == wanted)
    else:
        found = (place for place, one in enumerate(stored) if one.name == physical_name(field))
    return next(found, None)


def _fitted(array: pa.Array, field: Mapping[str, Any], kind: pa.DataType, *, by_id: bool) -> pa.Array:
    """Return `array` with the type that its column has in the table: names within structs, and widened types."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        stored, parts = list(array.type), []
        for part, inner in zip(field["type"]["fields"], list(kind), strict=True):
            place = _place(part, stored, by_id=by_id)
            given = pa.nulls(len(array), inner.type) if place is None else pc.struct_field(array, place)
            parts.append(_fitted(given, part, inner.type, by_id=by_id))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        item = {"name": field["name"], "type": field["type"]["elementType"]}
        values = _fitted(array.flatten(), item, kind.value_type, by_id=by_id)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if not _fits(array.type, kind):
        raise ValueError(f"column {field['name']!r} is {array.type}, expected {kind}")
    return array.cast(kind)


def _fits(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether all values of a stored type have the same value in the type that the table has."""
    types = pa.types
    if types.is_signed_integer(given):
        whole = kind.precision - kind.scale if types.is_decimal(kind) else 0
        return (
            (types.is_signed_integer(kind) and given.bit_width <= kind.bit_width)
            or (types.is_float64(kind) and given.bit_width <= pa.int32().bit_width)
            or whole >= (10 if given.bit_width <= pa.int32().bit_width else 20)
        )
    if types.is_decimal(given) and types.is_decimal(kind):
        return bool(given.scale <= kind.scale and given.precision - given.scale <= kind.precision - kind.scale)
    if types.is_timestamp(kind):
        return bool(types.is_timestamp(given))
    if types.is_string(kind) or types.is_binary(kind):
        same = types.is_large_string, types.is_large_binary, types.is_dictionary
        return any(one(given) for one in (*same, types.is_string_view, types.is_binary_view))
    return bool(types.is_float32(given) and types.is_float64(kind))


def _constant(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return the value of a partition column, once for each row."""
    return pa.repeat(pa.scalar(_value(text, kind) if text else None, kind), rows)


def _value(text: str, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_signed_integer(kind):
        return int(text)
    if types.is_floating(kind):
        return float(text)
    if types.is_decimal(kind):
        return Decimal(text)
    if types.is_boolean(kind):
        return text.lower() == "true"
    if types.is_date(kind):
        return date.fromisoformat(text)
    if types.is_timestamp(kind):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return text.encode() if types.is_binary(kind) else text


def _time(milliseconds: int) -> pa.Scalar:
    return pa.scalar(milliseconds * 1000, pa.int64()).cast(_TIME)


def read_batches(
    table: Path, columns: TableColumns, shares: Sequence[Share], batches: Iterable[Any]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of those of `shares` whose numbers are in `batches`, which Spark gives to one task."""
    for number in (one for batch in batches for one in batch.column(0).to_pylist()):
        for rows, _ in read_share(table, columns, shares[number]):
            yield from rows.to_batches()
