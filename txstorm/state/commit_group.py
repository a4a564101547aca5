"""Commit group: consecutive txids that are committed together, with their committers' handles and their staged rows.

It is one module, since handles, tables and groups share the same unpublished rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstorm.api.names import near
from txstorm.api.state import CollectionHandle, SinkHandle, StateHandle
from txstorm.errors import StateError
from txstorm.lanes import THREADS, Lanes
from txstorm.state.collections import TaskCollection
from txstorm.state.keyed import StateGroup
from txstorm.state.pending_table import PendingTable
from txstorm.state.sinks import SinkGroup
from txstorm.state.unpublished import TaskHandle, Unpublished, UnpublishedState
from txstorm.storage.tables.intent import IntentTable, Staged, TxidRecord

Declared = Mapping[str, tuple[str, Unpublished[Any]]]
"""Mapping from the name of a state or sink to the component that declares it and its unpublished rows."""


@dataclass(frozen=True)
class CommitTables:
    """Commit targets of one run: its tables, maps and outlets.

    Attributes:
        states: the states, collections and maps, by name.
        sinks: the sinks and outlets, by name.
        members: all targets that groups write to, in the order in which they are published.
        letters: the unpublished rows of the dead-letter table, if there is one.
        managed: the states and hooks of stateful bolts outside of the tables, and join stores, by component.
        lanes: stage rows concurrently, and give the locks of handles.
    """

    states: Declared
    sinks: Declared
    members: Sequence[PendingTable]
    letters: SinkGroup | None = None
    managed: Mapping[str, Unpublished[Any]] = field(default_factory=dict)
    lanes: Lanes = THREADS

    def begin(self, txid: int, stamp: int) -> None:
        """Begin the turn of `txid`, which was planned at `stamp` (UTC microseconds)."""
        for _, rows in self.states.values():
            rows.begin(txid, stamp)


class CommitHandles:
    """Handles of the committers in one txid; implements `txstorm.api.context.CommitResources`."""

    def __init__(self, txid: int, tables: CommitTables) -> None:
        self.txid = txid
        self._tables = tables
        self._handles: list[TaskHandle] = []
        self._active = False
        self._closed = False
        self._lock = tables.lanes.lock()

    def state(self, component: str, task: int, name: str) -> StateHandle:
        """Return the handle of the state or map `name`; raise `StateError` unless `component` declares it."""
        handle: StateHandle = self._handle("state", component, task, name, self._tables.states)
        return handle

    def collection(self, component: str, task: int, name: str, tasks: int = 1) -> CollectionHandle:
        """Return the handle of the collection state `name`; raise `StateError` unless `component` declares it.

        `tasks`: the number of tasks of the component, all of which have to agree on a bound for all keys.
        """
        handle: TaskCollection = self._handle("collection", component, task, name, self._tables.states)
        handle.tasks = tasks
        return handle

    def sink(self, component: str, task: int, name: str) -> SinkHandle:
        """Return the handle of the sink `name`; raise `StateError` unless `component` declares it."""
        handle: SinkHandle = self._handle("sink", component, task, name, self._tables.sinks)
        return handle

    def _handle(self, accessor: str, component: str, task: int, name: str, known: Declared) -> Any:
        rows = _declared("sink" if accessor == "sink" else "state", component, name, known)
        if rows.accessor != accessor:
            msg = f"{component}: state {name!r} holds {rows.holds}; ask for it with context.{rows.accessor}({name!r})"
            raise StateError(msg)
        return self._opened(rows, component, task, name)

    def _opened(self, rows: Unpublished[Any], component: str, task: int, name: str) -> Any:
        with self._lock:
            if self._closed:
                raise StateError(
                    f"{component}: {name!r} asked for by an attempt at txid {self.txid} that was given up (it took "
                    "too long, or the run ended); nothing it does counts any more"
                )
            handle = rows.handle(component, task, self.txid)
            handle.active = self._active
            self._handles.append(handle)
        return handle

    def managed(self, component: str, task: int) -> TaskHandle | None:
        """Return the handle of a component for its state and hooks outside of the tables, or its join store, if any."""
        rows = self._tables.managed.get(component)
        return None if rows is None else self._opened(rows, component, task, component)

    def activate(self, active: bool) -> None:
        """Allow or forbid the use of all handles, including those created later."""
        with self._lock:
            self._active = active and not self._closed
            for handle in self._handles:
                handle.active = self._active

    def close(self) -> None:
        """Close all handles, including those created later, so that nothing can be written through them."""
        with self._lock:
            self._closed = True
        self.activate(False)

    def settle(self, component: str, task: int) -> None:
        """Check the task's writes now rather than when the txid ends; raise `StateError` if one is invalid."""
        for rows in self._groups():
            rows.settle(component, task, self.txid)

    def undo(self, component: str, task: int) -> None:
        """Undo the writes of the task in this txid."""
        for rows in self._groups():
            rows.undo(component, task, self.txid)

    def _groups(self) -> list[Unpublished[Any]]:
        tables = [rows for known in (self._tables.states, self._tables.sinks) for _, rows in known.values()]
        return [*tables, *self._tables.managed.values()]


