"""Typed access to the ledger of one topology.

Writes the records of take-over (P0), planning (P1), processing (P4), decision (P6) and completion (P8). It is one
module, so that every write of a coordinator is guarded by the same check of its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstorm import faults
from txstorm.api.attempt import FIRST_TXID
from txstorm.books.records import Dropped, Identity, LedgerPosition, Meta, checked, txid_of
from txstorm.books.requests import no_request
from txstorm.books.savepoint import ChosenClock, Savepoint
from txstorm.books.storm_paths import PartitionEntries
from txstorm.errors import ConflictError, FencedError, LedgerCorrupt
from txstorm.lanes import THREADS, Lanes
from txstorm.ledger import paths as names
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import ABSENT, Check, Delete, Entry, Ledger, Op, Put, in_commits
from txstorm.ledger.sqlite import BUSY
from txstorm.ledger.values import BlobValues, Values
from txstorm.storage.tables.intent import Intent

if TYPE_CHECKING:
    from txstorm.books.rewind import Rewind

BLOBS = (names.META, names.INTENTS, names.HISTORY, names.FAILURES, names.SAVEPOINTS, names.REWIND)
DECIDED = f"{names.REWIND}/decided"
CAUSE = 4000
"""Maximum length of the recorded cause of a failure, in characters."""


class Books:
    """Reader and writer of one topology's ledger.

    Every write checks the epoch that this coordinator raised, and raises `FencedError` if another coordinator has
    raised it since.

    Args:
        values: the codec of the ledger's values, or the directory for the files of long values.
        lanes: those of the run, whose lanes write at the same time.
    """

    def __init__(self, ledger: Ledger, values: Path | Values, lanes: Lanes = THREADS) -> None:
        self.ledger = ledger
        self._values = BlobValues(values) if isinstance(values, Path) else values
        self._guard: list[Check] = []  # the epoch of this coordinator, once it has raised it
        self._partitions: PartitionEntries | None = None
        self._late: dict[int, Meta] = {}
        self._writing = lanes.lock()
        self.epoch = 0

    def check(self) -> LedgerPosition:
        """Read every entry, to detect damage before anything is written; return the position, which tables must match.

        Raises:
            LedgerCorrupt: a value, or the file of a long one, is missing or damaged.
            DataDirectoryError: a value is in a newer format.
        """
        for read in (self.metas, self.failures, self.history, self.rewind, self.dropped):
            read()
        return self.standing()

    def standing(self) -> LedgerPosition:
        """Read the topology's position: next txid, tables and intents; raise the errors of `check`."""
        return LedgerPosition(self.currtx(), self.tables(), self.intents())

    def check_lease(self) -> None:
        """Raise unless this coordinator still has its lease; blocks while the connection is suspended.

        Called before every plan (P1), decision (P6) and publishing (P7).

        Raises:
            FencedError: the lease is lost; nothing more may be written.
        """
        self.ledger.check_lease()

    def check_leads(self) -> None:
        """Raise unless the ledger, asked now, says that this coordinator leads: it has the lease and the newest epoch.

        Called right before anything in the data directory is created, altered or removed that no epoch protects. What
        carries an epoch needs no such call: log entries, staged files, files of long values.

        Raises:
            FencedError: another coordinator has taken over.
        """
        self.check_lease()
        self._check_epoch()

    # -- identity and epoch (P0, take over) ---------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """Return the identity of the topology that owns the ledger; None if the ledger is new."""
        value = self._read(names.IDENTITY)
        return None if value is None else Identity(**value)

    def write_identity(self, identity: Identity, known: Identity | None) -> bool:
        """Claim a new ledger, or record a changed fingerprint, provided that the stored identity is still `known`.

        The compare-and-set protects this write instead of the epoch, which is not raised yet: without it, a stale
        coordinator could undo the timeline of a rewind.

        Returns whether it was written. If not, a start that had lost its lease wrote another identity before it found
        that out: this coordinator still leads, reads that identity and checks everything again.

        Raises:
            FencedError: the identity has changed, and another coordinator leads.
        """
        entry = self.ledger.get(names.IDENTITY)
        try:
            if self.identity() != known:
                raise ConflictError(f"{names.IDENTITY} is not as it was read")
            expect = ABSENT if entry is None else entry.version
            self.ledger.commit([self._put(names.IDENTITY, dict(vars(identity)), expect)])
        except ConflictError:
            self.check_leads()
            return False
        return True

    def origin(self) -> Any:
        """Return the origin of the last run's code, in the form of `CodeOrigin.from_json`; None if none is recorded."""
        return self._read(names.ORIGIN)

    def write_origin(self, value: Any) -> None:
        """Record the origin of the topology's code; `value`: the result of `CodeOrigin.to_json`."""
        self._commit([self._put(names.ORIGIN, value)])

    def raise_epoch(self) -> int:
        """Raise the epoch by compare-and-set and return it; from now on it fences every write.

        A request that is open was made to a run that has ended: it is removed, so that no later run carries it out.

        Raises:
            FencedError: another coordinator has raised it at the same time.
        """
        entry = self.ledger.get(names.EPOCH)
        epoch = (0 if entry is None else int(self._value(names.EPOCH, entry.value))) + 1
        expect = ABSENT if entry is None else entry.version
        try:
            open_requests = () if self.ledger.get(names.REQUEST) is None else (no_request(None),)
            self.ledger.commit([self._put(names.EPOCH, epoch, expect), *open_requests])
        except ConflictError as error:
            raise FencedError(f"another coordinator has raised the epoch at the same time ({error})") from error
        # Computed, not read back: another coordinator may have raised it again.
        self._guard = [Check(names.EPOCH, expect + 1)]
        self.epoch = epoch
        return epoch

    @property
    def guard(self) -> Sequence[Check]:
        """The checks that each commit of this coordinator has: of its epoch."""
        return self._guard

    def stored_epoch(self) -> int:
        """Return the epoch of the last coordinator; 0 before the first one."""
        return int(self._read(names.EPOCH) or 0)

    # -- transactions -------------------------------------------------------------------------------------------

    def currtx(self) -> int:
        """Return the next txid to commit."""
        value = self._read(names.CURRTX)
        return FIRST_TXID if value is None else int(value)

    def committed(self) -> int:
        """Return the last committed txid; once a rewind is decided, its target txid."""
        rewind = self.rewind()
        return self.currtx() - 1 if rewind is None else rewind.txid

    def metas(self) -> dict[int, Meta]:
        """Return all stored metadata, keyed by txid."""
        entries = self._numbered(names.META)
        return {txid: Meta(**self._value(names.meta_path(txid), entry.value)) for txid, entry in entries.items()}

    def write_metas(self, metas: Mapping[int, Meta], remove: Sequence[int] = ()) -> None:
        """Store the metadata of several txids (P1, plan; again in P4, process, with the real extents).

        It takes one commit or, beyond `MAX_COMMIT`, several: in txid order, each txid in one commit, so that a failure
        leaves the first txids stored. The metadata of the txids in `remove` is deleted.
        """
        removed: list[Op] = [Delete(names.meta_path(txid)) for txid in remove]
        beside = [] if self._partitions is None else self._partitions.remove_ops(remove)
        for ops in in_commits([*(self._meta_ops(*one) for one in metas.items()), removed, *beside]):
            self._commit(ops)

    def begin(self, meta: Meta, row: Mapping[str, Any]) -> None:
        """Let a new directory begin: store the metadata of txid 0, of which nothing was read, and its history row."""
        self._commit([self._put(names.history_path(0), [dict(row)]), self._put(names.meta_path(0), meta.to_json())])

    def note_metas(self, metas: Mapping[int, Meta]) -> None:
        """Store the metadata of several txids with the next write, and thus at the latest with their decision (P6).

        This is for metadata that recovery does not need, because planning (P1) has stored the batch, such as digests of
        the input.
        """
        self._late.update(metas)

    def note_document(self, txid: int, document: Any) -> None:
        """Store another spout document of `txid` with the next write, as `note_metas` does; the rest stays."""
        stored = self._late.get(txid) or Meta(**self._read(names.meta_path(txid)))
        self.note_metas({txid: stored._replace(document=document)})

    def keep_partitions(self) -> None:
        """Maintain Storm's entries ``user/<partition>/<txid>`` from now on, for a ledger at Storm's paths."""
        self._partitions = PartitionEntries(self.ledger, self._put)

    def _meta_ops(self, txid: int, meta: Meta) -> list[Op]:
        beside = [] if self._partitions is None else self._partitions.put_ops(txid, meta.document)
        return [self._put(names.meta_path(txid), meta.to_json()), *beside]

    def intents(self) -> list[Intent]:
        """Return all stored intents, in txid order; those that end at or after `currtx` are live."""
        entries = self._numbered(names.INTENTS)
        return [self._intent(last, entry.value) for last, entry in entries.items()]

    def kept_intents(self) -> list[int]:
        """Return the last txid of each stored intent, in order."""
        return [txid_of(names.INTENTS, last) for last in self.ledger.children(names.INTENTS)]

    def live_intents(self) -> list[Intent]:
        """Return the intents of decided groups that are not completed yet."""
        currtx, kept = self.currtx(), self._numbered(names.INTENTS)
        return [self._intent(last, entry.value) for last, entry in kept.items() if last >= currtx]

    def tables(self) -> dict[str, int]:
        """Return a mapping of tables to their last published txids, as of the last completed group."""
        return {name: int(txid) for name, txid in (self._read(names.TABLES) or {}).items()}

    def dropped(self) -> Dropped:
        """Return the tables and sources that an operator has dropped by name."""
        found = self._read(names.DROPPED)
        return Dropped() if found is None else Dropped.from_json(found)

    def write_tables(self, tables: Mapping[str, int], dropped: Dropped | None = None) -> None:
        """Record the existing `tables` (table → last txid) and the `dropped` ones; from now on none may be missing.

        Raises:
            LedgerCorrupt: a recorded table is neither among `tables` nor dropped.
        """
        before = self.dropped()
        after = before if dropped is None else dropped
        if lost := sorted(self.tables().keys() - tables.keys() - after.tables.keys()):
            raise LedgerCorrupt(
                f"the ledger records {', '.join(lost)}: expected it among the tables, or dropped by name"
            )
        ops: list[Op] = [self._put(names.TABLES, dict(tables))]
        if after != before:
            ops.append(self._put(names.DROPPED, after.to_json()))
        self._commit(ops)

    def decide(self, intent: Intent) -> None:
        """Decide a group (P6, the commit point): from now on recovery only rolls the intent forward."""
        self.check_lease()
        path = names.intent_path(intent.last)
        value = self._values.encode(intent.to_json(), path, self.epoch)
        faults.point("p6.before")
        self._commit([Put(path, value, ABSENT)])
        faults.point("p6.after")

    def complete(
        self, last: int, tables: Mapping[str, int], history: Sequence[Mapping[str, Any]], remove: Sequence[Op] = ()
    ) -> None:
        """Complete a group (P8) whose txids up to `last` are published: advance `currtx`, record tables and history."""
        faults.point("p8.before")
        done = [
            self._put(names.CURRTX, last + 1),
            self._put(names.TABLES, dict(tables)),
            self._put(names.history_path(last), list(history)),
            *remove,
        ]
        # Only other tools read partition entries: those that do not fit into this commit may be written by a later one.
        beside = [] if self._partitions is None else self._partitions.cleanup_ops(last)
        for ops in in_commits([done, *beside]) if beside else (done,):
            self._commit(ops)
        faults.point("p8.after")

    def history(self) -> dict[int, list[dict[str, Any]]]:
        """Return the history rows that are still in the ledger, keyed by the last txid of their group."""
        entries = self._numbered(names.HISTORY)
        return {last: self._value(names.history_path(last), entry.value) for last, entry in entries.items()}

    def forget_history(self, lasts: Sequence[int]) -> None:
        """Delete the history rows of the groups ending with `lasts`, which the history table now contains."""
        self._commit([Delete(names.history_path(last)) for last in lasts])

    # -- the life cycle -----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """Return the last status that a run reported; None if no run has reported one."""
        found: dict[str, Any] | None = self._read(names.STATUS)
        return found

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Record the status of the run, not durably: a power failure may lose it."""
        self._commit([self._put(names.STATUS, dict(status))], durable=False)

    def active(self) -> bool:
        """Return whether transactions may be started: False from `deactivate` to `activate`, even across restarts."""
        return bool((self._read(names.MODE) or {"active": True})["active"])

    def parallelism(self) -> dict[str, dict[str, int]]:
        """Return component → {"declared": parallelism in the code, "chosen": parallelism set by `rebalance`}."""
        found: dict[str, dict[str, int]] = self._read(names.PARALLELISM) or {}
        return found

    def put_if(self, expected: Sequence[Op], values: Mapping[str, Any]) -> bool:
        """Commit `expected` together with `values` (path → value); return False, changing nothing, on a conflict."""
        try:
            self.ledger.commit([*self._guard, *expected, *(self._put(path, one) for path, one in values.items())])
        except ConflictError as error:
            try:
                self._check_epoch()
            except FencedError as fenced:
                raise fenced from error
            return False
        return True

    def abandon(self, intents: Sequence[Intent]) -> None:
        """Delete the intents of decided groups of which nothing is published: their transactions become undecided.

        Raises:
            FencedError: another coordinator has taken over.
        """
        self._commit([Delete(names.intent_path(intent.last)) for intent in intents])

    def kept(self) -> int:
        """Return the first txid of the retained history, before which rows may have been removed; 0 if none were."""
        return int(self._read(names.KEPT) or 0)

    def write_kept(self, txid: int) -> None:
        """Record that the retained history begins with `txid`; call this before removing anything older."""
        self._commit([self._put(names.KEPT, txid)])

    def savepoints(self) -> dict[str, Savepoint]:
        """Return the named savepoints, sorted by name."""
        entries = sorted(self.ledger.scan(names.SAVEPOINTS).items())
        return {name: Savepoint.from_json(self._value(names.savepoint_path(name), one.value)) for name, one in entries}

    def snapshots(self) -> tuple[int, ChosenClock | None]:
        """Return the highest number of a snapshot at a clock so far (0: none), and the clock that is wanted, if any."""
        entries = {f"{names.SNAPSHOTS}/{name}": one.value for name, one in self.ledger.scan(names.SNAPSHOTS).items()}
        found = {path: self._value(path, value) for path, value in entries.items()}
        wanted = ChosenClock.from_json(found[names.WANTED]) if names.WANTED in found else None
        return max(found.get(names.NUMBER, 0), 0 if wanted is None else wanted.number), wanted

    def front_end(self, path: str) -> Any:
        """Return the value that a front end keeps at `path`, written by `put_if`; None: there is none."""
        return self._read(path)

    # -- rewinds ------------------------------------------------------------------------------------------------

    def rewind(self) -> Rewind | None:
        """Return the rewind that is decided but not completely carried out; None if there is none."""
        found = self._read(DECIDED)
        if found is None:
            return None
        from txstorm.books.rewind import Rewind

        return Rewind.from_json(found)

    def decide_rewind(self, rewind: Rewind) -> None:
        """Decide a rewind: from now on recovery only rolls it forward."""
        self._commit([self._put(DECIDED, rewind.to_json(), ABSENT)])

    def rewound(self, rewind: Rewind, tables: Mapping[str, int]) -> None:
        """Rewind the ledger itself, the last step of `rewind`, after all tables are restored.

        Entries of later transactions are deleted; the history table keeps the rows of those that were committed.
        """
        identity, dropped = self.identity(), self.dropped()
        assert identity is not None
        for partition in self._partition_paths():
            later = [txid for txid in self.ledger.children(partition) if int(txid) > rewind.txid]
            for ops in in_commits([Delete(f"{partition}/{txid}")] for txid in later):
                self._commit(ops)
        old = (names.META, names.INTENTS, names.HISTORY, names.FAILURES)
        meta = Meta(rewind.row["extents"], rewind.row["stamp"]).to_json() if rewind.row else None
        meta = self._read(names.meta_path(rewind.txid)) or meta  # there is one of the last committed txid
        self._commit(
            [
                *(Delete(f"{path}/{name}") for path in old for name in self.ledger.children(path)),
                *([self._put(names.meta_path(rewind.txid), meta)] if meta else []),
                self._put(names.CURRTX, rewind.txid + 1),
                self._put(names.TABLES, dict(tables)),
                *([self._put(names.DROPPED, dropped.until(rewind.txid).to_json())] if any(dropped) else []),
                self._put(names.IDENTITY, {**vars(identity), "timeline": rewind.timeline}),
                Delete(names.WANTED),
                Delete(DECIDED),
            ]
        )

    # -- failures -----------------------------------------------------------------------------------------------

    def failures(self) -> dict[int, dict[str, Any]]:
        """Return txid → {"count", "cause", …} for failed txids that are not committed yet; see `runtime.failures`."""
        entries = self._numbered(names.FAILURES)
        return {txid: self._value(names.failure_path(txid), entry.value) for txid, entry in entries.items()}

    def write_failure(self, txid: int, failure: Mapping[str, Any]) -> None:
        """Record the failures of `txid`: {"count", "cause", …}; the cause is truncated to `CAUSE` characters."""
        self._commit([self._put(names.failure_path(txid), {**failure, "cause": failure["cause"][:CAUSE]})])

    def sweep(self) -> None:
        """Delete blob files (long values) that the ledger no longer refers to."""
        kept = [entry.value for path in (*BLOBS, *self._partition_paths()) for entry in self.ledger.scan(path).values()]
        faults.point("sweep.values")
        self._values.sweep(kept, self.epoch)

    def _partition_paths(self) -> list[str]:
        return [f"{names.USER}/{partition}" for partition in self.ledger.children(names.USER)]

    # -- values -------------------------------------------------------------------------------------------------

    def _commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        with self._writing:  # so that no write overtakes one that carries noted metadata: a decision relies on it
            late = dict(self._late)
            try:
                for batch in in_commits([*self._late_ops(late, ops), ops]) if late else (ops,):
                    self.ledger.commit([*self._guard, *batch], durable=durable)
            except ConflictError as error:
                raise self._fenced(error) from error
            for txid, meta in late.items():
                if self._late.get(txid) is meta:
                    del self._late[txid]

    def _late_ops(self, late: Mapping[int, Meta], ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
        """Yield the operations for the metadata passed to `note_metas`, except where `ops` write or delete it."""
        written = {op.path for op in ops}
        for txid, meta in late.items():
            if names.meta_path(txid) not in written:
                yield self._meta_ops(txid, meta)

    def _check_epoch(self) -> None:
        for guard in self._guard:
            entry = self.ledger.get(guard.path)
            if entry is None or entry.version != guard.expect:
                found = "none" if entry is None else str(self._value(guard.path, entry.value))
                raise self._fenced(f"the ledger has {found}")

    def _fenced(self, found: object) -> FencedError:
        return FencedError(f"another coordinator has taken over: epoch {self.epoch} is no longer the newest ({found})")

    def _put(self, path: str, value: Any, expect: int | None = None) -> Put:
        return Put(path, self._values.encode(value, path, self.epoch), expect)

    def _numbered(self, path: str) -> dict[int, Entry]:
        """Return the entries below `path`, keyed by txid."""
        return {txid_of(path, name): entry for name, entry in self.ledger.scan(path).items()}

    def _read(self, path: str) -> Any:
        entry = self.ledger.get(path)
        return None if entry is None else self._value(path, entry.value)

    def _value(self, path: str, data: bytes) -> Any:
        return checked(path, self._values.decode(data, path))

    def _intent(self, last: int, data: bytes) -> Intent:
        path = names.intent_path(last)
        intent = Intent.from_json(self._value(path, data))
        if intent.last != last:
            raise LedgerCorrupt(f"ledger entry {path} holds the intent of txid {intent.last}; the ledger is damaged")
        return intent


@contextmanager
def opened_books(
    directory: Path, *, lease: str = "", read_only: bool = False, busy: float = BUSY, lanes: Lanes = THREADS
) -> Iterator[Books]:
    """Context manager: the books of a data directory; beside a run unless `lease` names a holder, who excludes runs."""
    ledger = open_ledger(directory, create=False, read_only=read_only, busy=busy)
    try:
        if lease:
            ledger.acquire(lease)
        yield Books(ledger, directory / names.INTENTS, lanes)
    finally:
        ledger.close()
