"""Parquet format of the file spout; ranges are in rows, and digests cover the bytes of all row groups involved."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.api.output import Collector, Refusals
from txstorm.errors import SpoutError
from txstorm.spouts.files.lines import KEPT, SHOWN, is_utf8, read_range
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import DIGEST_BYTES, Block, Segment
from txstorm.typed import NO_TIME, rows_out_of_range, unfit

MAGIC = b"PAR1"
Numbers = np.ndarray[Any, Any]
SHORTEST = 12
"""Bytes of the shortest Parquet file: the magic number twice, and the length of the footer."""


@dataclass(frozen=True)
class RowGroup:
    """One row group: its number, its rows [start, stop), and its byte range in the file."""

    number: int
    start: int
    stop: int
    first_byte: int
    last_byte: int

    def touches(self, segment: Segment) -> bool:
        """Return whether the row group has rows in `segment`."""
        return self.start < segment.stop and segment.start < self.stop


class _Read:
    """Cached row group: its bytes are read and digested immediately, and decoded on demand."""

    def __init__(self, path: str, group: RowGroup, fields: tuple[str, ...]) -> None:
        self.digest = _digest(path, group)
        self._path, self._group, self._fields = path, group, list(fields)
        self._rows: pa.Table | None = None

    def rows(self) -> pa.Table:
        if self._rows is None:
            self._rows = self._decoded().select(self._fields)
        return self._rows

    def _decoded(self) -> pa.Table:
        file = parquet_file(self._path)
        try:
            return file.read_row_group(self._group.number, columns=self._fields, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            msg = f"file spout: {self._path}: row group {self._group.number} cannot be decoded: {error}; replace it"
            raise SpoutError(msg) from None


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet format: emits Arrow columns; ranges are in rows.

    Attributes:
        fields: the columns emitted.
        schema: schema of all columns, the same in every file.
    """

    fields: tuple[str, ...]
    schema: pa.Schema
    _last: dict[tuple[str, RowGroup], _Read] = field(default_factory=dict, compare=False, repr=False)

    def probe(self, path: str) -> None:
        """Raise `SpoutError` unless `path` is a Parquet file with the schema."""
        self._row_groups(path)

    def block(self, path: str, offset: int) -> Block:
        """Return the row group that contains row `offset`."""
        groups = list(self._row_groups(path))
        group = next((one for one in groups if offset < one.stop), None)
        if group is None:
            self._require(path, offset)
            return Block(path, offset, np.empty(0, np.int64), _size(path), False, True, 1.0, _token(""))
        ends = np.arange(group.start + 1, group.stop + 1)
        width = (group.last_byte - group.first_byte) / len(ends)
        whole = group.stop == groups[-1].stop
        return Block(path, group.start, ends, _size(path), False, whole, width, _token(_digest(path, group)))

    def _require(self, path: str, offset: int) -> None:
        rows = self.extent(path, 0)
        if rows < offset:
            msg = f"file spout: {path} shrank: expected the {offset} rows that were read, got {rows}; restore it"
            raise SpoutError(msg)

    def resume(self, path: str, offset: int) -> int:
        """Return `offset` unchanged, since a row is never incomplete."""
        return offset

    def extent(self, path: str, size: int) -> int:
        """Return the number of rows."""
        return int(parquet_file(path).metadata.num_rows)

    def trail(self, path: str, chain: str, since: int, upto: int) -> tuple[str, str]:
        """Extend a running digest of the row groups of `path` by those that begin from `since` to `upto`."""
        groups = [group for group in self._row_groups(path) if since <= group.start < upto]
        for group in groups:
            content = f"{chain}{_digest(path, group)}:{group.stop - group.start}"
            chain = blake2b(content.encode(), digest_size=DIGEST_BYTES).hexdigest()
        return chain, chain if upto <= self.extent(path, 0) else ""

    def is_complete(self, path: str) -> bool:
        """Return whether `path` has its footer."""
        return has_footer(path)

    def reread(self, segment: Segment) -> list[RowGroup]:
        """Return the row groups with rows of `segment`; raise `SpoutError` if those have changed."""
        touched = [group for group in self._row_groups(segment.file) if group.touches(segment)]
        digest = blake2b(digest_size=DIGEST_BYTES)
        for group in touched:
            token = _token(self._cached(segment.file, group).digest)
            digest.update(token(max(segment.start, group.start), min(segment.stop, group.stop)))
        segment.verify(digest.hexdigest())
        return touched

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Reread `segment`, and emit its rows."""
        for group in self.reread(segment):
            rows = self._cached(segment.file, group).rows()
            start, stop = max(segment.start, group.start), min(segment.stop, group.stop)
            rows = rows.slice(start - group.start, stop - start)
            emit_rows(rows, f"file spout: {segment.file}", range(start, stop), collector)

    def _cached(self, path: str, group: RowGroup) -> _Read:
        # The txids of a pack read neighbouring ranges of a row group, which can only be read as a whole.
        read = self._last.get((path, group))
        if read is None:
            read = _Read(path, group, self.fields)
            self._last.clear()
            self._last[path, group] = read
        return read

    def _row_groups(self, path: str) -> Iterator[RowGroup]:
        file = parquet_file(path)
        if not file.schema_arrow.equals(self.schema):
            msg = f"file spout: {path}: expected the columns {_shown(self.schema)}, got {_shown(file.schema_arrow)}"
            raise SpoutError(msg + "; all files need the same")
        return _row_groups(file.metadata)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": {}}


def emit_rows(rows: pa.Table, place: str, numbers: Sequence[int] | Numbers, collector: Collector) -> None:
    """Emit `rows`; those with values that Python cannot represent are refused, with `place` and their numbers."""
    bad = sorted({row for column in rows.columns for row in _bad(column)})
    if bad:
        messages, records = [], []
        names, values = rows.schema.names, [_described(column) for column in rows.take(bad).columns]
        for row, given in zip(bad, zip(*values, strict=True), strict=True):
            fault = next(f"column {name!r}: {why}" for name, (_, why) in zip(names, given, strict=True) if why)
            text = ", ".join([f"{name}={text}" for name, (text, _) in zip(names, given, strict=True)])
            number, path = int(numbers[row]), place.partition(": ")[2]
            messages.append(f"{place}, row {number}: {fault}: {text[:SHOWN]}; correct it")
            records.append(json.dumps({"file": path, "row": number, "text": text[:KEPT]}))
        Refusals(messages, records, [None] * len(bad)).give(collector)
        rows = rows.take(np.delete(np.arange(rows.num_rows), bad))
    collector.emit_batch(rows)


def _bad(column: pa.ChunkedArray) -> list[int]:
    """Return the rows that Python cannot represent, such as invalid UTF-8 or a time beyond the year 9999."""
    found = rows_out_of_range(column)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            odd = pc.indices_nonzero(pc.invert(pc.string_is_ascii(column))).to_pylist()
            return [row for row, text in zip(odd, _raw(column).take(odd).to_pylist(), strict=True) if not is_utf8(text)]
        found += unfit(column, column.type, lambda part, _: part.to_pylist(), [(0, len(column))])
    return found


def _described(column: pa.ChunkedArray) -> list[tuple[str, str]]:
    """Return each value as text, with the reason why Python cannot represent it; empty if it can."""
    far, found = set(rows_out_of_range(column)), list[tuple[str, str]]()
    if not far:
        with suppress(ValueError, OverflowError, pa.ArrowException):
            return [(_text(value), "") for value in column.to_pylist()]
    numbers = _raw(column).to_pylist() if pa.types.is_timestamp(column.type) else []
    for row, given in enumerate(column):
        if numbers and row in far:
            found.append((repr(numbers[row]), NO_TIME))
            continue
        try:
            text, why = _text(given.as_py()), ""
        except (ValueError, OverflowError, pa.ArrowException) as error:
            text, why = _raw_text(column.slice(row, 1)), f"{type(error).__name__}: {error}"
        found.append((text, NO_TIME if row in far else why))
    return found


def _text(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else repr(value)


def _raw(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the bytes of texts, or the numbers of times."""
    kind = column.type
    return column.cast(pa.binary() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else pa.int64())


