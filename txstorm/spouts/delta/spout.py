"""The Delta spout: the versions of a Delta table as transactions that can be replayed exactly.

Metadata of a txid: ``{"v": 1, "table": id, "snapshot": bool, "from": [version, file], "to": [version, file], "files":
n}``. Files are numbered within a version: those that it adds, in the order of its log entry, or in a snapshot all
that the version has, ordered by time and name. ``to`` is where the next transaction begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator
from txstorm.ddl import FrameColumn, columns_text
from txstorm.errors import SettingError, SpoutError
from txstorm.spouts.delta.columns import TableColumns
from txstorm.spouts.delta.reading import digest_of, read_batches, read_share, rows_in
from txstorm.spouts.delta.shares import CHANGE_COMMITS, CHANGES, DELETES, Share, TableShares, TableSource
from txstorm.spouts.delta.source_log import SourceLog
from txstorm.spouts.files.batches import naming
from txstorm.spouts.files.listing import absolute
from txstorm.spouts.files.parquet import emit_rows
from txstorm.spouts.frames import FrameSpout

EARLIEST, LATEST = "earliest", "latest"
IGNORED = (DELETES, CHANGES, CHANGE_COMMITS)
LARGEST_BATCH = 1 << 30
_FORMAT = 1


class DeltaSpout(FrameSpout):
    """Delta spout: reads the rows of a Delta table once, and those of new versions as they come.

    Example::

        DeltaSpout("lake/orders", max_batch_files=100)
        DeltaSpout("out/changes/counts")                 # of another topology: each change of each transaction, once
        DeltaSpout("lake/orders", changes=True)          # its change data feed

    A transaction has whole files. On both engines its tasks read them; where frame bolts read the spout, Spark does.
    Versions that change no rows (OPTIMIZE, properties, new columns) are no input.

    Args:
        uri: the table's directory, a local path or ``file:///…``; made absolute at once.
        start: where a new data directory begins: ``earliest`` reads all rows of the newest version, then the versions
            after it; ``latest`` only the versions after it; a number, or a time, the versions from that one on.
        max_batch_files: maximum number of files in a transaction.
        max_batch_bytes: maximum number of bytes in a transaction, which has at least one file; by default 1 GiB.
        changes: read the change data feed: the columns ``_change_type``, ``_commit_version`` and ``_commit_timestamp``
            follow those of the table.
        ignore: what does not stop the source: ``deletes`` of whole files; ``changes``, which also deletes, and whose
            rewritten files are read as new ones; ``change_commits``, which skips all versions that delete or change
            rows. These are Spark's ignoreDeletes, ignoreChanges and skipChangeCommits.

    Raises:
        SpoutError: the path is not local.
        SettingError: an option is invalid.
    """

    emits_frames = False

    def __init__(
        self,
        uri: Any,
        *,
        start: str | int | datetime = EARLIEST,
        max_batch_files: int = 1000,
        max_batch_bytes: int | None = None,
        changes: bool = False,
        ignore: str | Iterable[str] = (),
    ) -> None:
        ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
        _check_options(start, ignored, max_batch_files, max_batch_bytes)
        moment = start.replace(tzinfo=start.tzinfo or UTC) if isinstance(start, datetime) else start
        self._source = TableSource(Path(absolute(uri, "delta spout")[0]), moment, bool(changes), ignored)
        self._limits = max_batch_files, LARGEST_BATCH if max_batch_bytes is None else max_batch_bytes
        self._shares: TableShares | None = None

    @property
    def path(self) -> Path:
        """The table's directory."""
        return self._source.path

    def as_frames(self) -> DeltaSpout:
        """Return a copy whose batches are DataFrames, for frame bolts."""
        made: DeltaSpout = object.__new__(type(self))
        made.__dict__.update(self.__dict__, emits_frames=True)
        return made

    @cached_property
    def _columns(self) -> TableColumns:
        # Shipped with the spout, so that driver and workers agree on them.
        log = SourceLog(self.path)
        return TableColumns.of(log, log.newest(), changes=self._source.changes)

    @property
    def columns(self) -> Mapping[str, FrameColumn]:  # type: ignore[override]
        """Name → type of the columns, as of the newest version when they were first asked for."""
        return self._columns.columns

    def check(self) -> None:
        """Raise `SpoutError` if the table is missing, or cannot be read."""
        self._read_by_driver().newest()

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which plans ranges of files."""
        return _DeltaCoordinator(self._read_by_driver(), self._limits, context.component)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter, which reads files; of frames, one of the rows that Spark gives to its task."""
        return super().emitter(context) if self.emits_frames else _DeltaEmitter(self.path, self._columns, context)

    def frame(self, spark: Any, metadata: Any) -> Any:
        """Return the rows of a transaction as a DataFrame."""
        shares = self._read_by_driver().planned(metadata)
        text = columns_text({name: column.spark for name, column in self.columns.items()})
        paths = [str(self.path / share.path) for share in shares]
        if shares and self._columns.is_plain and all(map(_is_plain, shares, paths)):  # two thirds of the time
            return spark.read.schema(text).option("recursiveFileLookup", "true").parquet(*paths)
        numbers = spark.range(0, len(shares), 1, min(len(shares) or 1, spark.sparkContext.defaultParallelism))
        return numbers.mapInArrow(partial(read_batches, self.path, self._columns, shares), text)

    def known(self, metadata: Any) -> tuple[str, int]:
        """Return a digest of the files, which never change, and their number of rows."""
        found = [(share, rows_in(self.path, share)) for share in self._read_by_driver().planned(metadata)]
        return digest_of(found), sum(rows for _, rows in found)

    def _read_by_driver(self) -> TableShares:
        if self._shares is None:
            self._shares = TableShares(self._source, self._columns)
        return self._shares

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shares": None}


