"""The file spout: text, CSV, JSON-lines and Parquet files as transactions that can be replayed exactly.

Metadata of a txid: ``{"v": 1, "segments": [{"file", "from", "to", "rows", "digest"}, …], "position": {…}}``. Each
task emits consecutive segments, so that the rows of all tasks, one task after the other, are in the order of the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import arrow_type
from txstorm.errors import SettingError, SpoutError
from txstorm.spouts.files.csv_records import CsvFormat, csv_header
from txstorm.spouts.files.lines import JsonLinesFormat, LineFormat, TextFormat, json_fields
from txstorm.spouts.files.listing import Listing, Paths, absolute, check_named, expand
from txstorm.spouts.files.parquet import ParquetFormat, parquet_file
from txstorm.spouts.files.ranges import Block, Piece, Position, Segment, checked, segments, share_of
from txstorm.user_code import calling_line

FORMATS = ("text", "csv", "jsonl", "parquet")
EXTENSIONS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
LARGEST_BATCH = 1 << 30


class Format(Protocol):
    """File format: finds record boundaries and emits ranges of records."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields emitted."""

    def probe(self, path: str) -> None:
        """Raise `SpoutError` unless `path` can be read and looks like this format."""

    def block(self, path: str, offset: int) -> Block:
        """Read one block of records from `offset` on (0: the first record); empty at the end of the file."""

    def resume(self, path: str, offset: int) -> int:
        """Return the start of the record that follows one without a line end; `offset` while the file has not grown."""

    def extent(self, path: str, size: int) -> int:
        """Return the offset at the end of the file, which has `size` bytes."""

    def emit(self, segment: Segment, collector: Collector) -> None:
        """Reread `segment`, verify its digest, and emit its records; raise `SpoutError` if it has changed."""


@dataclass(frozen=True)
class _Options:
    """Options of the file spout as the user gave them, before any file is opened."""

    format: str
    fields: tuple[str, ...] | None
    types: Mapping[str, pa.DataType]
    header: bool
    delimiter: str
    errors: str


class FileSpout(TransactionalSpout):
    r"""File spout: reads local files in the order of their names, a bounded number of records per transaction.

    Example::

        FileSpout("books/*.txt", max_batch_rows=2000)                      # field "line"
        FileSpout("sales.csv", types={"amount": int})                      # fields from the header

    Each txid records the byte or row ranges it covers, with their digests, so every replay reads the same records, on
    any number of tasks; the boundaries depend only on the files and the settings. A glob is listed again when all known
    files have been read; new files must sort after them. Text: one tuple per line, without ``\n`` or ``\r\n``, UTF-8;
    a last line without line end is a record. CSV: RFC 4180, blank lines are skipped. JSON-lines: a missing key is
    None. Parquet: columns keep their types.

    Args:
        path: a file, a glob (``**`` too), or a list of them; ``file:///`` allowed; made absolute at once.
        format: ``text``, ``csv``, ``jsonl`` or ``parquet``; if None, chosen by the extension, text if unknown.
        max_batch_rows: maximum number of records in a transaction.
        max_batch_bytes: maximum number of bytes in a transaction, which has at least one record; at most (and by
            default) 1 GiB.
        fields: text: the name of the field; csv: the columns to emit, or the names of all columns if there is no
            header; jsonl: the keys to emit, by default those of the first record; parquet: the columns to emit.
        types: csv: column → Python or Arrow type; other columns stay text.
        header: csv: whether each file begins with the names of its columns.
        delimiter: csv: one ASCII character.
        errors: ``replace`` turns bytes that are not UTF-8 into U+FFFD instead of failing.
        bounded: whether nothing is ever added, so that the source has ended once all files are read.

    Raises:
        SpoutError: the path is not local.
        SettingError: an option is invalid or does not belong to the format.
    """

    def __init__(
        self,
        path: Paths,
        *,
        format: str | None = None,  # noqa: A002 - the word users know
        max_batch_rows: int = 10_000,
        max_batch_bytes: int | None = None,
        fields: str | Sequence[str] | None = None,
        types: Mapping[str, Any] | None = None,
        header: bool = True,
        delimiter: str = ",",
        errors: str = "strict",
        bounded: bool = False,
    ) -> None:
        self.bounded = bounded
        self.paths = absolute(path)
        self.max_batch_rows = _positive("max_batch_rows", max_batch_rows)
        size = LARGEST_BATCH if max_batch_bytes is None else _positive("max_batch_bytes", max_batch_bytes)
        self.max_batch_bytes = min(size, LARGEST_BATCH)
        named = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        kind = format or _by_extension(self.paths)
        self._options = _Options(kind, named, _arrow_types(types or {}), header, delimiter, errors)
        _check_options(self._options)
        self._opened: Format | None = None
        self._line = calling_line()

    def check(self) -> None:
        """Probe every file before anything is written.

        Raises:
            SpoutError: a file is missing, unreadable, a directory, or recognizably in another format.
        """
        with self._naming_line():
            chosen = self._format()
            for name in expand(self.paths):
                chosen.probe(name)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields given or those of the first file; raise `SpoutError` if that cannot be read."""
        with self._naming_line():
            declarer.declare(self._format().fields)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which plans the ranges."""
        return _FileCoordinator(self, self._format(), context)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads ranges."""
        return _FileEmitter(self.paths, self._format(), context)

    @contextmanager
    def _naming_line(self) -> Iterator[None]:
        """Add the line of code that created the spout to errors about the source."""
        try:
            yield
        except SpoutError as error:
            raise SpoutError(f"{error}; the spout was created at {self._line}" if self._line else str(error)) from None

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the fields, except those of JSON-lines; raise `SpoutError` if that cannot be read."""
        found = self._format()
        if self._options.format == "parquet":
            return {one.name: one.type for one in found.schema}  # type: ignore[attr-defined]
        return {} if self._options.format == "jsonl" else {**dict.fromkeys(found.fields, str), **self._options.types}

    def _format(self) -> Format:
        # Cached, and shipped with the spout, so that driver and workers agree on the fields.
        if self._opened is None:
            self._opened = _OPENERS[self._options.format](self._options, self.paths)
        return self._opened


