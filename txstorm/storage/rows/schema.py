"""Arrow schemas of declared states and sinks, and their comparison with existing tables.

A *changes* table has the key columns, the value columns, then ``_txid``, ``_prev`` (struct of the previous values; null
if there was no row), ``_op`` (``u`` updated, ``d`` removed; for ``e`` and ``a`` see `txstorm.storage.rows.eviction`)
and ``_kg`` (key group). A *state* table has the same columns except ``_op``, and one row per key. A *sink* table has
the declared columns and ``_txid``.

A collection is a state whose key ends with the position of the row: the order column, then ``_seq``. If keys have a
time to live, an additional value column, ``_stamp``, records when the row was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionState, KeyedState, SinkTable, arrow_type
from txstorm.errors import StateError
from txstorm.row_order import order_of

UPDATED, REMOVED = "u", "d"
EVICTED, EVICTED_ALL = "e", "a"
"""Operations of tombstones of collections: rows below a place are removed from one collection, or from all of them."""
TOMBSTONE = -1
"""Sequence number of a tombstone; those of rows are 0 or greater."""
COUNT_BITS = 24
"""Number of low bits of a sequence number, which count the rows of one txid in a collection; the rest is the txid."""
PREV = "_prev"
TXID = pa.field("_txid", pa.int64())
OP = pa.field("_op", pa.string())
KEY_GROUP = pa.field("_kg", pa.int32())
STAMP = pa.field("_stamp", pa.timestamp("us", tz="UTC"))
SEQUENCE = pa.field("_seq", pa.int64())
PLACE = 2
"""Number of key columns that record the position of a row within its collection."""
_SCALARS = (
    pa.types.is_signed_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_decimal128,
    lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz == "UTC",
)
_FLOATS = (pa.types.is_float32, pa.types.is_float64)
_LAYOUTS = {"large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary"}
_SUPPORTED = "str, int, float, bool, bytes, datetime, date, Decimal, or lists and structs of these as Arrow types"


def key_columns(state: KeyedState) -> list[str]:
    """Return the names of the key columns, in declaration order."""
    return [*state.key, *state.order, SEQUENCE.name] if isinstance(state, CollectionState) else list(state.key)


def value_columns(state: KeyedState) -> list[str]:
    """Return the names of the value columns, in declaration order."""
    return list(state.value)


def key_fields(state: KeyedState) -> list[pa.Field]:
    """Return the Arrow fields of the key; raise `StateError` for a type not allowed in keys (float, list, struct)."""
    fields = [_field(f"state {state.name!r}", "key", name, kind) for name, kind in state.key.items()]
    return [*fields, order_field(state), SEQUENCE] if isinstance(state, CollectionState) else fields


def order_field(state: CollectionState) -> pa.Field:
    """Return the Arrow field of a collection's order column.

    Raises `StateError` unless there is exactly one order column, and its type is datetime or int.
    """
    fields = [_field(f"state {state.name!r}", "order", name, kind) for name, kind in state.order.items()]
    if len(fields) != 1:
        raise StateError(
            f"state {state.name!r}: expected one order column, got {list(state.order)}; write order={{'at': datetime}}"
        )
    return fields[0]


def stored_fields(state: KeyedState) -> list[pa.Field]:
    """Return the Arrow fields of a row except its key: `value_fields`, and the stamp if keys have a time to live."""
    return [*value_fields(state), STAMP] if state.ttl is not None else value_fields(state)


def value_fields(state: KeyedState) -> list[pa.Field]:
    """Return the Arrow fields of the values; raise `StateError` for an unsupported type, or if there are none."""
    if not state.value:
        raise StateError(f"state {state.name!r} has no value column; declare at least one")
    return [_field(f"state {state.name!r}", "value", name, kind) for name, kind in state.value.items()]


def changes_schema(state: KeyedState) -> pa.Schema:
    """Return the schema of ``changes/<name>``; raise `StateError` for an unsupported type."""
    return pa.schema([*_row_fields(state), OP, KEY_GROUP])


def state_schema(state: KeyedState) -> pa.Schema:
    """Return the schema of ``state/<name>``: `changes_schema` without ``_op``."""
    return pa.schema([*_row_fields(state), KEY_GROUP])


def sink_schema(sink: SinkTable) -> pa.Schema:
    """Return the schema of ``sinks/<name>``; raise `StateError` for an unsupported type."""
    return pa.schema([*sink_fields(sink), TXID])


def sink_fields(sink: SinkTable) -> list[pa.Field]:
    """Return the Arrow fields of the columns declared for `sink`; raise `StateError` if there are none."""
    if not sink.columns:
        raise StateError(f"sink {sink.name!r} has no column; declare at least one")
    return [_field(f"sink {sink.name!r}", "column", name, kind) for name, kind in sink.columns.items()]


def _row_fields(state: KeyedState) -> list[pa.Field]:
    values = stored_fields(state)
    return [*key_fields(state), *values, TXID, pa.field(PREV, pa.struct(values))]


def _field(owner: str, role: str, name: str, declared: Any) -> pa.Field:
    kind = arrow_type(declared)
    if kind is None or not supported(kind):
        msg = f"{owner}, {role} {name!r}: expected one of {_SUPPORTED}, got {declared!r}; declare another type"
        raise StateError(msg)
    if role == "key" and not any(fits(kind) for fits in _SCALARS):
        msg = f"{owner}, key {name!r}: {type_text(kind)} cannot be part of a key; use a string, an int or a Decimal"
        raise StateError(msg)
    if role == "order" and not (pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind)):
        msg = f"{owner}, order {name!r}: expected datetime or int, got {type_text(kind)}; declare one of these"
        raise StateError(msg)
    return pa.field(name, kind)


@lru_cache
def supported(kind: pa.DataType) -> bool:
    """Whether the Arrow type `kind` is supported as a column type."""
    if pa.types.is_list(kind):
        return supported(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(supported(kind.field(i).type) for i in range(kind.num_fields))
    return any(fits(kind) for fits in (*_SCALARS, *_FLOATS))


def type_text(kind: pa.DataType) -> str:
    """Format an Arrow type as text, ignoring details that vary by reader: list item names and the layout of strings."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in fields)}>"
    if pa.types.is_timestamp(kind) and kind.tz in ("UTC", "+00:00", "Etc/UTC"):
        return f"timestamp[{kind.unit}, UTC]"
    text = str(kind)
    return _LAYOUTS.get(text, text)


