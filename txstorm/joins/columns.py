"""Columns of tuples that a join emits: Arrow arrays, or lists of values that have no common Arrow type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector
from txstorm.row_order import Numbers
from txstorm.windows.intake import Chunk

Column: TypeAlias = pa.Array | list[Any]


def columns_of(chunk: Chunk) -> list[Column]:
    """Return the values of each field of a chunk, which has tuples."""
    if isinstance(chunk.values, list):
        return [list(column) for column in zip(*chunk.values, strict=True)]
    return list(chunk.values.columns)


def united(parts: Sequence[Column], order: Numbers) -> Column:
    """Return the parts of a column as one, in another order: an array if all are arrays of one type."""
    types = [part.type if isinstance(part, pa.Array) else None for part in parts]
    if None not in types and types.count(types[0]) == len(types):
        return pa.concat_arrays(parts).take(pa.array(order))
    values = [value for part in parts for value in listed(part)]
    return [values[row] for row in order.tolist()]


def picked(column: Column, rows: Numbers) -> Column:
    """Return some rows of a column."""
    return [column[row] for row in rows.tolist()] if isinstance(column, list) else column.take(pa.array(rows))


def listed(column: Column) -> list[Any]:
    """Return the values of a column."""
    values: list[Any] = column if isinstance(column, list) else column.to_pylist()
    return values


def emit(collector: Collector, names: Sequence[str], columns: Sequence[Column], stream: str = DEFAULT_STREAM) -> None:
    """Emit rows: as a table if all columns are arrays, one by one otherwise."""
    if any(isinstance(column, list) for column in columns):
        for values in zip(*map(listed, columns), strict=True):
            collector.emit(*values, stream=stream)
    elif len(columns[0]):
        collector.emit_batch(pa.table(list(columns), names=list(names)), stream=stream)