def _is_plain(share: Share, path: str) -> bool:
    """Return whether all rows of a file are read, and Spark takes its name as it is."""
    return share.without is None and not re.search(r"[][{}*?\\%,:]|/[._][^/]*$", path)


class _Position(NamedTuple):
    """The place where a transaction begins: a file of a snapshot, or of a version."""

    snapshot: bool
    version: int
    file: int


class _DeltaCoordinator(SpoutCoordinator):
    def __init__(self, shares: TableShares, limits: tuple[int, int], component: str) -> None:
        self._shares, self._component = shares, component
        self._most_files, self._most_bytes = limits
        self._begin: _Position | None = None
        self._id = ""
        self._mark: tuple[int, Any] = 0, None
        self._planned: tuple[_Position, Any] | None = None
        self._empty: tuple[_Position, int] | None = None

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        with naming(self._component, txid):
            metadata = self._plan(prev_metadata)
        return NOT_READY if metadata is None else metadata

    def payload(self, metadata: Any) -> Any:
        return self._shares.planned(metadata)

    def facts(self, metadata: Any) -> SourceFacts:
        return SourceFacts(caught_up=self.caught_up(metadata))

    def caught_up(self, metadata: Any) -> bool:
        try:
            return self._plan(metadata) is None
        except SpoutError:  # of the next transaction, which reports it
            return False

    def offsets(self, metadata: Any) -> Mapping[str, int]:
        return {"versions": metadata["to"][0] + (metadata["to"][1] > 0)}

    def offsets_at(self, when: int) -> Mapping[str, int]:
        moment = datetime.fromtimestamp(when / 1_000_000, UTC)
        return {"versions": self._shares.log.version_at(moment)}

    def latest(self) -> Any:
        return self._shares.newest()

    def reached(self, metadata: Any, mark: Any) -> bool:
        following = self._plan(metadata)
        waits = following is not None and (following["snapshot"] or following["from"][0] <= mark)
        return not waits and (metadata is not None or self._shares.source.start != LATEST)

    def _plan(self, metadata: Any) -> Any:
        """Return the metadata of the transaction after the one with `metadata`; None if there is no file."""
        position = self._after(metadata)
        if metadata is None and self._shares.source.start == LATEST:  # without a file: it records where to begin
            return self._metadata(position, 0, (position.version, 0))
        if self._planned is None or self._planned[0] != position:
            made = self._snapshot(position) if position.snapshot else None
            made = made or self._versions(position)
            if made is None:
                return None
            self._planned = position, made
        return self._planned[1]

    def _after(self, metadata: Any) -> _Position:
        if metadata is None:
            self._begin = self._begin or self._first()
            return self._begin
        self._check_table(metadata)
        version, file = metadata["to"]
        return _Position(metadata["snapshot"] and file > 0, version, file)

    def _first(self) -> _Position:
        start, newest, log = self._shares.source.start, self._shares.newest(), self._shares.log
        if start == EARLIEST:
            self._shares.check_feed(newest)
            return _Position(True, newest, 0)
        if start == LATEST:
            version = newest + 1
        elif isinstance(start, datetime):
            version = log.version_at(start)
        else:
            version = int(start)
        if start != LATEST and version > newest:
            raise log.fault(f"start={start} is after its newest version, {newest}")
        if version <= newest:
            log.entry(version)
            self._shares.check_feed(version)
        return _Position(False, version, 0)

    def _check_table(self, metadata: Any) -> None:
        """Raise `SpoutError` if `metadata` is not of the table that is there, which may have been replaced."""
        log, (version, mark) = self._shares.log, self._mark
        if self._id == metadata["table"] and mark is not None and log.mark(version) == mark:
            return
        version = min(metadata["to"][0], log.newest())
        found = str(log.shape(version).table["id"])
        if metadata["v"] != _FORMAT or found != metadata["table"]:
            raise log.fault(
                f"it is not the table that was read up to version {metadata['to'][0]} (its id was "
                f"{metadata['table']}, and is {found}); restore that one, or start a new data directory"
            )
        self._id, self._mark = metadata["table"], (version, log.mark(version))

    def _metadata(self, position: _Position, shares: int, end: tuple[int, int]) -> dict[str, Any]:
        self._id = self._id or str(self._shares.log.shape(self._shares.newest()).table["id"])
        begin = [position.version, position.file]
        return {
            "v": _FORMAT,
            "table": self._id,
            "snapshot": position.snapshot,
            "from": begin,
            "to": list(end),
            "files": shares,
        }

    def _snapshot(self, position: _Position) -> Any:
        """Plan the next files of a snapshot; None if it has no more."""
        found = self._shares.in_snapshot(position.version, position.file, self._most_files + 1)
        taken = self._fitting(found, self._most_files, self._most_bytes)
        if not taken:
            return None
        end = (position.version, position.file + taken) if taken < len(found) else (position.version + 1, 0)
        return self._metadata(position, taken, end)

    def _versions(self, position: _Position) -> Any:
        """Plan the next files of versions, passing over those without any; None if there are none yet."""
        if position.snapshot:  # of an empty table
            position = _Position(False, position.version + 1, 0)
        version, file, count, size = position.version, position.file, 0, self._most_bytes
        begin = (version, file)
        if self._empty is not None and self._empty[0] == position:
            version, file = self._empty[1], 0
        while count < self._most_files:
            shares = self._of_version(version, begun=count > 0)
            if shares is None:
                break
            taken = self._fitting(shares[file:], self._most_files - count, size, least=0 if count else 1)
            if taken and not count:
                begin = (version, file)
            count, size = count + taken, size - sum(one.size or 0 for one in shares[file : file + taken])
            if file + taken < len(shares):
                file += taken
                break
            version, file = version + 1, 0
        if not count:
            self._empty = position, version
            return None
        return self._metadata(_Position(False, *begin), count, (version, file))

    def _of_version(self, version: int, *, begun: bool) -> Sequence[Share] | None:
        try:
            return self._shares.of_version(version)
        except SpoutError:
            if begun:  # the next transaction reports it
                return None
            raise

    @staticmethod
    def _fitting(shares: Sequence[Share], most: int, room: int, least: int = 1) -> int:
        """Return how many of the first `shares` a transaction has room for."""
        taken = 0
        for share in shares[:most]:
            room -= share.size or 0
            if room < 0 and taken >= least:
                break
            taken += 1
        return taken


