"""Line-based formats of the file spout, text and JSON-lines, and their base, which CSV shares; ranges are in bytes.

It is one module, as all of them find their records, name their places and refuse the invalid ones in one way.
"""

from __future__ import annotations

import codecs
import json
import os
import threading
from bisect import bisect, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.api.output import Collector, Refusals
from txstorm.errors import LEAVE_OUT, SpoutError
from txstorm.misfits import Misfit
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import DIGEST_BYTES, Block, Segment
from txstorm.spouts.json_objects import JsonObjects

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
        raise SpoutError(
            f"file spout: {path} grew inside its last line, which had no line end and was read up to {offset}; "
            "end every line before the spout sees it (write elsewhere, then rename)"
        )

    def extent(self, path: str, size: int) -> int:
        """Return the offset at the end of a file of `size` bytes."""
        return size

    def boundaries(self, data: bytes, *, final: bool) -> Offsets:
        """Return the end offsets of the records in `data`, which starts at a record; `final`: `data` ends the file."""
        return np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1

    def is_record(self, tail: bytes) -> bool:
        """Return whether `tail`, the bytes after the last line end of the file, is a record."""
        return bool(tail)

    def reread(self, segment: Segment) -> bytes:
        """Return the bytes of `segment`; raise `SpoutError` if they have changed."""
        size = segment.stop - segment.start
        data = read_range(segment.file, segment.start, size)
        if len(data) < size:
            raise segment.changed(f"expected {size} bytes, got {len(data)}")
        segment.verify(blake2b(data, digest_size=DIGEST_BYTES).hexdigest())
        return data

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Reread `segment`, and emit its records; invalid ones are refused."""
        located = _Located(segment, Records(self.reread(segment), segment.rows, self._ends))
        records, found = located.records, self._not_utf8(located.records)
        given = records.without(found)
        good, faults = (self.decode(given) if given.rows else Parsed(None, {})).beside(found, records)
        located.refuse(faults, collector)
        if len(faults) < records.rows:
            collector.origin(partial(_described, located, faults))
            self._send(good, collector)

    def decode(self, records: Records) -> Parsed:
        """Return the valid records among `records`, which are valid UTF-8 unless `errors` says otherwise."""
        raise NotImplementedError

    def _send(self, good: Any, collector: Collector) -> None:
        """Emit the records that `decode` has returned."""
        collector.emit_batch(good)

    def _text(self, data: bytes) -> str:
        return data.decode("utf-8", self.errors)

    def _ends(self, data: bytes) -> Offsets:
        """Return the end offsets of the records in `data`, of which the last may have no line end."""
        ends = self.boundaries(data, final=True)
        return np.append(ends, len(data)) if self.is_record(data[ends[-1] if len(ends) else 0 :]) else ends

    def _not_utf8(self, records: Records) -> dict[int, Fault]:
        """Return number → fault of the records that are not UTF-8; decoding goes on in the line behind each."""
        data, faults, starts = records.data, dict[int, Fault](), list[int]()
        if data.isascii() or self.errors == "replace":
            return faults

        def note(error: UnicodeError) -> tuple[str, int]:
            assert isinstance(error, UnicodeDecodeError)
            starts.append(error.start)
            return "", data.find(b"\n", error.start) + 1 or len(data)

        _decoding.note = note
        data.decode("utf-8", _NOTED)
        if not starts:
            return faults
        numbers, firsts = np.unique(records.ends.searchsorted(starts, "right"), return_index=True)
        begins = np.where(numbers > 0, records.ends[numbers - 1], 0).tolist()
        for number, first, begin in zip(numbers.tolist(), firsts.tolist(), begins, strict=True):
            at = starts[first]
            why = f"byte {data[at]:#04x} (byte {at - begin + 1} of the record) is not UTF-8"
            faults[number] = Fault(why, "convert the file, or read it with errors='replace'", shows=False)
        return faults


class Fault(NamedTuple):
    """Why one record is invalid.

    Attributes:
        why: the fault.
        cure: the remedy, for the message.
        column: the column whose declared type a value does not fit, if that is the fault; and that type.
        kind: see `column`.
        shows: whether the message shows the beginning of the record.
    """

    why: str
    cure: str
    column: str | None = None
    kind: pa.DataType | None = None
    shows: bool = True

    def misfit(self) -> Misfit | None:
        """Return the value that does not fit the declared type of a column; None if that is not the fault."""
        return None if self.column is None or self.kind is None else Misfit(self.why).of(self.column, self.kind)


class Undecodable(Exception):
    """One record is invalid.

    Args:
        fault: why.
        row: number of the record among those being decoded, if it is known.
    """

    def __init__(self, fault: Fault, row: int | None = None) -> None:
        super().__init__(fault.why)
        self.fault, self.row = fault, row


class Parsed(NamedTuple):
    """Decoded records: the valid ones, in order, and number → fault of the others."""

    good: Any
    faults: Mapping[int, Fault]

    def beside(self, found: Mapping[int, Fault], records: Records) -> Parsed:
        """Return the same of all `records`, of which those with a fault in `found` had been left out."""
        if not found or not self.faults:
            return Parsed(self.good, found or self.faults)
        numbers = records.others(found)
        return Parsed(self.good, {**found, **{int(numbers[row]): fault for row, fault in self.faults.items()}})


SHOWN = 80
KEPT = 64 * 1024
"""Maximum bytes of a record that are stored in a dead letter."""
_NOTED = "txstorm-noted"
"""Handler of decoding errors that calls `note` of `_decoding`, which is the thread's own."""
_decoding = threading.local()
codecs.register_error(_NOTED, lambda error: _decoding.note(error))  # noqa: PLW0108 - the thread's own
_MOST_COUNTED = 1000
COUNTED = 64 << 20
"""Offset up to which lines are counted to give line numbers in errors."""


