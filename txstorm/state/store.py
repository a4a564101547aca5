"""State store: opens all tables of a topology in one data directory, begins commit groups and publishes them.

It is one module: the order in which tables are opened, taken over and loaded is that of P0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.external import MapState, Outlet
from txstorm.api.state import SPARK, KeyedState, SinkTable
from txstorm.errors import TableCorrupt
from txstorm.lanes import THREADS, Lanes
from txstorm.state.collections import state_group
from txstorm.state.commit_group import CommitGroup, CommitTables
from txstorm.state.external.registry import ExternalStores
from txstorm.state.external.targets import ExternalTarget
from txstorm.state.index.collection_index import CollectionIndex
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.state.index.open import opened_index
from txstorm.state.pending_table import PendingTable
from txstorm.state.sinks import SinkGroup
from txstorm.state.task_staging import StagingPlace
from txstorm.state.unpublished import Unpublished
from txstorm.storage.tables.declared import DeclaredTable, declarations, letters_declaration
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import DEFAULT_SECONDS, TableRef, TopologyIdentity, log_properties
from txstorm.storage.tables.identity import recorded as recorded_properties
from txstorm.storage.tables.intent import CHANGES, CHECKPOINT, MAP, OUTLET, OUTSIDE, STATE, STORE, Intent, IntentTable
from txstorm.storage.tables.merge_layout import Expiring
from txstorm.storage.tables.spark_writer import SparkWriter
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.schedule import UpkeepSchedule


@dataclass(frozen=True)
class DeclaredResources:
    """All commit targets that a topology declares: mappings from components to their states, sinks, maps and outlets.

    Attributes:
        states, sinks, maps, outlets: the declarations, keyed by component.
        letters: the columns of the dead-letter table; None if the topology has none.
        managed: makes the commit targets of stateful bolts and join stores, given the data directory and its owner.
    """

    states: Mapping[str, Sequence[KeyedState]]
    sinks: Mapping[str, Sequence[SinkTable]]
    maps: Mapping[str, Sequence[MapState]] = field(default_factory=dict)
    outlets: Mapping[str, Sequence[Outlet]] = field(default_factory=dict)
    letters: pa.Schema | None = None
    managed: Callable[[Path, TopologyIdentity], Sequence[ExternalTarget]] = lambda data_dir, owner: ()


@dataclass(frozen=True)
class RecordedTables:
    """The ledger's record of the tables of a data directory.

    Attributes:
        first: whether this is the first run; in later runs, a recorded table must not be missing.
        committed: the last committed txid; a new table begins after it.
        tables: the names of the tables that the ledger records (``changes/…``, ``sinks/…``); None: unknown.
    """

    first: bool
    committed: int = 0
    tables: Collection[str] | None = None

    def lacks(self, ref: TableRef) -> bool:
        """Whether the ledger is known not to record the table `ref`."""
        return self.tables is not None and not self.has(ref)

    def has(self, ref: TableRef) -> bool:
        """Whether the ledger records the table `ref` or, for a state table, the state's changes table."""
        known = self.tables or ()
        return ref.uri in known or (ref.kind == STATE and TableRef(CHANGES, ref.name).uri in known)


@dataclass(frozen=True)
class StoreSettings:
    """Settings that apply to all tables of a run.

    Attributes:
        bounds: limits of each state's index.
        log_retention: seconds for which entries are kept in a table's log.
        log_entries: number of entries in the log of each table of a state, under None, and of sinks, by name.
        max_lag: seconds by which a state table may lag behind its changes; exceeded if compaction would be too
            expensive. None: no bound.
        lanes: publish tables concurrently, and write their indexes.
    """

    bounds: Bounds = field(default_factory=Bounds)
    log_retention: float = DEFAULT_SECONDS
    log_entries: Mapping[str | None, int] = field(default_factory=dict)
    max_lag: float | None = None
    lanes: Lanes = THREADS

    def promised(self, one: DeclaredTable, ref: TableRef) -> dict[str, str]:
        """Return the properties that the table `ref` of `one` has with these settings."""
        most = self.log_entries.get(None if ref.kind in (STATE, CHANGES) else ref.name)
        return one.promised(ref, self.log_retention, self.max_lag, None if one.letters else most)


