"""State store: opens all tables of a topology in one data directory, begins commit groups and publishes them.

It is one module: the order in which tables are opened, taken over and loaded is that of P0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from txstorm import faults
from txstorm.api.state import SPARK, KeyedState
from txstorm.errors import TableCorrupt
from txstorm.lanes import THREADS, Lanes
from txstorm.state.collections import state_group
from txstorm.state.commit_group import CommitGroup, Targets
from txstorm.state.external.targets import ExternalTarget
from txstorm.state.index.collection_index import CollectionIndex
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.state.index.open import opened_index
from txstorm.state.sinks import SinkGroup
from txstorm.state.target import StagingPlace, Target
from txstorm.storage.tables.declared import DeclaredTable
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import DEFAULT_SECONDS, TableRef, TopologyIdentity, log_properties
from txstorm.storage.tables.identity import recorded as recorded_properties
from txstorm.storage.tables.intent import CHANGES, STATE, Intent, IntentTable
from txstorm.storage.tables.merge_layout import Expiring
from txstorm.storage.tables.spark_writer import SparkWriter
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.schedule import UpkeepSchedule


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
        outside: Sequence[ExternalTarget[Any, Any]],
        settings: StoreSettings,
        spark: SparkWriter | None,
    ) -> None:
        self.data_dir, self.owner = place.path, owner
        self.outside = Targets(outside, settings.lanes)
        self.upkeep = UpkeepSchedule(
            place,
            tables,
            settings.max_lag,
            self.load,
            settings.lanes,
            applied=lambda uri: self._targets[uri].applied,
            unpublished=lambda uri: self._targets[uri].in_use() if uri in self._targets else set(),
        )
        self._targets = self.outside  # and the tables, once they are loaded
        self._place = place
        self._declared, self._delta, self._settings, self._spark = declared, tables, settings, spark
        self._is_loaded = False
        self._lanes = settings.lanes
        self._loading = self._lanes.lock()
        self._indexes: dict[str, StateIndex | CollectionIndex] = {}
        self._merging = frozenset(ref for one in declared if one.merged for ref in one.refs)
        self._late: Mapping[str, int] = {}  # tables that are not in the ledger yet → the txid after which they begin

    @classmethod
    def open(
        cls,
        place: Directory,
        owner: TopologyIdentity,
        declared: Sequence[DeclaredTable],
        recorded: RecordedTables,
        outside: Sequence[ExternalTarget[Any, Any]] = (),
        *,
        settings: StoreSettings | None = None,
        spark: SparkWriter | None = None,
    ) -> StateStore:
        """Open the tables of a topology: check them against the declarations, then create those that are missing.

        Called before P1 (plan), after live intents have been rolled forward. All checks are made before any table is
        created.

        Args:
            place: the data directory, with the tables that are open already; it checks that this run leads before a
                table is created.
            owner: identity of the topology: its id, the incarnation of the data directory, and the timeline.
            declared: the tables that the topology declares.
            recorded: the ledger's record of the tables.
            outside: what the topology commits outside of the tables; nothing is contacted yet.
            settings: settings of the tables and their indexes; None: the defaults.
            spark: the writer for tables declared with ``writer="spark"``; required if there are any.

        Raises:
            StateError: a declaration is invalid, or differs from its table.
            TableCorrupt: a recorded table is missing, or a table is damaged.
            DataDirectoryError: a table belongs to another topology.
        """
        settings = settings or StoreSettings()
        found: dict[TableRef, DeltaTableState] = {}
        missing: list[tuple[DeclaredTable, TableRef]] = []
        for one in declared:
            found |= _opened(place, owner, one, recorded)
            missing += [(one, ref) for ref in one.refs if ref not in found]
        _check_missing(place.path, [ref for _, ref in missing], recorded)
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
            if not self._is_loaded:
                self._load()
                self._is_loaded = True

    def _load(self) -> None:
        for table in self._delta.values():
            table.refresh()
        made = [self._loaded(one) for one in self._declared]
        self._targets = Targets([*made, *self.outside.members], self._lanes)
        self.upkeep.start()

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
        return CommitGroup(first, self._targets)

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables in parallel, then to its maps and outlets.

        Returns the new version of each table, by its uri. Idempotent: may be repeated after any failure. Call
        `CommitGroup.apply` afterwards.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a table is not at the txid that the intent expects.
            BlockedError: a commit cannot be made.
        """
        self.load()
        numbered = list(enumerate(intent.tables, start=1))
        tables = [(number, one) for number, one in numbered if not one.outside]
        for _, one in tables:  # while nothing is published, a decided group can still be abandoned
            self._delta[TableRef(one.kind, one.name)].check_there()
        made = self._lanes.together([partial(self._publish_table, *one, intent, epoch) for one in tables])
        # Sequentially, on this thread: a user's connections need not be thread-safe.
        for number, one in numbered:
            if one.outside:
                self._targets[one.uri].publish(number, one, intent, epoch)
        return {one.uri: version for (_, one), version in zip(tables, made, strict=True)}

    def _publish_table(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> int:
        version, rows = self._targets[table.uri].publish(number, table, intent, epoch)
        assert version is not None
        self.upkeep.published(table, intent.last, rows)
        return version

    def forget(self, before: int) -> None:
        """Delete the staged files of groups that end before txid `before`; see `Target.forget`."""
        self._targets.forget(before)

    def sweep(self, live: Sequence[Intent]) -> list[str]:
        """Delete unreferenced files of this and older epochs; return their paths relative to the data directory.

        Args:
            live: intents still in the ledger, whose files are kept.
        """
        faults.point("sweep.before")
        removed = self.upkeep.sweep(live) + self.outside.sweep(live, self.upkeep.epoch)
        faults.point("sweep.after")
        return removed

    def close(self) -> None:
        """Close tables, indexes and connections."""
        if self._spark is not None:
            self._spark.close()
        self.outside.close()
        for index in self._indexes.values():
            index.close()
        self._indexes.clear()

    def _published_refs(self) -> list[TableRef]:
        return [ref for ref in self._delta if ref.kind != STATE or ref in self._merging]

    def _loaded(self, one: DeclaredTable) -> Target[Any, Any]:
        """Return the target of a declared table, with its index if it is a state."""
        target: Target[Any, Any]
        published = self._delta[one.refs[0]]
        if isinstance(one.table, KeyedState):
            state, kept = one.stored(published), self._delta[TableRef(STATE, one.table.name)]
            changes, bounds = None if one.merged else published, self._settings.bounds
            index = self._indexes[state.name] = opened_index(self.data_dir, state, kept, changes, bounds, self._lanes)
            target = state_group(state, index)
            if one.merged and state.ttl is not None:
                target.is_due = Expiring(kept.handle).is_due
        else:
            target = SinkGroup(one.table, published.ref)
        target.place(one.component, self.data_dir, published)
        return target


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