class _DeltaEmitter(Emitter):
    """Reads the files of its task; receivers get those of all tasks in the order of the table."""

    def __init__(self, table: Path, columns: TableColumns, context: TaskContext) -> None:
        self._table, self._columns, self._context = table, columns, context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        tasks, read = max(1, self._context.parallelism), list[tuple[Share, int]]()
        for number, share in enumerate(self._context.payload):
            if (attempt.txid + number) % tasks == self._context.task:  # often there is only one file
                collector.partition(number)
                taken = 0
                with naming(self._context.component, attempt.txid):
                    for rows, numbers in read_share(self._table, self._columns, share):
                        emit_rows(rows, f"delta spout: {self._table / share.path}", numbers, collector)
                        taken += len(numbers)
                read.append((share, taken))
        collector.digest(f"task {self._context.task} of {tasks}", digest_of(read))


def _check_options(start: Any, ignored: frozenset[str], most_files: Any, most_bytes: Any) -> None:
    faults = []
    number = type(start) is int and start >= 0
    if start not in (EARLIEST, LATEST) and not number and not isinstance(start, datetime):
        faults.append(f"start is {start!r}, expected 'earliest', 'latest', a version or a datetime")
    for name, value in (("max_batch_files", most_files), ("max_batch_bytes", most_bytes)):
        if (type(value) is not int or value < 1) and (value is not None or name == "max_batch_files"):
            faults.append(f"{name} is {value!r}, expected an int > 0")
    if unknown := sorted(ignored - set(IGNORED)):
        faults.append(f"ignore has {unknown}, expected of {list(IGNORED)}")
    if faults:
        raise SettingError(f"delta spout: {'; '.join(faults)}")