class Records:
    """Consecutive records, as bytes; where each of them ends is found once it is asked for.

    Args:
        data: the bytes.
        rows: the number of records.
        find: returns the end offsets of the records in `data`.
    """

    def __init__(self, data: bytes, rows: int, find: Callable[[bytes], Offsets]) -> None:
        self.data = data
        self.rows = rows
        self._find = find

    @cached_property
    def ends(self) -> Offsets:
        """The end offsets of the records."""
        return self._find(self.data)

    def start(self, number: int) -> int:
        """Return the offset of the first byte of a record, with line ends before it."""
        return int(self.ends[number - 1]) if number else 0

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.start(number) : int(self.ends[number])]

    def others(self, numbers: Collection[int]) -> Offsets:
        """Return all numbers of records but the given ones."""
        return np.delete(np.arange(self.rows), list(numbers))

    def part(self, first: int, last: int) -> Records:
        """Return the records from `first` to `last`, which is excluded."""
        start, ends = self.start(first), self.ends[first:last]
        return Records(self.data[start : self.start(last)], last - first, lambda _: ends - start)

    def without(self, numbers: Collection[int]) -> Records:
        """Return all records but those of the given numbers."""
        if not numbers:
            return self
        bad = np.sort(np.fromiter(numbers, np.int64, len(numbers)))
        stops = self.ends[bad]
        starts = np.where(bad > 0, self.ends[bad - 1], 0)
        pieces = zip([0, *stops.tolist()], [*starts.tolist(), int(self.ends[-1])], strict=True)

        def ends(_: bytes) -> Offsets:
            sizes = np.zeros(self.rows, np.int64)
            sizes[bad] = stops - starts
            return np.delete(self.ends - np.cumsum(sizes), bad)

        return Records(b"".join([self.data[one:other] for one, other in pieces]), self.rows - len(bad), ends)


