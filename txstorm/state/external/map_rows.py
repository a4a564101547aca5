"""Map rows: encode a map's keys and values as JSON text, and convert a group's rows to and from staged files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.external import MapRow
from txstorm.errors import StateError
from txstorm.keys import canonical, decimal_text, plain_values
from txstorm.misfits import shown
from txstorm.storage.rows.schema import TXID

STAGED_SCHEMA = pa.schema(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()), pa.field("prev", pa.string()), TXID]
)


def key_text(key: Any, where: str) -> str:
    """Encode `key` as the text under which it is stored: JSON, in which ``1``, ``"1"`` and ``True`` differ.

    Raises:
        StateError: the key, or a part of it, has a type that is not allowed in keys.
    """
    parts = plain_values(key if isinstance(key, tuple) else (key,))
    try:
        canonical(parts)
    except StateError as error:
        raise StateError(f"{where}: key {shown(key)}: {error}") from None
    if any(isinstance(part, float) for part in parts):
        raise StateError(f"{where}: key {shown(key)}: a float cannot be part of a key; use a string or a whole number")
    told = [_key_part(part) for part in parts]
    return dumped(told if isinstance(key, tuple) else told[0])


def _key_part(part: Any) -> Any:
    """Encode one part of a key; a value of a type that JSON lacks becomes an object with one member named after it."""
    match part:
        case bytes():
            return {"bytes": part.hex()}
        case datetime():
            return {"time": part.isoformat()}
        case date():
            return {"date": part.isoformat()}
        case Decimal():
            return {"decimal": decimal_text(part)}
        case _:
            return part


def json_value(value: Any, where: str, key: Any) -> Any:
    """Copy `value` as a JSON round trip would (tuples become lists); raise `StateError` if it is not a JSON value."""
    if value is None:
        raise StateError(f"{where}, key {shown(key)}: None is no value; call remove to remove the key")
    try:
        return _copied(value)
    except (TypeError, ValueError) as error:
        raise StateError(
            f"{where}, key {shown(key)}: expected a JSON value (str, int, finite float, bool, list, or dict with str "
            f"keys), got {shown(value)}: {error}"
        ) from None


def _copied(value: Any) -> Any:
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        value.encode()  # a lone surrogate cannot be encoded as UTF-8
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) in (list, tuple):
        return [_copied(one) for one in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {_copied(name): _copied(one) for name, one in value.items()}
    raise TypeError(f"{type(value).__name__} {shown(value)} is none")


def dumped(value: Any) -> str:
    """Encode `value` as JSON text; equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def staged_table(rows: Mapping[str, MapRow]) -> pa.Table:
    """Convert the rows of a group, one per key, to a table for staging."""
    columns = [
        list(rows),
        [_text(row.value) for row in rows.values()],
        [_text(row.prev) for row in rows.values()],
        [row.txid for row in rows.values()],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, STAGED_SCHEMA, strict=True)]
    return pa.table(arrays, schema=STAGED_SCHEMA)


def staged_rows(data: bytes, timeline: int, *, keeps_txid: bool) -> dict[str, MapRow | None]:
    """Decode a staged file into the rows to write to a map, by key.

    `keeps_txid`: whether the map stores txids. If not, rows contain the value only, and None stands for a deletion.
    """
    staged = pq.read_table(pa.BufferReader(data), schema=STAGED_SCHEMA).to_pylist()
    rows = {one["key"]: MapRow(_value(one["value"]), one[TXID.name], timeline, _value(one["prev"])) for one in staged}
    if keeps_txid:
        return dict(rows)
    return {key: None if row.value is None else MapRow(row.value) for key, row in rows.items()}


def _text(value: Any) -> str | None:
    return None if value is None else dumped(value)


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)
