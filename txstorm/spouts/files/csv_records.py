"""CSV format of the file spout: record boundaries are found by scanning quotes; values are parsed by Arrow.

It is one module, as all ways to read a record, with quotes and without, must find the same faults with the same words.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from txstorm.api.names import near
from txstorm.api.output import Collector
from txstorm.errors import SpoutError
from txstorm.misfits import Misfit
from txstorm.spouts.files.lines import Fault, Offsets, Parsed, Records, SkippingBlanks, Undecodable, without_blanks
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import Segment
from txstorm.typed import decimals_of, shape_of, sifted

_TEXT = pa.string()
_CURE = "correct the file or the types"
_OPEN = "a quote opened in the record is never closed"
_RETURN = "a lone carriage return in a value is not quoted"
_BOOLS = pa.array(["", "0", "1", *("False", "FALSE", "false", "True", "TRUE", "true")])
"""Texts of which Arrow's reader of CSV makes a boolean, or null."""
_BYTES = [
    (fits, bytes(one not in b"0123456789+-" + more for one in range(256)))
    for fits, more in (
        (pa.types.is_integer, b" \t"),
        (pa.types.is_floating, b" \t.eEnNaAiIfFtTyY"),
        (pa.types.is_decimal, b" \t\n\r\v\f.eE"),
        (pa.types.is_temporal, b" \t.:TZ"),
    )
]
"""Whether a type is of a kind → for each byte, 1 if no text of its values has it, else 0."""

