"""File source: text files as partitions, and their lines as records, with clocks.

Metadata of a txid: ``{"v": 1, "lines": {partition: {"from", "count", "at", "end", "digest", "seen": [start, stop,
digest]}}}``: the number of the first line and how many there are, the bytes where they begin and end, their digest, and
what is known of the file: a range of bytes with its digest, that of the last lines that were read, or for a cyclic
source all of it. A partition whose entry has ``from`` and ``count`` only goes on after these lines.

It is one module, as coordinator, emitters and `HailstormFileSource.read` find and read lines in one way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.names import near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.clocks import Clock, natural
from txstorm.errors import InputError, SpoutError
from txstorm.hailstorm.conversion import ConvertingCollector
from txstorm.spouts.files.listing import Paths, absolute, unreadable
from txstorm.spouts.files.text_lines import (
    LineIndex,
    after_line,
    changed,
    check_seen,
    digest_of,
    opened,
    read_lines,
    read_range,
    share_out,
    size_of,
    split_lines,
    without_end,
)

VALUE = "value"
"""Field of a spout that emits records as they are."""
FORMAT = 1


class HailstormFileSource:
    r"""Text files as the partitions of a source: a line is a record, and its number, from 0, its offset.

    Example::

        builder.set_spout("tags", HailstormFileSource(["tags-1.txt", "tags-2.txt"]), convert=bytes.decode, fields="tag")

    A partition has the name of its file without the last extension. Records are bytes, without ``\n`` or ``\r\n``; a
    last line without line end is a record. Lines that are appended are read; a file that has become shorter, or changed
    where it was read, is refused by name.

    Args:
        paths: a file or a list of them, local.
        cyclic: whether each file goes on with its first line after the last one, with offsets that grow; such a source
            never ends, and its files must not grow.

    Raises:
        InputError: two files have the same name.
        SpoutError: a path is not local.
    """

    def __init__(self, paths: Paths, cyclic: bool = False) -> None:
        self.cyclic = bool(cyclic)
        self.paths: dict[str, str] = {}
        for path in absolute(paths, "file source"):
            name = Path(path).stem
            if name in self.paths:
                raise InputError(
                    f"file source: {self.paths[name]} and {path} have the same name, {name!r}, and it is the name of a "
                    "partition; rename one of them"
                )
            self.paths[name] = path
        self.partitions = tuple(sorted(self.paths, key=natural))
        self._indexes = {name: LineIndex(path) for name, path in self.paths.items()}

    def read(self, offset: int, count: int, partition: str | None = None) -> list[tuple[bytes, int]]:
        """Return up to `count` records from `offset` on, each with its offset; fewer at the end of the file.

        Args:
            offset: the offset of the first record.
            count: how many there are to be.
            partition: the partition; None: the only one.

        Raises:
            InputError: there is no such partition, or `offset` or `count` is negative.
            SpoutError: the file cannot be read.
        """
        if partition is None and len(self.paths) == 1:
            (partition,) = self.partitions
        if partition not in self.paths:
            has = ", ".join(self.partitions)
            msg = f"file source: no partition {partition!r}{near(str(partition), list(self.partitions))}; it has {has}"
            raise InputError(msg)
        if offset < 0 or count < 0:
            raise InputError(f"file source: expected an offset and a count of at least 0, got {offset} and {count}")
        at = self.position(partition, offset)
        lines = [] if at is None else read_lines(self.paths[partition], at, count, cyclic=self.cyclic)
        return [(without_end(line), offset + number) for number, line in enumerate(lines)]

    def position(self, partition: str, offset: int) -> int | None:
        """Return the byte at which record `offset` begins; None if the file has fewer lines."""
        return self._indexes[partition].find(offset, cyclic=self.cyclic)

    def count(self, partition: str) -> int:
        """Return how many lines the file of a partition has now."""
        return self._indexes[partition].count()

    def spout(self, max_batch_rows: int = 1000) -> TransactionalSpout:
        """Return a spout that emits the records as they are, at most `max_batch_rows` in a transaction."""
        return LineSpout(self, max_batch_rows)


@dataclass(frozen=True)
class _Lines:
    """Lines of one partition in one transaction, and what is known of its file; see the docstring of the module."""

    first: int
    count: int
    at: int | None
    end: int | None
    digest: str = ""
    seen: tuple[int, int, str] = (0, 0, "")

    @property
    def next(self) -> int:
        """The offset after the last one."""
        return self.first + self.count

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the metadata."""
        place = {"from": self.first, "count": self.count, "at": self.at, "end": self.end}
        return {**place, "digest": self.digest, "seen": list(self.seen)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> _Lines:
        """Return the lines of an entry."""
        start, stop, digest = stored.get("seen", (0, 0, ""))
        place = stored["from"], stored["count"], stored.get("at"), stored.get("end")
        return cls(*place, stored.get("digest", ""), (start, stop, digest))


class LineSpout(TransactionalSpout):
    """Spout of a `HailstormFileSource`: emits its records as they are, in the field ``value``."""

    live = False

    def __init__(self, source: HailstormFileSource, max_batch_rows: int) -> None:
        if isinstance(max_batch_rows, bool) or not isinstance(max_batch_rows, int) or max_batch_rows < 1:
            raise InputError(f"file source: max_batch_rows: expected an int of at least 1, got {max_batch_rows!r}")
        self.source = source
        self.rows = max_batch_rows

    def check(self) -> None:
        """Raise `SpoutError` if a file cannot be read."""
        for path in self.source.paths.values():
            with opened(path):
                pass

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the field."""
        declarer.declare(VALUE)

    def coordinator(self, context: TaskContext) -> LineCoordinator:
        """Return the coordinator, which plans ranges of lines."""
        return LineCoordinator(self.source, self.rows)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads ranges of lines."""
        return _LineEmitter(self.source, context)


class LineCoordinator(SpoutCoordinator):
    """Coordinator of a file source: plans which lines of each file a transaction reads, evenly among the files."""

    def __init__(self, source: HailstormFileSource, rows: int) -> None:
        self._source = source
        self._rows = rows
        self._checked: dict[str, tuple[int, int, int]] = {}

    def initialize_transaction(
        self, txid: int, prev_metadata: Any, upto: Clock | None = None
    ) -> dict[str, Any] | object:
        """See `SpoutCoordinator`; a transaction without lines is not planned."""
        before = {name: self._continued(name, lines) for name, lines in self._before(prev_metadata).items()}
        read = self._read(txid, before, upto)
        if not any(read.values()):
            return NOT_READY
        known = before if upto is None or prev_metadata is None else {*prev_metadata["lines"], *upto}
        planned = {name: self._lines(before[name], read[name]) for name in self._source.partitions if name in known}
        return {"v": FORMAT, "lines": {name: lines.to_json() for name, lines in planned.items()}}

    def clock(self, metadata: Any) -> dict[str, int]:
        """See `SpoutCoordinator`."""
        known = self._before(metadata)
        return {name: known[name].next - 1 for name in (known if metadata is None else metadata["lines"])}

    def at_clock(self, clock: Mapping[str, int]) -> dict[str, Any]:
        """See `SpoutCoordinator`."""
        if unknown := [name for name in clock if name not in self._source.paths]:
            msg = f"file source: the clock has partition {unknown[0]!r}, and no file has its name; name it, too"
            raise SpoutError(msg)
        return {"v": FORMAT, "lines": {name: {"from": offset + 1, "count": 0} for name, offset in clock.items()}}

    def end_clock(self) -> Mapping[str, int] | None:
        """See `SpoutCoordinator`: a file ends where it does now."""
        if self._source.cyclic:
            return None
        return {name: self._source.count(name) - 1 for name in self._source.partitions}

    def latest(self) -> Mapping[str, int] | None:
        """See `SpoutCoordinator`; a cyclic source has no end."""
        return None if self._source.cyclic else {name: size_of(path) for name, path in self._source.paths.items()}

    def reached(self, metadata: Any, mark: Mapping[str, int]) -> bool:
        """See `SpoutCoordinator`."""
        return all(self._end(name, lines) >= mark.get(name, 0) for name, lines in self._before(metadata).items())

    def caught_up(self, metadata: Any) -> bool | None:
        """See `SpoutCoordinator`."""
        mark = self.latest()
        return None if mark is None else self.reached(metadata, mark)

    def facts(self, metadata: Any) -> SourceFacts:
        """See `SpoutCoordinator`."""
        return SourceFacts(self._source.partitions, bool(self.caught_up(metadata)))

    def _before(self, metadata: Any) -> dict[str, _Lines]:
        """Return the last lines planned of each partition."""
        if metadata is not None and metadata["v"] != FORMAT:
            msg = f"file source: metadata of format {metadata['v']!r}, this txstorm knows {FORMAT}; run the newer one"
            raise SpoutError(msg)
        known = {} if metadata is None else {name: _Lines.of(one) for name, one in metadata["lines"].items()}
        if missing := [name for name in known if name not in self._source.paths]:
            msg = f"file source: partition {missing[0]!r} was read before, and no file has its name now; name it again"
            raise SpoutError(msg)
        return {name: known.get(name, _Lines(0, 0, 0, 0)) for name in self._source.partitions}

    def _end(self, name: str, lines: _Lines) -> int:
        """Return the byte at which the line after `lines` begins, or will begin."""
        path = self._source.paths[name]
        end = self._source.position(name, lines.next) if lines.end is None else lines.end
        if end is None:
            raise changed(path, f"it has no line {lines.next}, where it was to go on")
        return end if self._source.cyclic or not end else after_line(path, end)

    def _continued(self, name: str, lines: _Lines) -> _Lines:
        """Return `lines` with the place where the file goes on, after the file was checked if it may have changed."""
        path = self._source.paths[name]
        try:
            found = os.stat(path)
        except OSError as error:
            raise unreadable(path, error) from None
        status, seen = (found.st_ino, found.st_size, found.st_mtime_ns), lines.seen
        if self._checked.get(name) != status or (self._source.cyclic and not seen[2]):
            seen = self._verified(path, lines, found.st_size)
            self._checked[name] = status
        return replace(lines, end=self._end(name, lines), seen=seen)

    def _verified(self, path: str, lines: _Lines, size: int) -> tuple[int, int, str]:
        """Return what is known of the file; raise `SpoutError` unless it still has what was read of it."""
        _, stop, digest = lines.seen
        if self._source.cyclic:
            found = 0, size, digest_of(read_range(path, 0, size))
            if digest and found != lines.seen:
                raise changed(path, f"it had {stop} other bytes, and files of a cyclic source must stay as they are")
            return found
        check_seen(path, lines.seen, size)
        return lines.seen

    def _read(self, txid: int, before: Mapping[str, _Lines], upto: Clock | None) -> dict[str, list[bytes]]:
        """Return the lines that the transaction may read of each file, evenly; what one has not, others may read."""
        names = list(self._source.partitions)
        most = dict.fromkeys(names, self._rows)
        if upto is not None:
            most = {name: max(0, upto.get(name, -1) + 1 - lines.next) for name, lines in before.items()}
        found: dict[str, list[bytes]] = {name: [] for name in names}
        turn, cyclic = (txid - 1) % len(names), self._source.cyclic

        def take(name: str, wanted: int) -> int:
            at = (before[name].end or 0) + sum(map(len, found[name]))
            at = _wrapped(at, before[name]) if cyclic else at
            got = read_lines(self._source.paths[name], at, min(wanted, most[name] - len(found[name])), cyclic=cyclic)
            found[name] += got
            return len(got)

        share_out([name for name in names[turn:] + names[:turn] if most[name]], self._rows, take)
        return found

    def _lines(self, before: _Lines, read: list[bytes]) -> _Lines:
        at, data = before.end or 0, b"".join(read)
        end, seen, digest = at + len(data), before.seen, digest_of(data)
        if self._source.cyclic:
            end = _wrapped(end, before)
        elif read:
            seen = at, end, digest
        return _Lines(before.next, len(read), at, end, digest, seen)


def _wrapped(at: int, lines: _Lines) -> int:
    """Return the byte of a cyclic file that is `at` bytes behind its beginning."""
    return at % lines.seen[1] if lines.seen[1] else 0


class _LineEmitter(Emitter):
    """Emitter of a file source: reads the lines of the partitions of its task."""

    def __init__(self, source: HailstormFileSource, context: TaskContext) -> None:
        self._source = source
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        planned = metadata["lines"]
        for number, name in enumerate(sorted(planned, key=natural)):
            lines = _Lines.of(planned[name])
            if number % self._context.parallelism != self._context.task or not lines.count:
                continue
            if (path := self._source.paths.get(name)) is None:
                msg = f"file source: partition {name!r} was planned, and no file has its name; name it again"
                raise SpoutError(msg)
            records = self._records(path, lines)
            collector.partition(number)
            collector.origin(_origin(name, lines.first))
            if isinstance(collector, ConvertingCollector):
                collector.emit_records(records)
            else:
                collector.emit_batch(pa.record_batch([pa.array(records, pa.binary())], [VALUE]))

    def _records(self, path: str, lines: _Lines) -> list[bytes]:
        """Return the planned lines without their ends; raise `SpoutError` if they are other ones now."""
        at = lines.at or 0
        if self._source.cyclic:
            read = read_lines(path, at, lines.count, cyclic=True)
            data, records = b"".join(read), list(map(without_end, read))
        else:
            data = read_range(path, at, at if lines.end is None else lines.end)
            records = split_lines(data)
        if digest_of(data) != lines.digest:
            raise changed(path, f"lines {lines.first} to {lines.next - 1} are other ones than were planned")
        return records


def _origin(partition: str, first: int) -> Any:
    return lambda number: {"partition": partition, "offset": first + number}
