"""Formats whose records are lines of bytes: text, CSV and JSON-lines; ranges are bytes."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from txstorm.api.output import Collector
from txstorm.errors import SpoutError
from txstorm.spouts.extents import DIGEST_BYTES, Block, Segment
from txstorm.spouts.listing import unreadable

Offsets = npt.NDArray[np.int64]
READ_BYTES = 1 << 20
LARGEST_RECORD = 1 << 30
_BOM = b"\xef\xbb\xbf"
_MAGIC = {b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


def read_range(path: str, start: int, size: int) -> bytes:
    """At most `size` bytes of `path` from `start` on; raises `SpoutError` when the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)
    except OSError as error:
        raise unreadable(path, error) from None


@dataclass(frozen=True)
class LineFormat:
    """What the three formats share: finding records, reading a range again, UTF-8.

    Attributes:
        fields: names of the fields.
        errors: ``strict``: bytes that are not UTF-8 are an error; ``replace``: they become U+FFFD.
    """

    fields: tuple[str, ...]
    errors: str = "strict"

    def probe(self, path: str) -> None:
        """Raises `SpoutError` when `path` cannot be read or is plainly of another format."""
        head = read_range(path, 0, 4)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                msg = f"file spout: {path} holds {kind} data, expected lines of text; unpack it or give its format="
                raise SpoutError(msg)

    def block(self, path: str, offset: int) -> Block:
        """The records from `offset` on, as far as one read goes; more when not one whole record fits."""
        start = offset or self.start(path)
        size = READ_BYTES
        data = read_range(path, start, size)
        if not data:
            _require(path, start)
        ends = self.boundaries(data)
        while not len(ends) and len(data) == size:
            size = _doubled(path, start, size)
            data = read_range(path, start, size)
            ends = self.boundaries(data)
        tail = data[ends[-1] if len(ends) else 0 :] if len(data) < size else b""
        open_ended = self.is_record(tail, path, start + len(data) - len(tail))
        if open_ended:
            ends = np.append(ends, len(data))
        view = memoryview(data)
        return Block(
            path, start, ends + start, start + len(data), open_ended, 1.0, lambda a, b: view[a - start : b - start]
        )

    def start(self, path: str) -> int:
        """Where the first record of `path` begins: after a byte order mark."""
        return len(_BOM) if read_range(path, 0, len(_BOM)) == _BOM else 0

    def resume(self, path: str, offset: int) -> int:
        """Where the next record begins after one without a line end: `offset`, or after the line end that came.

        Raises:
            SpoutError: the file grew inside that line.
        """
        more = read_range(path, offset, 2)
        if not more:
            return offset
        if more.startswith((b"\n", b"\r\n")):
            return offset + more.index(b"\n") + 1
        msg = (
            f"file spout: {path} grew inside its last line, which had no line end and was read up to {offset}; "
            "end every line before the spout sees it (write elsewhere, then rename)"
        )
        raise SpoutError(msg)

    def extent(self, path: str, size: int) -> int:
        """The offset at the end of a file of `size` bytes."""
        return size

    def boundaries(self, data: bytes) -> Offsets:
        """Where the records end that end in `data`, which begins with a record."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1

    def is_record(self, tail: bytes, path: str, offset: int) -> bool:
        """Whether `tail`, what follows the last line end of the file, is a record."""
        return bool(tail)

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Read `segment` again, check that it is what was planned, and emit its records."""
        size = segment.stop - segment.start
        data = read_range(segment.file, segment.start, size)
        if len(data) < size:
            how = f"expected {size} bytes, got {len(data)}"
            raise segment.changed(how)
        segment.verify(blake2b(data, digest_size=DIGEST_BYTES).hexdigest())
        self.decode(self._utf8(data, segment), segment, collector)

    def decode(self, data: bytes, segment: Segment, collector: Collector) -> None:
        """Emit the records of `data`, which is valid UTF-8."""
        raise NotImplementedError

    def _utf8(self, data: bytes, segment: Segment) -> bytes:
        if data.isascii():
            return data
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.errors == "replace":
                return data.decode("utf-8", "replace").encode("utf-8")
            msg = (
                f"file spout: {segment.file}: byte {data[error.start]:#04x} at offset {segment.start + error.start} "
                "is not UTF-8; convert the file, or read it with errors='replace'"
            )
            raise SpoutError(msg) from None
        return data


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """One record a line; blank lines are records."""

    def decode(self, data: bytes, segment: Segment, collector: Collector) -> None:
        """Emit one column, made from the bytes without touching a single line."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        if len(ends) < segment.rows:
            ends = np.append(ends, len(data))
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends - np.arange(len(ends))
        buffers = pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))
        column = pa.StringArray.from_buffers(len(ends), *buffers)
        collector.emit_batch(pa.RecordBatch.from_arrays([column], names=list(self.fields)))


@dataclass(frozen=True)
class _SkippingBlanks(LineFormat):
    def boundaries(self, data: bytes) -> Offsets:
        return _without_blanks(data, super().boundaries(data))

    def is_record(self, tail: bytes, path: str, offset: int) -> bool:
        return bool(tail.strip(b"\r\n"))


@dataclass(frozen=True)
class JsonLinesFormat(_SkippingBlanks):
    """One JSON object a line; a key that is missing gives None."""

    def decode(self, data: bytes, segment: Segment, collector: Collector) -> None:
        """Emit one tuple a line."""
        lines = data.decode("utf-8").split("\n")
        for number, line in enumerate(lines):
            if line and line != "\r":
                record = _json_object(line, segment, lines, number)
                collector.emit(*[record.get(name) for name in self.fields])


def json_fields(path: str, errors: str) -> tuple[str, ...] | None:
    """The keys of the first record of `path`, in their order; None when it has no record."""
    block = JsonLinesFormat((), errors).block(path, 0)
    if not len(block.ends):
        return None
    first = bytes(block.raw(block.start, int(block.ends[0]))).decode("utf-8", "replace")
    segment = Segment(path, block.start, int(block.ends[0]), 1, "")
    return tuple(_json_object(first.strip("\r\n"), segment, [], 0))


def _json_object(line: str, segment: Segment, lines: list[str], number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
        wrong = None if isinstance(record, dict) else f"expected an object, got {type(record).__name__}"
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong is not None:
        offset = segment.start + sum(len(one.encode("utf-8")) + 1 for one in lines[:number])
        msg = f"file spout: {segment.file}: the line at offset {offset} is no JSON record: {wrong}: {line[:80]!r}"
        raise SpoutError(msg)
    return record  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CsvFormat(_SkippingBlanks):
    """Comma-separated values as in RFC 4180; values are text unless `types` says otherwise.

    Attributes:
        columns: all columns of the files, in order; `fields` are those emitted.
        types: column → Arrow type; an empty value of such a column is None.
        delimiter: one ASCII character.
        header: every file begins with a record of the names of its columns.
    """

    columns: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict, hash=False)
    delimiter: str = ","
    header: bool = True

    def boundaries(self, data: bytes) -> Offsets:
        """Line ends outside quotes: those with an even number of quotes before them."""
        bytes_ = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(bytes_ == 10)
        if b'"' in data:
            ends = ends[np.searchsorted(np.flatnonzero(bytes_ == 34), ends) % 2 == 0]
        return _without_blanks(data, ends + 1)

    def is_record(self, tail: bytes, path: str, offset: int) -> bool:
        """Whether something but line ends is left; an open quote cannot be closed any more."""
        if tail.count(b'"') % 2:
            msg = f"file spout: {path}: a quote opened in the record at offset {offset} is never closed; mend the file"
            raise SpoutError(msg)
        return super().is_record(tail, path, offset)

    def start(self, path: str) -> int:
        """After the byte order mark and the header, which must name the columns."""
        start, columns = csv_header(path, self.delimiter) if self.header else (super().start(path), self.columns)
        if columns not in ((), self.columns):
            msg = f"file spout: {path}: expected the header {list(self.columns)}, got {list(columns)}"
            raise SpoutError(msg + "; all files need the same")
        return start

    def probe(self, path: str) -> None:
        """Raises `SpoutError` unless `path` is text and has the header."""
        super().probe(path)
        self.start(path)

    def decode(self, data: bytes, segment: Segment, collector: Collector) -> None:
        """Emit columns, parsed by Arrow."""
        try:
            table = pa_csv.read_csv(pa.py_buffer(data), *self._options(len(data)))
        except pa.ArrowInvalid as error:
            msg = f"file spout: {segment.name}: {error}; mend the file or the types"
            raise SpoutError(msg) from None
        if len(table) != segment.rows:
            msg = (
                f"file spout: {segment.name}: expected {segment.rows} records, parsed {len(table)}; a value with a "
                "quote or a lone carriage return in it is not quoted: quote it, and double the quotes in it"
            )
            raise SpoutError(msg)
        collector.emit_batch(table)

    def _options(self, size: int) -> Iterable[Any]:
        types = {name: self.types.get(name, pa.string()) for name in self.columns}
        return (
            pa_csv.ReadOptions(use_threads=False, block_size=size + 1, column_names=list(self.columns)),
            pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=False, include_columns=list(self.fields)
            ),
        )


def csv_header(path: str, delimiter: str) -> tuple[int, tuple[str, ...]]:
    """Where the header of `path` ends, and its names; no names when the file is empty."""
    plain = CsvFormat((), header=False)
    block = plain.block(path, 0)
    if not len(block.ends):
        return block.start, ()
    end = int(block.ends[0])
    text = bytes(block.raw(block.start, end)).decode("utf-8", "replace").strip("\r\n")
    names = tuple(next(csv.reader([text], delimiter=delimiter)))
    if len(set(names)) < len(names) or not all(names):
        msg = f"file spout: {path}: the header {list(names)} has a name twice or an empty one; mend it"
        raise SpoutError(msg)
    return end, names


def _without_blanks(data: bytes, ends: Offsets) -> Offsets:
    starts = np.concatenate(([0], ends[:-1]))[: len(ends)]
    length = ends - starts
    if not len(ends) or length.min() > 2:
        return ends
    carriage = np.frombuffer(data, np.uint8)[starts] == 13
    kept: Offsets = ends[(length > 2) | ((length == 2) & ~carriage)]
    return kept


def _require(path: str, offset: int) -> None:
    size = os.stat(path).st_size
    if size < offset:
        msg = f"file spout: {path} shrank: expected the {offset} bytes that were read, got {size}; put it back"
        raise SpoutError(msg)


def _doubled(path: str, start: int, size: int) -> int:
    if size >= LARGEST_RECORD:
        msg = f"file spout: {path}: the record at offset {start} has no end within {size} bytes; is its format right?"
        raise SpoutError(msg)
    return size * 2
