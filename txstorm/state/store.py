"""All tables of a topology in one data directory: opened together, published in order, kept in trim."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from txstorm import faults
from txstorm.api.maps import MapState
from txstorm.api.outlets import Outlet
from txstorm.api.state import KeyedState, SinkTable
from txstorm.clients.delta import DeltaHandle, is_table
from txstorm.errors import TableCorrupt
from txstorm.state.compact import compact_state
from txstorm.state.declared import Declaration, declarations, letters_declaration
from txstorm.state.group import CommitGroup as CommitGroup
from txstorm.state.group import Member, Tables
from txstorm.state.handle import StateGroup
from txstorm.state.history import HISTORY
from txstorm.state.index import MemoryIndex
from txstorm.state.intent import CHANGES, OUTSIDE, STATE, Intent, IntentTable
from txstorm.state.maps import MapGroup
from txstorm.state.outside import OutsideStore
from txstorm.state.recovery import check_tables as check_tables
from txstorm.state.recovery import raise_epochs as raise_epochs
from txstorm.state.recovery import roll_forward as roll_forward
from txstorm.state.sink import SinkGroup
from txstorm.state.sweep import kept_by, sweep_table
from txstorm.state.table import DeltaTableState, Owner, TableRef
from txstorm.state.together import together


class StateStore:
    """The tables, maps and outlets of one run. Used by one thread at a time, but for the handles that groups give out.

    Attributes:
        outside: maps and outlets, which are in systems of the user's own.
    """

    def __init__(
        self,
        data_dir: Path,
        declared: Sequence[Declaration],
        tables: Mapping[TableRef, DeltaTableState],
        outside: OutsideStore,
    ) -> None:
        self.data_dir = data_dir
        self.outside = outside
        self._declared = declared
        self._delta = tables
        self._epoch = 0
        self._tables: Tables | None = None
        self._members: dict[str, Member] = {}
        self._indexes: dict[str, MemoryIndex] = {}

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        topology: str,
        incarnation: str,
        timeline: int,
        states: Mapping[str, Sequence[KeyedState]],
        sinks: Mapping[str, Sequence[SinkTable]],
        maps: Mapping[str, Sequence[MapState]] | None = None,
        outlets: Mapping[str, Sequence[Outlet]] | None = None,
        create: bool,
        committed: int = 0,
        recorded: Collection[str] = (),
        letters: pa.Schema | None = None,
    ) -> StateStore:
        """Check the declarations against the tables, then create those that are missing.

        Called before P1, after live intents were rolled forward. Everything is checked before anything is created.

        Args:
            data_dir: the data directory.
            topology: the topology's id.
            incarnation: of the data directory.
            timeline: the current one.
            states: component → the states it declares.
            sinks: component → the sinks it declares.
            maps: component → the maps it declares; nothing is asked of their stores yet.
            outlets: component → the outlets it declares; the same.
            create: whether this is the first run; later only tables that are not `recorded` may be missing.
            committed: the last committed txid; the range of a new table starts after it.
            recorded: the tables the ledger knows (``changes/…``, ``sinks/…``).
            letters: the columns of the table of dead letters, where the topology keeps any.

        Raises:
            StateError: a declaration is wrong, or differs from its table.
            TableCorrupt: a recorded table is missing, or damaged.
            DataDirectoryError: a table belongs to somebody else.
        """
        owner = Owner(topology, incarnation, timeline)
        declared = declarations(states, sinks)
        if letters is not None:
            declared.append(letters_declaration(letters))
        found: dict[TableRef, DeltaTableState] = {}
        missing: list[tuple[Declaration, TableRef]] = []
        for one in declared:
            for ref in one.refs:
                if is_table(data_dir / ref.uri):
                    found[ref] = one.checked(DeltaTableState.open(data_dir, owner, ref))
                else:
                    missing.append((one, ref))
        _check_missing(data_dir, [ref for _, ref in missing], () if create else recorded)
        for number, (one, ref) in enumerate(missing, start=1):
            made = DeltaTableState.create(data_dir, owner, ref, one.schema(ref), committed, one.about(ref))
            found[ref] = made
            faults.point(f"p0.{number}.created")
        return cls(data_dir, declared, found, OutsideStore(data_dir, owner, maps or {}, outlets))

    def raise_epoch(self, epoch: int) -> None:
        """Take over every table; called in P0, and again for tables made by `open`.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        for number, table in enumerate(self._delta.values(), start=1):
            table.raise_epoch(epoch)
            faults.point(f"p0.{number}.raised")
        self._epoch = epoch

    def lead_outside(self, epoch: int, committed: int, recorded: Mapping[str, int], live: Sequence[Intent]) -> None:
        """Take over every map and outlet, once the tables are; see `txstorm.state.marked.Marked.lead`."""
        self.outside.lead(epoch, committed, recorded, live, len(self._delta) + 1)

    def load(self) -> None:
        """Read all states into their indexes; called once, after live intents were rolled forward.

        `group` does it when it was not done.
        """
        if self._tables is not None:
            return
        for table in self._delta.values():
            table.refresh()
        states: dict[str, tuple[str, StateGroup | MapGroup]] = {}
        sinks: dict[str, tuple[str, SinkGroup]] = {}
        letters: SinkGroup | None = None
        for one in self._declared:
            if isinstance(one.table, KeyedState):
                states[one.table.name] = one.component, self._load_state(one, one.table)
            elif one.letters:
                letters = self._load_sink(one, one.table)
            else:
                sinks[one.table.name] = one.component, self._load_sink(one, one.table)
        outside = self.outside.groups()
        self._members.update(self.outside.members(outside))
        states.update(self.outside.maps(outside))
        sinks.update(self.outside.outlets(outside))
        self._tables = Tables(states, sinks, list(self._members.values()), letters)

    def last_txids(self) -> dict[str, int]:
        """Table, map with a mark (``maps/…``) or outlet (``outlets/…``) → the last txid published to it."""
        tables = {ref.uri: self._delta[ref].last_txid() for ref in self._published_refs()}
        return {**tables, **self.outside.last_txids()}

    def versions(self) -> dict[str, int]:
        """Table (``changes/…``, ``sinks/…``) → its version, as last read."""
        return {ref.uri: self._delta[ref].version for ref in self._published_refs()}

    def group(self, first: int) -> CommitGroup:
        """A group that begins with txid `first`; it may begin while the one before it is being published."""
        self.load()
        assert self._tables is not None
        return CommitGroup(first, self._tables)

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables, at once, then to its maps and outlets; returns table → version.

        May be called again after any failure. Then call `CommitGroup.apply`.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a table holds something else than the intent expects.
            BlockedError: a commit cannot be made.
        """
        numbered = list(enumerate(intent.tables, start=1))
        tables = [(number, one) for number, one in numbered if one.kind not in OUTSIDE]
        outside = [(number, one) for number, one in numbered if one.kind in OUTSIDE]
        for _, one in tables:  # while nothing of it is published, a decided group can still be abandoned
            self._delta[TableRef(one.kind, one.name)].check_there()
        made = together([partial(self._publish_table, *one, intent, epoch) for one in tables])
        # One after the other, on this thread: connections of a user's own need not be for several.
        for number, one in outside:
            self.outside.publish(number, one, intent, epoch)
            self._published(one.uri, intent.last)
        return {one.uri: version for (_, one), version in zip(tables, made, strict=True)}

    def _publish_table(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int:
        delta = self._delta[TableRef(table.kind, table.name)]
        version = delta.publish(number, table, intent, epoch)
        self._published(table.uri, intent.last)
        delta.tidy()
        return version

    def _published(self, uri: str, last: int) -> None:
        if uri in self._members:  # else nothing is loaded yet
            self._members[uri].published(last)

    def compact(
        self,
        limit_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> list[str]:
        """Bring the state tables up to date; returns the names of those that were not.

        Called in the committer's turn: when idle, now and then, and at a clean stop. No table is begun after
        `limit_seconds`. A state with published rows that are not applied yet is left for the next time.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        self.load()
        until = None if limit_seconds is None else clock() + limit_seconds
        done = []
        for name, index in self._indexes.items():
            if until is not None and clock() >= until:
                break
            if self._compact(name, index, int(now() * 1000)):
                done.append(name)
        return done

    def sweep(self, live: Sequence[Intent]) -> list[str]:
        """Remove files of this and older epochs that nothing refers to; returns them, relative to the data directory.

        Args:
            live: the intents the ledger still holds; what they name is kept.
        """
        faults.point("sweep.before")
        removed = []
        for ref, table in self._delta.items():
            member = self._members.get(ref.uri)
            kept = kept_by(live, ref.uri) | (member.unpublished() if member else set())
            removed += [f"{ref.uri}/{path}" for path in sweep_table(table.path, self._epoch, kept, table.handle)]
        removed += self.outside.sweep(live, self._epoch, self._members)
        history = self.data_dir / HISTORY
        if is_table(history):
            swept = sweep_table(history, self._epoch, set(), DeltaHandle.open(history))
            removed += [f"{HISTORY}/{path}" for path in swept]
        faults.point("sweep.after")
        return removed

    def close(self) -> None:
        """Let go of tables, indexes and connections."""
        self.outside.close()
        self._tables = None
        self._members.clear()
        self._indexes.clear()

    def _published_refs(self) -> list[TableRef]:
        return [ref for ref in self._delta if ref.kind != STATE]

    def _load_state(self, one: Declaration, state: KeyedState) -> StateGroup:
        changes, kept = self._delta[TableRef(CHANGES, state.name)], self._delta[TableRef(STATE, state.name)]
        as_of, last = kept.last_txid(), changes.last_txid()
        if as_of > last:
            msg = (
                f"table {kept.ref.uri}: is as of txid {as_of}, but {changes.ref.uri} ends at {last}; "
                "restore both from the same copy"
            )
            raise TableCorrupt(msg)
        index = MemoryIndex(state)
        index.load(kept.handle.read())
        if as_of < last:
            index.load(changes.handle.read(low=("_txid", as_of)))
        group = StateGroup(state, index)
        self._indexes[state.name] = index
        self._members[changes.ref.uri] = Member(one.component, changes.path, changes.ref, group, last)
        return group

    def _load_sink(self, one: Declaration, sink: SinkTable) -> SinkGroup:
        group = SinkGroup(sink)
        (ref,) = one.refs
        table = self._delta[ref]
        self._members[ref.uri] = Member(one.component, table.path, ref, group, table.last_txid())
        return group

    def _compact(self, name: str, index: MemoryIndex, now: int) -> bool:
        changes, kept = self._delta[TableRef(CHANGES, name)], self._delta[TableRef(STATE, name)]
        as_of = changes.last_txid()
        if kept.last_txid() == as_of or self._members[changes.ref.uri].applied < as_of:
            return False
        return compact_state(kept, index.to_table(kept.handle.schema), as_of, self._epoch, now)


def _check_missing(data_dir: Path, missing: Sequence[TableRef], recorded: Collection[str]) -> None:
    for ref in missing:
        if ref.uri in recorded or (ref.kind == STATE and TableRef(CHANGES, ref.name).uri in recorded):
            msg = (
                f"{data_dir}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a "
                "copy taken together with the ledger"
            )
            raise TableCorrupt(msg)
