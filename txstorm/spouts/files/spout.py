"""The file spout: text, CSV, JSON-lines and Parquet files as transactions that can be replayed exactly.

Metadata of a txid: ``{"v": 2, "segments": [{"file", "from", "to", "rows", "digest"}, …], "position": {…}, "files":
[…]}``, with the files that it finishes; in the order of names ``"v": 1`` and no files. Each task emits consecutive
segments, so that the rows of all tasks, one task after the other, are in the order in which the files are read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from glob import has_magic
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import arrow_type
from txstorm.errors import SettingError, SpoutError
from txstorm.spouts.files.batches import ARRIVAL, NAME, FileCoordinator, FileSource, Format, naming
from txstorm.spouts.files.csv_records import CsvFormat, csv_header
from txstorm.spouts.files.lines import JsonLinesFormat, LineFormat, TextFormat, TypedJsonFormat, json_fields
from txstorm.spouts.files.listing import Paths, absolute, check_named, expand, listed
from txstorm.spouts.files.parquet import ParquetFormat, has_footer, parquet_file
from txstorm.spouts.files.ranges import Segment, checked, share_of
from txstorm.spouts.files.seen_files import KEPT
from txstorm.spouts.json_objects import JsonObjects, declared_types
from txstorm.user_code import calling_line

log = logging.getLogger(__name__)
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
Listed = Callable[[], Sequence[str]]
"""Lists the files there now."""


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
    r"""File spout: reads every local file once, as they arrive, a bounded number of records per transaction.

    Example::

        FileSpout("books/*.txt", max_batch_rows=2000)                      # field "line"
        FileSpout("sales.csv", types={"amount": int})                      # fields from the header

    Each txid records the byte or row ranges it covers, with their digests, so every replay reads the same records, on
    any number of tasks; the boundaries depend only on the files and the settings. A glob is listed again when all known
    files have been read; what was read is kept in a state of the topology. Text: one tuple per line, without ``\n`` or
    ``\r\n``, UTF-8; a last line without line end is a record. CSV: RFC 4180, blank lines are skipped. JSON-lines: a
    missing key is None. Parquet: columns keep their types.

    Args:
        path: a file, a glob (``**`` too), or a list of them; ``file:///`` allowed; made absolute at once.
        format: ``text``, ``csv``, ``jsonl`` or ``parquet``; if None, chosen by the extension, text if unknown.
        max_batch_rows: maximum number of records in a transaction.
        max_batch_bytes: maximum number of bytes in a transaction, which has at least one record; at most (and by
            default) 1 GiB.
        fields: text: the name of the field; csv: the columns to emit, which each header must have, or the names of all
            columns if there is no header; jsonl: the keys to emit, by default those of `types`, else those of the first
            record; parquet: the columns to emit.
        types: csv: column → Python or Arrow type; other columns stay text. If no file is there when the topology is
            built, these are all columns, unless `fields` names them. jsonl: key → type, of all keys to emit; a
            line with a value of another type is a bad record, and no file needs to be there when the topology is built.
        header: csv: whether each file begins with the names of its columns.
        delimiter: csv: one ASCII character.
        errors: ``replace`` turns bytes that are not UTF-8 into U+FFFD instead of failing.
        bounded: whether nothing is ever added, so that the source has ended once all files are read.
        order: ``arrival``: every new file is read, whatever its name; ``name``: files are read in the order of their
            names, and new ones must sort after those already read. By default ``name`` for a single path, for bounded
            sources and in data directories that began so, otherwise ``arrival``.
        seen_files_age: by how much a new file may be older than the newest one of earlier listings; older ones are
            passed over, and what is known of such files is forgotten once they have disappeared; None: no limit.

    Raises:
        SpoutError: the path is not local.
        SettingError: an option is invalid or does not belong to the format.
    """

    live = False

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
        order: str | None = None,
        seen_files_age: timedelta | None = None,
    ) -> None:
        self.bounded = bounded
        self.paths = absolute(path)
        newcomers = not bounded and (len(self.paths) > 1 or has_magic(self.paths[0]))
        self.kept_rows = KEPT if order == ARRIVAL or (order is None and newcomers) else None
        self._order, self._age = _checked_order(order), seen_files_age
        self.max_batch_rows = _positive("max_batch_rows", max_batch_rows)
        size = LARGEST_BATCH if max_batch_bytes is None else _positive("max_batch_bytes", max_batch_bytes)
        self.max_batch_bytes = min(size, LARGEST_BATCH)
        named = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        kind = format or _by_extension(self.paths)
        typed = {} if not types else declared_types(types, "file spout") if kind == "jsonl" else _arrow_types(types)
        self._options = _Options(kind, named, typed, header, delimiter, errors)
        _check_options(self._options)
        self._opened: Format | None = None
        self._line = calling_line()
        _check_age(seen_files_age, keeps=self.kept_rows is not None)

    @property
    def format(self) -> str:
        """The format: ``text``, ``csv``, ``jsonl`` or ``parquet``."""
        return self._options.format

    def check(self, *, begun: bool = False) -> None:
        """Probe every file before anything is written; if files were read before (`begun`), there may be none now.

        Raises:
            SpoutError: a file is missing, unreadable, a directory, or recognizably in another format.
        """
        with self._naming_line():
            chosen = self._format()
            there = sorted(listed(self.paths)) if begun else self._files()
            if not there:
                log.warning("file spout: no file matches %s now; files are read when they come", ", ".join(self.paths))
            for name in there:
                if self.kept_rows is None or chosen.is_complete(name):
                    chosen.probe(name)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields given or those of the first file; raise `SpoutError` if that cannot be read."""
        with self._naming_line():
            declarer.declare(self._format().fields)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which plans the ranges."""
        return FileCoordinator(self._source(), self._format(), context)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads ranges."""
        return _FileEmitter(self.paths, self._format(), context)

    def _source(self) -> FileSource:
        limits = self.max_batch_rows, self.max_batch_bytes
        return FileSource(self.paths, *limits, self.bounded, self._order, self.kept_rows is not None, self._age)

    @contextmanager
    def _naming_line(self) -> Iterator[None]:
        """Add the line of code that created the spout to errors about the source."""
        try:
            yield
        except SpoutError as error:
            raise SpoutError(f"{error}; the spout was created at {self._line}" if self._line else str(error)) from None

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the fields; of JSON-lines, those declared; raise `SpoutError` if they cannot be read."""
        found = self._format()
        if self._options.format == "parquet":
            return {one.name: one.type for one in found.schema}  # type: ignore[attr-defined]
        if self._options.format == "jsonl":
            return {name: kind for name, kind in self._options.types.items() if name in found.fields}
        return {**dict.fromkeys(found.fields, str), **self._options.types}

    def _format(self) -> Format:
        # Cached, and shipped with the spout, so that driver and workers agree on the fields.
        if self._opened is None:
            self._opened = _OPENERS[self._options.format](self._options, self.paths, self._files)
        return self._opened

    def _files(self) -> list[str]:
        """Return the files there now; raise `SpoutError` if a path is missing or a directory, or there are none.

        A landing zone may be empty if the fields are declared.
        """
        declared = bool(self._options.fields or self._options.types)
        there = expand(self.paths, waiting=declared and self.kept_rows is not None)
        return sorted(there if self.kept_rows is None else listed(self.paths))


def _open_text(options: _Options, paths: tuple[str, ...], files: Listed) -> Format:
    return TextFormat(options.fields or ("line",), options.errors)


def _open_csv(options: _Options, paths: tuple[str, ...], files: Listed) -> Format:
    columns, needed = options.fields or (), tuple(dict.fromkeys((*(options.fields or ()), *options.types)))
    if options.header:
        found = (csv_header(name, options.delimiter)[1] for name in _probed(files()))
        columns = next(filter(None, found), needed)
    fields = _chosen(options, columns, paths)
    _chosen(replace(options, fields=tuple(options.types)), columns, paths)
    needed = needed if options.header and options.fields else ()
    return CsvFormat(fields, options.errors, columns, options.types, options.delimiter, options.header, needed)


def _open_jsonl(options: _Options, paths: tuple[str, ...], files: Listed) -> Format:
    if options.types:
        chosen = {name: options.types[name] for name in options.fields or options.types}
        return TypedJsonFormat(tuple(chosen), options.errors, JsonObjects(chosen))
    fields = options.fields or next(filter(None, (json_fields(name, options.errors) for name in _probed(files()))), ())
    return JsonLinesFormat(_chosen(options, fields, paths), options.errors)


def _open_parquet(options: _Options, paths: tuple[str, ...], files: Listed) -> Format:
    complete = next(filter(has_footer, files()), None)
    if complete is None:
        msg = f"file spout: {', '.join(paths)}: no complete Parquet file to take the columns from; finish one first"
        raise SpoutError(msg)
    schema = parquet_file(complete).schema_arrow
    return ParquetFormat(_chosen(options, tuple(schema.names), paths), schema)


_OPENERS = {"text": _open_text, "csv": _open_csv, "jsonl": _open_jsonl, "parquet": _open_parquet}


def _probed(files: Sequence[str]) -> Iterator[str]:
    for name in files:
        LineFormat(()).probe(name)
        yield name


def _chosen(options: _Options, columns: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested fields, which must be among `columns`; all columns if none were requested."""
    if not columns:
        msg = f"file spout: {', '.join(paths)}: no header or record to take the fields from; fill a file first, or "
        msg += "declare them: types= of JSON-lines, fields= of CSV"
        raise SpoutError(msg)
    missing = [name for name in options.fields or () if name not in columns]
    if missing:
        raise SpoutError(f"file spout: {', '.join(paths)}: no column {missing}; the columns are {list(columns)}")
    return columns if options.fields is None else options.fields


