"""Line-based formats of the file spout, text and JSON-lines, and their base, which CSV shares; ranges are in bytes.

It is one module, as all of them find their records, name their places and refuse the invalid ones in one way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.api.output import Collector
from txstorm.errors import LEAVE_OUT, SpoutError
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import DIGEST_BYTES, Block, Segment
from txstorm.spouts.json_objects import JsonObjects
from txstorm.typed import Misfit

Offsets = npt.NDArray[np.int64]
READ_BYTES = 1 << 20
CHAINED = 1 << 16
"""Bytes after which a running digest of a file is chained; `READ_BYTES` is a multiple."""
LARGEST_RECORD = 1 << 30
_BOM = b"\xef\xbb\xbf"
_MAGIC = {b"\x1f\x8b": "gzip", b"PAR1": "Parquet", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


def read_range(path: str, start: int, size: int) -> bytes:
    """Read at most `size` bytes of `path` from `start` on; raise `SpoutError` if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)
    except OSError as error:
        raise unreadable(path, error) from None


@dataclass(frozen=True)
class LineFormat:
    """Base of the three text formats: finds record boundaries, rereads ranges, and decodes UTF-8.

    Attributes:
        fields: names of the fields.
        errors: ``strict``: invalid UTF-8 is an error; ``replace``: it becomes U+FFFD.
    """

    fields: tuple[str, ...]
    errors: str = "strict"

    def probe(self, path: str) -> None:
        """Raise `SpoutError` if `path` cannot be read or is recognizably in another format."""
        head = read_range(path, 0, 4)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                msg = f"file spout: {path} holds {kind} data, expected lines of text; unpack it or give its format="
                raise SpoutError(msg)

    def block(self, path: str, offset: int) -> Block:
        """Read the records from `offset` on: one block, enlarged until at least one whole record fits."""
        start = offset or self.start(path)
        size = READ_BYTES
        data = read_range(path, start, size)
        if not data:
            _require(path, start)
        ends = self.boundaries(data, final=len(data) < size)
        while not len(ends) and len(data) == size:
            size = _doubled(path, start, size)
            data = read_range(path, start, size)
            ends = self.boundaries(data, final=len(data) < size)
        tail = data[ends[-1] if len(ends) else 0 :] if len(data) < size else b""
        open_ended = self.is_record(tail)
        if open_ended:
            ends = np.append(ends, len(data))
        view = memoryview(data)
        raw = lambda a, b: view[a - start : b - start]  # noqa: E731 - short
        return Block(path, start, ends + start, start + len(data), open_ended, len(data) < size, 1.0, raw)

    def trail(self, path: str, chain: str, since: int, upto: int) -> tuple[str, str]:
        """Extend a running digest of the beginning of `path` from `since` to `upto`; see `Format`."""
        at, digest = since - since % CHAINED, chain
        while at < upto:
            data = read_range(path, at, min(READ_BYTES, upto - at))
            if not data:
                break
            for start in range(0, len(data), CHAINED):
                piece = data[start : start + CHAINED]
                digest = blake2b(chain.encode() + piece, digest_size=DIGEST_BYTES).hexdigest()
                chain = digest if len(piece) == CHAINED else chain
            at += len(data)
        return chain, digest if at == upto else ""

    def is_complete(self, path: str) -> bool:
        """Return True: lines can be read while others are appended."""
        return True

    def start(self, path: str) -> int:
        """Return the offset of the first record of `path`: 0, or the end of a byte order mark."""
        return len(_BOM) if read_range(path, 0, len(_BOM)) == _BOM else 0

    def resume(self, path: str, offset: int) -> int:
        """Return the start of the record that follows one without a line end: `offset`, or past a line end added since.

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
        """Return the offset at the end of a file of `size` bytes."""
        return size

    def boundaries(self, data: bytes, *, final: bool) -> Offsets:
        """Return the end offsets of the records in `data`, which starts at a record; `final`: `data` ends the file."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1

    def is_record(self, tail: bytes) -> bool:
        """Return whether `tail`, the bytes after the last line end of the file, is a record."""
        return bool(tail)

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Reread `segment`, verify its digest, and emit its records; invalid ones are refused."""
        size = segment.stop - segment.start
        data = read_range(segment.file, segment.start, size)
        if len(data) < size:
            how = f"expected {size} bytes, got {len(data)}"
            raise segment.changed(how)
        segment.verify(blake2b(data, digest_size=DIGEST_BYTES).hexdigest())
        self._emit_records(_Records(self, segment, data), data, collector)

    def decode(self, data: bytes, rows: int) -> pa.Table | pa.RecordBatch:
        """Return all `rows` records of `data`, which is valid UTF-8, as columns; raise `Undecodable` if one is bad."""
        raise NotImplementedError

    def _emit_records(self, records: _Records, data: bytes, collector: Collector) -> None:
        """Emit the records of `data` that are valid, and refuse the others."""
        try:
            collector.origin(records.described)
            self._emit_all(data, records.rows, collector)
        except Undecodable:
            self._emit_good(records, collector)

    def _emit_all(self, data: bytes, rows: int, collector: Collector) -> None:
        """Emit all `rows` records of `data`, or raise `Undecodable` and emit none."""
        collector.emit_batch(self.decode(self._utf8(data), rows))

    def _emit_good(self, records: _Records, collector: Collector) -> None:
        """Emit the valid records in order and refuse the others.

        The invalid ones that are found at once are left out, and the rest is decoded; where that fails, what is before
        and after the invalid record, or the halves if it is not known which record that is.
        """
        data = [records.piece(number, number + 1) for number in range(len(records.ends))]
        invalid = self.invalid(data)
        numbers = [number for number in range(len(data)) if number not in invalid]
        good: list[pa.Table] = []
        waiting = [(0, len(numbers))] if numbers else []
        while waiting:
            first, last = waiting.pop()
            try:
                piece = self._utf8(b"".join(data[number] for number in numbers[first:last]))
                good.append(pa.table(self.decode(piece, last - first)))
            except Undecodable as fault:
                if last - first == 1:
                    invalid[numbers[first]] = fault
                    continue
                bad = None if fault.row is None else first + fault.row
                cuts = [first, (first + last) // 2, last] if bad is None else [first, bad, bad + 1, last]
                waiting += [(start, stop) for start, stop in reversed(list(pairwise(cuts))) if start < stop]
        for number in sorted(invalid):
            records.refuse(number, invalid[number], collector)
        if good:
            collector.origin(partial(_described, records, [one for one in numbers if one not in invalid]))
            collector.emit_batch(pa.concat_tables(good).combine_chunks())

    def invalid(self, records: Sequence[bytes]) -> dict[int, Undecodable]:
        """Return number → fault of records that are certainly invalid, as far as that can be seen in all at once."""
        found = {}
        for number, record in enumerate(records):
            try:
                self._utf8(record)
            except Undecodable as fault:
                found[number] = fault
        return found

    def _utf8(self, data: bytes) -> bytes:
        if data.isascii():
            return data
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.errors == "replace":
                return data.decode("utf-8", "replace").encode("utf-8")
            why = f"byte {data[error.start]:#04x} (byte {error.start + 1} of the record) is not UTF-8"
            raise Undecodable(why, "convert the file, or read it with errors='replace'") from None
        return data


@dataclass(frozen=True)
class Place:
    """Location of one record.

    Attributes:
        start: the offset of its first byte.
        stop: the offset after its last byte.
        line: the number of its line in the file; None beyond `COUNTED`.
    """

    file: str
    start: int
    stop: int
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.file}{line} (bytes {self.start}-{self.stop})"

    def described(self, data: bytes) -> dict[str, Any]:
        """Return the description of the record for a dead letter; bytes that are not UTF-8 are escaped."""
        text = data.strip(b"\r\n")[:KEPT].decode("utf-8", "backslashreplace")
        return {"file": self.file, "line": self.line, "from": self.start, "to": self.stop, "text": text}


class Undecodable(Exception):
    """The bytes being decoded contain an invalid record.

    Args:
        why: the fault.
        cure: the remedy, for the message.
        row: number of the record among those being decoded, if it is known.
        misfit: the value that does not fit the declared type of a column, if that is the fault.
    """

    def __init__(self, why: str, cure: str, row: int | None = None, misfit: Misfit | None = None) -> None:
        super().__init__(why)
        self._cure = cure
        self.row, self.misfit = row, misfit

    def error(self, place: Place) -> SpoutError:
        """Return the error to report if the bytes are exactly one record, at `place`."""
        error = SpoutError(f"file spout: {place}: {self}; {self._cure}{LEAVE_OUT}")
        error.__cause__ = self.misfit
        return error


SHOWN = 80
KEPT = 64 * 1024
"""Maximum bytes of a record that are stored in a dead letter."""
_MOST_COUNTED = 1000
COUNTED = 64 << 20
"""Offset up to which lines are counted to give line numbers in errors."""


class _Records:
    """The records of a segment, by number; where they are is found once it is asked for."""

    def __init__(self, form: LineFormat, segment: Segment, data: bytes) -> None:
        self._form = form
        self._segment = segment
        self._data = data
        self.rows = segment.rows

    @cached_property
    def ends(self) -> list[int]:
        ends: list[int] = self._form.boundaries(self._data, final=True).tolist()
        return [*ends, len(self._data)] if self._form.is_record(self._data[ends[-1] if ends else 0 :]) else ends

    @cached_property
    def _lines_before(self) -> int | None:
        segment = self._segment
        return None if segment.start > COUNTED else _lines_before(segment.file, segment.start)

    @cached_property
    def _line_ends(self) -> Offsets:
        return np.flatnonzero(np.frombuffer(self._data, np.uint8) == 10)

    def piece(self, first: int, last: int) -> bytes:
        """Return the bytes of the records `first` (inclusive) to `last` (exclusive)."""
        return self._data[self.ends[first - 1] if first else 0 : self.ends[last - 1]]

    def place(self, number: int) -> Place:
        """Return the location of one record, without line ends before it."""
        piece, stop = self.piece(number, number + 1), self.ends[number]
        start, before = stop - len(piece.lstrip(b"\r\n")), self._lines_before
        line = None if before is None else before + int(np.searchsorted(self._line_ends, start)) + 1
        return Place(self._segment.file, self._segment.start + start, self._segment.start + stop, line)

    def described(self, number: int) -> dict[str, Any]:
        """Return the description of one record for a dead letter."""
        return self.place(number).described(self.piece(number, number + 1))

    def refuse(self, number: int, fault: Undecodable, collector: Collector) -> None:
        """Refuse one record."""
        collector.refuse(fault.error(self.place(number)), self.described(number))


_counted: dict[str, tuple[tuple[int, int], int, int]] = {}
"""File → its inode and time, an offset, and the number of lines before it."""


def _lines_before(path: str, offset: int) -> int:
    """Count the lines of `path` before `offset`, from the place up to which they were counted last."""
    status = os.stat(path)
    version = status.st_ino, status.st_mtime_ns
    known, last, lines = _counted.get(path, (version, 0, 0))
    if known != version:
        last = lines = 0
    between = read_range(path, min(last, offset), abs(offset - last)).count(b"\n")
    lines += between if offset >= last else -between
    if len(_counted) > _MOST_COUNTED:
        _counted.clear()
    _counted[path] = version, offset, lines
    return lines


def _described(records: _Records, numbers: Sequence[int], row: int) -> dict[str, Any]:
    return records.described(int(numbers[row]))


def shown(data: bytes) -> str:
    """Return the beginning of a record as text, for messages."""
    text = data.strip(b"\r\n").decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Text format: one record per line; blank lines are records."""

    def decode(self, data: bytes, rows: int) -> pa.RecordBatch:
        """Return one column, built from all bytes at once instead of line by line."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        if len(ends) < rows:
            ends = np.append(ends, len(data))
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends - np.arange(len(ends))
        buffers = pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))
        column = pa.StringArray.from_buffers(len(ends), *buffers)
        return pa.RecordBatch.from_arrays([column], names=list(self.fields))


@dataclass(frozen=True)
class SkippingBlanks(LineFormat):
    """Base of the formats in which blank lines are skipped."""

    def boundaries(self, data: bytes, *, final: bool) -> Offsets:
        """Return the offsets of line ends, except those of blank lines."""
        return without_blanks(data, super().boundaries(data, final=final))

    def is_record(self, tail: bytes) -> bool:
        """Return whether `tail` contains anything but line ends."""
        return bool(tail.strip(b"\r\n"))


@dataclass(frozen=True)
class JsonLinesFormat(SkippingBlanks):
    """JSON-lines format: one JSON object per line; a missing key is None."""

    def _emit_all(self, data: bytes, rows: int, collector: Collector) -> None:
        lines = self._utf8(data).decode("utf-8").split("\n")
        for record in [_json_object(line) for line in lines if line and line != "\r"]:
            collector.emit(*[record.get(name) for name in self.fields])

    def _emit_good(self, records: _Records, collector: Collector) -> None:
        good: list[int] = []
        collector.origin(partial(_described, records, good))
        for number in range(len(records.ends)):
            try:
                record = _json_object(self._utf8(records.piece(number, number + 1)).decode("utf-8").strip("\r\n"))
            except Undecodable as fault:
                records.refuse(number, fault, collector)
            else:
                good.append(number)
                collector.emit(*[record.get(name) for name in self.fields])


@dataclass(frozen=True)
class TypedJsonFormat(SkippingBlanks):
    """JSON-lines format with types of the fields: a line with a value of another type is invalid.

    Attributes:
        objects: the reader of lines.
    """

    objects: JsonObjects = field(default_factory=lambda: JsonObjects({}), hash=False)

    def _emit_records(self, records: _Records, data: bytes, collector: Collector) -> None:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        try:
            found = self.objects.read(list(filter(None, data.decode("utf-8", self.errors).split("\n"))))
        except UnicodeDecodeError:  # the record alone is invalid
            found = self.objects.read(list(filter(None, data.split(b"\n"))))
        for number in sorted(found.bad):
            text = records.piece(number, number + 1)
            why = found.bad[number]
            fault = Undecodable(f"{why}: {shown(text)}", "correct the file or the types", misfit=why)
            records.refuse(number, self.invalid([text]).get(0, fault), collector)
        collector.origin(partial(_described, records, found.good_rows()))
        collector.emit_batch(found.good())


def json_fields(path: str, errors: str) -> tuple[str, ...] | None:
    """Return the keys of the first record of `path`, in order; None if the file has no record."""
    block = JsonLinesFormat((), errors).block(path, 0)
    if not len(block.ends):
        return None
    end = int(block.ends[0])
    first = bytes(block.raw(block.start, end)).decode("utf-8", "replace")
    try:
        return tuple(_json_object(first.strip("\r\n")))
    except Undecodable as fault:
        raise fault.error(Place(path, block.start, end)) from None


def _json_object(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        fault = None if isinstance(record, dict) else f"expected an object, got {type(record).__name__}"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise Undecodable(f"not a JSON record: {fault}: {shown(line.encode('utf-8'))}", "correct the file")
    return record  # type: ignore[no-any-return]


def without_blanks(data: bytes, ends: Offsets) -> Offsets:
    """Return `ends`, the ends of lines in `data`, except of blank lines, which become part of the following record."""
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
        msg = f"file spout: {path} shrank: expected the {offset} bytes that were read, got {size}; restore it"
        raise SpoutError(msg)


def _doubled(path: str, start: int, size: int) -> int:
    if size >= LARGEST_RECORD:
        msg = f"file spout: {path}: the record at offset {start} has no end within {size} bytes; check its format"
        raise SpoutError(msg)
    return size * 2
