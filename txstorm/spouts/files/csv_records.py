"""CSV format of the file spout: record boundaries are found by scanning quotes; values are parsed by Arrow."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from txstorm.api.names import near
from txstorm.api.output import Collector
from txstorm.errors import SpoutError
from txstorm.spouts.files.lines import Offsets, SkippingBlanks, Undecodable, shown, without_blanks
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import Segment
from txstorm.typed import Misfit, decimals_of

_COLUMN = re.compile(r"In CSV column #(\d+)")


@dataclass(frozen=True)
class CsvFormat(SkippingBlanks):
    """CSV format as in RFC 4180; values are text unless `types` says otherwise.

    Attributes:
        columns: all columns of the files, in order; `fields` are those emitted.
        types: column → Arrow type; an empty value of such a column is None.
        delimiter: one ASCII character.
        header: whether every file begins with a record of its column names.
        needed: the columns that each header must have, among others and in any order; none: all headers are `columns`.
    """

    columns: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict, hash=False)
    delimiter: str = ","
    header: bool = True
    needed: tuple[str, ...] = ()

    def boundaries(self, data: bytes, *, final: bool) -> Offsets:
        """Return the offsets of line ends outside quotes; a quote that is never closed affects only its own line.

        A quote opens a quoted value only at the beginning of the value, as in Arrow's reader.
        """
        bytes_ = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(bytes_ == 10) + 1
        if b'"' in data:
            quotes = np.flatnonzero(bytes_ == 34)
            before = bytes_[np.maximum(quotes[::2] - 1, 0)]
            usual = np.isin(before, np.frombuffer(f'\n\r"{self.delimiter}'.encode(), np.uint8)) | (quotes[::2] == 0)
            if usual.all() and not (final and len(quotes) % 2):
                ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
            else:
                ends = self._scanned(data, ends, final=final)
        return without_blanks(data, ends)

    def _scanned(self, data: bytes, lines: Offsets, *, final: bool) -> Offsets:
        """Slow path of `boundaries`: scan records with quotes value by value; `lines` holds the ends of all lines."""
        found: list[Offsets] = []
        start = 0
        while True:
            quote = data.find(b'"', start)
            line = max(start, data.rfind(b"\n", start, quote) + 1) if quote >= 0 else len(data)
            found.append(lines[np.searchsorted(lines, start, "right") : np.searchsorted(lines, line, "right")])
            if quote < 0:
                return np.concatenate(found)
            stop = self._record_end(data, line)
            if stop is None and final:
                stop = data.find(b"\n", line) + 1
            if not stop:
                return np.concatenate(found)
            found.append(np.array([stop], np.int64))
            start = stop

    def _record_end(self, data: bytes, start: int) -> int | None:
        """Return the end offset of the record at `start`: 0 if there is no line end yet, None if a quote is open."""
        ends = re.compile(b"[\r\n%s]" % re.escape(self.delimiter.encode()))
        while True:
            while data[start : start + 1] == b'"':  # a quoted value, or its continuation after an escaped quote
                start = data.find(b'"', start + 1) + 1
                if not start:
                    return None
            end = ends.search(data, start)
            if end is None:
                return 0
            if end.group() == b"\n":
                return end.end()
            start = end.end()

    def start(self, path: str) -> int:
        """Return the offset after the byte order mark and the header, which must name the columns."""
        start, columns = csv_header(path, self.delimiter) if self.header else (super().start(path), self.columns)
        missing = [name for name in self.needed if name not in columns]
        if columns and missing:
            hint = near(missing[0], list(columns))
            msg = f"file spout: {path}: expected a header with {list(self.needed)}, got {list(columns)}{hint}"
            raise SpoutError(msg + "; each file needs the columns of fields= and types=")
        if columns not in ((), self.columns) and not self.needed:
            msg = f"file spout: {path}: expected the header {list(self.columns)}, got {list(columns)}"
            raise SpoutError(msg + "; all files need the same, unless fields= names the columns to read")
        return start

    def emit(self, segment: Segment, collector: Collector) -> None:
        """See `LineFormat`; the columns are those of the header of the file."""
        form = replace(self, columns=_columns_of(segment.file, self.delimiter)) if self.needed else self
        super(CsvFormat, form).emit(segment, collector)

    def probe(self, path: str) -> None:
        """Raise `SpoutError` unless `path` is text and has the header."""
        super().probe(path)
        self.start(path)

    def decode(self, data: bytes, rows: int) -> pa.Table:
        """Parse `data` with Arrow."""
        try:
            table = pa_csv.read_csv(pa.py_buffer(data), *self._options(len(data), self.types))
        except pa.ArrowInvalid as error:
            named = re.search(r"Row #(\d+): ", str(error))
            row = int(named[1]) - 1 if named is not None and 0 < int(named[1]) <= rows else None
            raise self._wrong(self._message(error), data, row, self._column(error)) from None
        if self._is_open(data):
            raise Undecodable(f"a quote opened in the record is never closed: {shown(data)}", "correct the file")
        if len(table) != rows:
            why = f"expected {rows} records, parsed {len(table)}: a lone carriage return in a value is not quoted"
            raise Undecodable(f"{why}: {shown(data)}", "quote the value")
        return self._with_decimals(table, data)

    def invalid(self, records: Sequence[bytes]) -> dict[int, Undecodable]:
        """Find the records with another number of values, or with a value that Arrow cannot convert."""
        found = super().invalid(records)
        numbers = [number for number in range(len(records)) if number not in found]
        data = b"".join(records[number] for number in numbers)
        if b'"' in data or b"\r" in data.replace(b"\r\n", b""):
            return found  # Arrow's rows may be others: they are decoded piece by piece
        wrong: dict[int, tuple[str, str | None]] = {}

        def skip(row: Any) -> str:
            wrong[row.number - 1] = f"Expected {row.expected_columns} columns, got {row.actual_columns}", None
            return "skip"

        try:
            table = pa_csv.read_csv(pa.py_buffer(data), *self._options(len(data), {}, skip))
        except pa.ArrowInvalid:
            return found
        rows = [row for row in range(len(numbers)) if row not in wrong]
        for name, kind in self.types.items():
            if name in self.fields and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                for row, text in _no_numbers(table[name].combine_chunks(), kind):
                    why = f"column {name!r}: CSV conversion error to {kind}: invalid value {text!r}"
                    wrong.setdefault(rows[row], (why, name))
        return found | {
            numbers[row]: self._wrong(why, records[numbers[row]], column=column) for row, (why, column) in wrong.items()
        }

    def _wrong(self, why: str, data: bytes, row: int | None = None, column: str | None = None) -> Undecodable:
        kind = self.types.get(column or "")
        misfit = None if column is None or kind is None else Misfit(why).of(column, kind)
        return Undecodable(f"{why}: {shown(data)}", "correct the file or the types", row, misfit)

    def _with_decimals(self, table: pa.Table, data: bytes) -> pa.Table:
        for number, name in enumerate(table.column_names):
            if pa.types.is_decimal(kind := self.types.get(name, pa.string())):
                try:
                    column = decimals_of(table.column(number), kind)
                except Misfit as error:
                    raise self._wrong(f"column {name!r}: {error}", data, column=name) from None
                table = table.set_column(number, name, column)
        return table

    def _is_open(self, data: bytes) -> bool:
        """Return whether a quote in the last line of `data` stays open: Arrow would parse the rest as its value."""
        lines = data.rstrip(b"\r\n") + b"\n"
        last = lines[lines.rfind(b"\n", 0, -1) + 1 :]
        if b'"' not in last or self._record_end(last, 0) is not None:
            return False
        ends = self.boundaries(lines, final=False)
        return not len(ends) or ends[-1] < len(lines)

    def _message(self, error: pa.ArrowInvalid) -> str:
        """Return Arrow's message with the column's name instead of its number, and without the row."""
        text = re.sub(r"(CSV parse error: )?Row #\d+: ", "", str(error)).partition("\n")[0]
        wrong = re.match(r"Expected \d+ columns, got \d+", text)
        if wrong is not None:
            return wrong[0]
        return _COLUMN.sub(lambda _: f"column {self._column(error)!r}", text)

    def _column(self, error: pa.ArrowInvalid) -> str | None:
        """Return the column whose value Arrow could not convert."""
        found = _COLUMN.search(str(error))
        return None if found is None else self.columns[int(found[1])]

    def _options(
        self, size: int, types: Mapping[str, pa.DataType], skip: Callable[[Any], str] | None = None
    ) -> Iterable[Any]:
        types = {name: types.get(name, pa.string()) for name in self.columns}
        types = {name: pa.string() if pa.types.is_decimal(kind) else kind for name, kind in types.items()}
        return (
            pa_csv.ReadOptions(use_threads=False, block_size=size + 1, column_names=list(self.columns)),
            pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip),
            pa_csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=False, include_columns=list(self.fields)
            ),
        )


def _no_numbers(given: pa.StringArray, kind: pa.DataType) -> Iterator[tuple[int, str]]:
    """Yield row and text of what Arrow cannot convert to a number of `kind`, which it parses in CSV as in a cast."""
    texts = pc.utf8_trim(pc.if_else(pc.equal(given, ""), None, given), " \t")
    waiting = [(0, len(texts))]
    while waiting:
        first, count = waiting.pop()
        try:
            texts.slice(first, count).cast(kind)
        except pa.ArrowInvalid:
            half = count // 2
            if count == 1:
                yield first, given[first].as_py()
            else:
                waiting += [(first, half), (first + half, count - half)]


def _columns_of(path: str, delimiter: str) -> tuple[str, ...]:
    """Return the columns of `path`, a file with records, whose header is read once."""
    try:
        return _read_columns(path, delimiter, os.stat(path).st_ino)
    except OSError as error:
        raise unreadable(path, error) from None


@lru_cache(maxsize=4096)
def _read_columns(path: str, delimiter: str, inode: int) -> tuple[str, ...]:
    return csv_header(path, delimiter)[1]


def csv_header(path: str, delimiter: str) -> tuple[int, tuple[str, ...]]:
    """Read the header of `path`; return the offset at its end and the column names (none if the file is empty)."""
    plain = CsvFormat((), header=False)
    block = plain.block(path, 0)
    if not len(block.ends):
        return block.start, ()
    end = int(block.ends[0])
    text = bytes(block.raw(block.start, end)).decode("utf-8", "replace").strip("\r\n")
    names = tuple(next(csv.reader([text], delimiter=delimiter)))
    if len(set(names)) < len(names) or not all(names):
        msg = f"file spout: {path}: the header {list(names)} has a duplicate or empty name; correct it"
        raise SpoutError(msg)
    return end, names
