"""The invariants of a simulated world, checked when something becomes durable and when the world has healed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from txstorm.api.attempt import FIRST_TXID
from txstorm.clients.delta_values import Commit
from txstorm.ledger import names
from txstorm.ledger.store import Entry
from txstorm.runtime.books import DECIDED
from txstorm.state.intent import CHANGES, STATE
from txstorm.state.logged import COMMITTED
from txstorm.state.owner import Owner, TableRef
from txstorm.testing.simulation.schedule import INCARNATION
from txstorm.testing.simulation.source import Extents

if TYPE_CHECKING:
    from txstorm.testing.simulation.process import Process
    from txstorm.testing.simulation.tables import Row, Stored
    from txstorm.testing.simulation.world import World

EPOCH_APP = Owner("", INCARNATION).epoch_app
Decision = list[tuple[int, int, str]]
"""Txid, attempt and digest of every txid of a group."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: int, what: str) -> None:
        self.invariant = invariant
        super().__init__(f"invariant {invariant}: {what}")


class Judge:
    """Watches one world. What it knows, it has from what was written, not from the code that wrote it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opaque = world.schedule.opaque
        self._published: dict[tuple[int, int], tuple[int, str]] = {}
        self._planned: dict[tuple[int, int], Extents] = {}
        self._extents: dict[tuple[int, int], Extents] = {}
        self.timeline = 0
        self._epoch_app = EPOCH_APP
        self.currtx = FIRST_TXID
        self._epoch: int | None = None
        self._intents: dict[int, Mapping[str, Any]] = {}  # that stand in the ledger, by their last txids
        self._unseen: dict[int, Mapping[str, Any]] = {}  # those of them not seen in all their tables yet

    # -- when something is written ------------------------------------------------------------------------------

    def before_ledger(self, process: Process, changed: Mapping[str, Entry | None]) -> None:
        """`process` is about to write to the ledger, and nothing stands against it."""
        moves = changed.get(names.CURRTX)
        currtx = self.currtx if moves is None else self._value(moves.value)
        rewound = DECIDED in changed and changed[DECIDED] is None
        for path, entry in changed.items():
            above, _, name = path.rpartition("/")
            if above == names.META:
                if not rewound:
                    self._meta(int(name), entry, currtx)
            elif above == names.INTENTS:
                self._intent(process, int(name), entry, currtx, rewound=rewound)
            elif above == names.HISTORY and entry is not None:
                self.history(self._value(entry.value))
            elif path == names.EPOCH and entry is not None:
                self._epoch = self._value(entry.value)
        if moves is not None:
            self._moved(process, currtx, rewound=rewound)

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
        """P6: by who leads, after everything before it is published."""
        ours, epoch = intent["epoch"], self._epoch
        if ours != epoch:
            raise Violation(5, f"{process} decides with epoch {ours}, the ledger has {epoch}")
        first, last = intent["txids"][0]["txid"], intent["txids"][-1]["txid"]
        end = max(self.currtx - 1, max(self._intents, default=0))
        if first != end + 1:
            raise Violation(2, f"txids {first}-{last} are decided after {end}")
        self._all_published(end + 1, "decided", last)
        for table in intent["tables"]:
            if table["staged"]["path"] not in self._world.tables[table["uri"]].rows:
                raise Violation(6, f"txids {first}-{last}: {table['uri']} is decided without its file")

    def _moved(self, process: Process, currtx: int, *, rewound: bool) -> None:
        before, self.currtx = self.currtx, currtx
        if rewound:
            self.timeline += 1
            return
        if currtx <= before:
            raise Violation(2, f"currtx moves from {before} to {currtx}")
        if process.books.epoch != self._epoch:
            raise Violation(5, f"{process} completes though it does not lead")
        self._all_published(currtx, "completed", currtx - 1)

    def _all_published(self, below: int, what: str, txid: int) -> None:
        """What intents say of txids under `below` is in all their tables."""
        for last in [one for one in self._unseen if one < below]:
            for table in self._unseen.pop(last)["tables"]:
                at = self._at(self._world.tables[table["uri"]])
                if at < last:
                    raise Violation(2, f"txid {txid} is {what}, {table['uri']} is at {at}")

    def _meta(self, txid: int, entry: Entry | None, currtx: int) -> None:
        """Of a spout whose batches may not change, what was planned stays until it is committed."""
        if entry is not None:
            if not self._opaque:
                document = self._value(entry.value)["document"]
                known = self._planned.setdefault((self.timeline, txid), document)
                if known != document:
                    raise Violation(4, f"txid {txid} was planned as {known}, and is planned as {document}")
        elif txid >= currtx - 1 and not (self._opaque and txid >= self.currtx):
            raise Violation(6, f"metadata of txid {txid} is removed, currtx is {currtx}")

    def before_table(self, process: Process, stored: Stored, commit: Commit) -> None:
        """`process` is about to commit to a table, and nobody else has."""
        apps, info = stored.versions[-1].apps, commit.info
        epoch = commit.transactions.get(self._epoch_app, info["epoch"])  # Spark keeps none
        before = apps.get(self._epoch_app, 0)
        if epoch < before:
            raise Violation(5, f"{process} commits with epoch {epoch} to {stored.uri}, which has {before}")
        for file in commit.adds:
            if file.path not in stored.rows:
                raise Violation(6, f"{stored.uri} gets {file.path}, which is not there")
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
        """Rows of the history are written: extents tile (4), and say what was published (3)."""
        for row in rows:
            timeline, txid, extents = row["timeline"], row["txid"], row["extents"]
            known = self._extents.setdefault((timeline, txid), extents)
            if known != extents:
                raise Violation(4, f"the history has txid {txid} with {known} and with {extents}")
            before = self._extents.get((timeline, txid - 1))
            if before is None:
                before = [[0, 0]] * self._world.schedule.partitions if txid == 1 else None
            if before is not None and [end for _, end in before] != [start for start, _ in extents]:
                raise Violation(4, f"txid {txid} has extents {extents}, the one before it {before}")

    # -- when the world has healed -------------------------------------------------------------------------------

    def end(self) -> None:
        """All that was put into the source is in every table once, in order."""
        ends = [end for _, end in self._extents.get((self.timeline, self.currtx - 1), [])]
        if ends != self._world.available:
            raise Violation(7, f"committed up to {ends} of {self._world.available}")
        wrong = self._world.database.wrong(ends) if self._world.schedule.external else None
        if wrong is not None:
            raise Violation(1, f"the user's database: {wrong}")
        for stored in self._world.tables.values():
            self._check_files(stored)
            self._check_ranges(stored)
            if stored.ref.kind == STATE:
                self._check_state(stored)
            else:
                self._check_rows(stored, ends)

    def _check_files(self, stored: Stored) -> None:
        """Files that a version or a live intent names are there (savepoints name versions)."""
        seen: Mapping[str, object] | None = None
        for number, version in enumerate(stored.versions):
            if version.files is seen:
                continue
            seen = version.files
            if not seen.keys() <= stored.rows.keys():
                gone = [path for path in version.files if path not in stored.rows]
                raise Violation(6, f"{gone} of version {number} of {stored.uri} is gone")

    def _check_ranges(self, stored: Stored) -> None:
        """Ranges of txids tile every timeline."""
        ends: dict[int, int] = {}
        for version in stored.versions:
            info = version.info
            if info.get("kind") == COMMITTED:
                end = ends.get(info["timeline"])
                if end is not None and info["first"] != end + 1:
                    raise Violation(2, f"{stored.uri}: a range begins at {info}, the one before it ends at {end}")
                ends[info["timeline"]] = info["last"]

    def _check_rows(self, stored: Stored, ends: Sequence[int]) -> None:
        for partition, found in enumerate(frontier(rows_of(stored), len(ends), stored.uri)):
            expected = 0 if skips(stored.number, partition, len(ends)) else ends[partition]
            if found != expected:
                raise Violation(1, f"{stored.uri} has partition {partition} up to {found}, not {expected}")

    def _check_state(self, stored: Stored) -> None:
        """A state table is what its changes up to its txid are."""
        rows = rows_of(stored)
        at = self._at(stored)
        changes = rows_of(self._world.tables[f"{CHANGES}/{stored.ref.name}"])
        parts = self._world.schedule.partitions
        expected = frontier([row for row in changes if row[0] <= at], parts, stored.uri)
        found = [max((row[3] for row in rows if row[1] == part), default=0) for part in range(parts)]
        if found != expected:
            raise Violation(1, f"{stored.uri} as of txid {at} holds {found}, not {expected}")

    def _at(self, stored: Stored) -> int:
        return stored.versions[-1].apps.get(_txid_app(stored.ref, self.timeline), 0)

    def _value(self, data: bytes) -> Any:
        return self._world.values.decode(data, "")


@cache
def _txid_app(ref: TableRef, timeline: int) -> str:
    return ref.txid_app(Owner("", INCARNATION, timeline))


def rows_of(stored: Stored) -> list[Row]:
    """The rows of the newest version, by txid."""
    return sorted([row for path in stored.versions[-1].files for row in stored.rows[path]])


def frontier(rows: Sequence[Row], partitions: int, uri: str) -> list[int]:
    """Where each partition ends; every offset before it is there once, in order."""
    ends = [0] * partitions
    for txid, partition, start, end in rows:
        if start != ends[partition]:
            raise Violation(1, f"{uri}: txid {txid} goes on at {start}, not at {ends[partition]}")
        ends[partition] = end
    return ends


def skips(table: int, partition: int, partitions: int) -> bool:
    """Whether a table gets nothing of a partition: so that some txids do not change it."""
    return table > 0 and partitions > 1 and partition == (table - 1) % partitions
