"""One Delta table of a topology in its data directory: how it is made, opened, and made durable.

Who makes the commits that publish rows: the port, and the default writer.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from txstorm.clients.delta import archive as delta_archive
from txstorm.clients.delta.archive import archive_entries, log_retention
from txstorm.clients.delta.entry import LOG_RETENTION, Commit, DataFile
from txstorm.clients.delta.features import append_only_text
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.stats import STATS_COLUMNS
from txstorm.clients.files import renew, sync_file, sync_names
from txstorm.errors import TableCorrupt, TableRefused
from txstorm.storage.rows.schema import OP, schema_differences
from txstorm.storage.rows.ttl import TTL
from txstorm.storage.tables.identity import KEYS, LAYOUT, VALUES, TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STAGED, STATE, IntentTable
from txstorm.storage.tables.merge_layout import merged_files
from txstorm.storage.tables.staging import check_digest, data_file
from txstorm.storage.tables.table_log import (
    CREATED,
    REDEFINED,
    TransactionalTable,
    identity_info,
)


class Writer(Protocol):
    """Publishes the staged rows of groups to the tables that were declared with it.

    Everything else that is written to a table (epochs, compactions, rewinds, what a new coordinator rolls forward) is
    written by the handle itself, whoever the writer is: a table may be written by one today and by another tomorrow.
    """

    def prepare(self, table: Path) -> bool:
        """Called in P0 before the epoch is raised; True when `table` must get a commit so that other runs notice.

        Raises:
            InputError: the table cannot be written to safely from here.
        """

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """Make the next version if `handle` is at the newest one, else change nothing.

        Returns the version, or None where the table has to be asked what it holds now; `refresh` the handle unless it
        has moved there. `txid_app`: the app id among those of `commit` that keeps the txid.

        Raises:
            ConflictError: the table is at another version than the handle, or somebody else committed meanwhile.
            TableCorrupt: the commit failed for another reason; it may have been made nevertheless.
            BlockedError: the table cannot be written to now.
        """


class DirectWriter:
    """The default: a log entry that refers to the staged file, made by the driver."""

    def prepare(self, table: Path) -> bool:
        """Nothing to do."""
        return False

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """As the port says."""
        handle.commit(commit)
        return handle.version


DIRECT = DirectWriter()


log = logging.getLogger("txstorm.state")

CHECKPOINT_EVERY = 20
_DECLARED = {KEYS, VALUES, LAYOUT, TTL}
"""Properties that a declaration gives a table, or does not."""
CHECKPOINT_MOST = 100
ARCHIVING_SHARE = 100
"""So many times within the retention of a log its oldest entries are moved to the archive."""
MOST_ENTRIES = 1_000_000
"""Entries of a log beyond which a run warns: every reader lists them."""
LEAST_SECONDS = 60.0
"""Time in which a rate is measured at least."""


def checkpoint_after(handle: DeltaHandle) -> int:
    """Versions between two checkpoints of a log that txstorm alone writes, and reads when it is opened only."""
    return max(CHECKPOINT_EVERY, min(handle.checkpointed // 2, CHECKPOINT_MOST))


class Archiving:
    """When the log of a table is listed again, to move old entries to the archive; used by one thread at a time.

    Each time some hundredth of what the log keeps is moved. So the cost of listing it, which grows with its length, is
    spread over as many commits.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._next = 0.0
        self._started: tuple[float, int] | None = None
        self._warned = False

    def steps(self, handle: DeltaHandle, uri: str) -> Iterator[None]:
        """Move what has to be moved now, in steps; warn once of a log with more entries than readers should list."""
        now, seconds = self._wall(), log_retention(handle.properties)
        since, first = self._started = self._started or (now, handle.version)
        rate = (handle.version - first) / max(now - since, LEAST_SECONDS)
        expected = rate * seconds
        if now >= self._next and seconds < math.inf:
            self._next = now + max(seconds, delta_archive.CHECKPOINT_SECONDS) / ARCHIVING_SHARE
            expected = max(expected, (yield from archive_entries(handle.path, seconds, now)))
        if expected > MOST_ENTRIES and not self._warned:
            self._warned = True
            log.warning(
                "table %s: makes %.3g versions a second, so its log has, or will have, %.3g entries in the %g s that "
                "it keeps them (%s), and readers list them all: expected at most %d; make fewer versions (larger "
                "transactions, a larger max_group_txids), or set a smaller log_retention",
                *(uri, rate, expected, seconds, LOG_RETENTION, MOST_ENTRIES),
            )


