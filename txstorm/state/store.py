"""State store: all tables of a topology in one data directory; opens them, publishes groups in order, schedules upkeep.

It is one module, since all of it works on the same open tables and their unpublished rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.external import MapState, Outlet
from txstorm.api.state import SPARK, KeyedState, SinkTable
from txstorm.clients.delta.handle import DeltaHandle, is_table
from txstorm.errors import TableCorrupt
from txstorm.state.collections import state_group
from txstorm.state.commit_group import CommitGroup, CommitTables
from txstorm.state.external.registry import ExternalStores
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.state.index.open import opened_index
from txstorm.state.parallel import together
from txstorm.state.pending_table import PendingTable
from txstorm.state.sinks import SinkGroup
from txstorm.state.unpublished import Unpublished
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.declared import DeclaredTable, declarations, letters_declaration
from txstorm.storage.tables.history import HISTORY, describe_history
from txstorm.storage.tables.identity import DEFAULT_SECONDS, TableRef, TopologyIdentity, log_properties, table_ref
from txstorm.storage.tables.identity import recorded as recorded_properties
from txstorm.storage.tables.intent import CHANGES, MAP, OUTLET, OUTSIDE, STATE, Intent, IntentTable
from txstorm.storage.tables.merge_layout import Expiring
from txstorm.storage.tables.spark_writer import SparkWriter
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.compaction import Compaction, Growth, Recent
from txstorm.storage.upkeep.read_guard import removing
from txstorm.storage.upkeep.retention import Steps
from txstorm.storage.upkeep.small_files import SmallFileCompaction, are_many, small_files
from txstorm.storage.upkeep.sweep import kept_by, remove_own, sweep_table


class StateStore:
    """The tables, maps and outlets of one run. Not thread-safe, except for groups and their handles.

    One thread may fill a group while another one stages and publishes the group before.

    Attributes:
        outside: maps and outlets, which are in external systems.
        owner: the topology that owns them; set by `open`.
    """

    owner: TopologyIdentity

    def __init__(
        self,
        data_dir: Path,
        declared: Sequence[DeclaredTable],
        tables: Mapping[TableRef, DeltaTableState],
        outside: ExternalStores,
        bounds: Bounds | None = None,
        spark: SparkWriter | None = None,
        log_retention: float = DEFAULT_SECONDS,
        max_lag: float | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.outside = outside
        self._declared = declared
        self._delta = tables
        self._epoch = 0
        self._tables: CommitTables | None = None
        self._loading = threading.Lock()
        self._members: dict[str, PendingTable] = {}
        self._indexes: dict[str, StateIndex] = {}
        self._works: dict[str, Compaction | SmallFileCompaction] = {}
        self._loose: dict[str, int] = {}
        self._growths: dict[str, Growth] = {}
        self._merging = frozenset(ref for one in declared if one.merged for ref in one.refs)
        self._merged: list[tuple[int, Path]] = []
        self._bounds = bounds or Bounds()
        self._spark = spark
        self._log_retention = log_retention
        self._max_lag = max_lag
        self._late: Mapping[str, int] = {}  # tables that the ledger does not know yet → the txid after which they begin

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
        recorded: Collection[str] | None = None,
        letters: pa.Schema | None = None,
        cache_bytes: int | None = None,
        bounds: Bounds | None = None,
        spark: SparkWriter | None = None,
        log_retention: float = DEFAULT_SECONDS,
        max_lag: float | None = None,
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
            maps: component → the maps it declares; their stores are not contacted yet.
            outlets: component → the outlets it declares; likewise.
            create: whether this is the first run; later only tables that are not `recorded` may be missing.
            committed: the last committed txid; the range of a new table starts after it.
            recorded: the tables the ledger knows (``changes/…``, ``sinks/…``); None: unknown.
            letters: the columns of the dead-letter table, if the topology has one.
            cache_bytes: memory for the indexes of all states, shared evenly.
            bounds: limits of each state's index, instead of `cache_bytes`.
            spark: publishes to tables declared with ``writer="spark"``; required if there are any.
            log_retention: seconds for which entries stay in the log of a table.
            max_lag: seconds by which the table of a state may lag behind its changes, if that costs little.

        Raises:
            StateError: a declaration is wrong, or differs from its table.
            TableCorrupt: a recorded table is missing, or damaged.
            DataDirectoryError: a table belongs to another topology.
        """
        owner = TopologyIdentity(topology, incarnation, timeline)
        declared = declarations(states, sinks)
        if letters is not None:
            declared.append(letters_declaration(letters))
        found: dict[TableRef, DeltaTableState] = {}
        missing: list[tuple[DeclaredTable, TableRef]] = []
        for one in declared:
            found |= _opened(data_dir, owner, one, recorded, None if create else committed)
            missing += [(one, ref) for ref in one.refs if ref not in found]
        _check_missing(data_dir, [ref for _, ref in missing], () if create else recorded or ())
        for number, (one, ref) in enumerate(missing, start=1):
            about = {**one.about(ref), **recorded_properties(one.promised(ref, log_retention, max_lag))}
            found[ref] = DeltaTableState.create(data_dir, owner, ref, one.schema(ref), committed, about)
            faults.point(f"p0.{number}.created")
        for one in declared:
            if spark is not None and one.table.writer == SPARK:
                found[one.refs[0]].use(spark)
        if cache_bytes is not None:
            bounds = Bounds(memory=cache_bytes // max(1, sum(map(len, states.values()))))
        outside = ExternalStores(data_dir, owner, maps or {}, outlets)
        made = cls(data_dir, declared, found, outside, bounds, spark, log_retention, max_lag)
        made.owner = owner
        made._late = {} if recorded is None else dict.fromkeys(_uris(declared) - set(recorded), committed)
        return made

    def raise_epoch(self, epoch: int) -> None:
        """Take over every table, and set the properties that it lacks; called in P0 (take-over), after `open`.

        Other coordinators are fenced from here on, so a table without any commit gets the columns declared now, and
        begins after the last committed txid.

        Raises:
            FencedError: a newer coordinator has taken over.
            StateError: a declaration differs from its table.
        """
        for number, table in enumerate(self._delta.values(), start=1):
            table.raise_epoch(epoch)
            faults.point(f"p0.{number}.raised")
        self._epoch = epoch
        number = 0
        for one in self._declared:
            tables = [self._delta[ref] for ref in one.refs]
            one.check_fit(tables)
            txid = self._late.get(one.refs[0].uri)
            untouched = all(table.is_untouched() for table in tables) and not one.letters
            for at, table in enumerate(tables, start=number + 1) if untouched else ():
                if one.differs(table):
                    table.redefine(one.schema(table.ref), one.about(table.ref), epoch)
                    faults.point(f"p0.{at}.redefined")
                if txid is not None and table.last_txid() != txid:
                    table.begin(txid, epoch)
                    faults.point(f"p0.{at}.begun")
            number += len(tables)
            for table in tables:
                table.set_properties(one.promised(table.ref, self._log_retention, self._max_lag), epoch)
        describe_history(self.data_dir, log_properties(self._log_retention))

    def load(self) -> None:
        """Read all states into their indexes; called once, after live intents were rolled forward.

        `group` calls it if needed. Thread-safe: of several callers one loads, and the others wait for it.
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
        growths: dict[str, Growth] = {}
        for one in self._declared:
            if isinstance(one.table, KeyedState):
                states[one.table.name] = one.component, self._load_state(one, one.table, growths)
            elif one.letters:
                letters = self._load_sink(one, one.table)
            else:
                sinks[one.table.name] = one.component, self._load_sink(one, one.table)
        outside = self.outside.groups()
        self._members.update(self.outside.members(outside))
        states.update(self.outside.of_kind(MAP, outside))
        sinks.update(self.outside.of_kind(OUTLET, outside))
        appended = (ref for ref in self._delta if ref.kind != STATE)
        self._loose = {ref.uri: small_files(self._delta[ref]) for ref in appended}
        self._growths = growths  # assigned at once: the driver thread reads them meanwhile
        return CommitTables(states, sinks, list(self._members.values()), letters)

    @property
    def tables(self) -> Mapping[TableRef, DeltaTableState]:
        """The Delta tables, at the versions last read."""
        return self._delta

    def last_txids(self) -> dict[str, int]:
        """Table, map with a mark (``maps/…``) or outlet (``outlets/…``) → the last txid published to it."""
        tables = {ref.uri: self._delta[ref].last_txid() for ref in self._published_refs()}
        return {**tables, **self.outside.last_txids()}

    def versions(self) -> dict[str, int]:
        """Table (``changes/…``, ``sinks/…``) → its version, as last read."""
        return {ref.uri: self._delta[ref].version for ref in self._published_refs()}

    def group(self, first: int) -> CommitGroup:
        """Begin a group with txid `first`, possibly while the group before is being published."""
        self.load()
        assert self._tables is not None
        return CommitGroup(first, self._tables)

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables in parallel, then to its maps and outlets; returns table → version.

        Idempotent: may be repeated after any failure. Then call `CommitGroup.apply`.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a table is not at the txid that the intent expects.
            BlockedError: a commit cannot be made.
        """
        numbered = list(enumerate(intent.tables, start=1))
        tables = [(number, one) for number, one in numbered if one.kind not in OUTSIDE]
        outside = [(number, one) for number, one in numbered if one.kind in OUTSIDE]
        for _, one in tables:  # as long as none of it is published, a decided group can still be abandoned
            self._delta[TableRef(one.kind, one.name)].check_there()
        made = together([partial(self._publish_table, *one, intent, epoch) for one in tables])
        # One after the other, on this thread: a user's connections need not be thread-safe.
        for number, one in outside:
            self.outside.publish(number, one, intent, epoch)
            self._published(one.uri, intent.last)
        return {one.uri: version for (_, one), version in zip(tables, made, strict=True)}

    def forget(self, before: int) -> None:
        """Remove staged files of groups that end before txid `before`, whose intents are no longer kept.

        Only of maps and outlets, whose rows are in external systems, and of tables of the layout ``merge``.
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
        else:
            self._loose[table.uri] = self._loose.get(table.uri, 0) + len(table.files)
        if table.kind == CHANGES and table.name in self._growths:
            growth, later = self._growths[table.name], sum(staged.rows for staged in table.files)
            growth.later += later
            growth.recent.add(intent.last, rows if rows is not None and rows.num_rows == later else None)
        return version

    def _published(self, uri: str, last: int) -> pa.Table | None:
        return self._members[uri].published(last) if uri in self._members else None  # otherwise nothing is loaded yet

    def compact(
        self,
        limit_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        *,
        stays: bool = False,
    ) -> list[str]:
        """Compact the state tables up to the last txid, then `thin`; return the names of those that were behind.

        Called in the committer's turn, at a clean stop. No table is started after `limit_seconds`. A state
        with published rows that are not applied yet is left for the next time. `stays`: whether the resulting versions
        are to be retained.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        self.load()
        until = None if limit_seconds is None else clock() + limit_seconds
        done = []
        for name in self._growths:
            if until is not None and clock() >= until:
                break
            work = self.upkeep(TableRef(STATE, name).uri, int(now() * 1000), stays=stays)
            if work is not None and all(until is None or clock() < until for _ in work.steps()):
                done += [name] * self.upkept(work, int(now() * 1000))
        self._works.clear()  # upkeep has ended: files that it did not put into the log are swept
        for _ in self.thin(int(now() * 1000)):
            if until is not None and clock() >= until:
                break
        return done

    def due(self, now: float) -> str | None:
        """A table that needs upkeep: the state whose compaction is most overdue, or a table with many small files.

        `now`: monotonic seconds.
        """
        waits = ((growth.overdue(now, self._max_lag), name) for name, growth in self._growths.items())
        longest = max(((overdue, name) for overdue, name in waits if overdue is not None), default=None)
        if longest is not None:
            return TableRef(STATE, longest[1]).uri
        return next((uri for uri, loose in self._loose.items() if are_many(loose)), None)

    def behind(self) -> list[str]:
        """The state tables that are not up to date."""
        return [TableRef(STATE, name).uri for name, growth in self._growths.items() if growth.later]

    def unsettled(self) -> list[str]:
        """The state tables that are not up to date, or at a version that is not retained."""
        return [TableRef(STATE, name).uri for name, growth in self._growths.items() if not growth.is_settled]

    def upkeep(self, uri: str, now: int, *, stays: bool = False) -> Compaction | SmallFileCompaction | None:
        """Begin upkeep of the table `uri`; None if there is nothing to do.

        Call this and `upkept` in the committer's turn; the steps in between may run on another thread, in parallel to
        commits. `now`: milliseconds since 1970. `stays`: whether the resulting version is to be retained.
        """
        self.load()
        ref = table_ref(uri)
        if ref.kind == STATE:
            work: Compaction | SmallFileCompaction | None = self._compaction(ref.name, now, stays=stays)
        else:
            self._loose[uri] = 0
            table = self._delta[ref].opener()()
            work = SmallFileCompaction(table, self._epoch, now) if are_many(small_files(table)) else None
        if work is not None:
            self._works[uri] = work
        return work

    def upkept(self, work: Compaction | SmallFileCompaction, now: int) -> bool:
        """Commit the files written by `work`; False if they are useless by now.

        `now`: milliseconds since 1970.
        """
        return work.finish(self._delta[table_ref(work.uri)], now)

    def has_superseded(self, now: int) -> bool:
        """Whether `thin` has files to remove."""
        return any(growth.versions is not None and growth.versions.is_due(now) for growth in self._growths.values())

    def thin(self, now: int) -> Steps[None]:
        """Remove the files of versions superseded long enough ago, one version per step.

        Called in the committer's turn; ends early while this process reads the data directory. `now`: milliseconds
        since 1970. Passes the fault point ``thin.removed``.
        """
        for name, growth in self._growths.items():
            table = self._delta[TableRef(STATE, name)]
            while growth.versions is not None and growth.versions.is_due(now):
                with removing(self.data_dir) as free:
                    if not free:
                        return
                    remove_own(table.path, growth.versions.due(now))
                growth.versions.removed()
                yield None

    def _compaction(self, name: str, now: int, *, stays: bool) -> Compaction | None:
        """Make the compaction of state `name` up to the last applied txid; None if its table is at that txid."""
        kept, changes = TableRef(STATE, name), TableRef(CHANGES, name)
        last, base = self._delta[changes].last_txid(), self._delta[kept].last_txid()
        as_of, growth = min(self._members[changes.uri].applied, last), self._growths[name]
        if base >= last:
            growth.later = 0
        if base >= as_of and not (stays and not growth.is_settled):
            return None
        growth.begin(time.monotonic(), whole=as_of == last)
        opened = [self._delta[ref].opener() for ref in (kept, changes)]
        return Compaction(
            kept.uri, (opened[0], opened[1]), growth, (base, max(base, as_of)), self._epoch, now, stays=stays
        )

    def sweep(self, live: Sequence[Intent]) -> list[str]:
        """Remove files of this and older epochs that nothing refers to; returns them, relative to the data directory.

        Args:
            live: the intents the ledger still holds; what they name is kept.
        """
        faults.point("sweep.before")
        removed = []
        for ref, table in self._delta.items():
            kept = self.kept_files(ref, live)
            removed += [f"{ref.uri}/{path}" for path in sweep_table(table.path, self._epoch, kept, table.handle)]
        removed += self.outside.sweep(live, self._epoch, self._members)
        history = self.data_dir / HISTORY
        if is_table(history):
            swept = sweep_table(history, self._epoch, set(), DeltaHandle.open(history))
            removed += [f"{HISTORY}/{path}" for path in swept]
        faults.point("sweep.after")
        return removed

    def kept_files(self, ref: TableRef, live: Sequence[Intent]) -> set[str]:
        """The files of the table `ref` in use by `live` intents, this run or its upkeep, relative to the table."""
        member, work = self._members.get(ref.uri), self._works.get(ref.uri)
        kept = kept_by(live, ref.uri) | (member.unpublished() if member else set())
        return kept | (work.written if work is not None else set())

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

    def _load_state(self, one: DeclaredTable, state: KeyedState, growths: dict[str, Growth]) -> Unpublished[Any]:
        published, kept = self._delta[one.refs[0]], self._delta[TableRef(STATE, state.name)]
        index = opened_index(self.data_dir, state, kept, None if one.merged else published, self._bounds)
        group = state_group(state, index)
        self._indexes[state.name] = index
        if not one.merged:
            since = published.handle.row_count((TXID.name, kept.last_txid()))
            growths[state.name] = Growth(kept.handle.row_count(), since, Recent(published.last_txid()))
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


def _is_recorded(ref: TableRef, recorded: Collection[str]) -> bool:
    return ref.uri in recorded or (ref.kind == STATE and TableRef(CHANGES, ref.name).uri in recorded)


def _opened(
    data_dir: Path, owner: TopologyIdentity, one: DeclaredTable, recorded: Collection[str] | None, committed: int | None
) -> dict[TableRef, DeltaTableState]:
    """Open the existing tables of a declaration, checked against it; `committed` is None at the first run."""
    found = {ref: DeltaTableState.open(data_dir, owner, ref) for ref in one.refs if is_table(data_dir / ref.uri)}
    tables = list(found.values())
    one.check_fit(tables)
    if committed is not None and recorded is not None and one.refs[0].uri not in recorded:
        one.check_unrecorded(tables, committed)
    for ref, table in found.items():
        if not _is_recorded(ref, recorded or ()):
            table.renew_directories()
    return found


def _uris(declared: Sequence[DeclaredTable]) -> set[str]:
    """The ledger's names of the `declared` tables."""
    return {one.refs[0].uri for one in declared}


def _check_missing(data_dir: Path, missing: Sequence[TableRef], recorded: Collection[str]) -> None:
    for ref in missing:
        if _is_recorded(ref, recorded):
            msg = (
                f"{data_dir}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a "
                "copy taken together with the ledger"
            )
            raise TableCorrupt(msg)
