"""Sources of operator networks: data files, divided among the replicas of the operators that read them, and topics.

Metadata of files: ``{"v": 1, "parts": {operator: {file: [part of replica 0, …]}}}``. A part is ``{"line", "lines",
"tuples", "at", "end", "stop", "digest", "seen": [start, stop, digest]}``: the number (from 1) of the first line of the
transaction, how many lines and how many tuples there are, the bytes where they begin and end, the byte where the part
ends (none for the last one, which grows with the file), the digest of the lines, and the range of bytes by which a file
is known again. Parts are cut by the first plan: N tuples into N // r each, and the last one takes the rest.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.dadstorm.configuration import Configuration
from txstorm.dadstorm.source.blocks import Block, Shape, are_tuples, decoded, is_tuple
from txstorm.errors import SpoutError
from txstorm.spouts.files.text_lines import (
    Seen,
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
)

FORMAT = 1
_GLANCE = 1 << 20
"""Bytes of a file, about, that are looked at together."""


class Part(NamedTuple):
    """The share of one replica in a file: positions are kept for each.

    Attributes:
        operator: the operator that reads the file.
        file: the file, as the configuration has it.
        replica: the replica.
    """

    operator: str
    file: str
    replica: int


@dataclass
class Room:
    """Room for tuples in a transaction, which parts may share; planning takes from it.

    Attributes:
        left: the number of tuples that there is still room for.
    """

    left: int


Limits = Mapping[Part, Room]
"""Part → the room for its tuples; a part that is missing gives none."""


@dataclass(frozen=True)
class _Read:
    """Lines of one part in one transaction; see the docstring of the module."""

    line: int = 1
    lines: int = 0
    tuples: int = 0
    at: int = 0
    end: int = 0
    stop: int | None = None
    digest: str = ""
    seen: Seen = (0, 0, "")

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "seen": list(self.seen)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> _Read:
        known = {name: stored[name] for name in ("line", "lines", "tuples", "at", "end", "stop", "digest")}
        return cls(**known, seen=cast("Seen", tuple(stored["seen"])))


class FileParts:
    """Data files of a configuration, read in parts.

    Args:
        configuration: the configuration.

    Attributes:
        parts: the parts, by operators and their sources as the configuration has them.
        paths: file, as the configuration has it → absolute path.
    """

    def __init__(self, configuration: Configuration) -> None:
        read = [
            (operator, file)
            for operator in configuration.operators
            for file in dict.fromkeys(source.text for source in operator.sources if source.kind == "file")
        ]
        self.parts = tuple(Part(one.id, file, replica) for one, file in read for replica in range(one.replicas))
        self.paths = {file: os.path.abspath(configuration.directory / file) for _, file in read}
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._rest: dict[tuple[str, int, int], bool] = {}

    def check(self) -> None:
        """Raise `SpoutError` if a file cannot be read."""
        for path in self.paths.values():
            with opened(path):
                pass

    def plan(self, txid: int, before: Any, rows: int, limits: Limits | None = None) -> dict[str, Any] | None:
        """Return the metadata of a transaction; None if there are no tuples for it.

        Args:
            txid: its txid; the part that is asked first takes turns.
            before: the metadata of the transaction before; None: there is none.
            rows: the maximum number of tuples.
            limits: the room for the tuples of each part; None: no limits but `rows`.

        Raises:
            SpoutError: a file is missing, has become shorter, or has changed where it was read.
        """
        known = self._known(before) or self._cut()
        reads = {part: self._continued(part, read) for part, read in known.items()}
        data: dict[Part, bytearray] = {part: bytearray() for part in self.parts}
        free, none = Room(rows), Room(0)

        def take(part: Part, wanted: int) -> int:
            room = free if limits is None else limits.get(part, none)
            reads[part], taken = _more(self.paths[part.file], reads[part], min(wanted, room.left), data[part])
            room.left -= taken
            return taken

        turn = (txid - 1) % len(self.parts)
        share_out([*self.parts[turn:], *self.parts[:turn]], rows, take)
        if not any(read.tuples for read in reads.values()):
            return None
        stored: dict[str, dict[str, list[Any]]] = {}
        for part in self.parts:
            read = reads[part]
            if read.lines:
                digest = digest_of(bytes(data[part]))
                read = replace(read, digest=digest, seen=(read.at, read.end, digest))
            stored.setdefault(part.operator, {}).setdefault(part.file, []).append(read.to_json())
        return {"v": FORMAT, "parts": stored}

    def blocks(self, metadata: Any, collector: Any, task: int = 0, tasks: int = 1) -> Iterator[Block]:
        """Yield the tuples of a transaction, by parts.

        Args:
            metadata: what `plan` has returned.
            collector: that of the emitter; before each block it is given partition and places, and lines that are not
                UTF-8 are refused through it.
            task: number of a task: only parts whose replica, modulo `tasks`, is that number.
            tasks: the number of tasks.

        Raises:
            SpoutError: lines are not those that were planned.
        """
        known = self._known(metadata)
        for number, part in enumerate(self.parts):
            if part.replica % tasks == task and known[part].lines:
                collector.partition(number)
                yield self._block(part, known[part], collector)

    def _block(self, part: Part, read: _Read, collector: Any) -> Block:
        path = self.paths[part.file]
        data = read_range(path, read.at, read.end)
        if digest_of(data) != read.digest:
            last = read.line + read.lines - 1
            raise changed(path, f"lines {read.line} to {last} are other ones than were planned")
        raw = split_lines(data)
        numbers = list(range(read.line, read.line + len(raw)))
        if not are_tuples(data, raw):
            numbers = [number for number, line in zip(numbers, raw, strict=True) if is_tuple(line)]
            raw = [raw[number - read.line] for number in numbers]
        numbers, texts = decoded(raw, numbers, f"{part.file}:", collector)
        collector.origin(lambda row: {"file": part.file, "line": numbers[row]})
        return Block(part.operator, part.replica, f"{part.file}:", numbers, texts)

    def marks(self) -> dict[str, int]:
        """Return file → its size now."""
        return {file: size_of(path) for file, path in self.paths.items()}

    def reached(self, metadata: Any, marks: Mapping[str, int]) -> bool:
        """Return whether all tuples of the files up to these sizes are in transactions up to the one of `metadata`."""
        known = self._known(metadata)
        if not known:
            return not any(self._has_tuples(path, 0, marks.get(file, 0)) for file, path in self.paths.items())
        return not any(
            self._has_tuples(
                self.paths[part.file], read.end, marks.get(part.file, 0) if read.stop is None else read.stop
            )
            for part, read in known.items()
        )

    def _known(self, metadata: Any) -> dict[Part, _Read]:
        """Return what a transaction has of each part; nothing before the first one."""
        if metadata is None:
            return {}
        if metadata["v"] != FORMAT:
            msg = f"data files: metadata of format {metadata['v']!r}, this txstorm knows {FORMAT}; run the newer one"
            raise SpoutError(msg)
        stored = metadata["parts"]
        known = {
            Part(operator, file, replica): _Read.of(one)
            for operator, files in stored.items()
            for file, reads in files.items()
            for replica, one in enumerate(reads)
        }
        if known.keys() != set(self.parts):
            odd = min(known.keys() ^ set(self.parts))
            raise SpoutError(
                f"data files: operator {odd.operator} reads {odd.file} with another number of replicas than before, or "
                "no longer, or only now; restore the configuration, or start in a new data directory"
            )
        return known

    def _cut(self) -> dict[Part, _Read]:
        """Divide the files."""
        counts: dict[str, int] = {}
        found: dict[Part, _Read] = {}
        for first in (part for part in self.parts if part.replica == 0):
            replicas = sum(part[:2] == first[:2] for part in self.parts)
            path = self.paths[first.file]
            if replicas > 1 and path not in counts:
                counts[path], _ = _places(path, ())
            share = counts.get(path, 0) // replicas
            starts = [(1, 0)]
            if replicas > 1:
                wanted = {share * replica for replica in range(1, replicas)}
                places = _places(path, wanted)[1] if share else {}
                starts += [places[share * replica] if share else (1, 0) for replica in range(1, replicas)]
            stops = [*(at for _, at in starts[1:]), None]
            for replica, ((line, at), stop) in enumerate(zip(starts, stops, strict=True)):
                found[first._replace(replica=replica)] = _Read(line=line, at=at, end=at, stop=stop)
        return found

    def _continued(self, part: Part, read: _Read) -> _Read:
        """Return a part of the next transaction, without lines yet; its file is checked if it may have changed."""
        path = self.paths[part.file]
        with opened(path) as file:
            found = os.fstat(file.fileno())
        status = (found.st_ino, found.st_size, found.st_mtime_ns)
        end = read.end
        if self._checked.get(f"{part}") != status:
            if found.st_size < (stop := read.stop or end):
                raise changed(path, f"it was divided up to byte {stop}, and has {found.st_size} now")
            check_seen(path, read.seen, found.st_size)
            if read.stop is None and end and found.st_size > end:
                end = after_line(path, end)
            self._checked[f"{part}"] = status
        return _Read(read.line + read.lines, 0, 0, end, end, read.stop, "", read.seen)

    def _has_tuples(self, path: str, start: int, stop: int) -> bool:
        key = (path, start, stop)
        if stop <= start:
            return False
        if key not in self._rest:
            if len(self._rest) > 2 * len(self.parts):
                self._rest.clear()
            self._rest[key] = any(at < stop for _, at in _tuple_lines(path, start))
        return self._rest[key]


def _tuple_lines(path: str, at: int = 0) -> Iterator[tuple[int, int]]:
    """Yield number (from 1, counted from byte `at`) and first byte of each line that is a tuple."""
    with opened(path) as file:
        file.seek(at)
        for number, line in enumerate(file, 1):
            if is_tuple(line):
                yield number, at
            at += len(line)


def _places(path: str, wanted: Collection[int]) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return how many tuples a file has, and the numbers (from 1) and first bytes of lines of the `wanted` ones."""
    found, count, line, at = dict[int, tuple[int, int]](), 0, 1, 0
    with opened(path) as file:
        while lines := file.readlines(_GLANCE):
            data = b"".join(lines)
            if are_tuples(data, lines) and not any(count <= one < count + len(lines) for one in wanted):
                count, line, at = count + len(lines), line + len(lines), at + len(data)
                continue
            for one in lines:
                if is_tuple(one):
                    if count in wanted:
                        found[count] = line, at
                    count += 1
                line, at = line + 1, at + len(one)
    return count, found


