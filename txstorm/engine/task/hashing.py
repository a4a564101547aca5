"""Hashes of rows: equal values have equal ones, however they are written and whichever way their columns travel."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm import keys
from txstorm.engine.arrow import column_values, is_tagged_column, text_of
from txstorm.errors import EmitError, StateError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_hashes(batch: pa.RecordBatch, columns: Iterable[int]) -> keys.Hashes:
    """One hash per row of the columns with these indices; that of `keys.hash_values` where they can be keys."""
    return keys.chained([_column_hashes(batch, index) for index in columns], batch.num_rows)


def _column_hashes(batch: pa.RecordBatch, index: int) -> keys.Hashes:
    if not is_tagged_column(batch, index):
        try:
            return keys.hash_column(batch.column(index))
        except (StateError, pa.ArrowInvalid):
            pass  # lists, structs, numbers beyond 64 bits: value by value
    return np.array([_value_hash(value) for value in column_values(batch, index)], dtype=np.uint64)


def _value_hash(value: Any) -> int:
    try:
        return keys.hash_value(value)
    except StateError:
        pass  # what cannot be part of a key is hashed as the text it travels as
    plain = _plain(value)
    with suppress(StateError):
        return keys.hash_value(plain)
    return keys.hash_value(_text(plain))


def _text(value: Any) -> str:
    try:
        return text_of(value, "")
    except EmitError:
        return repr(value)


def _plain(value: Any) -> Any:
    """The one of all values equal to `value` that stands for them, also within tuples, lists, dicts and sets."""
    if isinstance(value, float):
        return value + 0.0  # no negative zero
    if isinstance(value, Decimal):
        return keys.plain_decimal(value)
    if isinstance(value, datetime) and value.tzinfo is not None and not getattr(value, "nanosecond", 0):
        # Arrow gives a subclass for columns in nanoseconds.
        return _EPOCH + timedelta(microseconds=(value - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, dict):
        parts = {_plain(key): _plain(part) for key, part in value.items()}
        return dict(sorted(parts.items(), key=lambda item: _text(item[0])))
    if isinstance(value, tuple | list | frozenset | set):
        kind = next(kind for kind in (tuple, list, frozenset, set) if isinstance(value, kind))
        return kind(map(_plain, value))
    return value