def _open_text(options: _Options, paths: tuple[str, ...]) -> Format:
    return TextFormat(options.fields or ("line",), options.errors)


def _open_csv(options: _Options, paths: tuple[str, ...]) -> Format:
    columns = options.fields or ()
    if options.header:
        found = (csv_header(name, options.delimiter)[1] for name in _probed(paths))
        columns = next(filter(None, found), ())
    fields = _chosen(options, columns, paths)
    _chosen(replace(options, fields=tuple(options.types)), columns, paths)
    return CsvFormat(fields, options.errors, columns, options.types, options.delimiter, options.header)


def _open_jsonl(options: _Options, paths: tuple[str, ...]) -> Format:
    fields = options.fields or next(filter(None, (json_fields(name, options.errors) for name in _probed(paths))), ())
    return JsonLinesFormat(_chosen(options, fields, paths), options.errors)


def _open_parquet(options: _Options, paths: tuple[str, ...]) -> Format:
    schema = parquet_file(next(iter(expand(paths)))).schema_arrow
    return ParquetFormat(_chosen(options, tuple(schema.names), paths), schema)


_OPENERS = {"text": _open_text, "csv": _open_csv, "jsonl": _open_jsonl, "parquet": _open_parquet}


def _probed(paths: tuple[str, ...]) -> Iterator[str]:
    for name in expand(paths):
        LineFormat(()).probe(name)
        yield name