_FAULTY = set[tuple[str, ...]]()
"""Columns of files whose last records had faults: Arrow's reader of CSV, which stops at one, is not tried first then.

It only saves time.
"""
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
            usual = self._begin_values(bytes_, quotes[::2])
            if usual.all() and not (final and len(quotes) % 2):
                ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
            else:
                ends = self._scanned(data, ends, final=final)
        return without_blanks(data, ends)

    def _begin_values(self, bytes_: Any, quotes: Offsets) -> Any:
        """Return which of the quotes are at the beginning of a value, or follow another quote."""
        begins = np.zeros(256, bool)
        begins[list(f'\n\r"{self.delimiter}'.encode())] = True
        return begins[bytes_[np.maximum(quotes - 1, 0)]] | (quotes == 0)

    def _odd_quotes(self, data: bytes, ends: Offsets) -> Offsets:
        """Return the quotes that, in a piece of `data`, come third, fifth, … or first but open no value, or close none.

        Args:
            data: the bytes.
            ends: the end offsets of the pieces.
        """
        bytes_ = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(bytes_ == 34)
        if not (quotes.searchsorted(ends) % 2).any() and self._begin_values(bytes_, quotes[::2]).all():
            return quotes[:0]  # the usual case
        pieces = ends.searchsorted(quotes, "right")
        opens = (np.arange(len(quotes)) - pieces.searchsorted(pieces)) % 2 == 0
        last = np.append(pieces[1:] != pieces[:-1], True)[: len(quotes)]
        odd: Offsets = quotes[opens & (last | ~self._begin_values(bytes_, quotes))]
        return odd

    def _scanned(self, data: bytes, lines: Offsets, *, final: bool) -> Offsets:
        """Slow path of `boundaries`: scan records with unusual quotes, or with open ones in a line, value by value.

        `lines` holds the ends of all lines.
        """
        found: list[Offsets] = []
        odd = self._odd_quotes(data, lines)
        start = 0
        while True:
            quote = int(odd[at]) if (at := odd.searchsorted(start)) < len(odd) else -1
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
        stop: int | None = start
        while stop is not None:
            stop = self._value_end(data, stop)
            if not stop or data[stop - 1] == 10:
                break
        return stop

    def _value_end(self, data: bytes, start: int) -> int | None:
        """Return the offset after the value at `start` and what ends it; otherwise like `_record_end`."""
        while data[start : start + 1] == b'"':  # a quoted value, or its continuation after an escaped quote
            start = data.find(b'"', start + 1) + 1
            if not start:
                return None
        end = re.compile(b"[\r\n%s]" % re.escape(self.delimiter.encode())).search(data, start)
        return 0 if end is None else end.end()

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

    def decode(self, records: Records) -> Parsed:
        """Parse the records with Arrow; if it stops at a fault, those without a known one, by parts."""
        if self.errors == "replace":
            records = Records(self._text(records.data).encode(), records.rows, self._ends)
        with suppress(Undecodable):
            if self.columns not in _FAULTY:
                return Parsed(self._parsed(records), {})
        found = self._misquoted(records)
        left = records.without(found)
        sound = self._sound(left) if found else None
        parsed = (sound or self._sifted(left) or self._by_parts(left)).beside(found, records)
        (_FAULTY.add if parsed.faults else _FAULTY.discard)(self.columns)
        return parsed

    def _sound(self, records: Records) -> Parsed | None:
        """Parse all records; None if one is invalid."""
        with suppress(Undecodable):
            return Parsed(self._parsed(records) if records.rows else None, {})
        return None

    def _parsed(self, records: Records) -> pa.Table:
        """Parse all records; raise `Undecodable` if one is invalid."""
        data, rows = records.data, records.rows
        try:
            table = pa_csv.read_csv(pa.py_buffer(data), *self._options(len(data), self.types, self.fields))
        except pa.ArrowInvalid as error:
            named = re.search(r"Row #(\d+): ", str(error))
            row = int(named[1]) - 1 if named is not None and 0 < int(named[1]) <= rows else None
            raise Undecodable(self._wrong(self._message(error), self._column(error)), row) from None
        if self._is_open(data):
            raise Undecodable(Fault(_OPEN, "correct the file"))
        if len(table) != rows:
            raise Undecodable(Fault(f"expected {rows} records, parsed {len(table)}: {_RETURN}", "quote the value"))
        return self._with_decimals(table)

    def _by_parts(self, records: Records) -> Parsed:
        """Parse what is before and after an invalid record, or the halves if it is not known which record that is."""
        good, faults = list[pa.Table](), dict[int, Fault]()
        waiting = [(0, records.rows)] if records.rows else []
        while waiting:
            first, last = waiting.pop()
            try:
                good.append(self._parsed(records.part(first, last)))
            except Undecodable as error:
                if last - first == 1:
                    faults[first] = error.fault
                    continue
                bad = None if error.row is None else first + error.row
                cuts = [first, (first + last) // 2, last] if bad is None else [first, bad, bad + 1, last]
                waiting += [(start, stop) for start, stop in reversed(list(pairwise(cuts))) if start < stop]
        return Parsed(pa.concat_tables(good).combine_chunks() if good else None, faults)

    def _sifted(self, records: Records) -> Parsed | None:
        """Read all records as text, and convert what can be of each column; None if that is impossible."""
        wrong: dict[int, Fault] = {}

        def skip(row: Any) -> str:
            why = f"Expected {row.expected_columns} columns, got {row.actual_columns}"
            wrong[row.number - 1] = Fault(why, _CURE)
            return "skip"

        texts = {name: self.types[name] for name in self.fields if _in_texts(self.types.get(name, pa.string()))}
        others = {name: kind for name, kind in self.types.items() if name not in texts}
        try:
            options = self._options(len(records.data), others, self.fields, skip)
            table = pa_csv.read_csv(pa.py_buffer(records.data), *options)
        except pa.ArrowInvalid:
            return None
        if len(table) + len(wrong) != records.rows:
            return None
        rows = records.others(wrong) if wrong else np.arange(records.rows)
        for name, kind in texts.items():
            at, given = table.column_names.index(name), table[name].combine_chunks()
            if unfit := _impossible_texts(given, kind):  # what is left out need not be converted
                good = self._refused(name, given, unfit, rows, wrong)
                table, rows = table.filter(pa.array(good)), rows[good]
                given = table[name].combine_chunks()
            column, unfit = _converted(given, kind)
            table = table.set_column(at, name, column)
            if unfit:
                good = self._refused(name, given, unfit, rows, wrong)
                table, rows = table.filter(pa.array(good)), rows[good]
        return Parsed(table.combine_chunks(), wrong)

    def _refused(
        self, name: str, texts: pa.StringArray, unfit: list[int], rows: Offsets, wrong: dict[int, Fault]
    ) -> npt.NDArray[np.bool_]:
        """Note the fault of each text of a column that does not fit; return which ones do. `rows`: their records."""
        kind = self.types[name]
        why = _conversion(name, kind)
        for row, text in zip(rows[unfit].tolist(), texts.take(unfit).to_pylist(), strict=True):
            wrong[row] = Fault(f"{why}{text!r}", _CURE, name, kind)
        fits = np.ones(len(rows), bool)
        fits[unfit] = False
        return fits

    def _misquoted(self, records: Records) -> dict[int, Fault]:
        """Return the faults of records that Arrow divides otherwise: with an open quote, or a return outside quotes."""
        if b'"' not in records.data and b"\r" not in records.data:
            return {}
        bytes_ = np.frombuffer(records.data, np.uint8)
        returns = np.flatnonzero(bytes_ == 13)
        odd = [returns[np.append(bytes_, 10)[returns + 1] != 10], self._odd_quotes(records.data, records.ends)]
        faults = {}
        for number in np.unique(records.ends.searchsorted(np.concatenate(odd), "right")).tolist():
            if fault := self._misquoting(records[number].strip(b"\r\n") + b"\n"):
                faults[number] = Fault(fault, "correct the file, or quote the value")
        return faults

    def _misquoting(self, record: bytes) -> str:
        """Return why Arrow does not see exactly one record; empty if it does."""
        start = 0
        while (stop := self._value_end(record, start)) is not None:
            if record[stop - 1] == 13 and record[stop] != 10:
                return _RETURN
            if stop == len(record):
                return ""
            start = stop
        return _OPEN

    def _wrong(self, why: str, column: str | None) -> Fault:
        kind = self.types.get(column or "")
        return Fault(why, _CURE, None if kind is None else column, kind)

    def _with_decimals(self, table: pa.Table) -> pa.Table:
        for number, name in enumerate(table.column_names):
            if pa.types.is_decimal(kind := self.types.get(name, pa.string())):
                try:
                    column = decimals_of(table.column(number), kind)
                except Misfit as error:
                    raise Undecodable(self._wrong(f"column {name!r}: {error}", name)) from None
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
        self,
        size: int,
        types: Mapping[str, pa.DataType],
        fields: Sequence[str],
        skip: Callable[[Any], str] | None = None,
    ) -> Iterable[Any]:
        types = {name: types.get(name, pa.string()) for name in self.columns}
        types = {name: pa.string() if pa.types.is_decimal(kind) else kind for name, kind in types.items()}
        return (
            pa_csv.ReadOptions(use_threads=False, block_size=size + 1, column_names=list(self.columns)),
            pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip),
            pa_csv.ConvertOptions(
                check_utf8=False,  # `emit` has
                column_types=types,
                null_values=[""],
                strings_can_be_null=False,
                include_columns=list(fields),
            ),
        )


