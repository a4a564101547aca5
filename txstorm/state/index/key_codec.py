"""Key codec: encode the keys of a state as bytes, whole columns at a time.

A key is encoded as its key group (two bytes, big-endian) and its canonical bytes (`txstorm.keys.canonical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.keys import canonical, hash_rows, key_groups
from txstorm.typed import python_values

NOTHING = pa.scalar(b"", pa.binary())
_NULL_KEY = pa.scalar(canonical([None]), pa.binary())
_TEXT_TAGS = ((pa.types.is_string, b"s"), (pa.types.is_binary, b"b"))
_WORD_TAGS = ((pa.types.is_integer, b"i"), (pa.types.is_boolean, b"t"), (pa.types.is_date32, b"d"),
              (pa.types.is_timestamp, b"T"))  # fmt: skip
_HEAD = np.dtype([("tag", "S1"), ("size", "<u4")])
_WORD = np.dtype([("tag", "S1"), ("size", "<u4"), ("bits", "<i8")])


@dataclass(frozen=True)
class PackedKeys:
    """Encoded keys, concatenated in one buffer.

    Attributes:
        hashes: a stable hash of each key.
        ends: 0, followed by the end offset of each key in `content`.
        content: the encoded keys; distinct keys differ in their bytes or in their hashes.
    """

    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    content: npt.NDArray[np.uint8]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each key, in bytes."""
        return np.diff(self.ends)

    def taken(self, which: npt.NDArray[np.int64]) -> PackedKeys:
        """Select the keys at the positions `which`."""
        sizes = self.sizes[which]
        content = self.content[ranges(self.ends[which], sizes)]
        return PackedKeys(self.hashes[which], np.concatenate([[0], np.cumsum(sizes)]), content)


def ranges(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Concatenate ranges of consecutive integers, given their starts and sizes."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def packed_keys(columns: Sequence[pa.Array], rows: int) -> PackedKeys:
    """Encode the keys of `rows` rows, given their key columns."""
    hashes = hash_rows(columns, rows)
    if not columns:
        return PackedKeys(hashes, np.zeros(rows + 1, np.int64), np.empty(0, np.uint8))
    if len(columns) == 1 and any(fits(columns[0].type) for fits, _ in _WORD_TAGS):
        words = _whole_numbers(columns[0])
        return PackedKeys(hashes, np.arange(0, 8 * rows + 1, 8), np.ascontiguousarray(words).view(np.uint8))
    if len(columns) == 1 and any(fits(columns[0].type) for fits, _ in _TEXT_TAGS):
        whole = columns[0].cast(pa.binary())
    else:
        whole = pc.binary_join_element_wise(*chain.from_iterable(map(_canonical_parts, columns)), NOTHING)
    _, ends, content = whole.buffers()
    offsets = np.frombuffer(ends, np.int32)[whole.offset : whole.offset + rows + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content is not None else np.empty(0, np.uint8)
    return PackedKeys(hashes, offsets - offsets[0], data)


def key_bytes(columns: Sequence[pa.Array], rows: int) -> list[bytes]:
    """Encode every key as bytes; `columns` are the key columns of `rows` rows."""
    groups = key_groups(columns, rows).astype(">u2")
    if not columns:
        return [groups[:1].tobytes()] * rows
    parts = chain.from_iterable(map(_canonical_parts, columns))
    made: list[bytes] = pc.binary_join_element_wise(binary(groups), *parts, NOTHING).to_pylist()
    return made


def _canonical_parts(column: pa.Array) -> Sequence[pa.Array]:
    """Return binary columns whose row-wise concatenation is the canonical encoding of `column`."""
    parts = _parts_without_nulls(column)
    if not column.null_count:
        return parts
    return [pc.if_else(column.is_null(), _NULL_KEY, pc.binary_join_element_wise(*parts, NOTHING))]


def _parts_without_nulls(column: pa.Array) -> Sequence[pa.Array]:
    kind = column.type
    tag = next((tag for fits, tag in _TEXT_TAGS if fits(kind)), None)
    if tag is not None:
        content = column.cast(pa.binary())
        content = content.fill_null(b"") if content.null_count else content
        head = np.zeros(len(column), _HEAD)
        head["tag"], head["size"] = tag, np.asarray(pc.binary_length(content))
        return [binary(head), content]
    if (tag := next((tag for fits, tag in _WORD_TAGS if fits(kind)), None)) is not None:
        word = np.zeros(len(column), _WORD)
        word["tag"], word["size"], word["bits"] = tag, 8, _whole_numbers(column)
        return [binary(word)]
    return [pa.array([canonical([value]) for value in python_values(column)], pa.binary())]


def _whole_numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.asarray(column.cast(pa.int64()).fill_null(0))


def binary(records: npt.NDArray[Any]) -> pa.Array:
    """View fixed-width records as one Arrow array of binary values."""
    width, count = records.dtype.itemsize, len(records)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), count, [None, pa.py_buffer(np.ascontiguousarray(records))]
    ).cast(pa.binary())
