"""The invariants of a simulated world, checked when something becomes durable and when the world has healed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txstorm.api.attempt import FIRST_TXID
from txstorm.clients.delta_values import Commit
from txstorm.ledger import names
from txstorm.ledger.store import Entry
from txstorm.runtime.books import DECIDED
from txstorm.state.intent import CHANGES, STATE
from txstorm.state.logged import COMMITTED
from txstorm.state.owner import Owner
from txstorm.testing.simulation.schedule import INCARNATION
from txstorm.testing.simulation.source import Extents

if TYPE_CHECKING:
    from txstorm.testing.simulation.process import Process
    from txstorm.testing.simulation.tables import Row, Stored
    from txstorm.testing.simulation.world import World

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
        self._published: dict[tuple[int, int], tuple[int, str]] = {}
        self._planned: dict[tuple[int, int], Extents] = {}
        self._extents: dict[tuple[int, int], Extents] = {}
        self.timeline = 0
        self._epoch_app = Owner("", INCARNATION).epoch_app
        self._apps = self._txid_apps()
        self.currtx = FIRST_TXID
        self._epoch: int | None = None
        self._intents: dict[int, Mapping[str, Any]] = {}  # that stand in the ledger, by their last txids
        self._unseen: dict[int, Mapping[str, Any]] = {}  # those of them not seen in all their tables yet

    # -- when something is written ------------------------------------------------------------------------------

    def before_ledger(self, process: Process, changed: Mapping[str, Entry | None]) -> None:
        """`process` is about to write to the ledger, and nothing stands against it."""
        moves = changed.get(names.CURRTX)
        currtx = self.currtx if moves is None else self._value(moves)
        rewound = DECIDED in changed and changed[DECIDED] is None
        for path, entry in changed.items():
            if path == names.EPOCH and entry is not None:
                self._epoch = self._value(entry)
            elif path != names.CURRTX:
                above, _, name = path.rpartition("/")
                if above == names.INTENTS:
                    self._intent(process, int(name), entry, currtx, rewound=rewound)
                elif above == names.HISTORY and entry is not None:
                    self.history(self._value(entry))
                elif above == names.META and not rewound:
                    self._meta(int(name), entry, currtx)
        if moves is not None:
            self._moved(process, currtx, rewound=rewound)

    def _intent(self, process: Process, last: int, entry: Entry | None, currtx: int, *, rewound: bool) -> None:
        if entry is None:
            _demand(rewound or last < currtx, 6, "the live intent of txid {} is removed", last)
            self._intents.pop(last)
            self._unseen.pop(last, None)
        else:
            self._decided(process, self._value(entry))
            self._intents[last] = self._unseen[last] = self._value(entry)

    def _decided(self, process: Process, intent: Mapping[str, Any]) -> None:
        """P6: by who leads, after everything before it is published."""
        ours, epoch = intent["epoch"], self._epoch
        _demand(ours == epoch, 5, "{} decides with epoch {}, the ledger has {}", process, ours, epoch)
        first, last = intent["txids"][0]["txid"], intent["txids"][-1]["txid"]
        end = max([self.currtx - 1, *self._intents])
        _demand(first == end + 1, 2, "txids {}-{} are decided after {}", first, last, end)
        self._all_published(end + 1, "decided", last)
        for table in intent["tables"]:
            there = table["staged"]["path"] in self._world.tables[table["uri"]].rows
            _demand(there, 6, "txids {}-{}: {} is decided without its file", first, last, table["uri"])

    def _moved(self, process: Process, currtx: int, *, rewound: bool) -> None:
        before, self.currtx = self.currtx, currtx
        if rewound:
            self.timeline += 1
            self._apps = self._txid_apps()
            return
        _demand(currtx > before, 2, "currtx moves from {} to {}", before, currtx)
        _demand(process.books.epoch == self._epoch, 5, "{} completes though it does not lead", process)
        self._all_published(currtx, "completed", currtx - 1)

    def _all_published(self, below: int, what: str, txid: int) -> None:
        """What intents say of txids under `below` is in all their tables."""
        for last in [one for one in self._unseen if one < below]:
            for table in self._unseen.pop(last)["tables"]:
                at = self._at(self._world.tables[table["uri"]])
                _demand(at >= last, 2, "txid {} is {}, {} is at {}", txid, what, table["uri"], at)

    def _meta(self, txid: int, entry: Entry | None, currtx: int) -> None:
        """Of a spout whose batches may not change, what was planned stays until it is committed."""
        if entry is not None:
            self._meta_stored(txid, self._value(entry)["document"])
            return
        gone = txid < currtx - 1 or (self._world.schedule.opaque and txid >= self.currtx)
        _demand(gone, 6, "metadata of txid {} is removed, currtx is {}", txid, currtx)

    def _meta_stored(self, txid: int, document: Extents) -> None:
        """A transactional spout's batch never changes, once it is planned."""
        if not self._world.schedule.opaque:
            known = self._planned.setdefault((self.timeline, txid), document)
            _demand(known == document, 4, "txid {} was planned as {}, and is planned as {}", txid, known, document)

    def before_table(self, process: Process, stored: Stored, commit: Commit) -> None:
        """`process` is about to commit to a table, and nobody else has."""
        apps, info = stored.versions[-1].apps, commit.info
        epoch = commit.transactions.get(self._epoch_app, info["epoch"])  # Spark keeps none
        before = apps.get(self._epoch_app, 0)
        _demand(epoch >= before, 5, "{} commits with epoch {} to {}, which has {}", process, epoch, stored.uri, before)
        for file in commit.adds:
            _demand(file.path in stored.rows, 6, "{} gets {}, which is not there", stored.uri, file.path)
        if info["kind"] == COMMITTED:
            self._group(process, stored, commit, apps)

    def _group(self, process: Process, stored: Stored, commit: Commit, apps: Mapping[str, int]) -> None:
        info = commit.info
        first, last, timeline = info["first"], info["last"], info["timeline"]
        (app,) = (app for app in commit.transactions if not app.endswith("/epoch"))
        at = apps.get(app)
        _demand(first == (at or 0) + 1 <= last, 2, "{} gets txids {}-{}, it is at {}", stored.uri, first, last, at)
        intent = self._intents.get(last)
        if intent is None:
            raise Violation(5, f"{process} publishes txid {last} to {stored.uri}, which is not decided")
        same = intent["txids"] == list(info["txids"]) and intent["timeline"] == timeline
        _demand(same, 5, "{} publishes other attempts of txid {} to {} than decided", process, last, stored.uri)
        staged = [stored.rows.get(one["staged"]["path"]) for one in intent["tables"] if one["uri"] == stored.uri]
        _demand(
            [stored.rows[file.path] for file in commit.adds] == staged,
            5,
            "txid {}: {} gets other rows",
            last,
            stored.uri,
        )
        for one in info["txids"]:
            carried = one["attempt"], one["digest"]
            known = self._published.setdefault((timeline, one["txid"]), carried)
            _demand(known == carried, 3, "txid {} is {} in {}, {} elsewhere", one["txid"], carried, stored.uri, known)

    def history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of the history are written: extents tile (4), and say what was published (3)."""
        for row in rows:
            timeline, txid, extents = row["timeline"], row["txid"], row["extents"]
            known = self._extents.setdefault((timeline, txid), extents)
            _demand(known == extents, 4, "the history has txid {} with {} and with {}", txid, known, extents)
            before = self._extents.get((timeline, txid - 1))
            if before is None:
                before = [[0, 0]] * self._world.schedule.partitions if txid == 1 else None
            fits = before is None or [end for _, end in before] == [start for start, _ in extents]
            _demand(fits, 4, "txid {} has extents {}, the one before it {}", txid, extents, before)

    # -- when the world has healed -------------------------------------------------------------------------------

    def end(self) -> None:
        """All that was put into the source is in every table once, in order."""
        ends = [end for _, end in self._extents.get((self.timeline, self.currtx - 1), [])]
        _demand(ends == self._world.available, 7, "committed up to {} of {}", ends, self._world.available)
        wrong = self._world.database.wrong(ends) if self._world.schedule.external else None
        _demand(wrong is None, 1, "the user's database: {}", wrong)
        for stored in self._world.tables.values():
            self._check_files(stored)
            self._check_ranges(stored)
            if stored.ref.kind == STATE:
                self._check_state(stored)
            else:
                self._check_rows(stored, ends)

    def _check_files(self, stored: Stored) -> None:
        """Files that a version or a live intent names are there (savepoints name versions)."""
        for number, version in enumerate(stored.versions):
            gone = [path for path in version.files if path not in stored.rows]
            _demand(not gone, 6, "{} of version {} of {} is gone", gone, number, stored.uri)

    def _check_ranges(self, stored: Stored) -> None:
        """Ranges of txids tile every timeline."""
        ends: dict[int, int] = {}
        for version in stored.versions:
            info = version.info
            if info.get("kind") == COMMITTED:
                end = ends.get(info["timeline"])
                fits = end is None or info["first"] == end + 1
                _demand(fits, 2, "{}: a range begins at {}, the one before it ends at {}", stored.uri, info, end)
                ends[info["timeline"]] = info["last"]

    def _check_rows(self, stored: Stored, ends: Sequence[int]) -> None:
        for partition, found in enumerate(frontier(rows_of(stored), len(ends), stored.uri)):
            expected = 0 if skips(stored.number, partition, len(ends)) else ends[partition]
            _demand(
                found == expected, 1, "{} has partition {} up to {}, not {}", stored.uri, partition, found, expected
            )

    def _check_state(self, stored: Stored) -> None:
        """A state table is what its changes up to its txid are."""
        rows = rows_of(stored)
        at = self._at(stored)
        changes = rows_of(self._world.tables[f"{CHANGES}/{stored.ref.name}"])
        parts = self._world.schedule.partitions
        expected = frontier([row for row in changes if row[0] <= at], parts, stored.uri)
        found = [max((row[3] for row in rows if row[1] == part), default=0) for part in range(parts)]
        _demand(found == expected, 1, "{} as of txid {} holds {}, not {}", stored.uri, at, found, expected)

    def _at(self, stored: Stored) -> int:
        return stored.versions[-1].apps.get(self._apps[stored.uri], 0)

    def _txid_apps(self) -> dict[str, str]:
        owner = Owner("", INCARNATION, self.timeline)
        return {uri: stored.ref.txid_app(owner) for uri, stored in self._world.tables.items()}

    def _value(self, entry: Entry) -> Any:
        return self._world.values.decode(entry.value, "")


def rows_of(stored: Stored) -> list[Row]:
    """The rows of the newest version, by txid."""
    return sorted(row for path in stored.versions[-1].files for row in stored.rows[path])


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


def _demand(holds: bool, invariant: int, text: str, *about: object) -> None:
    if not holds:
        raise Violation(invariant, text.format(*about))