def _in_texts(kind: pa.DataType) -> bool:
    """Return whether texts are cast to a type as Arrow's reader of CSV converts them."""
    return pa.types.is_boolean(kind) or shape_of(kind) is not None


def _converted(given: pa.StringArray, kind: pa.DataType) -> tuple[Any, list[int]]:
    """Return texts as a column, with null in place of those that cannot be converted, and their rows."""
    if pa.types.is_boolean(kind):
        fits = pc.is_in(given, _BOOLS)
        wrong: list[int] = pc.indices_nonzero(pc.invert(fits)).to_pylist()
        return pc.if_else(pc.and_(fits, pc.not_equal(given, "")), given, None).cast(kind), wrong

    def doubtful() -> Any:
        texts = pc.utf8_trim(given, " \t")
        return pc.indices_nonzero(pc.invert(pc.match_substring_regex(texts, shape_of(kind)))).to_pylist()

    return sifted(given, kind, _as_read, doubtful=doubtful)


def _cast(texts: pa.StringArray, kind: pa.DataType) -> Any:
    return decimals_of(texts, kind) if pa.types.is_decimal(kind) else texts.cast(kind)


def _as_read(texts: pa.StringArray, kind: pa.DataType) -> Any:
    """Convert texts as Arrow's reader of CSV does, which trims them, and makes null of an empty one."""
    with suppress(pa.ArrowInvalid, Misfit):
        return _cast(texts, kind)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    return _cast(texts if pa.types.is_timestamp(kind) else pc.utf8_trim(texts, " \t"), kind)


def _impossible_texts(texts: pa.StringArray, kind: pa.DataType) -> list[int]:
    """Return the rows of texts with a byte that no value of a type has; an integer of Arrow may have hex digits."""
    usual = next((known for fits, known in _BYTES if fits(kind)), None)
    bounds, data = texts.buffers()[1:]
    if usual is None or data is None:
        return []
    ends = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    given = data.to_pybytes()[: ends[-1]]
    odd = np.flatnonzero(np.frombuffer(given[ends[0] :].translate(usual), np.uint8)) + ends[0]
    rows: list[int] = np.unique(ends.searchsorted(odd, "right") - 1).tolist()
    if pa.types.is_integer(kind):
        return [row for row in rows if b"x" not in given[ends[row] + 1 : ends[row + 1]].lower()]
    return rows


def _conversion(name: str, kind: pa.DataType) -> str:
    """Return why a text, which is to follow, cannot be converted to the type of its column."""
    if pa.types.is_decimal(kind):
        return f"column {name!r}: expected a value that fits {kind}, got "
    return f"column {name!r}: CSV conversion error to {kind}: invalid value "


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
        raise SpoutError(f"file spout: {path}: the header {list(names)} has a duplicate or empty name; correct it")
    return end, names