def _chosen(options: _Options, columns: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested fields, which must be among `columns`; all columns if none were requested."""
    if not columns:
        msg = f"file spout: {', '.join(paths)}: no header or record to take the fields from; fill a file first"
        raise SpoutError(msg)
    missing = [name for name in options.fields or () if name not in columns]
    if missing:
        msg = f"file spout: {', '.join(paths)}: no column {missing}; the columns are {list(columns)}"
        raise SpoutError(msg)
    return columns if options.fields is None else options.fields


class _FileCoordinator(SpoutCoordinator):
    def __init__(self, spout: FileSpout, chosen: Format, context: TaskContext) -> None:
        self._spout = spout
        self._format = chosen
        self._component = context.component
        self._parallelism = max(1, context.parallelism)
        self._listing = Listing(spout.paths)
        self._block: Block | None = None
        self._planned: tuple[Position, Any] | None = None

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        with _naming(self._component, txid):
            metadata = self._plan(Position.after(prev_metadata))
        return NOT_READY if metadata is None else metadata

    def facts(self, metadata: Any) -> SourceFacts:
        try:
            caught_up = self._plan(Position.after(metadata)) is None
        except SpoutError:  # of the next transaction, which reports it
            caught_up = False
        return SourceFacts(caught_up=caught_up, ended=caught_up and self._spout.bounded)

    def latest(self) -> Any:
        filled = [(name, size) for name, size in expand(self._spout.paths).items() if size]
        return (filled[-1][0], self._format.extent(*filled[-1])) if filled else ("", 0)

    def reached(self, metadata: Any, mark: Any) -> bool:
        position = Position.after(metadata)
        # The remaining bytes may hold no record: a header, blank lines, or the end of a line already read.
        return (position.file or "", position.offset) >= tuple(mark) or self._plan(position) is None

    def _plan(self, position: Position) -> Any:
        """Return the metadata of the batch that begins at `position`; None if there is no record."""
        if self._planned is None or self._planned[0] != position:
            self._listing.ensure(position)
            pieces, after = self._collect(position)
            if not pieces:
                return None
            cut = [segment.to_json() for segment in segments(pieces, self._parallelism)]
            self._planned = position, {"v": 1, "segments": cut, "position": after.to_json()}
        return self._planned[1]

    def _collect(self, position: Position) -> tuple[list[Piece], Position]:
        pieces: list[Piece] = []
        rows, room = self._spout.max_batch_rows, float(self._spout.max_batch_bytes)
        while rows:
            position, block, size = self._at(position)
            if block is None:
                following = self._listing.following(position, size)
                if following is None:
                    break
                position = following
                continue
            piece = block.take(position.offset, rows, room, at_least=0 if pieces else 1)
            if not piece.rows:
                break
            pieces.append(piece)
            rows, room = rows - piece.rows, room - piece.size
            position = replace(position, offset=piece.stop, open=piece.open)
        return pieces, position

    def _at(self, position: Position) -> tuple[Position, Block | None, int]:
        """Return `position`, moved past a line end added since, the block there (None: no records), and its end."""
        if position.file is None:
            return position, None, 0
        if position.open:
            offset = self._format.resume(position.file, position.offset)
            if offset == position.offset:
                return position, None, offset
            position = replace(position, offset=offset, open=False)
        block = self._block
        if block is None or not block.holds(position.file or "", position.offset):
            self._block = block = self._format.block(position.file or "", position.offset)
        return position, block if len(block.ends) else None, block.size


class _FileEmitter(Emitter):
    def __init__(self, paths: tuple[str, ...], chosen: Format, context: TaskContext) -> None:
        self._paths = paths
        self._format = chosen
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        planned = [Segment.from_json(one) for one in checked(metadata)["segments"]]
        for segment in share_of(planned, self._context.task, self._context.parallelism):
            with _naming(self._context.component, attempt.txid):
                check_named(self._paths, segment.file)
                self._format.emit(segment, collector)
            collector.digest(segment.name, segment.digest)


@contextmanager
def _naming(component: str, txid: int) -> Iterator[None]:
    try:
        yield
    except SpoutError as error:
        msg = f"spout {component!r}, txid {txid}: {error}"
        raise SpoutError(msg) from None


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"file spout: {name} is {value!r}, expected an int > 0"
        raise SettingError(msg)
    return value


def _by_extension(paths: tuple[str, ...]) -> str:
    found = {EXTENSIONS.get(os.path.splitext(path)[1].lower(), "text") for path in paths}
    if len(found) > 1:
        msg = f"file spout: paths of several formats, {sorted(found)}; use a spout for each, or give format="
        raise SettingError(msg)
    return found.pop()


def _arrow_types(types: Mapping[str, Any]) -> dict[str, pa.DataType]:
    made = {name: arrow_type(declared) for name, declared in types.items()}
    unknown = [name for name, declared in made.items() if declared is None]
    if unknown:
        msg = f"file spout: types of {unknown} are neither Python nor Arrow types known here, got {dict(types)!r}"
        raise SettingError(msg)
    return {name: declared for name, declared in made.items() if declared is not None}


def _check_options(options: _Options) -> None:
    csv_only = bool(options.types) or not options.header or options.delimiter != ","
    faults = {
        f"format {options.format!r}, expected one of {FORMATS}": options.format not in FORMATS,
        "types, header and delimiter belong to format 'csv'": csv_only and options.format != "csv",
        "header=False needs fields= with the names of all columns": not options.header and not options.fields,
        "text has one field": options.format == "text" and len(options.fields or ("line",)) != 1,
        "fields is empty; leave it out to take all": options.fields == (),
        f"errors {options.errors!r}, expected 'strict' or 'replace'": options.errors not in ("strict", "replace"),
        f"delimiter {options.delimiter!r}, expected one ASCII character": not _is_delimiter(options.delimiter),
    }
    found = [fault for fault, present in faults.items() if present]
    if found:
        msg = f"file spout: {'; '.join(found)}"
        raise SettingError(msg)


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in '"\r\n'
