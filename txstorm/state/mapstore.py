"""The maps of a run in their stores: taken over in P0, put in P7; every step is decided by what the mark says."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from txstorm import faults
from txstorm.api.maps import NON_TRANSACTIONAL, MapMark, MapRow, MapState, MarkedMapBackend
from txstorm.errors import BlockedError, FencedError, StateError, TableCorrupt, TxstormError
from txstorm.state.group import Member
from txstorm.state.intent import MAP, Intent, IntentTable
from txstorm.state.maprows import staged_rows
from txstorm.state.maps import MapGroup
from txstorm.state.staging import STAGED, checked_bytes
from txstorm.state.sweep import kept_by, sweep_unlogged
from txstorm.state.table import TRIES, Owner, TableRef

log = logging.getLogger("txstorm.state")


class StoredMap:
    """One map: its declaration, its store, and where it is."""

    def __init__(self, data_dir: Path, owner: Owner, component: str, state: MapState) -> None:
        self.state = state
        self.component = component
        self.ref = TableRef(MAP, state.name)
        self.path = data_dir / self.ref.uri
        self.last = 0
        self._owner = owner

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that map and ledger belong together, then make `epoch` the map's; called in P0.

        Raises:
            FencedError: a newer coordinator leads this map.
            StateError: the map belongs to another topology or data directory.
            TableCorrupt: it is at a txid that ledger and live intents do not explain.
            BlockedError: the store cannot be reached.
        """
        self.last = committed
        (self.path / STAGED).mkdir(parents=True, exist_ok=True)
        backend = self._marked_backend()
        if backend is None:
            return
        for _ in range(TRIES):
            with self._reached("take it over"):
                found = backend.mark()
            mark = self._led(found, epoch, committed, recorded, live)
            with self._reached("take it over"):
                done = found == mark or backend.put_marked({}, found, mark)
            if done:
                self.last = mark.txid
                return
        raise self._busy("take it over")

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Put the staged rows of `intent`, once; may be called again after any failure.

        Passes the fault points ``p7.<number>.before``, ``.written`` and ``.after``.

        Raises:
            FencedError: a newer coordinator leads this map.
            TableCorrupt: the staged rows are damaged, or the map is not where the intent expects it.
            BlockedError: the store cannot be reached, or refuses the rows.
        """
        faults.point(f"p7.{number}.before")
        keeps_txid = self.state.kind != NON_TRANSACTIONAL
        rows = staged_rows(checked_bytes(self.path, table.staged), intent.timeline, keeps_txid=keeps_txid)
        backend = self._marked_backend()
        if backend is not None:
            self._put_marked(backend, rows, table, intent, epoch)
        else:
            with self._reached(f"put txids {intent.first}-{intent.last}"):
                self.state.backend.multi_put(rows)
        faults.point(f"p7.{number}.written")
        self.last = intent.last
        faults.point(f"p7.{number}.after")

    def _put_marked(
        self,
        backend: MarkedMapBackend,
        rows: Mapping[str, MapRow | None],
        table: IntentTable,
        intent: Intent,
        epoch: int,
    ) -> None:
        what = f"put txids {intent.first}-{intent.last}"
        mark = self._mark(epoch, intent.last, table.staged.digest)
        for _ in range(TRIES):
            with self._reached(what):
                found = backend.mark()
            if self._is_put(found, table, intent, epoch):
                return
            with self._reached(what):
                if backend.put_marked(rows, found, mark):
                    return
        raise self._busy(what)

    def _is_put(self, found: MapMark | None, table: IntentTable, intent: Intent, epoch: int) -> bool:
        """Whether the map holds `intent` already; False when it is its turn to get it."""
        if found is not None:
            self._check_owner(found, epoch)
            if (found.timeline, found.txid, found.content) == (intent.timeline, intent.last, table.staged.digest):
                return True
            if (found.timeline, found.txid) == (intent.timeline, table.previous):
                return False
        where = "has no mark" if found is None else f"is at txid {found.txid} of timeline {found.timeline}"
        msg = (
            f"map {self.state.name!r}: expected to be at txid {table.previous} before txids {intent.first} to "
            f"{intent.last} are put, but it {where}; restore data directory and database from the same moment"
        )
        raise TableCorrupt(msg)

    def _led(
        self, found: MapMark | None, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]
    ) -> MapMark:
        """The mark of the new coordinator, after `found`."""
        if found is None:
            if recorded is None:
                return self._mark(epoch, committed, "")
            msg = (
                f"map {self.state.name!r}: the ledger knows it at txid {recorded}, but the store has no mark of it; it "
                "is another store or was emptied: restore it, or give the map a new name"
            )
            raise TableCorrupt(msg)
        self._check_owner(found, epoch)
        allowed = set(range(committed + 1)) if recorded is None else _allowed(self.ref.uri, recorded, live)
        if found.txid not in allowed or found.timeline != self._owner.timeline:
            wanted = f"at most {committed}" if recorded is None else " or ".join(map(str, sorted(allowed)))
            msg = (
                f"map {self.state.name!r}: the ledger expects it at txid {wanted} of timeline {self._owner.timeline}, "
                f"found {found.txid} of timeline {found.timeline}; data directory and database are not from the same "
                "moment: restore both"
            )
            raise TableCorrupt(msg)
        return replace(found, epoch=epoch)

    def _check_owner(self, found: MapMark, epoch: int) -> None:
        if found.incarnation != self._owner.incarnation:
            msg = (
                f"map {self.state.name!r}: its store belongs to topology {found.topology!r}, incarnation "
                f"{found.incarnation}; expected {self._owner.topology!r}, incarnation {self._owner.incarnation}; a map "
                "has one owner: use another table"
            )
            raise StateError(msg)
        if found.epoch > epoch:
            msg = (
                f"map {self.state.name!r}: a coordinator with epoch {found.epoch} has taken over from this one with "
                f"epoch {epoch}; stop this run, the other one continues"
            )
            raise FencedError(msg)

    def _mark(self, epoch: int, txid: int, content: str) -> MapMark:
        owner = self._owner
        return MapMark(owner.topology, owner.incarnation, epoch, owner.timeline, txid, content)

    def _marked_backend(self) -> MarkedMapBackend | None:
        backend = self.state.backend
        return backend if self.state.marked and isinstance(backend, MarkedMapBackend) else None

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """A decided put cannot be given up: whatever the store raises blocks, and is tried again."""
        try:
            yield
        except TxstormError:
            raise
        except Exception as cause:
            msg = f"map {self.state.name!r}: cannot {what}: {type(cause).__name__}: {cause}"
            raise BlockedError(msg) from cause

    def _busy(self, what: str) -> BlockedError:
        return BlockedError(f"map {self.state.name!r}: cannot {what} in {TRIES} tries: another writer moves its mark")


class MapStore:
    """All maps of a run."""

    def __init__(self, data_dir: Path, owner: Owner, maps: Mapping[str, Sequence[MapState]]) -> None:
        self._maps = {
            one.name: StoredMap(data_dir, owner, component, one) for component, found in maps.items() for one in found
        }
        self._timeline = owner.timeline
        self._put: dict[str, list[tuple[int, str]]] = {name: [] for name in self._maps}

    def lead(
        self, epoch: int, committed: int, recorded: Mapping[str, int], live: Sequence[Intent], number: int = 1
    ) -> None:
        """Take over every map, see `StoredMap.lead`; fault points are counted from `number`."""
        for place, one in enumerate(self._maps.values(), start=number):
            one.lead(epoch, committed, recorded.get(one.ref.uri), live)
            faults.point(f"p0.{place}.raised")

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Put the rows of one map, see `StoredMap.publish`."""
        self._maps[table.name].publish(number, table, intent, epoch)
        self._put[table.name].append((intent.last, table.staged.path))

    def roll_forward(self, intent: Intent, epoch: int) -> None:
        """Put the rows of all maps of a decided group; called in P0 once the topology's code is there."""
        for number, table in enumerate(intent.tables, start=1):
            if table.kind == MAP:
                self.publish(number, table, intent, epoch)

    def last_txids(self) -> dict[str, int]:
        """Map (``maps/…``) → the txid its mark is at; those without a mark are left out."""
        return {one.ref.uri: one.last for one in self._maps.values() if one.state.marked}

    def groups(self) -> dict[str, tuple[str, MapGroup]]:
        """Name → the component that declares it, and fresh unpublished rows."""
        return {name: (one.component, MapGroup(one.state, self._timeline)) for name, one in self._maps.items()}

    def members(self, groups: Mapping[str, tuple[str, MapGroup]]) -> dict[str, Member]:
        """Map (``maps/…``) → what a group stages of it."""
        stored = ((name, self._maps[name], group) for name, (_, group) in groups.items())
        return {one.ref.uri: Member(one.component, one.path, one.ref, group, one.last) for _, one, group in stored}

    def forget(self, before: int) -> None:
        """Remove the staged files of groups that end before txid `before`: put, and named by no kept intent."""
        for name, put in self._put.items():
            for last, path in put:
                if last < before:
                    (self._maps[name].path / path).unlink(missing_ok=True)
            self._put[name] = [one for one in put if one[0] >= before]

    def sweep(self, live: Sequence[Intent], epoch: int, members: Mapping[str, Member]) -> list[str]:
        """Remove staged files that neither a kept intent nor this run names; returns them with their map."""
        removed = []
        for one in self._maps.values():
            member = members.get(one.ref.uri)
            kept = kept_by(live, one.ref.uri) | (member.unpublished() if member else set())
            removed += [f"{one.ref.uri}/{path}" for path in sweep_unlogged(one.path, epoch, kept)]
        return removed


def has_maps(intent: Intent) -> bool:
    """Whether `intent` has rows for maps."""
    return any(table.kind == MAP for table in intent.tables)


def check_declared(declared: Collection[str], live: Sequence[Intent]) -> None:
    """Raise `StateError` when decided rows wait for a map that is not among those `declared` by the topology's code."""
    for intent in live:
        for table in intent.tables:
            if table.kind == MAP and table.name not in declared:
                msg = (
                    f"map {table.name!r}: txids {intent.first}-{intent.last} are decided and have rows for it, but the "
                    "topology no longer declares it: start it once with the code that does, and the map's store"
                )
                raise StateError(msg)


def _allowed(uri: str, recorded: int, live: Sequence[Intent]) -> set[int]:
    allowed = {recorded}
    for intent in live:
        for table in intent.tables:
            if table.uri == uri and table.previous in allowed:
                allowed.add(intent.last)
    return allowed
