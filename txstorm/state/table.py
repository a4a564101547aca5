"""One Delta table of a topology: who owns it, which txid and epoch it is at, and how a group is published to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.clients.delta import Commit, DataFile, DeltaHandle
from txstorm.clients.delta_lock import is_shared
from txstorm.clients.delta_log import paths_of
from txstorm.errors import BlockedError, ConflictError, DataDirectoryError, FencedError, TableCorrupt
from txstorm.ledger.durable import sync_file
from txstorm.state.exchange import Exchange
from txstorm.state.intent import CHANGES, STATE, Intent, IntentTable, TxidRecord
from txstorm.state.merged import merged_files
from txstorm.state.owner import Owner as Owner
from txstorm.state.owner import TableRef as TableRef
from txstorm.state.owner import check_owner
from txstorm.state.schema import OP, schema_differences
from txstorm.state.staging import STAGED, data_file
from txstorm.state.tiling import check_own, check_tiles
from txstorm.state.writer import DIRECT, Writer

log = logging.getLogger("txstorm.state")

TRIES = 10
CHECKPOINT_EVERY = 20
CHECKPOINT_MOST = 100
CREATED, COMMITTED, EPOCH, COMPACTED = "create", "commit", "epoch", "compact"
REGROUPED, RESTORED, PRUNED = "regroup", "restore", "prune"


class DeltaTableState:
    """A table at the version last read. Every commit of it is a compare-and-set on that version."""

    def __init__(self, data_dir: Path, owner: Owner, ref: TableRef, handle: DeltaHandle) -> None:
        self.ref = ref
        self.path = data_dir / ref.uri
        self.owner = owner
        self._handle = handle
        self._writer: Writer = DIRECT
        self._long_after = CHECKPOINT_EVERY
        self._txid_app = ref.txid_app(owner)
        self._lost = False
        check_owner(self.path, handle.properties, owner)
        self._check_log()

    @classmethod
    def open(cls, data_dir: Path, owner: Owner, ref: TableRef) -> DeltaTableState:
        """Open an existing table.

        Raises:
            TableCorrupt: it is missing or damaged.
            DataDirectoryError: it belongs to somebody else, or has a newer format.
        """
        return cls(data_dir, owner, ref, DeltaHandle.open(data_dir / ref.uri))

    @classmethod
    def create(
        cls, data_dir: Path, owner: Owner, ref: TableRef, schema: pa.Schema, txid: int, about: Mapping[str, str]
    ) -> DeltaTableState:
        """Create an empty, durable table whose range starts after `txid`; `about` are further table properties."""
        path = data_dir / ref.uri
        (path / STAGED).mkdir(parents=True, exist_ok=True)
        info = {**_identity(owner), "kind": CREATED, "last": txid}
        commit = Commit({ref.txid_app(owner): txid, owner.epoch_app: 0}, info)
        handle = DeltaHandle.create(path, schema, {**owner.properties(), **about}, commit)
        made = cls(data_dir, owner, ref, handle)
        for file in (handle.log_entry(0), handle.log_entry(0).parent, path / STAGED, (path / STAGED).parent, path):
            sync_file(file)
        for parent in (path.parent, data_dir):
            sync_file(parent)
        return made

    def use(self, writer: Writer) -> None:
        """Publish groups with `writer`; called before the epoch is raised."""
        self._writer = writer

    @property
    def version(self) -> int:
        """The version last read."""
        return self._handle.version

    @property
    def handle(self) -> DeltaHandle:
        """The table itself, for reading."""
        return self._handle

    def last_txid(self) -> int:
        """The last txid that was published to this table (``state/…``: the txid it is as of).

        Raises:
            DataDirectoryError: it has none on this timeline.
        """
        txid = self._handle.app_version(self._txid_app)
        if txid is None:
            msg = (
                f"table {self.ref.uri}: has no txid on timeline {self.owner.timeline} of {self.owner.incarnation}; "
                "ledger and tables do not belong together: restore both from the same copy"
            )
            raise DataDirectoryError(msg)
        return txid

    def epoch(self) -> int:
        """The epoch of the last coordinator that led this table; 0 at first."""
        return self._handle.app_version(self.owner.epoch_app) or 0

    def floor(self) -> int:
        """The txid up to which its rows may have been removed, being older than the kept history; 0 at first."""
        return self._handle.app_version(self.owner.floor_app) or 0

    def check_schema(self, expected: pa.Schema) -> None:
        """Raise `TableCorrupt` unless the table has the columns a decided transaction wants to add."""
        if self.ref.kind == STATE:  # the layout merge: its rows are changes
            expected = pa.schema([field for field in expected if field.name != OP.name])
        differences = schema_differences(expected, self._handle.schema)
        if differences:
            msg = f"table {self.ref.uri}: differs from the rows to publish: {'; '.join(differences)}; restore the table"
            raise TableCorrupt(msg)

    def refresh(self) -> None:
        """Read the newest version."""
        self._handle.refresh()

    def raise_epoch(self, epoch: int) -> None:
        """Make `epoch` the table's, so that a coordinator with an older one can no longer commit to it.

        The commit carries the table's last txid again, so that a Spark commit in flight conflicts with it.

        Raises:
            FencedError: the table has a newer epoch.
        """
        self._handle.refresh()
        fresh = self._writer.prepare(self.path)
        for _ in range(TRIES):
            if self._check_epoch(epoch) == epoch and not fresh:
                return
            last = self.last_txid()
            info = {**_identity(self.owner), "kind": EPOCH, "epoch": epoch, "last": last}
            version = self._try(Commit({self._txid_app: last, self.owner.epoch_app: epoch}, info))
            if version is not None:
                self.sync(version)
                return
        raise self._blocked("raise the epoch", None)

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
            raise self._blocked("commit to it", gone) from gone
        raise self._blocked("commit to it", PermissionError(f"no right to write to {log}"))

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int:
        """Publish the staged rows of `intent` to this table, once; returns the version that holds them.

        Called in P7, again after a lost answer or a crash, and by a later coordinator that rolls the intent forward:
        what decides is what the table says (design rule R4). Passes the fault points ``p7.<number>.before``,
        ``.written`` (between the write and its answer) and ``.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
            TableCorrupt: the table holds something else than the intent expects.
            BlockedError: the commit cannot be made.
        """
        faults.point(f"p7.{number}.before")
        version = self._published(table, intent, epoch)
        self._check_unchanged(table)
        for _ in range(TRIES):
            if version is not None:
                self.sync(version)
                faults.point(f"p7.{number}.after")
                return version
            version = self._try(self._commit(table, intent, epoch), f"p7.{number}.written", self._writer)
            if version is None:
                self._lost = True
                version = self._published(table, intent, epoch)
                self._check_unchanged(table)
        raise self._blocked(f"publish txid {intent.last}", None)

    def exchange(self, files: Exchange, epoch: int) -> bool:
        """Put files in the place of others; False when the table has changed so that they are of no use.

        Called in the committer's turn, with what a compaction wrote beside the commits.

        Raises:
            FencedError: a newer coordinator leads this table.
            TableCorrupt: the table is ahead of the txid that the files are as of.
        """
        self._handle.refresh()
        for _ in range(TRIES):
            self._check_epoch(epoch)
            last, leaves = self.last_txid(), set(files.removes)
            leaving = [file for file in self._handle.files() if file.path in leaves]
            if files.base not in (None, last) or len(leaving) < len(leaves):
                self._check_not_ahead(last, files.as_of)
                return False
            version = self._try(self._exchanging(files, leaving, last, epoch))
            if version is not None:
                self.sync(version)
                return True
        raise self._blocked("put rewritten files into it", None)

    @property
    def is_long(self) -> bool:
        """Whether `tidy` would shorten the log; may be asked by any thread."""
        return self._handle.version >= self._handle.checkpointed + self._long_after

    def _checkpoint_after(self) -> int:
        """Versions between checkpoints, each of which costs as much as some commits; more where only starts read it."""
        alone = self._writer is DIRECT and self._handle.is_plain
        return max(CHECKPOINT_EVERY, min(self._handle.checkpointed // 2, CHECKPOINT_MOST) if alone else 0)

    def tidy(self) -> None:
        """Shorten what has to be read of the log, where it is long; called in the committer's turn, between groups.

        A checkpoint only saves time, so one that fails (a full disk) is reported and does not stop the run.
        """
        try:
            for file in self._handle.checkpoint(self._long_after):
                sync_file(file)
            self._long_after = self._checkpoint_after()
        except (TableCorrupt, OSError) as cause:
            log.warning("table %s: no checkpoint: %s", self.ref.uri, cause)

    def sync(self, version: int) -> None:
        """Make a version of the log durable."""
        entry = self._handle.log_entry(version)
        if entry.exists():  # else it is so old that a checkpoint has taken its place
            for file in _unsynced(self.path, entry):
                sync_file(file)
            sync_file(entry)
        sync_file(entry.parent)

    def _try(self, commit: Commit, written: str | None = None, writer: Writer = DIRECT) -> int | None:
        """The version that the commit made, or None when it is not known to; then the handle is at the newest one."""
        try:
            version = writer.commit(self._handle, commit, self._txid_app)
        except ConflictError:
            self._handle.refresh()
            return None
        except TableCorrupt as cause:
            self._after_failure(cause)
            return None
        if written:
            faults.point(written)
        if self._handle.version != version:  # made by somebody else for us
            self._handle.refresh()
        return version

    def _check_unchanged(self, table: IntentTable) -> None:
        """Once a commit could not be made, in this call or an earlier one: somebody else may have changed the table."""
        if self._lost:
            self._check_log()
            self.check_schema(table.arrow_schema())
            self._lost = False

    def _check_log(self) -> None:
        infos = self._handle.checked_infos()
        check_tiles(self.ref.uri, infos)
        if self.ref.kind in (CHANGES, STATE):
            check_own(self.ref.uri, infos)

    def _after_failure(self, cause: TableCorrupt) -> None:
        """The commit may have been made or not: read again, and only when nothing has moved give up."""
        before = self._handle.version
        try:
            self._handle.reopen()
        except TableCorrupt as gone:
            raise self._blocked("commit to it", gone) from gone
        if self._handle.version == before:
            raise self._blocked("commit to it", cause) from cause

    def _published(self, table: IntentTable, intent: Intent, epoch: int) -> int | None:
        """The version that already holds `intent`, or None when it is this table's turn to get it."""
        self._check_epoch(epoch)
        last = self.last_txid()
        if last >= intent.last:
            return self._same(intent)
        if last != table.previous:
            msg = (
                f"table {self.ref.uri}: expected to be at txid {table.previous} before txids {intent.first} to "
                f"{intent.last} are published, found it at {last}; restore ledger and tables from the same copy"
            )
            raise TableCorrupt(msg)
        return None

    def _same(self, intent: Intent) -> int:
        """The version that ends with the intent's last txid, which must hold the very attempts of the intent."""
        for version, info in self.commits():
            if info["last"] == intent.last:
                expected, found = _attempts(intent.txids), _attempts_of(info)
                if found == expected:
                    return version
                msg = (
                    f"table {self.ref.uri}: txid {intent.last} is already published with other content: expected "
                    f"(txid, attempt, digest) {expected}, found {found}; restore ledger and tables from the same copy"
                )
                raise TableCorrupt(msg)
            if info["last"] < intent.last:
                break
        msg = (
            f"table {self.ref.uri}: is past txid {intent.last}, but no version of it ends there; "
            "restore ledger and tables from the same copy"
        )
        raise TableCorrupt(msg)

    def commits(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Version and commit info of the groups on this timeline, newest first, as far as the log is kept."""
        for entry in self._handle.history():
            if entry.info.get("kind") == COMMITTED and entry.info.get("timeline") == self.owner.timeline:
                yield entry.version, entry.info

    def _commit(self, table: IntentTable, intent: Intent, epoch: int) -> Commit:
        first = table.previous + 1
        info = {
            **_identity(self.owner),
            "kind": COMMITTED,
            "epoch": epoch,
            "first": first,
            "last": intent.last,
            "txids": [record.to_json() for record in intent.txids],
        }
        label = f"txstorm txids {first} to {intent.last}"
        apps = {self._txid_app: intent.last, self.owner.epoch_app: epoch}
        if table.kind != STATE:
            return Commit(apps, info, [data_file(self.path, staged) for staged in table.files], label=label)
        self.check_schema(table.arrow_schema())
        now = intent.txids[-1].stamp // 1000
        adds, removes = merged_files(self._handle, table.files, epoch, now)
        return Commit(apps, info, adds, removes, now, label)

    def _exchanging(self, files: Exchange, leaving: Sequence[DataFile], last: int, epoch: int) -> Commit:
        info = {**_identity(self.owner), "kind": REGROUPED, "epoch": epoch}
        txid, label = last, "txstorm small files gathered"
        if files.as_of is not None:
            info |= {"kind": COMPACTED, "as_of": files.as_of}
            txid, label = files.as_of, f"txstorm state as of txid {files.as_of}"
        apps = {self._txid_app: txid, self.owner.epoch_app: epoch}
        if files.floor is not None:
            info["kind"], label = PRUNED, f"txstorm rows up to txid {files.floor} are no longer kept"
            apps[self.owner.floor_app] = max(files.floor, self.floor())
        change = files.as_of is not None or files.floor is not None
        return Commit(apps, info, files.adds, leaving, files.now, label, data_change=change)

    def _check_epoch(self, epoch: int) -> int:
        found = self.epoch()
        if found > epoch:
            msg = (
                f"table {self.ref.uri}: a coordinator with epoch {found} has taken over from this one with epoch "
                f"{epoch}; stop this run, the other one continues"
            )
            raise FencedError(msg)
        return found

    def _check_not_ahead(self, last: int, as_of: int | None) -> None:
        if as_of is not None and last > as_of:
            msg = (
                f"table {self.ref.uri}: expected at most txid {as_of}, found {last}; restore ledger and tables together"
            )
            raise TableCorrupt(msg)

    def _blocked(self, what: str, cause: BaseException | None) -> BlockedError:
        why = f": {cause}" if cause else f" in {TRIES} tries: another writer changes it all the time; stop that one"
        return BlockedError(f"table {self.ref.uri}: cannot {what}{why}")


def _unsynced(table: Path, entry: Path) -> list[Path]:
    """The files of a log entry that Spark may have written, which makes nothing durable."""
    if not is_shared(table):
        return []
    files = [table / path for path in paths_of(entry) if not path.startswith(STAGED)]
    return [file for file in (*files, *{file.parent for file in files}) if file.exists()]


def _identity(owner: Owner) -> dict[str, Any]:
    return {"topology": owner.topology, "incarnation": owner.incarnation, "timeline": owner.timeline}


def _attempts(records: tuple[TxidRecord, ...]) -> list[tuple[int, int, str]]:
    return [(record.txid, record.attempt_id, record.digest) for record in records]


def _attempts_of(info: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    return [(found["txid"], found["attempt"], found["digest"]) for found in info["txids"]]