class _Places(NamedTuple):
    """Places of records in a file, and their bytes without line ends before them; lines are None beyond `COUNTED`."""

    file: str
    lines: Sequence[int | None]
    starts: Sequence[int]
    stops: Sequence[int]
    data: Sequence[bytes]

    def messages(self, faults: Sequence[Fault]) -> list[str]:
        """Return why each of the records is invalid, and where it is."""
        pairs = zip(faults, self.data, strict=True)
        whys = [f"{fault.why}: {shown(data)}" if fault.shows else fault.why for fault, data in pairs]
        lines = ("" if line is None else f", line {line}" for line in self.lines)
        return [
            f"file spout: {self.file}{line} (bytes {start}-{stop}): {why}; {fault.cure}"
            for line, start, stop, why, fault in zip(lines, self.starts, self.stops, whys, faults, strict=True)
        ]

    def records(self) -> list[str]:
        """Return the descriptions of the records, for dead letters, as JSON; bytes that are not UTF-8 are escaped."""
        texts = [data.rstrip(b"\r\n")[:KEPT].decode("utf-8", "backslashreplace") for data in self.data]
        file, lines = _json(self.file), ("null" if line is None else line for line in self.lines)
        return [
            f'{{"file": {file}, "line": {line}, "from": {start}, "to": {stop}, "text": {_json(text)}}}'
            for line, start, stop, text in zip(lines, self.starts, self.stops, texts, strict=True)
        ]


class _Located:
    """The records of a segment, with their places in the file."""

    def __init__(self, segment: Segment, records: Records) -> None:
        self._segment = segment
        self.records = records

    @cached_property
    def _lines_before(self) -> int | None:
        segment = self._segment
        if segment.start > COUNTED:
            return None
        known = _counts(segment.file)
        before = _lines_before(segment.file, segment.start, known)
        after = segment.stop, before + len(self._line_ends)  # the next range begins there
        if after not in known[bisect(known, after) - 1 :][:1]:
            insort(known, after)
        return before

    @cached_property
    def _line_ends(self) -> Offsets:
        ends, is_end = self.records.ends, np.frombuffer(self.records.data, np.uint8) == 10
        lines = int(np.count_nonzero(is_end))
        if len(ends) - (not is_end[-1]) == lines:  # each line is a record
            return ends[:lines] - 1
        return np.flatnonzero(is_end)

    def places(self, numbers: Sequence[int]) -> _Places:
        """Return the places of records."""
        first, before, data = self._segment.start, self._lines_before, self.records.data
        ends, chosen = self.records.ends, np.array(numbers)
        stops, given = ends[chosen], np.where(chosen > 0, ends[chosen - 1], 0)
        pieces = [data[start:stop].lstrip(b"\r\n") for start, stop in zip(given.tolist(), stops.tolist(), strict=True)]
        starts = stops - [len(piece) for piece in pieces]
        lines = [None] * len(pieces) if before is None else (self._line_ends.searchsorted(starts) + before + 1).tolist()
        return _Places(self._segment.file, lines, (starts + first).tolist(), (stops + first).tolist(), pieces)

    def refuse(self, faults: Mapping[int, Fault], collector: Collector) -> None:
        """Refuse records, given number → fault."""
        if not faults:
            return
        numbers = sorted(faults)
        found, places = [faults[number] for number in numbers], self.places(numbers)
        columns = [fault.column for fault in found]
        Refusals(places.messages(found), places.records(), columns, lambda row: found[row].misfit()).give(collector)


_counted: dict[str, tuple[tuple[int, int], list[tuple[int, int]]]] = {}
"""File → its inode and time, and in order of offsets: an offset, and the number of lines before it."""


def _counts(path: str) -> list[tuple[int, int]]:
    """Return the places of `path` up to which its lines have been counted, as in `_counted`."""
    status = os.stat(path)
    version = status.st_ino, status.st_mtime_ns
    if _counted.get(path, (None,))[0] != version:
        if len(_counted) > _MOST_COUNTED:
            _counted.clear()
        _counted[path] = version, [(0, 0)]
    return _counted[path][1]


def _lines_before(path: str, offset: int, known: list[tuple[int, int]]) -> int:
    """Count the lines of `path` before `offset`, from the nearest known place up to which they have been counted."""
    at = bisect(known, (offset, 0))
    last, lines = min(known[max(at - 1, 0) : at + 1], key=lambda one: abs(one[0] - offset))
    between = np.frombuffer(read_range(path, min(last, offset), abs(offset - last)), np.uint8)
    lines += int(np.count_nonzero(between == 10)) * (1 if offset >= last else -1)
    if offset != last:
        insort(known, (offset, lines))
    return lines


