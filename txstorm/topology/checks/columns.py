"""Which column types a state or sink may have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pyarrow as pa

from txstorm.api.state import ARROW_TYPES, arrow_type

_TYPES = pa.types
_SCALARS = (
    _TYPES.is_string,
    _TYPES.is_binary,
    _TYPES.is_signed_integer,
    _TYPES.is_boolean,
    _TYPES.is_date32,
    _TYPES.is_decimal128,
)


def column_fault(declared: Any, *, key: bool) -> str | None:
    """Why a column cannot have the type `declared`, with what to do; None when it can.

    What is allowed is what Delta tables can hold without changing it, and, for keys, what has one spelling per value.
    """
    found = arrow_type(declared) if isinstance(declared, Hashable) else None
    if found is None:
        name = declared.__name__ if isinstance(declared, type) else repr(declared)
        return f"{name} is no column type; use {', '.join(one.__name__ for one in ARROW_TYPES)} or an Arrow type"
    return _key_fault(found) if key else _value_fault(found)


def has_order(declared: Any) -> bool:
    """Whether the rows of a collection can be ordered by a column of type `declared`: signed integers and times."""
    found = arrow_type(declared) if isinstance(declared, Hashable) else None
    return found is not None and (_TYPES.is_signed_integer(found) or found == pa.timestamp("us", tz="UTC"))


def _key_fault(found: pa.DataType) -> str | None:
    if _TYPES.is_floating(found):
        return f"{found} cannot be a key, since equal numbers may have different bits; use int, str or Decimal"
    if _TYPES.is_nested(found):
        return f"{found} cannot be a key; use one key column per part, or a str"
    return _value_fault(found)


def _value_fault(found: pa.DataType) -> str | None:
    if any(check(found) for check in _SCALARS) or _TYPES.is_float32(found) or _TYPES.is_float64(found):
        return None
    if _TYPES.is_timestamp(found):
        utc = found == pa.timestamp("us", tz="UTC")
        return None if utc else f"{found} is not in UTC microseconds; use datetime or pa.timestamp('us', tz='UTC')"
    if _TYPES.is_nested(found) and not _TYPES.is_union(found):
        inner = (_value_fault(found.field(i).type) for i in range(found.num_fields))
        return next((fault for fault in inner if fault), None)
    return f"a Delta table cannot hold {found} as it is; use {_nearest(found)}"


def _nearest(found: pa.DataType) -> str:
    if _TYPES.is_unsigned_integer(found):
        return "int (pa.int64())"
    if _TYPES.is_large_string(found) or _TYPES.is_dictionary(found):
        return "str (pa.string())"
    if _TYPES.is_large_binary(found) or _TYPES.is_fixed_size_binary(found):
        return "bytes (pa.binary())"
    return "one of " + ", ".join(one.__name__ for one in ARROW_TYPES)