class CommitGroup:
    """Group of consecutive txids that are committed by one intent.

    Order of calls, for each txid in turn: `begin_txid`, then `activate` around every `finish_batch`, then `end_txid`;
    for the group, `stage` once, and `apply` after the intent is published. If a txid fails, call `drop_from` with it;
    `stage` may then be called for the txids before it. A later group may begin while this one is being published; it
    sees this group's rows.
    """

    def __init__(self, first: int, tables: CommitTables) -> None:
        self.first = first
        self.resources = CommitHandles(first, tables)
        self._tables = tables

    def begin_txid(self, txid: int, resources: CommitHandles | None = None, stamp: int = 0) -> CommitHandles:
        """Begin `txid`; return its handles.

        Args:
            txid: the transaction.
            resources: its handles, if some were handed out before its turn; None: create them.
            stamp: the time at which the txid was planned, in UTC microseconds.
        """
        self._tables.begin(txid, stamp)
        if resources is not None or self.resources.txid != txid:
            self.resources.activate(False)
            self.resources = resources or CommitHandles(txid, self._tables)
        return self.resources

    def activate(self, active: bool) -> None:
        """Allow or forbid the use of the current txid's handles."""
        self.resources.activate(active)

    def take_over(self, component: str, txid: int, files: Mapping[str, Sequence[Staged]]) -> None:
        """Take over the files that tasks have staged for the tables of `component` in `txid`.

        `files`: the staged files of each table, by its uri. Raises the errors of `PendingTable.take_over`.
        """
        for member in self._tables.members:
            if member.component == component:
                member.take_over(txid, files.get(member.ref.uri, ()))

    def keyed(self, name: str) -> StateGroup:
        """Return the unpublished rows of the keyed state `name`."""
        rows = self._tables.states[name][1]
        assert isinstance(rows, StateGroup)
        return rows

    def divert(self, txid: int, letters: pa.Table) -> None:
        """Add the dead letters of `txid`; called after its committers have finished, before it ends."""
        assert self._tables.letters is not None
        self._tables.letters.handle("dead-letters", 0, txid).append_own(letters)

    def end_txid(self, txid: int) -> None:
        """End `txid`, whose committers have all finished.

        Raises:
            StateError: two tasks changed the same key, or a row does not fit its sink; call `drop_from` next.
        """
        self.resources.activate(False)
        for member in self._tables.members:
            member.rows.end_txid(txid)

    def end_reads(self) -> None:
        """End reads of the first txid before its turn; raise `StateError` if there were writes."""
        self.resources.close()
        for _, rows in self._tables.states.values():
            if isinstance(rows, UnpublishedState):
                rows.end_reads(self.first)

    def drop_from(self, txid: int) -> None:
        """Discard `txid` and all later txids, which must be undecided, from all tables, with their staged files."""
        self.resources.close()
        self.resources = CommitHandles(txid, self._tables)
        for member in self._tables.members:
            member.drop_from(txid)

    def stage(self, txids: Sequence[TxidRecord], epoch: int) -> list[IntentTable]:
        """Stage the rows of `txids` durably for all tables, in parallel; return the tables' entries for the intent."""
        staging = (member.staging(txids, epoch) for member in self._tables.members)
        return self._tables.lanes.together([one for one in staging if one is not None])

    def apply(self, last: int) -> None:
        """Move the rows of the published txids up to `last` into the index."""
        for member in self._tables.members:
            member.apply(last)


def _declared(kind: str, component: str, name: str, known: Declared) -> Unpublished[Any]:
    if name in known:
        owner, group = known[name]
        if owner == component:
            return group
        msg = f"{component}: {kind} {name!r} belongs to component {owner!r}; a {kind} has one writer: declare another"
        raise StateError(msg)
    own = sorted(one for one, (owner, _) in known.items() if owner == component)
    msg = f"{component}: {kind} {name!r} is not declared{near(name, own)}; it declares {own}: set it as an attribute"
    raise StateError(msg)
