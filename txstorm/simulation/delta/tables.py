"""Simulated Delta tables: a log with a compare-and-set on its version, and staged files held as rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from txstorm.clients.delta.entry import Commit, DataFile, LogEntry
from txstorm.errors import ConflictError, TableCorrupt
from txstorm.simulation.expected import Violation
from txstorm.simulation.judge import THEIRS
from txstorm.simulation.schedule import CONFLICT, CRASH_AFTER, FAILED, LOST
from txstorm.storage.tables.directory import TableDirectory
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STAGED, IntentTable, Staged
from txstorm.storage.tables.staging import compact_name
from txstorm.storage.tables.table_log import COMMITTED, CREATED, EPOCH, RESTORED, TransactionalTable

if TYPE_CHECKING:
    from txstorm.simulation.process.process import Process
    from txstorm.simulation.world import World

SPARKS = "part-"
"""Beginning of the names of files that Spark writes."""

CHECKPOINTED = 4
"""Number of versions between checkpoints of a simulated table."""

Row = tuple[int, int, int, int]
"""A row: txid, partition, first offset, end offset. In a state: the txid it is as of, and 0 as the first offset."""


class Version(NamedTuple):
    """One version of a table, as recorded in its log."""

    info: Mapping[str, Any]
    apps: Mapping[str, int]
    files: dict[str, DataFile]


NOTHING = Version({}, {}, {})


class Stored:
    """Durable content of a table: its versions, and the rows of its files."""

    def __init__(self, ref: TableRef, number: int) -> None:
        self.ref = ref
        self.uri = ref.uri
        self.number = number
        self.properties: Mapping[str, str] = {}
        self.versions: list[Version] = []
        self.rows: dict[str, tuple[Row, ...]] = {THEIRS: ()}
        self.locked = False  # whether all writers commit under a lock, as Spark requires
        self.volatile: set[int] = set()  # versions that a power failure could remove
        self.lost: set[int] = set()  # volatile versions whose sync has failed, so that another sync has no effect
        self.raised = self.published = 0  # newest version that raised the epoch; newest that published or restored

    def append(self, commit: Commit) -> None:
        """Append a version with the content of `commit`."""
        old = self.versions[-1] if self.versions else NOTHING
        files = old.files
        if commit.info["kind"] == EPOCH:
            self.raised = len(self.versions)
        elif commit.info["kind"] in (COMMITTED, RESTORED):
            self.published = len(self.versions)
        self.volatile.add(len(self.versions))
        if commit.adds or commit.removes:
            files = dict(files)
            for gone in commit.removes:
                files.pop(gone.path, None)
            for one in commit.adds:
                files[one.path] = one
        self.versions.append(Version(commit.info, {**old.apps, **commit.transactions}, files))

    def check_durable(self, last: int, what: str) -> None:
        """Raise `Violation` if a power failure could remove version `last` or an earlier one not in a checkpoint.

        Checkpoints are durable in simulated worlds, and every open of a table reads, and makes durable, the entries
        since the newest one. `what` names the step that relies on these versions.
        """
        if taken := [number for number in self.at_risk() if number <= last]:
            raise Violation(6, f"{what}, a power cut could take versions {taken} of {self.uri}")

    def at_risk(self) -> list[int]:
        """Return the versions that a power cut may take; taking the first one takes the whole table."""
        newest = len(self.versions) - 1
        since = newest - newest % CHECKPOINTED
        return sorted(number for number in self.volatile if number >= since or number == 0)

    def lose(self, below: Callable[[int], int]) -> list[int]:
        """Lose any of the versions at risk, as a power cut may; return them.

        The names of unsynced entries may survive in any combination, their content was synced before. A log without an
        entry before its last one is unreadable.
        """
        lost = [number for number in self.at_risk() if below(2)]
        if lost and lost[0] == 0:
            self.versions.clear()
            self.rows = {THEIRS: ()}
        elif lost and lost != [*range(lost[0], len(self.versions))]:
            raise Violation(6, f"a power cut takes versions {lost} of {self.uri}, and leaves {len(self.versions) - 1}")
        elif lost:
            del self.versions[lost[0] :]
        kinds = [version.info.get("kind") for version in self.versions]
        self.raised = max([at for at, kind in enumerate(kinds) if kind == EPOCH], default=0)
        self.published = max([at for at, kind in enumerate(kinds) if kind in (COMMITTED, RESTORED)], default=0)
        named = {path for version in self.versions for path in version.files}
        self.rows = {path: rows for path, rows in self.rows.items() if path in named or not path.startswith(SPARKS)}
        self.volatile, self.lost = set(), set()
        return lost

    def foreign(self) -> None:
        """Commit as another writer would, without changing any row."""
        self.versions.append(self.versions[-1]._replace(info={}))


class SimLog:
    """Implementation of `TableLog` for one simulated process."""

    def __init__(self, world: World, process: Process, stored: Stored, version: int | None = None) -> None:
        self._world = world
        self._process = process
        self._stored = stored
        self._version = len(stored.versions) - 1 if version is None else version

    @property
    def version(self) -> int:
        """The version that this handle has read."""
        return self._version

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._stored.properties

    def refresh(self) -> None:
        """Advance this handle to the newest version."""
        self._world.reads(self._process, "refresh", self._stored.uri)
        self._version = len(self._stored.versions) - 1

    reopen = refresh

    def still_has(self, version: int) -> bool:
        """Return True, since the simulated writers never replace log entries."""
        return True

    def app_version(self, app_id: str) -> int | None:
        """Return the last version committed under `app_id`; None if there is none."""
        return self._stored.versions[self._version].apps.get(app_id)

    def info(self, version: int) -> Mapping[str, Any]:
        """Return the commit info of `version`."""
        return self._stored.versions[version].info

    def checked_infos(self) -> list[Mapping[str, Any]]:
        """Return the commit infos since the last checkpoint, oldest first."""
        version = self._version
        return [one.info for one in self._stored.versions[version - version % CHECKPOINTED : version + 1]]

    def commit(self, commit: Commit) -> None:
        """Commit the next version and advance to it; the process may die before or after that, or get no response."""
        stored, process = self._stored, self._process
        kind = self._world.passes(process, "table commit", stored.uri)
        if kind == CONFLICT:
            stored.foreign()
        if kind == FAILED:
            raise process.refused(TableCorrupt("the table refused the commit"))
        if self._version != len(stored.versions) - 1:
            raise self._conflict()
        self._append(commit, kind)
        self._version += 1

    def append_with_spark(self, commit: Commit, app: str) -> None:
        """Commit as Spark does: write new files, keep only the app id `app`, and retry after harmless commits.

        The version is checked under the table's lock, so no other coordinator can commit in between.
        """
        stored, process = self._stored, self._process
        kind = self._world.passes(process, "commit by Spark", stored.uri)
        if kind == FAILED:
            raise process.refused(TableCorrupt("Spark could not append to the table"))
        if self._version != len(stored.versions) - 1:
            raise self._conflict()
        if kind == CONFLICT:
            stored.foreign()
        adds = [replace(file, path=f"{SPARKS}{self._world.unique()}.parquet") for file in commit.adds]
        for ours, file in zip(commit.adds, adds, strict=True):
            stored.rows[file.path] = stored.rows[ours.path]
        self._append(commit._replace(transactions={app: commit.transactions[app]}, adds=adds), kind)

    def _conflict(self) -> ConflictError:
        return ConflictError(f"{self._stored.uri} is at another version")

    def _append(self, commit: Commit, kind: str | None) -> None:
        with self._world.judging():
            self._world.judge.before_table(self._process, self._stored, commit)
        self._stored.append(commit)
        self._process.has_written(kind)
        if kind == LOST:
            raise self._process.refused(TableCorrupt("the table's answer is lost"))

    def history(self, newest: int | None = None) -> Iterator[LogEntry]:
        """Yield versions, newest first, starting at `newest` (default: this version)."""
        for version in range(self._version if newest is None else min(newest, self._version), -1, -1):
            yield LogEntry(version, self._stored.versions[version].info)

    def files(self) -> Sequence[DataFile]:
        """Return the files of this version."""
        return list(self._stored.versions[self._version].files.values())

    def logged_paths(self) -> set[str]:
        """Return every file that any version references."""
        return {path for one in self._stored.versions for path in one.files}


class SimTable(TransactionalTable):
    """Implementation of `TransactionalTable` for one simulated process; the shipped code makes its decisions."""

    def __init__(self, world: World, process: Process, owner: TopologyIdentity, stored: Stored) -> None:
        self.stored = stored
        self._world, self._process = world, process
        self.sim_log = SimLog(world, process, stored)
        self._by_spark = False
        super().__init__(owner, stored.ref, self.sim_log)

    def use_spark(self) -> None:
        """Make Spark publish groups from now on; call before the epoch is raised."""
        self._by_spark = True

    def prepare(self) -> bool:
        """Make all writers commit under the table's lock from now on, as Spark requires."""
        fresh = self._by_spark and not self.stored.locked
        self.stored.locked |= fresh
        return fresh

    def commit_group(self, commit: Commit) -> int | None:
        """Commit published rows, through Spark if enabled; the result of a Spark commit must be read back."""
        if not self._by_spark:
            return super().commit_group(commit)
        self.sim_log.append_with_spark(commit, self._txid_app)
        return None

    def sync(self, versions: range, *, again: bool = False) -> None:
        """Sync versions; the process may die, or a sync may fail, after which only rewritten entries become durable."""
        self._world.syncs(self._process)
        for version in versions:
            try:
                self._world.reads(self._process, "table sync", self.stored.uri)
            except Exception:
                self.stored.lost |= self.stored.volatile & set(versions)
                raise
            if again:
                self.stored.lost.discard(version)
            if version and version not in self.stored.lost:  # the first one needs the names of directories, too
                self.stored.volatile.discard(version)

    def published_files(self, table: IntentTable, epoch: int, stamp: int) -> tuple[list[DataFile], list[DataFile]]:
        """Return the staged file unchanged, since no simulated table has the layout ``merge``."""
        check_staged(self.stored, table.staged)
        return [DataFile(table.staged.path, table.staged.size)], []

    def check_columns(self, table: IntentTable) -> None:
        """Do nothing: simulated tables have no columns."""

    def check_staged(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the staged rows exist."""
        check_staged(self.stored, table.staged)

    def at(self, version: int) -> SimLog:
        """Return the log at `version`."""
        return SimLog(self._world, self._process, self.stored, version)

    def has_file(self, path: str) -> bool:
        """Return whether a file exists at `path`."""
        return path in self.stored.rows


def check_staged(stored: Stored, staged: Staged) -> None:
    """Raise `TableCorrupt` unless the staged file exists."""
    if staged.path not in stored.rows:
        raise TableCorrupt(f"table {stored.uri}: the staged file {staged.path} is missing")


class SimPlace(TableDirectory):
    """Data directory of a world, with all its tables, as one process sees it."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(process.books.check_leads)
        self._world, self._process = world, process

    def __str__(self) -> str:
        return "the simulated directory"

    def has(self, ref: TableRef) -> bool:
        """Return whether the table `ref` exists."""
        return bool(self._world.tables[ref.uri].versions)

    def table(self, owner: TopologyIdentity, ref: TableRef) -> SimTable:
        """Open the table `ref` at its newest version."""
        uri = ref.uri
        self._world.reads(self._process, "table open", uri)
        return SimTable(self._world, self._process, owner, self._world.tables[uri])

    def create_table(
        self, owner: TopologyIdentity, ref: TableRef, schema: pa.Schema, txid: int, about: Mapping[str, str]
    ) -> None:
        """Create an empty table whose range starts after `txid`."""
        stored = self._world.tables[ref.uri]
        with self._world.judging():
            self._world.judge.before_creation(self._process, ref.uri)
        kind = self._world.passes(self._process, "table create", stored.uri)
        self._world.creates(self._process, stored.uri)
        if kind == FAILED:
            raise self._process.injected(TableCorrupt("the table cannot be created"))
        if stored.versions:
            raise TableCorrupt("there is a table already")
        stored.properties = owner.properties()
        info = {**owner.info(), "kind": CREATED, "last": txid}
        stored.append(Commit({ref.txid_app(owner): txid, owner.epoch_app: 0, owner.since_app: txid}, info))
        self._process.has_written(kind)
        if kind == LOST:
            raise TableCorrupt("the answer to the creation is lost")
        self.secure_names(owner, ref)

    def discard_torn(self, ref: TableRef) -> None:
        """Do nothing: tables are created at once in simulated worlds of this kind."""

    def secure_names(self, owner: TopologyIdentity, ref: TableRef) -> None:
        """Make the first entry and the names of its directories durable."""
        self._world.syncs(self._process)
        self._world.reads(self._process, "directory sync", ref.uri)
        self._world.tables[ref.uri].volatile.discard(0)

    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless the file `staged` for the table `uri` exists."""
        check_staged(self._world.tables[uri], staged)

    def check_history(self) -> None:
        """Do nothing: the history table is never damaged in simulated worlds; its log is tested elsewhere."""

    def add_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows that the history does not contain yet."""
        with self._world.judging():
            self._world.judge.before_creation(self._process, "history")
        kind = self._world.passes(self._process, "history append", "history")
        if kind == FAILED:
            raise self._process.injected(TableCorrupt("the history refused the commit"))
        history = self._world.history
        last = max((one["txid"] for one in history if rows and one["timeline"] == rows[0]["timeline"]), default=-1)
        fresh = [row for row in rows if row["txid"] > last]
        with self._world.judging():
            self._world.judge.history(fresh)
        history.extend(fresh)
        if kind in (CRASH_AFTER, LOST):
            self._process.dies()
        self._world.syncs(self._process)
        self._world.reads(self._process, "history sync", "history")
        self._world.history_synced = len(history)


def written(process: Process, stored: Stored, rows: tuple[Row, ...]) -> DataFile:
    """Write the rows of several files as one new file of a table, which nothing references yet."""
    process.world.reads(process, "write", stored.uri)
    path = f"{STAGED}/{compact_name(process.books.epoch, process.world.unique())}"
    stored.rows[path] = rows
    return DataFile(path, len(rows))


class SimRows:
    """Access to the rows of a table's files, for a rewind."""

    def __init__(self, process: Process, stored: Stored) -> None:
        self._process, self._stored = process, stored

    def txids(self, path: str) -> tuple[int, int]:
        """Return the lowest and the highest txid of the rows of a file."""
        txids = [row[0] for row in self._stored.rows[path]]
        return (min(txids), max(txids)) if txids else (0, 0)

    def kept(self, paths: Sequence[str], txid: int) -> tuple[DataFile, ...]:
        """Stage the rows of `paths` up to `txid` as one file."""
        rows = tuple(sorted(row for path in paths for row in self._stored.rows[path] if row[0] <= txid))
        return (written(self._process, self._stored, rows),)
