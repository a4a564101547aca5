"""Commit protocol of one table, based on its log alone: owner, txid and epoch checks, and exactly-once publishing.

The commit infos in a log cover the txids without gaps: each begins where the previous one ended, so a lost entry shows
as a gap. It is one module, since every commit follows the same rule: read txid and epoch, compare and set, read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from txstorm import faults
from txstorm.clients.delta.entry import Commit, DataFile, LogEntry
from txstorm.clients.delta.log import PRUNED
from txstorm.errors import BlockedError, ConflictError, DataDirectoryError, FencedError, TableCorrupt
from txstorm.storage.tables.identity import TableRef, TopologyIdentity, check_own, check_owner, due
from txstorm.storage.tables.intent import CHANGES, STATE, Intent, IntentTable


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Request for a commit that replaces data files of a table, made by compaction and retention.

    Attributes:
        adds: the new files, already durable.
        removes: the paths of the files that they replace.
        now: the current time, in milliseconds since 1970, recorded as the deletion time of the old files.
        base, as_of: the txids that the table is as of before and after the commit; None: its rows do not change.
        floor: rows up to this txid are removed from the table; None: no rows are removed.
        about: further fields of the commit info, if the table moves to `as_of`.
        bound: the eviction bound of all collections, recorded if it is above the recorded one; None: no bound.
    """

    adds: Sequence[DataFile]
    removes: Sequence[str]
    now: int
    base: int | None = None
    as_of: int | None = None
    floor: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    bound: int | None = None


def check_tiles(table: str, infos: Iterable[Mapping[str, Any]]) -> None:
    """Raise `TableCorrupt` if txids of a timeline are missing between two of the commit `infos`, given oldest first.

    A power failure may leave the newest entry empty. That is harmless: the entry was not acknowledged, and its group is
    published again. An empty entry that is followed by later entries, however, has lost its content.
    """
    lasts: dict[int, int | None] = {}
    for info in infos:
        timeline = info.get("timeline", 0)
        last = lasts.get(timeline)
        expected = info["first"] - 1 if "first" in info else info.get("last")
        if last is not None and expected is not None and expected != last:
            raise TableCorrupt(
                f"table {table}: expected the entry after txid {last} in the log, found one after {expected}: an entry "
                "between them is lost or damaged; restore the table's directory from a copy"
            )
        lasts[timeline] = info.get("last", info.get("as_of", last))


TRIES = 10
CREATED, COMMITTED, EPOCH, COMPACTED = "create", "commit", "epoch", "compact"
REGROUPED, RESTORED, DESCRIBED = "regroup", "restore", "describe"
BEGUN, DROPPED, REDEFINED = "begin", "drop", "redefine"


class TableLog(Protocol):
    """The log of one table at the version last read or written; see `txstorm.clients.delta.handle.DeltaHandle`."""

    @property
    def version(self) -> int:
        """The table version that this log is at."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    def refresh(self) -> None:
        """Move to the newest version."""

    def reopen(self) -> None:
        """Read the log from the beginning, after an error; raises `TableCorrupt` if it is missing."""

    def still_has(self, version: int) -> bool:
        """Whether `version` is still the entry written through this object, not another writer's; True if unknown."""

    def app_version(self, app_id: str) -> int | None:
        """Return the last version number committed for the Delta app id `app_id`; None if there is none."""

    def info(self, version: int) -> Mapping[str, Any]:
        """Return the commit info of `version`; empty if that version does not exist or is no longer kept."""

    def checked_infos(self) -> list[Mapping[str, Any]]:
        """Return the commit infos since the last checkpoint, oldest first; raise `TableCorrupt` if one is damaged."""

    def commit(self, commit: Commit) -> None:
        """Write the next version and move to it, provided that this log is at the newest version; else change nothing.

        Raises:
            ConflictError: the table is at another version; call `refresh`.
            TableCorrupt: it failed for another reason, but the version may have been written: call `reopen`.
            BlockedError: the table cannot be written to at the moment.
        """

    def history(self, newest: int | None = None) -> Iterator[LogEntry]:
        """Yield the versions still in the log, newest first, starting at `newest` (None: the current version)."""

    def files(self) -> Sequence[DataFile]:
        """Return the data files of this version."""


