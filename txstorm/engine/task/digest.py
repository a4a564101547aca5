"""Digest of the rows emitted by a spout task, for spouts that do not provide digests themselves.

It depends only on the rows: a replay may emit them in different chunks, or as slices of larger Arrow batches, whose
buffers also hold bytes outside the slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.engine.task.collector import Emitted
from txstorm.keys import filled

_NUMBERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def digest_of_rows(emitted: Iterable[Emitted]) -> str:
    """Compute the digest of the emitted rows, taken in order per stream and, for direct streams, per target task."""
    streams: dict[tuple[str, int], _Rows] = {}
    for one in emitted:
        key = (one.stream, -1 if one.direct is None else one.direct)
        streams.setdefault(key, _Rows(one.batch.num_columns)).add(one.batch)
    whole = _new()
    for key in sorted(streams):
        whole.update(f"{key}{streams[key].rows}".encode() + streams[key].digest())
    return str(whole.hexdigest())


def missing_digests(
    task: str,
    emitted: Sequence[Emitted],
    given: Collection[str],
    sources: Sequence[str],
    source_of: Callable[[str], str],
) -> dict[str, str]:
    """Compute digests of the rows emitted by a spout task, for each of `sources` that has not provided a digest.

    Args:
        task: description of the task, such as ``task 0 of 4``, used to name the digests.
        emitted: everything that the task emitted.
        given: the partitions with known digests; for a named source, they are prefixed with its name.
        sources: the names of the spout's sources, or one empty name.
        source_of: returns the source that emits to a given stream.
    """
    digests = {}
    for source in sources:
        prefix = f"{source}/" if source else ""
        if not any(partition.startswith(prefix) for partition in given):
            rows = (one for one in emitted if source_of(one.stream) == source)
            digests[f"{prefix}{task}"] = digest_of_rows(rows)
    return digests


def _new() -> Any:
    return hashlib.blake2b(digest_size=16)


class _Rows:
    def __init__(self, columns: int) -> None:
        self.rows = 0
        self._columns = [_Column() for _ in range(columns)]

    def add(self, batch: pa.RecordBatch) -> None:
        for column, field, values in zip(self._columns, batch.schema, batch.columns, strict=True):
            column.add(values, f"{field.type}{field.metadata}", self.rows)
        self.rows += batch.num_rows

    def digest(self) -> bytes:
        return b"".join(column.digest() for column in self._columns)


class _Column:
    """Digests of one column: of its values, the lengths of variable-length values, and the null positions."""

    def __init__(self) -> None:
        self._kind = ""
        self._values, self._lengths, self._nulls = _new(), _new(), _new()

    def add(self, column: pa.Array, kind: str, row: int) -> None:
        if kind != self._kind:
            self._kind = kind
            self._nulls.update(f"{kind} from {row}".encode())
        if column.null_count:
            self._nulls.update(np.flatnonzero(np.asarray(column.is_null())) + row)
        values, lengths = _contents(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)
        self._values.update(values)
        if lengths is not None:
            self._lengths.update(lengths)

    def digest(self) -> bytes:
        return b"".join(part.digest() for part in (self._values, self._lengths, self._nulls))


def _contents(column: pa.Array) -> tuple[Any, Any]:
    """Return the bytes of the values, and their lengths if they vary; bytes at null positions are omitted."""
    kind = column.type
    if pa.types.is_null(kind):
        return b"", None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(filled(column, "" if pa.types.is_string(kind) else b""))
    if pa.types.is_boolean(kind):
        return np.asarray(filled(column, False)).astype(np.uint8), None
    if pa.types.is_primitive(kind) and kind.bit_width in _NUMBERS:
        return np.ascontiguousarray(filled(column.view(_NUMBERS[kind.bit_width]), 0)), None
    return "".join(f"{value!r}\n" for value in column.to_pylist()).encode("utf-8", "surrogatepass"), None


def _texts(column: pa.Array) -> tuple[Any, Any]:
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    values = memoryview(data)[offsets[0] : offsets[-1]] if data is not None else b""
    return values, np.diff(offsets)