class Shortening:
    """A checkpoint of a table, and the move of old entries to the archive, beside commits.

    `steps` runs on any thread, on a handle of its own. A checkpoint only saves time, so one that fails (a full disk)
    is reported and does not stop the run.

    Attributes:
        made: a handle that begins with the new checkpoint; None while there is none.
    """

    def __init__(self, opener: Callable[[], DeltaHandle], uri: str, every: int, archiving: Archiving) -> None:
        self.made: DeltaHandle | None = None
        self._opener = opener
        self._uri, self._every, self._archiving = uri, every, archiving

    def steps(self) -> Iterator[None]:
        """Write and move; between two steps the work can be left off."""
        try:
            handle = self._opener()
            files = handle.checkpoint(self._every)
            yield
            if files:
                self.made = handle
                yield from self._archiving.steps(handle, self._uri)
        except (TableCorrupt, OSError) as cause:
            log.warning("table %s: no checkpoint: %s", self._uri, cause)


class DeltaTableState(TransactionalTable):
    """A table in a data directory, at the version last read."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, ref: TableRef, handle: DeltaHandle) -> None:
        self.data_dir, self.path = data_dir, data_dir / ref.uri
        self._handle = handle
        self._writer: Writer = DIRECT
        self._long_after = CHECKPOINT_EVERY
        self._archiving = Archiving()
        super().__init__(owner, ref, handle, str(self.path))

    @classmethod
    def open(cls, data_dir: Path, owner: TopologyIdentity, ref: TableRef) -> DeltaTableState:
        """Open an existing table.

        Raises:
            TableCorrupt: it is missing or damaged.
            DataDirectoryError: it belongs to somebody else, or has a newer format.
        """
        return cls(data_dir, owner, ref, DeltaHandle.open(data_dir / ref.uri))

    @classmethod
    def create(
        cls,
        data_dir: Path,
        owner: TopologyIdentity,
        ref: TableRef,
        schema: pa.Schema,
        txid: int,
        about: Mapping[str, str],
        since: int | None = None,
    ) -> DeltaTableState:
        """Create an empty, durable table whose range starts after `txid`; `about` are further table properties.

        Those that are to follow the settings later come from `properties.recorded`. `since`: the txid it begins after,
        if that is another one: a copy of older rows is about to be put into it.
        """
        since = txid if since is None else since
        path = data_dir / ref.uri
        new = [one for one in (path / STAGED, *(path / STAGED).parents) if not one.exists()]
        (path / STAGED).mkdir(parents=True, exist_ok=True)
        info = {**identity_info(owner), "kind": CREATED, "last": txid}
        commit = Commit({ref.txid_app(owner): txid, owner.epoch_app: 0, owner.since_app: since}, info)
        properties = {**owner.properties(), STATS_COLUMNS: ref.bounded, **about}
        handle = DeltaHandle.create(path, schema, properties, commit)
        made = cls(data_dir, owner, ref, handle)
        made.sync(range(1))
        new.append(handle.log_entry(0).parent)
        for directory in ((path / STAGED).parent, path, path.parent, data_dir):
            sync_names(directory, [one for one in new if one.parent == directory])
        return made

    def renew_directories(self) -> None:
        """Make the names of the directories durable of a table that an earlier start made, and did not record."""
        below = self.path / STAGED
        for one in (below, below.parent, self._handle.log_entry(0).parent, self.path):
            renew(one)
            sync_file(one.parent)
        sync_file(self.path.parent.parent)

    def use(self, writer: Writer) -> None:
        """Publish groups with `writer`; called before the epoch is raised."""
        self._writer = writer

    def prepare(self) -> bool:
        """Have the writer look whether the table can be written to; raises `InputError` where it cannot safely."""
        return self._writer.prepare(self.path)

    def check_writable(self) -> None:
        """Raise `TableRefused` where the table has a feature that txstorm does not obey."""
        self._handle.check_writable()
        if self.ref.kind == STATE and self._handle.append_only:
            raise TableRefused(append_only_text(self.path))

    def due_properties(self) -> Mapping[str, str]:
        """The property that tells readers of which column files have statistics, where it is missing or says otherwise.

        Without it deltalake takes the missing bounds for null and finds no rows by any other column. Files with bounds
        of other columns only, as others or an older txstorm may have left them, are read right without any.
        """
        found, wanted = self._handle.properties.get(STATS_COLUMNS), self.ref.bounded
        if found != wanted and self._handle.is_silent(wanted):
            wanted = ""
        return {} if found == wanted else {STATS_COLUMNS: wanted}

    def commit_group(self, commit: Commit) -> int | None:
        """Have the writer make a commit that publishes rows."""
        self.check_writable()
        return self._writer.commit(self._handle, commit, self._txid_app)

    def redefine(self, schema: pa.Schema, about: Mapping[str, str], epoch: int) -> None:
        """Give a table to which nothing was ever committed other columns, and properties that say so, in one commit.

        Called by the coordinator of `epoch`, which leads the table.

        Raises:
            FencedError: a newer coordinator leads the table.
            StateError: the table has features that txstorm cannot change the columns of.
            BlockedError: the commit cannot be made.
        """
        others = {key: text for key, text in self._handle.properties.items() if key not in _DECLARED}
        properties = {**others, **self.owner.properties(), **about}

        def made() -> Commit:
            last = self.last_txid()
            info = {**identity_info(self.owner), "kind": REDEFINED, "epoch": epoch, "last": last}
            apps = {self._txid_app: last, self._epoch_app: epoch}
            return Commit(apps, info, columns=(schema, properties), label="txstorm other columns, before any row")

        def is_done() -> bool:
            return not schema_differences(schema, self._handle.schema) and self._handle.properties == properties

        self.amend(is_done, made, epoch, "give it other columns")

    @property
    def handle(self) -> DeltaHandle:
        """The table itself, for reading."""
        return self._handle

    def check_there(self) -> None:
        """A look, without reading, whether the log can be written to; called before a group is published to any table.

        Raises:
            BlockedError: it is gone, or may not be written to.
        """
        log = self._handle.log_entry(0).parent
        if os.access(log, os.W_OK):
            return
        try:
            self._handle.reopen()
        except TableCorrupt as gone:
            raise self.blocked("commit to it", gone) from gone
        raise self.blocked("commit to it", PermissionError(f"no right to write to {log}"))

    @property
    def is_long(self) -> bool:
        """Whether the log is to be shortened; may be asked by any thread."""
        return self._handle.version >= self._handle.checkpointed + self._long_after

    def _checkpoint_after(self) -> int:
        """Versions between checkpoints, each of which costs as much as some commits; more where only starts read it."""
        alone = self._writer is DIRECT and self._handle.is_plain
        return checkpoint_after(self._handle) if alone else CHECKPOINT_EVERY

    def opener(self) -> Callable[[], DeltaTableState]:
        """What opens the table at its newest version on another handle, on any thread; neither lists the log."""
        opened, data_dir, owner, ref = self._handle.opener(newest=True), self.data_dir, self.owner, self.ref
        return lambda: DeltaTableState(data_dir, owner, ref, opened())

    def shortening(self) -> Shortening:
        """What shortens the log; called in the committer's turn. Call `shortened` with it, when its steps are over."""
        return Shortening(self._handle.opener(), self.ref.uri, self._long_after, self._archiving)

    def shortened(self, done: Shortening) -> None:
        """Start from the checkpoint that `done` has made, if it has; called in the committer's turn."""
        if done.made is not None:
            self._handle.begin_with(done.made)
            self._long_after = self._checkpoint_after()

    def tidy(self) -> None:
        """Shorten the log where it is long, at once: where there are no commits beside that would have to wait."""
        if self.is_long:
            work = self.shortening()
            for _ in work.steps():
                pass
            self.shortened(work)
        self._long_after = self._checkpoint_after()

    def sync(self, versions: range, *, again: bool = False) -> None:
        """Make versions of the log durable; with `again` an earlier sync of theirs may have failed."""
        self._handle.make_durable(versions, again=again)

    def published_files(self, table: IntentTable, epoch: int, stamp: int) -> tuple[list[DataFile], list[DataFile]]:
        """The staged files; of a state of the layout ``merge`` files that are written here with its rows over theirs.

        `stamp`: of the last txid, UTC microseconds.

        Raises:
            TableCorrupt: the staged file is gone or has another size, or a file to be written again is damaged.
            OSError: the disk is full.
        """
        if table.kind != STATE:
            return [data_file(self.path, staged) for staged in table.files], []
        self.check_columns(table)
        return merged_files(self._handle, table.files, epoch, stamp)

    def check_columns(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the table has the columns of the staged rows."""
        self.check_schema(table.arrow_schema())

    def check_staged(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the staged rows are what was decided, and have the table's columns."""
        self.check_columns(table)
        for staged in table.files:
            check_digest(self.path, staged)

    def at(self, version: int) -> DeltaHandle:
        """The table at `version`."""
        return self._handle if version == self.version else DeltaHandle.open(self.path, version)

    def has_file(self, path: str) -> bool:
        """Whether there is a file at `path`, relative to the table."""
        return (self.path / path).exists()

    def check_schema(self, expected: pa.Schema) -> None:
        """Raise `TableCorrupt` unless the table has the columns a decided transaction wants to add."""
        if self.ref.kind == STATE:  # the layout merge: its rows are changes
            expected = pa.schema([field for field in expected if field.name != OP.name])
        differences = schema_differences(expected, self._handle.schema)
        if differences:
            msg = f"table {self.ref.uri}: differs from the rows to publish: {'; '.join(differences)}; restore the table"
            raise TableCorrupt(msg)


def open_table(data_dir: Path, ref: TableRef) -> DeltaTableState:
    """The table `ref`, on the timeline of its newest commit."""
    handle = DeltaHandle.open(data_dir / ref.uri)
    own = handle.properties
    timelines = (entry.info["timeline"] for entry in handle.history() if "timeline" in entry.info)
    owner = TopologyIdentity(own.get("txstorm.topology", ""), own.get("txstorm.incarnation", ""), next(timelines, 0))
    return DeltaTableState(data_dir, owner, ref, handle)