def _more(path: str, read: _Read, wanted: int, data: bytearray) -> tuple[_Read, int]:
    """Return a part with up to `wanted` more tuples, and how many these are; add its lines to `data`."""
    end, lines, taken = read.end, 0, 0
    while taken < wanted and end != read.stop and (got := read_lines(path, end, wanted - taken)):
        size = sum(map(len, got))
        while read.stop is not None and end + size > read.stop:
            size, wanted = size - len(got.pop()), 0
        joined = b"".join(got)
        end, lines = end + size, lines + len(got)
        taken += len(got) if are_tuples(joined, got) else sum(map(is_tuple, got))
        data += joined
    return replace(read, end=end, lines=read.lines + lines, tuples=read.tuples + taken), taken


class FilesCoordinator(SpoutCoordinator):
    """Coordinator of the data files: plans which lines of each part a transaction reads, evenly among the parts.

    A subclass overrides `limits` to hold back parts.
    """

    def __init__(self, files: FileParts, rows: int) -> None:
        self.files = files
        self.rows = rows

    def limits(self, txid: int) -> Limits | None:
        """Return the room for the tuples of each part in a transaction; None: no limits."""
        return None

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """See `SpoutCoordinator`; a transaction without tuples is not planned."""
        planned = self.files.plan(txid, prev_metadata, self.rows, self.limits(txid))
        return NOT_READY if planned is None else planned

    def latest(self) -> dict[str, int]:
        """See `SpoutCoordinator`."""
        return self.files.marks()

    def reached(self, metadata: Any, mark: Mapping[str, int]) -> bool:
        """See `SpoutCoordinator`."""
        return self.files.reached(metadata, mark)

    def caught_up(self, metadata: Any) -> bool:
        """See `SpoutCoordinator`."""
        return self.files.reached(metadata, self.files.marks())

    def facts(self, metadata: Any) -> SourceFacts:
        """See `SpoutCoordinator`."""
        return SourceFacts(tuple(self.files.paths), self.caught_up(metadata))


class FilesSpout(TransactionalSpout):
    """Spout of the data files of a configuration.

    Args:
        configuration: the configuration.
        rows: the maximum number of tuples in a transaction.
        shape: the form in which they are emitted.
    """

    live = False

    def __init__(self, configuration: Configuration, rows: int, shape: Shape) -> None:
        self.files = FileParts(configuration)
        self.rows = rows
        self.shape = shape

    def check(self) -> None:
        """Raise `SpoutError` if a file cannot be read."""
        self.files.check()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the shape."""
        self.shape.declare(declarer)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator."""
        return FilesCoordinator(self.files, self.rows)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads the parts of its task."""
        return _FilesEmitter(self.files, self.shape, context)


class _FilesEmitter(Emitter):
    def __init__(self, files: FileParts, shape: Shape, context: TaskContext) -> None:
        self._files, self._shape, self._context = files, shape, context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        for block in self._files.blocks(metadata, collector, self._context.task, self._context.parallelism):
            self._shape.emit(block, collector)