class _FileEmitter(Emitter):
    def __init__(self, paths: tuple[str, ...], chosen: Format, context: TaskContext) -> None:
        self._paths = paths
        self._format = chosen
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        planned = [Segment.from_json(one) for one in checked(metadata)["segments"]]
        for segment in share_of(planned, self._context.task, self._context.parallelism):
            with naming(self._context.component, attempt.txid):
                check_named(self._paths, segment.file)
                self._format.emit(segment, collector)
            collector.digest(segment.name, segment.digest)


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"file spout: {name} is {value!r}, expected an int > 0")
    return value


def _checked_order(order: Any) -> str | None:
    if order not in (None, ARRIVAL, NAME):
        raise SettingError(f"file spout: order is {order!r}, expected {ARRIVAL!r} or {NAME!r}")
    return order  # type: ignore[no-any-return]


def _check_age(age: Any, *, keeps: bool) -> None:
    if age is not None and not (isinstance(age, timedelta) and age > timedelta(0)):
        msg = f"file spout: seen_files_age is {age!r}, expected a timedelta above 0, such as timedelta(days=7)"
        raise SettingError(msg)
    if age is not None and not keeps:
        msg = f"file spout: seen_files_age belongs to files that are read as they arrive; give order={ARRIVAL!r}"
        raise SettingError(msg)


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
    csv_only = not options.header or options.delimiter != ","
    untyped = [name for name in options.fields or () if name not in options.types]
    faults = {
        f"format {options.format!r}, expected one of {FORMATS}{near(str(options.format), [*FORMATS])}": options.format
        not in FORMATS,
        "header and delimiter belong to format 'csv'": csv_only and options.format != "csv",
        "types belong to formats 'csv' and 'jsonl'": bool(options.types) and options.format not in ("csv", "jsonl"),
        f"types= lacks {untyped} of fields=": bool(options.types and untyped) and options.format == "jsonl",
        "header=False needs fields= with the names of all columns": not options.header and not options.fields,
        "text has one field": options.format == "text" and len(options.fields or ("line",)) != 1,
        "fields is empty; leave it out to take all": options.fields == (),
        f"errors {options.errors!r}, expected 'strict' or 'replace'": options.errors not in ("strict", "replace"),
        f"delimiter {options.delimiter!r}, expected one ASCII character": not _is_delimiter(options.delimiter),
    }
    found = [fault for fault, present in faults.items() if present]
    if found:
        raise SettingError(f"file spout: {'; '.join(found)}")


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in '"\r\n'
