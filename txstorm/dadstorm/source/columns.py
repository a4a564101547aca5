"""Columns of tuples: the rules of `txstorm.dadstorm.values` for Arrow columns of lists, each the fields of a tuple."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.dadstorm.values import BLANKS, Fields, split_line, test_of, value

TUPLES = pa.list_(pa.string())


def split_lines(texts: pa.StringArray) -> pa.ListArray:
    """Return the tuples of lines that are neither comments nor empty."""
    split = pc.split_pattern(texts, ",")
    fields = split.flatten()
    if pc.any(pc.match_substring(fields, '"')).as_py():
        odd = np.asarray(pc.bit_wise_and(pc.count_substring(fields, '"'), 1))
        if odd.any():  # a comma inside of quotes, or one that is not closed
            return tuples_of([split_line(one) or () for one in texts.to_pylist()])
    return pa.ListArray.from_arrays(split.offsets, pc.utf8_trim(fields, BLANKS))


def tuples_of(tuples: Sequence[Fields]) -> pa.ListArray:
    """Return tuples as a column."""
    return pa.array(tuples, TUPLES)


def fields_of(tuples: pa.ListArray) -> list[Fields]:
    """Return the tuples of a column."""
    fields, offsets = tuples.flatten().to_pylist(), np.asarray(tuples.offsets)
    sizes = np.diff(offsets)
    if len(sizes) and (sizes == (size := max(1, int(sizes[0])))).all():
        return list(zip(*[iter(fields)] * size, strict=True))
    starts = (offsets - offsets[0]).tolist() if len(sizes) else [0]
    return [tuple(fields[start:stop]) for start, stop in pairwise(starts)]


def values_at(tuples: pa.ListArray, number: int) -> pa.StringArray:
    """Return the value of a field, counted from 1, of each tuple; null for tuples with fewer fields."""
    offsets = np.asarray(tuples.offsets)
    at = offsets[:-1] + (number - 1)
    fields = tuples.values.take(pa.array(at, mask=at >= offsets[1:]))
    quoted = pc.and_(pc.starts_with(fields, '"'), pc.ends_with(fields, '"'))
    if not pc.any(quoted).as_py():
        return fields
    codes = fields.dictionary_encode()
    plain = pa.array([value(one) for one in codes.dictionary.to_pylist()], pa.string())
    return plain.take(codes.indices)


def holding(found: pa.StringArray, condition: str, wanted: str) -> Any:
    """Return whether a condition of FILTER holds, for each value; None for null."""
    codes = found.dictionary_encode()
    test = test_of(condition, wanted)
    return pa.array([test(one) for one in codes.dictionary.to_pylist()], pa.bool_()).take(codes.indices)
