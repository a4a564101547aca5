"""The invariants of a simulated world, checked at every durable write and after the world has healed.

It is one module, since every check needs what others have seen: positions, intents, lives of tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txstorm.api.attempt import FIRST_TXID
from txstorm.books.books import DECIDED
from txstorm.clients.delta.entry import Commit
from txstorm.coordinator.machine import Mode, State
from txstorm.ledger import paths as names
from txstorm.ledger.port import Entry
from txstorm.simulation import expected as content
from txstorm.simulation.expected import SINCE_APP, Violation
from txstorm.simulation.outside import Extents, extents_of
from txstorm.simulation.schedule import INCARNATION, TOPOLOGY
from txstorm.spouts.facts import kind_of
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHANGES, STAGED, STATE
from txstorm.storage.tables.table_log import COMMITTED, REGROUPED

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Stored
    from txstorm.simulation.process.process import Process
    from txstorm.simulation.world import World

THEIRS = f"{STAGED}/theirs.parquet"
"""Path of a foreign file beside the staged files."""

TAKEN_BACK = (names.META, names.INTENTS, names.HISTORY)
EPOCH_APP = TopologyIdentity("", INCARNATION).epoch_app
UNTIL_APP = TopologyIdentity("", INCARNATION).until_app
Decision = list[tuple[int, int, str]]
"""A decided group: txid, attempt id and digest of each of its transactions."""


class Judge:
    """Checker of the invariants of one world; it relies only on durable content, not on the code that wrote it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opaque = world.schedule.opaque
        self._published: dict[tuple[int, int], tuple[int, str]] = {}
        self._planned: dict[tuple[int, int], tuple[Extents, str, int]] = {}
        self._extents: dict[tuple[int, int], Extents] = {}
        self._stamps: dict[tuple[int, int], int] = {}
        self._rewind: Mapping[str, Any] | None = None  # the rewind that is decided but not completed
        self.timeline = 0
        self._epoch_app = EPOCH_APP
        self.currtx = FIRST_TXID
        self._epoch: int | None = None
        self._intents: dict[int, Mapping[str, Any]] = {}  # intents in the ledger, by last txid
        self._lives: dict[str, list[int | None]] = {}  # first and last txid of each table ever recorded
        self._unseen: dict[int, Mapping[str, Any]] = {}  # intents not yet seen in all their tables

    @property
    def decided(self) -> int:
        """The timeline of the last rewind that is decided."""
        return self.timeline if self._rewind is None else self._rewind["timeline"]

    # -- when something is written ------------------------------------------------------------------------------

    def before_ledger(self, process: Process, changed: Mapping[str, Entry | None], *, durable: bool) -> None:
        """Check a write that `process` is about to make to the ledger; a power cut may take one that is not durable."""
        if not durable:
            at = self._world.entries.at
            planned = [path for path in changed if path.startswith(f"{names.META}/") and path in at]
            if changed.keys() - {names.STATUS, *planned}:
                raise Violation(6, f"{process} writes {sorted(changed)}, and a power cut could take that")
        moves = changed.get(names.CURRTX)
        currtx = self.currtx if moves is None else self._value(moves.value)
        rewound = DECIDED in changed and changed[DECIDED] is None
        for path, entry in changed.items():
            above, _, name = path.rpartition("/")
            if above == names.META:
                if not rewound:
                    self._meta(process, int(name), entry, currtx)
            elif above == names.INTENTS:
                self._intent(process, int(name), entry, currtx, rewound=rewound)
                if entry is not None:
                    self._check_read(self._value(entry.value), changed)
            elif above == names.HISTORY:
                self._check_history_write(path, entry)
            elif path == names.EPOCH and entry is not None:
                self._epoch = self._value(entry.value)
            elif path == DECIDED and entry is not None:
                self._rewind = self._value(entry.value)
            elif above == names.SAVEPOINTS and process.books.epoch != self._epoch:
                raise Violation(5, f"{process} creates a savepoint though it does not lead")
        if moves is not None:
            self._moved(process, currtx, changed, rewound=rewound)
        if (tables := changed.get(names.TABLES)) is not None:
            self._recorded(process, self._value(tables.value))
        if rewound:
            entries = self._world.entries
            left = [path for above in TAKEN_BACK for path in entries.paths(above) if changed.get(path, path) is path]
            if left:
                raise Violation(6, f"a rewind to txid {currtx - 1} is over, {left} stay in the ledger")

    def _recorded(self, process: Process, tables: Mapping[str, int]) -> None:
        """Check that the ledger records the positions of all known tables."""
        entry = self._world.entries.at.get(names.TABLES)
        before = set() if entry is None else self._value(entry.value).keys()
        for uri in before - tables.keys():
            if uri not in process.drop:
                raise Violation(6, f"of {sorted(before)} only {tables} stays recorded")
            self._lives[uri][1] = self.currtx - 1
        for uri in tables.keys() - before:
            self._world.tables[uri].check_durable(0, f"{uri} is recorded")
            self._lives[uri] = [self.currtx - 1, None]
        stand = {uri: self._at(self._world.tables[uri]) for uri in tables}
        if tables != stand:
            raise Violation(2, f"{tables} is recorded, tables are at {stand}")

    def _check_read(self, intent: Mapping[str, Any], changed: Mapping[str, Entry | None]) -> None:
        """Check that the extents of a batch are recorded when it is decided, so that replays can be compared."""
        for one in intent["txids"]:
            path = names.meta_path(one["txid"])
            entry = changed.get(path) or self._world.entries.at.get(path)
            meta = None if entry is None else self._value(entry.value)
            if meta is None or content.digest_of(meta["digests"]) != one["digest"]:
                raise Violation(4, f"txid {one['txid']} is decided with {one['digest']}, its metadata says {meta}")

    def _check_history_write(self, path: str, entry: Entry | None) -> None:
        """Check a history row that is written to the ledger, or moved from there to the history table."""
        if entry is not None:
            self.history(self._value(entry.value))
            return
        kept = {(row["timeline"], row["txid"]) for row in self._world.history[: self._world.history_synced]}
        for row in self._value(self._world.entries.at[path].value):
            if (row["timeline"], row["txid"]) not in kept:
                raise Violation(6, f"the row of txid {row['txid']} is removed and is not in the history")

    def _intent(self, process: Process, last: int, entry: Entry | None, currtx: int, *, rewound: bool) -> None:
        if entry is None:
            if not rewound and last >= currtx:
                raise Violation(6, f"the live intent of txid {last} is removed")
            self._intents.pop(last)
            self._unseen.pop(last, None)
        else:
            intent = self._value(entry.value)
            self._decided(process, intent)
            self._intents[last] = self._unseen[last] = intent

    def _decided(self, process: Process, intent: Mapping[str, Any]) -> None:
        """Check a decision (P6): only the leader may decide, and only after everything earlier is published."""
        ours, epoch = intent["epoch"], self._epoch
        if ours != epoch:
            raise Violation(5, f"{process} decides with epoch {ours}, the ledger has {epoch}")
        if self._rewind is not None:
            raise Violation(5, f"{process} decides though a rewind to txid {self._rewind['txid']} is decided")
        first, last = intent["txids"][0]["txid"], intent["txids"][-1]["txid"]
        end = max(self.currtx - 1, max(self._intents, default=0))
        if first != end + 1:
            raise Violation(2, f"txids {first}-{last} are decided after {end}")
        self._all_published(end + 1, "decided", last)
        self._check_lives(f"txids {first}-{last} are decided")
        entry = self._world.entries.at.get(names.TABLES)
        recorded: Mapping[str, int] = {} if entry is None else self._value(entry.value)
        for table in intent["tables"]:
            stored = self._world.tables[table["uri"]]
            if stored.uri not in recorded:
                raise Violation(8, f"txids {first}-{last} change {stored.uri}, which is not recorded")
            if table["staged"]["path"] not in stored.rows:
                raise Violation(6, f"txids {first}-{last}: {stored.uri} is decided though its file does not exist")
            if stored.raised:
                stored.check_durable(stored.raised, f"txids {first}-{last} are decided")

    def _moved(self, process: Process, currtx: int, changed: Mapping[str, Entry | None], *, rewound: bool) -> None:
        before, self.currtx = self.currtx, currtx
        if rewound:
            self._rewound(currtx)
            return
        if currtx <= before:
            raise Violation(2, f"currtx moves from {before} to {currtx}")
        if process.books.epoch != self._epoch:
            raise Violation(5, f"{process} completes though it does not lead")
        self._all_published(currtx, "completed", currtx - 1)
        metas = self._world.entries.paths(names.META)
        if old := [one for one in metas if changed.get(one, one) is one and int(one.rpartition("/")[2]) < currtx - 1]:
            raise Violation(6, f"txid {currtx - 1} is completed, {old} is still there")

    def _rewound(self, currtx: int) -> None:
        """Check that a rewind changes the ledger last, after tables and history have reached their targets."""
        rewind, self._rewind = self._rewind, None
        self.timeline += 1
        assert rewind is not None
        txid = rewind["txid"]
        if currtx != txid + 1:
            raise Violation(2, f"after a rewind to txid {txid} currtx is {currtx}")
        for life in self._lives.values():
            life[:] = [None if one is None else min(one, txid) for one in life]
        self._check_lives(f"a rewind to txid {txid} is over")
        row = rewind["row"]
        ends = [0] * self._world.schedule.partitions if row is None else [end for _, end in extents_of(row["extents"])]
        for stored in filter(lambda one: one.versions, self._world.tables.values()):
            if self._is_left(stored):  # the next start takes it over, whatever it is as of
                continue
            if self._app(stored) is None:
                raise Violation(2, f"a rewind to txid {txid} is over, {stored.uri} has not reached its target")
            stored.check_durable(stored.published, f"a rewind to txid {txid} is over")
            _, until = self._life(stored)
            at = txid if until is None else until
            wanted = content.newest_until(stored, at, self.timeline) if stored.ref.kind == STATE else at
            if self._at(stored) != wanted:
                raise Violation(2, f"{stored.uri} is rewound to {self._at(stored)}, there is a version as of {wanted}")
            self._check_content(stored, ends)
        if row is not None and self._world.history[-1] != row:
            raise Violation(6, f"a rewind to txid {txid} is over, the history does not end with it")

    def _is_left(self, stored: Stored) -> bool:
        """Whether a table is empty and named by no ledger and no intent, so that a fenced coordinator may create it."""
        uri = TableRef(CHANGES, stored.ref.name).uri if stored.ref.kind == STATE else stored.uri
        return uri not in self._lives and not any(version.files for version in stored.versions)

    def _all_published(self, below: int, what: str, txid: int) -> None:
        """Check that the tables contain what intents prescribe for txids below `below`."""
        for last in [one for one in self._unseen if one < below]:
            for table in self._unseen.pop(last)["tables"]:
                stored = self._world.tables[table["uri"]]
                if (at := self._at(stored)) < last:
                    raise Violation(2, f"txid {txid} is {what}, {table['uri']} is at {at}")
                if at == last:
                    stored.check_durable(stored.published, f"txid {txid} is {what}")

    def _meta(self, process: Process, txid: int, entry: Entry | None, currtx: int) -> None:
        """Check that planned metadata of a non-opaque spout stays unchanged until the txid is committed."""
        if entry is not None:
            if not self._opaque:
                meta = self._value(entry.value)
                planned = extents_of(meta["document"]), str(kind_of(meta["document"])), meta["stamp"]
                known = self._planned.setdefault((self.timeline, txid), planned)
                if known is planned and planned[-1] < (since := process.asked_since.get(txid, 0)):
                    raise Violation(4, f"txid {txid} is planned after {since} for {planned[-1]}")
                if known != planned:
                    raise Violation(4, f"txid {txid} was planned as {known}, and is planned as {planned}")
        elif txid >= currtx - 1 and not (self._opaque and txid >= self.currtx):
            raise Violation(6, f"metadata of txid {txid} is removed, currtx is {currtx}")

    def before_creation(self, process: Process, what: str) -> None:
        """Check that `process` has asked the ledger whether it leads before it creates a table or appends history.

        It may pause after the answer: what it creates then has to be taken over.
        """
        if process.asked != names.EPOCH:
            raise Violation(5, f"{process} creates {what} without asking whether it leads")

    def before_table(self, process: Process, stored: Stored, commit: Commit) -> None:
        """Check a commit that `process` is about to make to a table."""
        apps, info = stored.versions[-1].apps, commit.info
        epoch = commit.transactions.get(self._epoch_app, info["epoch"])  # Spark writes no epoch
        before = apps.get(self._epoch_app, 0)
        if epoch < before:
            raise Violation(5, f"{process} commits with epoch {epoch} to {stored.uri}, which has {before}")
        for file in commit.adds:
            if file.path not in stored.rows:
                raise Violation(6, f"{stored.uri} gets {file.path}, which does not exist")
        app = content.txid_app(stored.ref, info["timeline"])
        if (info["topology"], info["incarnation"]) != (TOPOLOGY, INCARNATION) or app not in commit.transactions:
            raise Violation(5, f"{process} commits {info} to {stored.uri}, which does not say whose it is")
        if commit.data_change is (info["kind"] == REGROUPED):  # readers of changes would take all rows for new
            raise Violation(1, f"{stored.uri} gets {info}, and data_change is {commit.data_change}")
        if info["kind"] == COMMITTED:
            self._group(process, stored, commit, apps)

    def _group(self, process: Process, stored: Stored, commit: Commit, apps: Mapping[str, int]) -> None:
        info = commit.info
        first, last, timeline = info["first"], info["last"], info["timeline"]
        (app,) = [app for app in commit.transactions if app != self._epoch_app]
        at = apps.get(app)
        if not first == (at or 0) + 1 <= last:
            raise Violation(2, f"{stored.uri} gets txids {first}-{last}, it is at {at}")
        intent = self._intents.get(last)
        if intent is None:
            raise Violation(5, f"{process} publishes txid {last} to {stored.uri}, which is not decided")
        if intent["txids"] != info["txids"] or intent["timeline"] != timeline:
            raise Violation(5, f"{process} publishes other attempts of txid {last} to {stored.uri} than decided")
        staged = [stored.rows.get(one["staged"]["path"]) for one in intent["tables"] if one["uri"] == stored.uri]
        if [stored.rows[file.path] for file in commit.adds] != staged:
            raise Violation(5, f"txid {last}: {stored.uri} gets other rows")
        for one in info["txids"]:
            carried = one["attempt"], one["digest"]
            known = self._published.setdefault((timeline, one["txid"]), carried)
            if known != carried:
                raise Violation(3, f"txid {one['txid']} is {carried} in {stored.uri}, {known} elsewhere")

    def history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check history rows being written: extents must tile (invariant 4) and match published rows (invariant 3)."""
        for row in rows:
            timeline, txid, extents = row["timeline"], row["txid"], extents_of(row["extents"])
            known = self._extents.setdefault((timeline, txid), extents)
            if known != extents:
                raise Violation(4, f"the history has txid {txid} with {known} and with {extents}")
            if self._published.setdefault((timeline, txid), said := (row["attempt"], row["digest"])) != said:
                raise Violation(3, f"the history has txid {txid} with {said}, unlike the tables")
            stamp = self._stamps[timeline, txid] = row["stamp"]
            if stamp < self._stamps.get((timeline, txid - 1), 0):
                raise Violation(4, f"txid {txid} has the time {stamp}, which is before that of the previous txid")
            self._check_versions(row)
            before = self._extents.get((timeline, txid - 1))
            if before is None:
                before = [[0, 0]] * self._world.schedule.partitions if txid == 1 else None
            if before is not None and [end for _, end in before] != [start for start, _ in extents]:
                raise Violation(4, f"txid {txid} has extents {extents}, the previous txid {before}")

    def completed(self, last: int, intents: int) -> None:
        """Check that completing a group up to `last` keeps the last intents; others may have decided more groups."""
        entries = self._world.entries
        kept = [txid for txid in entries.names(names.INTENTS) if int(txid) <= last]
        if len(kept) != intents and last == self.currtx - 1:
            raise Violation(6, f"txid {last} is completed, intents {kept} are kept, {intents} should be")

    def _check_versions(self, row: Mapping[str, Any]) -> None:
        """Check that the history names the version of every table that the group of a txid created."""
        intent = self._intents.get(row["last"])
        if intent is not None and row["timeline"] == intent["timeline"]:
            first, uris = intent["txids"][0]["txid"], {one["uri"] for one in intent["tables"]}
            if row["first"] != first or row["versions"].keys() != uris:
                raise Violation(3, f"the history has {row}, its group begins with {first} and changes {sorted(uris)}")
        for uri, version in row["versions"].items():
            made = self._world.tables[uri].versions[version].info
            if made.get("kind") != COMMITTED or (made["first"], made["last"]) > (row["txid"], row["last"]):
                raise Violation(3, f"the history has txid {row['txid']} in version {version} of {uri}, which is {made}")

    def removed(self, stored: Stored, path: str) -> None:
        """Check that a removed file is not needed by a permanent version, the newest version, or a decided rewind."""
        needed = [number for number in content.needed(stored) if path in stored.versions[number].files]
        if needed:
            raise Violation(6, f"{path} of {stored.uri} is removed, and versions {needed} need it")
        todo = [] if self._rewind is None else self._rewind["tables"]
        if any(file["path"] == path for one in todo if one["uri"] == stored.uri for file in one["adds"]):
            raise Violation(6, f"{path} of {stored.uri} is removed, and a decided rewind needs it")

    # -- when a coordinator decides something in memory -----------------------------------------------------------

    def watched(self, process: Process, before: State | None, state: State) -> None:
        """Check the coordinator's state after an event against its limits."""
        schedule = self._world.schedule
        if len(state.entries) > schedule.depth:
            raise Violation(9, f"{process} may have {schedule.depth} in flight: {state}")
        if state.committing > (1 if schedule.external else schedule.group):
            raise Violation(9, f"{process} may commit {schedule.group} at once: {state}")
        if before is None:
            return
        fresh = state.started > before.started
        if fresh and state.mode is not Mode.ACTIVE:
            raise Violation(9, f"{process} is to begin nothing new: {before}, then {state}")
        if state.currtx < before.currtx or state.started < before.started:
            raise Violation(9, f"{process} goes back from {before} to {state}")
        if before.held and state.held >= before.held and len(state.entries) > len(before.entries):
            last = state.currtx + len(state.entries) - 1
            if last >= min(state.held):
                raise Violation(9, f"{process} has to wait with txid {min(state.held)}: {state}")

    def after_power_cut(self) -> None:
        """Check that everything completed, decided and saved is still there."""
        entries = self._world.entries
        recorded = entries.at.get(names.TABLES)
        for uri, txid in ({} if recorded is None else self._value(recorded.value)).items():
            stored = self._world.tables[uri]
            if not stored.versions or self._at(stored) < txid:
                raise Violation(6, f"a power cut sets {uri} back, which has completed txid {txid}")
        for intent in self._intents.values():
            for table in intent["tables"]:
                if table["staged"]["path"] not in self._world.tables[table["uri"]].rows:
                    raise Violation(6, f"a power cut takes the rows of {table['uri']} for txid {intent['txids'][-1]}")
        for stored in self._world.tables.values():
            if max(self._saved(stored), default=-1) >= len(stored.versions):
                raise Violation(6, f"a power cut takes a version of {stored.uri} that a savepoint names")

    # -- when the world has healed -------------------------------------------------------------------------------

    def swept(self) -> None:
        """Check that unreferenced files are removed, and that foreign files are not."""
        for stored in [self._world.tables[uri] for uri in self._world.code]:
            kept = {path for version in stored.versions for path in version.files}
            kept |= {one["staged"]["path"] for intent in self._intents.values() for one in intent["tables"]}
            left = stored.rows.keys() - kept - {THEIRS}
            if left or THEIRS not in stored.rows:
                raise Violation(6, f"{stored.uri}: {sorted(left) or THEIRS} is {'left' if left else 'gone'}")

    def end(self) -> None:
        """Check that every table contains all data of the source exactly once, in order."""
        ends = [end for _, end in self._extents.get((self.timeline, self.currtx - 1), [])]
        if ends != self._world.available:
            raise Violation(7, f"committed up to {ends} of {self._world.available}")
        wrong = self._world.database.wrong(ends) if self._world.schedule.external else None
        if wrong is not None:
            raise Violation(1, f"the user's database: {wrong}")
        for stored in filter(lambda one: one.versions, self._world.tables.values()):
            content.check_files(stored, self._saved(stored))
            content.check_ranges(stored)
            self._check_content(stored, ends)
        self._check_lives("all is done")

    def _saved(self, stored: Stored) -> list[int]:
        """Return the versions of a table that savepoints name."""
        entries = self._world.entries
        saved = [self._value(entries.at[path].value)["tables"] for path in entries.paths(names.SAVEPOINTS)]
        return [tables[stored.uri]["version"] for tables in saved if stored.uri in tables]

    def _check_content(self, stored: Stored, ends: Sequence[int]) -> None:
        since, until = self._life(stored)
        start = self._ends(since, len(ends))
        if stored.ref.kind == STATE:
            changes = self._world.tables[f"{CHANGES}/{stored.ref.name}"]
            content.check_state(stored, changes, self._at(stored), start)
        else:
            content.check_rows(stored, start, ends if until is None else self._ends(until, len(ends)))

    def _life(self, stored: Stored) -> tuple[int, int | None]:
        """Return the first and last txid that a table must contain; an empty range if the table is not recorded."""
        uri = TableRef(CHANGES, stored.ref.name).uri if stored.ref.kind == STATE else stored.uri
        since, until = self._lives.get(uri, (None, None))
        return (since, until) if since is not None else (self._at(stored), self._at(stored))

    def _ends(self, txid: int, partitions: int) -> list[int]:
        """Return the end offset of each partition after `txid`, in the newest timeline that contains it."""
        found = (self._extents.get((timeline, txid)) for timeline in range(self.timeline, -1, -1))
        extents = next((one for one in found if one is not None), [[0, 0]] * partitions)
        return [end for _, end in extents]

    def _check_lives(self, what: str) -> None:
        """Check that every recorded table records where it begins, and every dropped one where it ends."""
        for uri, (since, until) in self._lives.items():
            name = uri.partition("/")[2]
            for one in (uri, f"{STATE}/{name}") if uri.startswith(f"{CHANGES}/") else (uri,):
                apps = self._world.tables[one].versions[-1].apps
                if (apps.get(SINCE_APP), apps.get(UNTIL_APP)) != (since, until):
                    raise Violation(10, f"{what}, {one} is valid from {since} to {until}, but records {apps}")

    def _at(self, stored: Stored) -> int:
        return self._app(stored) or 0

    def _app(self, stored: Stored) -> int | None:
        return stored.versions[-1].apps.get(self.txid_app(stored))

    def txid_app(self, stored: Stored) -> str:
        """Return the app id under which a table records its last txid now."""
        return content.txid_app(stored.ref, self.timeline)

    def read(self, txid: int) -> Any:
        """Return the recorded digests of an undecided txid; None if there are none."""
        entry = self._world.entries.at.get(names.meta_path(txid))
        return None if entry is None else self._value(entry.value)["digests"]

    def _value(self, data: bytes) -> Any:
        return self._world.values.decode(data, "")