class TransactionalTable(ABC):
    """A table at the version last read; every commit to it is a compare-and-set on that version.

    Args:
        owner: the topology that the table must belong to.
        ref: kind and name of the table.
        log: the table's log.
        where: the table's name in an error about its owner; None: its path relative to the data directory.

    Raises:
        DataDirectoryError: the table belongs to another topology, or has a newer format.
        TableCorrupt: its log lacks an entry, or another writer has changed rows of a state.
    """

    def __init__(self, owner: TopologyIdentity, ref: TableRef, log: TableLog, where: str | None = None) -> None:
        self.owner = owner
        self.ref = ref
        self._log = log
        self._txid_app, self._epoch_app = ref.txid_app(owner), owner.epoch_app
        self._lost = False
        self._uri = ref.uri
        check_owner(where or self._uri, log.properties, owner)
        infos = self._check_log()
        self._recent = [info.get("last") if self._publishes(info) else None for info in infos]
        self._first = log.version - len(self._recent)  # the version before those of `_recent`
        self._durable = log.version  # the leading coordinator has made all versions durable, see `raise_epoch`
        self._doubted = False  # whether a sync of a later version has failed, or may have

    @abstractmethod
    def sync(self, versions: range, *, again: bool = False) -> None:
        """Make the log entries of `versions` durable; `again`: an earlier sync of these entries may have failed."""

    @abstractmethod
    def published_files(
        self, table: IntentTable, epoch: int, stamp: int
    ) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """Return the files that the commit adds and removes when the staged rows are published.

        `stamp`: processing time of the group's last txid, in UTC microseconds since 1970.

        Raises:
            TableCorrupt: the staged rows, or files of the table that have to be rewritten, are damaged.
        """

    @abstractmethod
    def check_columns(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the table has the columns of the staged rows."""

    @abstractmethod
    def check_staged(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the staged files are unchanged and have the table's columns."""

    @abstractmethod
    def at(self, version: int) -> TableLog:
        """Open the log at `version`, which may be an earlier one."""

    @abstractmethod
    def has_file(self, path: str) -> bool:
        """Whether a file exists at `path`, relative to the table."""

    def prepare(self) -> bool:
        """Prepare the table before its epoch is raised; return True if even an unchanged epoch has to be committed.

        That commit conflicts with any commit in flight from a run that is not aware of the preparation.
        """
        return False

    def check_writable(self) -> None:  # noqa: B027 - only tables with a protocol have features
        """Raise `TableRefused` if the table has a Delta feature that txstorm does not implement; by default, never."""

    def due_properties(self) -> Mapping[str, str]:
        """Return the missing table properties that depend on the table's files and cannot be set by a user."""
        return {}

    def commit_group(self, commit: Commit) -> int | None:
        """Commit a group's rows; raises the errors of `TableLog.commit`.

        Returns the version, or None if the outcome is unknown and has to be read from the table.
        """
        self._log.commit(commit)
        return self._log.version

    @property
    def log(self) -> TableLog:
        """The log itself, for reading."""
        return self._log

    @property
    def version(self) -> int:
        """The version last read."""
        return self._log.version

    def last_txid(self) -> int:
        """Return the last txid published to this table (for ``state/…``, the txid that it is as of).

        Raises:
            DataDirectoryError: the table has no txid on this timeline.
        """
        txid = self._log.app_version(self._txid_app)
        if txid is None:
            raise DataDirectoryError(
                f"table {self.ref.uri}: has no txid on timeline {self.owner.timeline} of {self.owner.incarnation}; "
                "ledger and tables do not belong together: restore both from the same copy"
            )
        return txid

    def epoch(self) -> int:
        """Return the epoch of the last coordinator that led this table; 0 if there was none."""
        return self._log.app_version(self._epoch_app) or 0

    def floor(self) -> int:
        """Return the txid up to which retention may have removed rows of this table; 0 if it has removed none."""
        return self._log.app_version(self.owner.floor_app) or 0

    def since(self) -> int:
        """Return the txid after which the table begins: it has no rows of that txid or of earlier ones.

        0 for a table that exists since the first run. For a table created by an older txstorm, the txid is recorded
        only in the first log entry, which may no longer be kept.
        """
        since = self._log.app_version(self.owner.since_app)
        if since is not None:
            return since
        if self.ref.kind not in (CHANGES, STATE) and "savepoint" in self._log.info(1):
            return 0  # restored from a savepoint, with all the rows that the sink had
        return int(self._log.info(0).get("last", 0))

    def until(self) -> int | None:
        """Return the last txid up to which a dropped table is complete; None if the table was not dropped."""
        return self._log.app_version(self.owner.until_app)

    def is_untouched(self, *, recorded: bool = True) -> bool:
        """Whether nothing was ever committed to the table, so its first txid and its columns may still change.

        If it is not `recorded` in the ledger, it only has to be empty: it may be of an earlier timeline, or rewound.
        """
        return not self._log.files() and (self.last_txid() == self.since() if recorded else self.floor() == 0)

    def drop(self, until: int, epoch: int) -> None:
        """Record that the table is dropped: it is complete up to txid `until` and receives no more rows. Idempotent.

        Raises:
            FencedError: a newer coordinator leads the table.
            BlockedError: the commit cannot be made.
        """
        self._log.refresh()
        self.amend(lambda: self.until() is not None, lambda: self._dropping(until, epoch), epoch, "mark it as dropped")

    def begin(self, txid: int, epoch: int) -> None:
        """Make a table to which nothing was ever committed begin after `txid`; raises the errors of `drop`.

        Needed if a run that was killed during its start has created the table, and transactions have been committed
        without the table since.
        """
        self.amend(lambda: self.begins_after(txid), lambda: self._beginning(txid, epoch), epoch, "let it begin")

    def begins_after(self, txid: int) -> bool:
        """Whether the table is as of `txid`, and begins after it."""
        return self.last_txid() == txid == self.since()

    def amend(self, is_done: Callable[[], bool], made: Callable[[], Commit], epoch: int, what: str) -> None:
        """Write the commit that `made` returns, which adds no rows, unless `is_done`; raises the errors of `drop`.

        `what`: the action, for the message of a `BlockedError`.
        """
        for _ in range(TRIES):
            self._check_epoch(epoch)
            if is_done():
                self._make_durable(self.version)
                return
            version = self._try(made())
            if version is not None:
                self._make_durable(version)
                return
        raise self.blocked(what, None)

    def _dropping(self, until: int, epoch: int) -> Commit:
        apps, info = self._repeating(DROPPED, epoch)
        label = f"txstorm dropped after txid {until}"
        return Commit({**apps, self.owner.until_app: until}, {**info, "until": until}, label=label)

    def _beginning(self, txid: int, epoch: int) -> Commit:
        info = {**self.owner.info(), "kind": BEGUN, "epoch": epoch, "as_of": txid}
        return Commit({self._txid_app: txid, self._epoch_app: epoch, self.owner.since_app: txid}, info)

    def refresh(self) -> None:
        """Move to the newest version of the table."""
        self._log.refresh()

    def raise_epoch(self, epoch: int, completed: int | None = None, begins: int | None = None) -> None:
        """Raise the table's epoch, which fences every coordinator with an older epoch: its commits are refused.

        The commit repeats the table's last txid, so that a Spark commit in flight conflicts with it. It is made durable
        together with all earlier versions: the previous coordinator may have died (or be paused) between a commit and
        its sync, or that sync may have failed. So these versions are written again.

        Args:
            epoch: this coordinator's epoch.
            completed: the last txid whose group the ledger records as complete in this table; the versions up to that
                group's version are known to be durable.
            begins: for a table that the ledger does not record: the txid after which it begins if it is empty and of an
                earlier timeline, since it was created by a coordinator that was fenced as it started.

        Raises:
            FencedError: the table has a newer epoch.
            DataDirectoryError: it has no txid on this timeline, and is recorded or not empty.
        """
        self._log.refresh()
        must_commit = self.prepare()
        if self._check_epoch(epoch) < epoch:
            self._durable, self._doubted = self._known_durable(completed), True
        for _ in range(TRIES):
            if self._check_epoch(epoch) == epoch and not must_commit:
                self._make_durable(self.version)  # the answer to an earlier try may be lost
                return
            version = self._try(self._raising(epoch, begins))
            if version is not None:
                self._make_durable(version)
                return
        raise self.blocked("raise the epoch", None)

    def _raising(self, epoch: int, begins: int | None) -> Commit:
        if begins is not None and self._log.app_version(self._txid_app) is None and self.is_untouched(recorded=False):
            return self._beginning(begins, epoch)
        return Commit(*self._repeating(EPOCH, epoch))

    def _repeating(self, kind: str, epoch: int) -> tuple[dict[str, int], dict[str, Any]]:
        """Return app transactions and info of a commit without rows, which repeats the table's last txid."""
        last = self.last_txid()
        info = {**self.owner.info(), "kind": kind, "epoch": epoch, "last": last}
        return {self._txid_app: last, self._epoch_app: epoch}, info

    def set_properties(self, wanted: Mapping[str, str], epoch: int) -> None:
        """Set those of the `wanted` table properties that are missing or outdated; values set by a user are kept.

        Also sets `due_properties`. Called when the epoch is raised. Writes nothing if there is nothing to set.

        Raises:
            FencedError: a newer coordinator leads this table.
            BlockedError: the commit cannot be made.
        """
        for _ in range(TRIES):
            self._check_epoch(epoch)
            missing = {**due(self._log.properties, wanted), **self.due_properties()}
            if not missing:
                return
            label = f"txstorm sets {', '.join(sorted(missing))}"
            version = self._try(Commit(*self._repeating(DESCRIBED, epoch), label=label, properties=missing))
            if version is not None:
                self._make_durable(version)
                return
        raise self.blocked("set its properties", None)

    def describe(self, properties: Mapping[str, str], epoch: int) -> None:
        """Set table properties to these values, as a migration does; raises the errors of `set_properties`."""

        def made() -> Commit:
            return Commit(*self._repeating(DESCRIBED, epoch), label="txstorm migrated", properties=properties)

        self.amend(lambda: properties.items() <= dict(self._log.properties).items(), made, epoch, "set its properties")

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int:
        """Publish the staged rows of `intent` to this table exactly once; return the version that contains them.

        Idempotent: called in P7 (publish), again after a lost response or a crash, and by a later coordinator that
        rolls the intent forward. Whether it is already published is read from the table itself (R4, compare-and-set).
        Passes the fault points ``p7.<number>.before``, ``.written`` (between write and response) and ``.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
            TableCorrupt: the table's content contradicts the intent.
            TableRefused: the table has a Delta feature that txstorm does not implement.
            BlockedError: the commit cannot be made.
        """
        faults.point(f"p7.{number}.before")
        self.check_writable()
        version = self._published(table, intent, epoch)
        self._check_unchanged(table)
        for _ in range(TRIES):
            if version is not None:
                self._make_durable(version)
                faults.point(f"p7.{number}.after")
                if self._log.still_has(version):
                    return version
                self._log.reopen()
                version = None
            else:
                version = self._try(self._commit(table, intent, epoch), f"p7.{number}.written")
            if version is None:
                self._lost = True
                version = self._published(table, intent, epoch)
                self._check_unchanged(table)
        raise self.blocked(f"publish txid {intent.last}", None)

    def exchange(self, files: RewriteFiles, epoch: int) -> bool:
        """Replace files of the table; return False if it has changed meanwhile, so that the new files are unusable.

        Called in the committer's turn, with files that a compaction has written in parallel to commits.

        Raises:
            FencedError: a newer coordinator leads this table.
            TableCorrupt: the table is ahead of the txid that the files are as of.
        """
        self._log.refresh()
        for _ in range(TRIES):
            self._check_epoch(epoch)
            last, leaves = self.last_txid(), set(files.removes)
            leaving = [file for file in self._log.files() if file.path in leaves]
            if files.base not in (None, last) or len(leaving) < len(leaves):
                self._check_not_ahead(last, files.as_of)
                return False
            version = self._try(self._exchanging(files, leaving, last, epoch))
            if version is not None:
                self._make_durable(version)
                return True
        raise self.blocked("put rewritten files into it", None)

    def _try(self, commit: Commit, written: str | None = None) -> int | None:
        """Attempt a commit; return its version, or None if it may have failed, with the log at the newest version.

        Every earlier version is made durable first: a power failure must not leave a log that lacks a version before
        its last one. `written`: for a group's commit, the fault point between the write and its response.
        """
        if self._durable < self._log.version:
            self._make_durable(self._log.version)
        try:
            if written:
                version = self.commit_group(commit)
            else:
                self._log.commit(commit)
                version = self._log.version
        except ConflictError:
            self._log.refresh()
            return None
        except TableCorrupt as cause:
            self._after_failure(cause)
            return None
        if written:
            faults.point(written)
        if self._log.version != version:  # another process (Spark) has written the version
            self._log.refresh()
        return version

    def secure(self) -> None:
        """Make all log entries since the last checkpoint durable, whether or not earlier syncs have succeeded."""
        self._durable, self._doubted = self._known_durable(None), True
        self._make_durable(self.version)

    def _publishes(self, info: Mapping[str, Any]) -> bool:
        return info.get("kind") == COMMITTED and info.get("timeline") == self.owner.timeline

    def _known_durable(self, completed: int | None) -> int:
        """Return the last version known to be durable: that of the group ending with `completed`, if it is recent."""
        known = (at for at, last in enumerate(self._recent, 1) if last is not None and last == completed)
        return self._first + max(known, default=0)

    def _make_durable(self, version: int) -> None:
        """Make `version` durable, and any earlier version not known to be durable, for instance after a lost response.

        A power failure that lost one of them but kept a later one would leave an unreadable table. After a failed sync,
        a second sync proves nothing (R14, a failed sync is never trusted): the next call writes all of them again.
        """
        again, self._doubted = self._doubted, True
        self.sync(range(min(self._durable + 1, version), version + 1), again=again)
        self._durable, self._doubted = max(self._durable, version), False

    def _check_unchanged(self, table: IntentTable) -> None:
        """Check, after a failed commit in this call or an earlier one, that no other writer has changed the table."""
        if self._lost:
            self._check_log()
            self.check_columns(table)
            self._lost = False

    def _check_log(self) -> Sequence[Mapping[str, Any]]:
        infos = self._log.checked_infos()
        check_tiles(self._uri, infos)
        if self.ref.kind in (CHANGES, STATE):
            check_own(self._uri, infos)
        return infos

    def _after_failure(self, cause: TableCorrupt) -> None:
        """Reread the log after a commit with unknown outcome; raise `BlockedError` if there is no newer version."""
        before = self._log.version
        try:
            self._log.reopen()
        except TableCorrupt as unreadable:
            raise self.blocked("commit to it", unreadable) from unreadable
        if self._log.version == before:
            raise self.blocked("commit to it", cause) from cause

    def _published(self, table: IntentTable, intent: Intent, epoch: int) -> int | None:
        """Return the version that already contains `intent`, or None if the table is at the txid before it."""
        self._check_epoch(epoch)
        last = self.last_txid()
        if last >= intent.last:
            return self._same(intent)
        if last != table.previous:
            raise TableCorrupt(
                f"table {self.ref.uri}: expected to be at txid {table.previous} before txids {intent.first} to "
                f"{intent.last} are published, found it at {last}; restore ledger and tables from the same copy"
            )
        return None

    def _same(self, intent: Intent) -> int:
        """Return the version that ends with the intent's last txid.

        Raises `TableCorrupt` unless it contains exactly the intent's attempts.
        """
        for version, info in self.commits():
            if info["last"] == intent.last:
                expected = [(record.txid, record.attempt_id, record.digest) for record in intent.txids]
                found = [(record["txid"], record["attempt"], record["digest"]) for record in info["txids"]]
                if found == expected:
                    return version
                raise TableCorrupt(
                    f"table {self.ref.uri}: txid {intent.last} is already published with other content: expected "
                    f"(txid, attempt, digest) {expected}, found {found}; restore ledger and tables from the same copy"
                )
            if info["last"] < intent.last:
                break
        raise TableCorrupt(
            f"table {self.ref.uri}: is past txid {intent.last}, but no version of it ends there; "
            "restore ledger and tables from the same copy"
        )

    def commits(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield version and commit info of each group on this timeline, newest first, as far back as the log goes."""
        for entry in self._log.history():
            if entry.info.get("kind") == COMMITTED and entry.info.get("timeline") == self.owner.timeline:
                yield entry.version, entry.info

    def _commit(self, table: IntentTable, intent: Intent, epoch: int) -> Commit:
        first, last = table.previous + 1, intent.last
        info = {
            **self.owner.info(),
            "kind": COMMITTED,
            "epoch": epoch,
            "first": first,
            "last": last,
            "txids": [record.to_json() for record in intent.txids],
        }
        label = f"txstorm txids {first} to {last}"
        apps = {self._txid_app: last, self._epoch_app: epoch}
        stamp = intent.txids[-1].stamp
        adds, removes = self.published_files(table, epoch, stamp)
        return Commit(apps, info, adds, removes, stamp // 1000, label)

    def _exchanging(self, files: RewriteFiles, leaving: Sequence[DataFile], last: int, epoch: int) -> Commit:
        info = {**self.owner.info(), "kind": REGROUPED, "epoch": epoch}
        txid, label = last, "txstorm small files gathered"
        if files.as_of is not None:
            info |= {"kind": COMPACTED, "as_of": files.as_of, **files.about}
            txid, label = files.as_of, f"txstorm state as of txid {files.as_of}"
        apps = {self._txid_app: txid, self._epoch_app: epoch}
        if files.floor is not None:
            info["kind"], label = PRUNED, f"txstorm rows up to txid {files.floor} are no longer kept"
            apps[self.owner.floor_app] = max(files.floor, self.floor())
        known = self._log.app_version(self.owner.bound_app)
        if files.bound is not None and (known is None or files.bound > known):
            apps[self.owner.bound_app] = files.bound
        change = files.as_of is not None or files.floor is not None
        return Commit(apps, info, files.adds, leaving, files.now, label, data_change=change)

    def _check_epoch(self, epoch: int) -> int:
        found = self.epoch()
        if found > epoch:
            raise FencedError(
                f"table {self.ref.uri}: a coordinator with epoch {found} has taken over from this one with epoch "
                f"{epoch}; stop this run, the other one continues"
            )
        return found

    def _check_not_ahead(self, last: int, as_of: int | None) -> None:
        if as_of is not None and last > as_of:
            raise TableCorrupt(
                f"table {self.ref.uri}: expected at most txid {as_of}, found {last}; restore ledger and tables together"
            )

    def blocked(self, what: str, cause: BaseException | None) -> BlockedError:
        """Return the error for a commit that cannot be made; `what`: the attempted action, for the message."""
        why = f": {cause}" if cause else f" in {TRIES} tries: another writer changes it all the time; stop that one"
        return BlockedError(f"table {self.ref.uri}: cannot {what}{why}")