def _raw_text(column: pa.ChunkedArray) -> str:
    """Return the only value of `column`, which Python cannot represent, as text."""
    try:
        return repr(_raw(column)[0].as_py())
    except (ValueError, OverflowError, pa.ArrowException):
        return "?"


def has_footer(path: str) -> bool:
    """Return whether `path` is complete; True also if it is no Parquet file at all, which is an error of its own."""
    size = _size(path)
    head, tail = read_range(path, 0, len(MAGIC)), read_range(path, max(0, size - len(MAGIC)), len(MAGIC))
    return not MAGIC.startswith(head) if size < SHORTEST else head != MAGIC or tail == MAGIC


def parquet_file(path: str) -> pq.ParquetFile:
    """Open `path`; raise `SpoutError` if it cannot be read or is not a Parquet file."""
    try:
        return pq.ParquetFile(path)
    except OSError as error:
        raise unreadable(path, error) from None
    except pa.ArrowInvalid as error:
        raise SpoutError(f"file spout: {path} is not a Parquet file: {error}; check its format") from None


def _row_groups(metadata: Any) -> Iterator[RowGroup]:
    start = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        firsts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        lasts = [first + column.total_compressed_size for first, column in zip(firsts, columns, strict=True)]
        yield RowGroup(number, start, start + group.num_rows, min(firsts), max(lasts))
        start += group.num_rows


def _digest(path: str, group: RowGroup) -> str:
    data = read_range(path, group.first_byte, group.last_byte - group.first_byte)
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _token(group_digest: str) -> Any:
    return lambda start, stop: f"{group_digest}:{start}-{stop};".encode()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise unreadable(path, error) from None


def _shown(schema: pa.Schema) -> list[str]:
    return [f"{column.name}: {column.type}" for column in schema]