def _described(located: _Located, faults: Collection[int], row: int) -> dict[str, Any]:
    """Return the description of the `row`-th record without a fault."""
    [record] = located.places([int(located.records.others(faults)[row])]).records()
    return json.loads(record)  # type: ignore[no-any-return]


def is_utf8(data: bytes) -> bool:
    """Return whether `data` is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def shown(data: bytes) -> str:
    """Return the beginning of a record as text, for messages."""
    text = data.strip(b"\r\n")[: 4 * (SHOWN + 1)].decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Text format: one record per line; blank lines are records."""

    def decode(self, records: Records) -> Parsed:
        """Return one column, built from all bytes at once instead of line by line."""
        data = records.data if self.errors == "strict" else self._text(records.data).encode()
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        if len(ends) < records.rows:
            ends = np.append(ends, len(data))
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends - np.arange(len(ends))
        buffers = pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))
        column = pa.StringArray.from_buffers(len(ends), *buffers)
        return Parsed(pa.RecordBatch.from_arrays([column], names=list(self.fields)), {})


@dataclass(frozen=True)
class SkippingBlanks(LineFormat):
    """Base of the formats in which blank lines are skipped."""

    def boundaries(self, data: bytes, *, final: bool) -> Offsets:
        """Return the offsets of line ends, except those of blank lines."""
        return without_blanks(data, super().boundaries(data, final=final))

    def is_record(self, tail: bytes) -> bool:
        """Return whether `tail` contains anything but line ends."""
        return bool(tail.strip(b"\r\n"))

    def _lines(self, records: Records) -> list[str]:
        """Return the lines that are records, without line ends."""
        text = self._text(records.data)
        lines = [line for line in text.split("\n") if line and line != "\r"][: records.rows]
        return [line.strip("\r") for line in lines] if "\r" in text else lines


@dataclass(frozen=True)
class JsonLinesFormat(SkippingBlanks):
    """JSON-lines format: one JSON object per line; a missing key is None."""

    def decode(self, records: Records) -> Parsed:
        """Return the objects as a list."""
        good, faults = [], dict[int, Fault]()
        for number, line in enumerate(self._lines(records)):
            try:
                good.append(_json_object(line))
            except Undecodable as error:
                faults[number] = error.fault
        return Parsed(good, faults)

    def _send(self, good: Any, collector: Collector) -> None:
        """Emit row by row: the types of the columns are those of the values."""
        for record in good:
            collector.emit(*[record.get(name) for name in self.fields])


@dataclass(frozen=True)
class TypedJsonFormat(SkippingBlanks):
    """JSON-lines format with types of the fields: a line with a value of another type is invalid.

    Attributes:
        objects: the reader of lines.
    """

    objects: JsonObjects = field(default_factory=lambda: JsonObjects({}), hash=False)

    def decode(self, records: Records) -> Parsed:
        """Return the fields as columns."""
        found = self.objects.read(self._lines(records))
        cure = "correct the file or the types"
        faults = {row: Fault(str(why), cure, why.column, why.kind) for row, why in found.bad.items()}
        return Parsed(found.good(), faults)


def json_fields(path: str, errors: str) -> tuple[str, ...] | None:
    """Return the keys of the first record of `path`, in order; None if the file has no record."""
    block = JsonLinesFormat((), errors).block(path, 0)
    if not len(block.ends):
        return None
    end = int(block.ends[0])
    first = bytes(block.raw(block.start, end)).decode("utf-8", "replace")
    try:
        return tuple(_json_object(first.strip("\r\n")))
    except Undecodable as error:
        [message] = _Places(path, [None], [block.start], [end], [first.encode()]).messages([error.fault])
        raise SpoutError(message + LEAVE_OUT) from None


def _json_object(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        fault = None if isinstance(record, dict) else f"expected an object, got {type(record).__name__}"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise Undecodable(Fault(f"not a JSON record: {fault}", "correct the file"))
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
