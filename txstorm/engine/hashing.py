"""Hashes of rows: equal values have equal ones, whichever way their columns travel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api import keys
from txstorm.engine.arrow import column_values, is_tagged_column, text_of
from txstorm.errors import EmitError, StateError


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
    try:
        return keys.hash_value(text_of(value, ""))
    except EmitError:
        return keys.hash_value(repr(value))