class StateStore:
    """Tables, maps and outlets of one run. Not thread-safe, except for groups and their handles.

    One thread may fill a group while another thread stages and publishes the previous group.

    Attributes:
        data_dir: the data directory.
        owner: identity of the topology that owns the tables, maps and outlets.
        outside: the maps and outlets, whose rows are in external systems.
        upkeep: the maintenance schedule of the Delta tables: compaction, thinning and sweeping.
    """

    def __init__(
        self,
        place: Directory,
        owner: TopologyIdentity,
        declared: Sequence[DeclaredTable],
        tables: Mapping[TableRef, DeltaTableState],
        outside: ExternalStores,
        settings: StoreSettings,
        spark: SparkWriter | None,
    ) -> None:
        self.data_dir, self.owner, self.outside = place.path, owner, outside
        self.upkeep = UpkeepSchedule(
            place,
            tables,
            settings.max_lag,
            self.load,
            settings.lanes,
            applied=lambda uri: self._members[uri].applied,
            unpublished=lambda uri: self._members[uri].unpublished() if uri in self._members else set(),
        )
        self._place = place
        self._declared, self._delta, self._settings, self._spark = declared, tables, settings, spark
        self._tables: CommitTables | None = None
        self._lanes = settings.lanes
        self._loading = self._lanes.lock()
        self._members: dict[str, PendingTable] = {}
        self._indexes: dict[str, StateIndex | CollectionIndex] = {}
        self._merging = frozenset(ref for one in declared if one.merged for ref in one.refs)
        self._merged: list[tuple[int, Path]] = []
        self._late: Mapping[str, int] = {}  # tables that are not in the ledger yet → the txid after which they begin

    @classmethod
    def open(
        cls,
        data_dir: Path,
        owner: TopologyIdentity,
        resources: DeclaredResources,
        recorded: RecordedTables,
        *,
        settings: StoreSettings | None = None,
        spark: SparkWriter | None = None,
        opened: Directory | None = None,
    ) -> StateStore:
        """Open the tables of a topology: check them against the declarations, then create those that are missing.

        Called before P1 (plan), after live intents have been rolled forward. All checks are made before any table is
        created.

        Args:
            data_dir: the data directory.
            owner: identity of the topology: its id, the incarnation of the data directory, and the timeline.
            resources: tables, maps and outlets that the topology declares; external stores are not contacted yet.
            recorded: the ledger's record of the tables.
            settings: settings of the tables and their indexes; None: the defaults.
            spark: the writer for tables declared with ``writer="spark"``; required if there are any.
            opened: the directory with the tables that are open already, which checks that this run leads before a table
                is created; None: no other process uses the directory.

        Raises:
            StateError: a declaration is invalid, or differs from its table.
            TableCorrupt: a recorded table is missing, or a table is damaged.
            DataDirectoryError: a table belongs to another topology.
        """
        settings = settings or StoreSettings()
        declared = declarations(resources.states, resources.sinks)
        if resources.letters is not None:
            declared.append(letters_declaration(resources.letters))
        place = opened or Directory(data_dir)
        found: dict[TableRef, DeltaTableState] = {}
        missing: list[tuple[DeclaredTable, TableRef]] = []
        for one in declared:
            found |= _opened(place, owner, one, recorded)
            missing += [(one, ref) for ref in one.refs if ref not in found]
        _check_missing(data_dir, [ref for _, ref in missing], recorded)
        for number, (one, ref) in enumerate(missing, start=1):
            promised = settings.promised(one, ref)
            about = {**one.about(ref), **recorded_properties(promised)}
            place.create(owner, ref, one.schema(ref), recorded.committed, about)
            found[ref] = place.table(owner, ref)
            one.check_fit([found[ref]], recorded=not recorded.lacks(one.refs[0]))
            faults.point(f"p0.{number}.created")
        for one in declared:
            if spark is not None and one.table.writer == SPARK:
                found[one.refs[0]].use(spark)
        managed = resources.managed(data_dir, owner)
        outside = ExternalStores(data_dir, owner, resources.maps, resources.outlets, managed)
        made = cls(place, owner, declared, found, outside, settings, spark)
        if recorded.tables is not None:
            late = (one.refs[0] for one in declared if recorded.lacks(one.refs[0]))
            made._late = dict.fromkeys((ref.uri for ref in late), recorded.committed)
        return made

    def raise_epoch(self, epoch: int) -> None:
        """Raise the epoch of every table and set missing properties; called in P0 (take over), after `open`.

        Since other coordinators are fenced from here on, a table to which no transaction was ever committed may be
        changed: it gets the columns that are declared now, and a new table begins after the last committed txid. That
        includes empty tables of an earlier timeline, which only a fenced coordinator can have created.

        Raises:
            FencedError: a newer coordinator has taken over.
            StateError: a declaration differs from its table.
        """
        begins = {ref: self._late.get(one.refs[0].uri) for one in self._declared for ref in one.refs}
        for number, (ref, table) in enumerate(self._delta.items(), start=1):
            table.raise_epoch(epoch, begins=begins[ref])
            faults.point(f"p0.{number}.raised")
        self.upkeep.epoch = epoch
        number = 0
        for one in self._declared:
            tables = [self._delta[ref] for ref in one.refs]
            txid = self._late.get(one.refs[0].uri)
            one.check_fit(tables, recorded=txid is None)
            untouched = all(table.is_untouched(recorded=txid is None) for table in tables) and not one.letters
            for at, table in enumerate(tables, start=number + 1) if untouched else ():
                if one.differs(table):
                    table.redefine(one.schema(table.ref), one.about(table.ref), epoch)
                    faults.point(f"p0.{at}.redefined")
                if txid is not None and not table.begins_after(txid):
                    table.begin(txid, epoch)
                    faults.point(f"p0.{at}.begun")
            number += len(tables)
            for table in tables:
                promised = self._settings.promised(one, table.ref)
                table.set_properties({**promised, **one.lacks(table)}, epoch)
        self._place.describe_history(log_properties(self._settings.log_retention))

    def load(self) -> None:
        """Load all states into their indexes, unless they are loaded; call after live intents have been rolled forward.

        `group` calls it if needed. Thread-safe: one of several concurrent callers loads, and the others block until it
        is done.
        """
        with self._loading:
            if self._tables is None:
                self._tables = self._load()

    def _load(self) -> CommitTables:
        for table in self._delta.values():
            table.refresh()
        states: dict[str, tuple[str, Unpublished[Any]]] = {}
        sinks: dict[str, tuple[str, Unpublished[Any]]] = {}
        letters: SinkGroup | None = None
        for one in self._declared:
            if isinstance(one.table, KeyedState):
                states[one.table.name] = one.component, self._load_state(one)
            elif one.letters:
                letters = self._load_sink(one, one.table)
            else:
                sinks[one.table.name] = one.component, self._load_sink(one, one.table)
        outside = self.outside.groups()
        self._members.update(self.outside.members(outside))
        states.update(self.outside.of_kind(MAP, outside))
        sinks.update(self.outside.of_kind(OUTLET, outside))
        self.upkeep.start()
        managed = dict(
            [*self.outside.of_kind(CHECKPOINT, outside).values(), *self.outside.of_kind(STORE, outside).values()]
        )
        return CommitTables(states, sinks, list(self._members.values()), letters, managed, self._lanes)

    @property
    def tables(self) -> Mapping[TableRef, DeltaTableState]:
        """The Delta tables, at the versions last read."""
        return self._delta

    def last_txids(self) -> dict[str, int]:
        """Map each table, map with a mark (``maps/…``) and outlet (``outlets/…``) to the last txid published to it."""
        tables = {ref.uri: self._delta[ref].last_txid() for ref in self._published_refs()}
        return {**tables, **self.outside.last_txids()}

    def versions(self) -> dict[str, int]:
        """Map each table (``changes/…``, ``sinks/…``) to its version, as last read."""
        return {ref.uri: self._delta[ref].version for ref in self._published_refs()}

    @property
    def staging_place(self) -> StagingPlace:
        """The place where tasks stage rows; known once the epoch is raised."""
        return StagingPlace(str(self.data_dir.absolute()), self.upkeep.epoch)

    def group(self, first: int) -> CommitGroup:
        """Begin a group with txid `first`, possibly while the previous group is being published."""
        self.load()
        assert self._tables is not None
        return CommitGroup(first, self._tables)

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables in parallel, then to its maps and outlets.

        Returns the new version of each table, by its uri. Idempotent: may be repeated after any failure. Call
        `CommitGroup.apply` afterwards.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a table is not at the txid that the intent expects.
            BlockedError: a commit cannot be made.
        """
        numbered = list(enumerate(intent.tables, start=1))
        tables = [(number, one) for number, one in numbered if one.kind not in OUTSIDE]
        outside = [(number, one) for number, one in numbered if one.kind in OUTSIDE]
        for _, one in tables:  # while nothing is published, a decided group can still be abandoned
            self._delta[TableRef(one.kind, one.name)].check_there()
        made = self._lanes.together([partial(self._publish_table, *one, intent, epoch) for one in tables])
        # Sequentially, on this thread: a user's connections need not be thread-safe.
        for number, one in outside:
            self.outside.publish(number, one, intent, epoch)
            self._published(one.uri, intent.last)
        return {one.uri: version for (_, one), version in zip(tables, made, strict=True)}

    def forget(self, before: int) -> None:
        """Delete the staged files of groups that end before txid `before`, whose intents are no longer kept.

        Only maps, outlets and tables with the layout ``merge`` have such files: the staged files of other tables are
        part of the table once they are published.
        """
        self.outside.forget(before)
        for last, path in self._merged:
            if last < before:
                path.unlink(missing_ok=True)
        self._merged = [one for one in self._merged if one[0] >= before]

    def _publish_table(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int:
        delta = self._delta[TableRef(table.kind, table.name)]
        version = delta.publish(number, table, intent, epoch)
        rows = self._published(table.uri, intent.last)
        if table.kind == STATE:
            self._merged += [(intent.last, delta.path / staged.path) for staged in table.files]
        self.upkeep.published(table, intent.last, rows)
        return version

    def _published(self, uri: str, last: int) -> pa.Table | None:
        return self._members[uri].published(last) if uri in self._members else None  # no members: nothing is loaded yet

    def sweep(self, live: Sequence[Intent]) -> list[str]:
        """Delete unreferenced files of this and older epochs; return their paths relative to the data directory.

        Args:
            live: intents still in the ledger, whose files are kept.
        """
        faults.point("sweep.before")
        removed = self.upkeep.sweep(live) + self.outside.sweep(live, self.upkeep.epoch, self._members)
        faults.point("sweep.after")
        return removed

    def close(self) -> None:
        """Close tables, indexes and connections."""
        if self._spark is not None:
            self._spark.close()
        self.outside.close()
        for index in self._indexes.values():
            index.close()
        self._tables = None
        self._members.clear()
        self._indexes.clear()

    def _published_refs(self) -> list[TableRef]:
        return [ref for ref in self._delta if ref.kind != STATE or ref in self._merging]

    def _load_state(self, one: DeclaredTable) -> Unpublished[Any]:
        state = one.stored(self._delta[one.refs[0]])
        published, kept = self._delta[one.refs[0]], self._delta[TableRef(STATE, state.name)]
        changes, bounds = None if one.merged else published, self._settings.bounds
        index = opened_index(self.data_dir, state, kept, changes, bounds, self._lanes)
        group = state_group(state, index)
        self._indexes[state.name] = index
        due = [Expiring(kept.handle).is_due] if one.merged and state.ttl is not None else []
        member = PendingTable(one.component, published.path, published.ref, group, published.last_txid(), *due)
        self._members[published.ref.uri] = member
        return group

    def _load_sink(self, one: DeclaredTable, sink: SinkTable) -> SinkGroup:
        group = SinkGroup(sink)
        (ref,) = one.refs
        table = self._delta[ref]
        self._members[ref.uri] = PendingTable(one.component, table.path, ref, group, table.last_txid())
        return group


def _opened(
    place: Directory, owner: TopologyIdentity, one: DeclaredTable, recorded: RecordedTables
) -> dict[TableRef, DeltaTableState]:
    """Open the existing tables of a declaration and check them against it."""
    for ref in one.refs:
        if recorded.lacks(ref):
            place.discard_torn(ref)
    found = {ref: place.table(owner, ref) for ref in one.refs if place.has(ref)}
    tables = list(found.values())
    one.check_fit(tables, recorded=not recorded.lacks(one.refs[0]))
    if not recorded.first and recorded.lacks(one.refs[0]):
        one.check_unrecorded(tables, recorded.committed)
    for ref, table in found.items():
        if not recorded.has(ref):
            table.renew_directories()
    return found


def _check_missing(data_dir: Path, missing: Sequence[TableRef], recorded: RecordedTables) -> None:
    for ref in missing:
        if not recorded.first and recorded.has(ref):
            raise TableCorrupt(
                f"{data_dir}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a "
                "copy taken together with the ledger"
            )