def schema_differences(expected: pa.Schema, got: pa.Schema) -> list[str]:
    """Describe each column that differs between a declaration (`expected`) and a table (`got`); empty if none does.

    Column order, nullability and metadata are ignored.
    """
    wanted, found = _types(expected), _types(got)
    added = [f"column {name!r} ({wanted[name]}) is declared, but the table has none" for name in wanted.keys() - found]
    removed = [f"column {name!r} ({found[name]}) is in the table, but not declared" for name in found.keys() - wanted]
    retyped = [
        f"column {name!r} is declared as {kind}, the table has {found[name]}"
        for name, kind in wanted.items()
        if name in found and found[name] != kind
    ]
    return [*sorted(added), *sorted(removed), *retyped]


def check_schema(table: str, expected: pa.Schema, got: pa.Schema) -> None:
    """Raise `StateError`, which lists the differences and two remedies, if the schemas differ.

    `table` names the table in the message (``state 'counts'``).
    """
    differences = schema_differences(expected, got)
    if differences:
        lines = "\n".join(f"  - {difference}" for difference in differences)
        raise StateError(
            f"{table}: the declaration differs from the existing table:\n{lines}\nColumns and types are fixed by the "
            "first commit. Give the state a new name, or backfill into a new data directory: jobs/replay.py --into."
        )


def _types(schema: pa.Schema) -> Mapping[str, str]:
    return {field.name: type_text(field.type) for field in schema}


def in_order(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Sort `table` by the columns `names`, nulls first: the canonical row order, independent of the writer."""
    names = [name for name in names if not _is_constant(table[name])]
    if not names:
        return table
    if len(names) == 1 and not table[names[0]].null_count:
        return table.take(pc.sort_indices(table[names[0]]))
    ranks = [_ranks(table[name].combine_chunks()) for name in names]
    known = [one for one in ranks if one is not None]
    if len(known) == len(names):
        return table.take(pa.array(order_of(*known)))
    order: dict[str, Any] = {}
    for i, name in enumerate(names):
        if table[name].null_count:
            order[f"valid{i}"] = pc.is_valid(table[name])
        order[f"value{i}"] = table[name]
    indices = pc.sort_indices(pa.table(order), sort_keys=[(name, "ascending") for name in order])
    return table.take(indices)


def _is_constant(column: pa.ChunkedArray) -> bool:
    """Whether all values of `column` are the same integer, like the txids of a group with a single txid."""
    if not pa.types.is_int64(column.type) or column.null_count:
        return False
    numbers = column.to_numpy()
    return bool((numbers == numbers[:1]).all())


def _ranks(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64] | None:
    """Return one number per value, such that the numbers sort like the values; None if that is not possible.

    Few rows have different texts, and sorting these is cheaper than comparing all rows.
    """
    if isinstance(column, pa.ChunkedArray) or column.null_count:
        return None
    kind = column.type
    if pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind):
        return np.asarray(column.cast(pa.int64()))
    if not pa.types.is_string(kind):
        return None
    encoded = column.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(rank))
    ranks: npt.NDArray[np.int64] = rank[np.asarray(encoded.indices)]
    return ranks
