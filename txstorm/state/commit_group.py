"""One group in the making: handles for committers, txid by txid, and in the end its staged rows.

It is one module: handles, members and groups share the rows that are not published yet, and one lock over them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar

import pyarrow as pa

from txstorm.api.names import near
from txstorm.errors import StateError
from txstorm.state.collections import CollectionGroup, TaskCollection
from txstorm.state.external.maps import MapGroup, TaskMap
from txstorm.state.keyed import StateGroup, TaskState
from txstorm.state.parallel import together
from txstorm.state.pending_table import Parts, staged_like
from txstorm.state.sinks import SinkGroup, TaskSink
from txstorm.storage.tables.intent import CHANGES, IntentTable, TxidRecord, encode_schema
from txstorm.storage.tables.staging import Staged, StagedName, stage
from txstorm.storage.tables.table import TableRef

G = TypeVar("G")
States = StateGroup | CollectionGroup


class Lasts:
    """The last txids of one table, of what is published and of what is staged over it; for one thread at a time."""

    def __init__(self, published: int) -> None:
        self._txids = [published]

    def before(self, txid: int) -> int:
        """The last txid of the table below `txid`; raises `StateError` when `txid` is already published."""
        below = bisect_left(self._txids, txid)
        if not below:
            msg = f"txid {txid} cannot be staged: the table is already at {self._txids[0]}; open the state anew"
            raise StateError(msg)
        return self._txids[below - 1]

    def staged(self, txid: int) -> None:
        """A group that ends with `txid` was staged."""
        if self._txids[-1] < txid:
            self._txids.append(txid)

    def dropped(self, txid: int) -> None:
        """What was staged with `txid` or later is forgotten; what is published stays."""
        self._txids = [self._txids[0], *(one for one in self._txids[1:] if one < txid)]

    def published(self, txid: int) -> None:
        """The group that ends with `txid` is in the table."""
        self._txids = [txid, *(one for one in self._txids if one > txid)]


class Rows(Protocol):
    """What states and sinks have in common here: their unpublished rows."""

    def end_txid(self, txid: int) -> None:
        """Take over the rows of `txid`."""

    def drop_from(self, txid: int) -> None:
        """Forget `txid` and later ones."""

    def apply(self, last: int) -> None:
        """The txids up to `last` are published."""


class Member:
    """One table or map that groups write to: its rows in memory, and what is staged of them.

    A group may be staged and published by one thread while another one makes, or drops, a later one.

    Attributes:
        component: who declares it.
        path: its directory; `ref`: what it is.
        rows: what is not published yet.
        applied: the last txid whose rows have entered the index, or were not there.

    Args:
        last: the last published txid.
        is_due: whether a group that ends with a stamp touches the table even without rows.
    """

    def __init__(
        self,
        component: str,
        path: Path,
        ref: TableRef,
        rows: States | SinkGroup | MapGroup,
        last: int,
        is_due: Callable[[int], bool] = lambda stamp: False,
    ) -> None:
        self.component = component
        self.path = path
        self.ref = ref
        self.rows: Rows = rows
        self.applied = last
        self._group = rows
        self._take = rows.rows if isinstance(rows, SinkGroup) else rows.changes
        self._lasts = Lasts(last)
        self._is_due = is_due
        self._staged: dict[str, int] = {}
        self._rows: dict[int, pa.Table] = {}  # that are staged, of the groups that end with a txid
        self._expected: dict[int, StagedName] = {}
        self._parts: dict[int, Parts] = {}
        self._lock = RLock()

    def staging(self, txids: Sequence[TxidRecord], epoch: int) -> Callable[[], IntentTable] | None:
        """What writes the rows of `txids`, which follow each other, to a staged file; None when there is no need."""
        first, last = txids[0], txids[-1]
        with self._lock:
            parts = self._parts.get(last.txid)
        if parts is not None and parts.files:  # a large commit is a group of its own
            return self._staged_elsewhere(parts, first.txid, last.txid)
        rows: pa.Table | None = self._take(first.txid, last.txid)
        if rows is None or not rows.num_rows:
            if not self._is_due(last.stamp):
                return None
            assert isinstance(self._group, StateGroup)
            rows = self._group.schema.empty_table()
        with self._lock:
            previous = self._lasts.before(first.txid)
        return partial(self._stage, rows, previous, last, epoch)

    def _stage(self, rows: pa.Table, previous: int, last: TxidRecord, epoch: int) -> IntentTable:
        staged = stage(self.path, rows, StagedName(epoch, last.txid, last.attempt_id, self.component, "all"))
        if self.ref.kind == CHANGES:
            with self._lock:
                self._rows[last.txid] = rows
        return self._intent(rows.schema, previous, last.txid, [staged])

    def _staged_elsewhere(self, parts: Parts, first: int, last: int) -> Callable[[], IntentTable]:
        assert isinstance(self._group, StateGroup | SinkGroup)
        schema = self._group.schema
        with self._lock:
            previous = self._lasts.before(first)
        return lambda: self._intent(schema, previous, last, parts.files)

    def _intent(self, schema: pa.Schema, previous: int, txid: int, files: Sequence[Staged]) -> IntentTable:
        with self._lock:
            self._lasts.staged(txid)
            self._staged.update((one.path, txid) for one in files)
        ref, (staged, *more) = self.ref, files
        return IntentTable(ref.kind, ref.name, ref.uri, encode_schema(schema), previous, staged, tuple(more))

    def expect(self, name: StagedName) -> None:
        """Tasks of a job are about to stage the rows of a txid, under names that begin like `name`."""
        with self._lock:
            self._expected[name.txid] = name

    def take_over(self, txid: int, files: Sequence[Staged]) -> None:
        """These are the rows of `txid`, durable already; called before it ends, and once it cannot be taken away.

        Raises:
            TableCorrupt: a file is not here, or not as its task has written it.
        """
        parts = Parts(self.path, tuple(files))
        parts.check()
        with self._lock:
            self._parts[txid] = parts

    def unpublished(self) -> set[str]:
        """The staged files that this run may still decide on."""
        with self._lock:
            return set(self._staged).union(*(staged_like(self.path, name) for name in self._expected.values()))

    def drop_from(self, txid: int) -> None:
        """Forget `txid` and later ones."""
        self.rows.drop_from(txid)
        with self._lock:
            self._lasts.dropped(txid)
            self._staged = {path: last for path, last in self._staged.items() if last < txid}
            self._rows = {last: rows for last, rows in self._rows.items() if last < txid}
            self._expected = {one: name for one, name in self._expected.items() if one < txid}
            self._parts = {one: parts for one, parts in self._parts.items() if one < txid}

    def published(self, txid: int) -> pa.Table | None:
        """The group that ends with `txid` is in the table; returns its change rows where they are in memory."""
        with self._lock:
            self._lasts.published(txid)
            self._staged = {path: last for path, last in self._staged.items() if last > txid}
            rows = self._rows.get(txid)
            self._rows = {last: one for last, one in self._rows.items() if last > txid}
        return rows

    def apply(self, txid: int) -> None:
        """The txids up to `txid` are published: their rows enter the index."""
        self.rows.apply(txid)
        with self._lock:
            parts = self._parts.pop(txid, None)
            self._expected = {one: name for one, name in self._expected.items() if one > txid}
        if parts is not None and isinstance(self._group, StateGroup):
            self._group.enter(parts.rows(), txid)
        self.applied = max(self.applied, txid)


@dataclass(frozen=True)
class Tables:
    """The tables and maps of one run.

    Attributes:
        states: name of a state or map → the component that declares it, and its unpublished rows.
        sinks: the same of the sinks.
        members: all tables that groups write to, in the order in which they are published.
        letters: the rows of the table of dead letters, where there is one.
    """

    states: Mapping[str, tuple[str, States | MapGroup]]
    sinks: Mapping[str, tuple[str, SinkGroup]]
    members: Sequence[Member]
    letters: SinkGroup | None = None

    def begin(self, txid: int, stamp: int) -> None:
        """It is the turn of `txid`, planned at `stamp` (UTC microseconds)."""
        for _, rows in self.states.values():
            if not isinstance(rows, MapGroup):
                rows.begin(txid, stamp)


Handle = TaskState | TaskCollection | TaskMap | TaskSink


class Resources:
    """The tables of committers for one txid; see `txstorm.api.context.CommitResources`."""

    def __init__(self, txid: int, tables: Tables) -> None:
        self.txid = txid
        self._tables = tables
        self._handles: list[Handle] = []
        self._active = False
        self._closed = False
        self._lock = RLock()

    def state(self, component: str, task: int, name: str) -> TaskState | TaskMap:
        """The handle of the state or map `name` of `component`; raises `StateError` when it declares none such."""
        group = _declared("state", component, name, self._tables.states)
        if isinstance(group, CollectionGroup):
            msg = f"{component}: state {name!r} holds collections; ask for it with context.collection({name!r})"
            raise StateError(msg)
        with self._lock:
            self._check_open(component, name)
            handle = group.handle(component, task, self.txid)
            self._give(handle)
        return handle

    def collection(self, component: str, task: int, name: str) -> TaskCollection:
        """The handle of the collections `name` of `component`; raises `StateError` when it declares none such."""
        group = _declared("state", component, name, self._tables.states)
        if not isinstance(group, CollectionGroup):
            msg = f"{component}: state {name!r} holds one value per key; ask for it with context.state({name!r})"
            raise StateError(msg)
        with self._lock:
            self._check_open(component, name)
            handle = group.handle(component, task, self.txid)
            self._give(handle)
        return handle

    def sink(self, component: str, task: int, name: str) -> TaskSink:
        """The handle of the sink `name` declared by `component`; raises `StateError` when it declares none such."""
        group = _declared("sink", component, name, self._tables.sinks)
        with self._lock:
            self._check_open(component, name)
            handle = group.handle(component, task, self.txid)
            self._give(handle)
        return handle

    def activate(self, active: bool) -> None:
        """Let handles be used, or no longer: those given out and those to come."""
        with self._lock:
            self._active = active and not self._closed
            for handle in self._handles:
                handle.active = self._active

    def close(self) -> None:
        """Nothing can be written through these from now on, whoever still holds a handle or asks for one."""
        with self._lock:
            self._closed = True
        self.activate(False)

    def settle(self, component: str, task: int) -> None:
        """Raise `StateError` now for what the task wrote and no table can hold; else that shows when the txid ends."""
        for rows in self._groups():
            rows.settle(component, task, self.txid)

    def undo(self, component: str, task: int) -> None:
        """Take back what the task wrote in this txid."""
        for rows in self._groups():
            rows.undo(component, task, self.txid)

    def _groups(self) -> list[States | MapGroup | SinkGroup]:
        states = [rows for _, rows in self._tables.states.values()]
        return [*states, *(rows for _, rows in self._tables.sinks.values())]

    def _give(self, handle: Handle) -> None:
        handle.active = self._active
        self._handles.append(handle)

    def _check_open(self, component: str, name: str) -> None:
        if self._closed:
            msg = (
                f"{component}: {name!r} asked for by an attempt at txid {self.txid} that was given up (it took too "
                "long, or the run ended); nothing it does counts any more"
            )
            raise StateError(msg)


class CommitGroup:
    """Consecutive txids on their way to one intent.

    Order of calls, for each txid in turn: `begin_txid`, ``activate(True)`` around every `finish_batch`, `end_txid`;
    then `stage` once, and after the intent is published `apply`. When a txid fails, `drop_from` it; `stage` may then
    be called for those before it. A later group may begin while this one is being published: it reads over it.
    """

    def __init__(self, first: int, tables: Tables) -> None:
        self.first = first
        self.resources = Resources(first, tables)
        self._tables = tables

    def begin_txid(self, txid: int, resources: Resources | None = None, stamp: int = 0) -> Resources:
        """From now on `resources` are those of `txid`; the ones that were given out before its turn, if they were.

        `stamp`: when it was planned, UTC microseconds.
        """
        self._tables.begin(txid, stamp)
        if resources is not None or self.resources.txid != txid:
            self.resources.activate(False)
            self.resources = resources or Resources(txid, self._tables)
        return self.resources

    def activate(self, active: bool) -> None:
        """Let the handles of the txid at hand be used, or no longer."""
        self.resources.activate(active)

    def expect(self, component: str, name: StagedName) -> None:
        """Tasks of a job are about to stage all that `component` writes in a txid; see `Member.expect`."""
        for member in self._members_of(component):
            member.expect(name)

    def take_over(self, component: str, txid: int, files: Mapping[str, Sequence[Staged]]) -> None:
        """Table → what those tasks have staged; raises `TableCorrupt` as `Member.take_over` does."""
        for member in self._members_of(component):
            member.take_over(txid, files.get(member.ref.uri, ()))

    def keyed(self, name: str) -> StateGroup:
        """The unpublished rows of the keyed state `name`."""
        rows = self._tables.states[name][1]
        assert isinstance(rows, StateGroup)
        return rows

    def _members_of(self, component: str) -> list[Member]:
        return [one for one in self._tables.members if one.component == component]

    def divert(self, txid: int, letters: pa.Table) -> None:
        """Dead letters of `txid`; called after its committers have finished and before it ends."""
        assert self._tables.letters is not None
        sink = self._tables.letters.handle("dead-letters", 0, txid)
        sink.active = True
        sink.append_batch(letters)
        sink.active = False

    def end_txid(self, txid: int) -> None:
        """All committers of `txid` have finished.

        Raises:
            StateError: two tasks changed one key, or a row does not fit its sink; call `drop_from` then.
        """
        self.resources.activate(False)
        for member in self._tables.members:
            member.rows.end_txid(txid)

    def drop_from(self, txid: int) -> None:
        """Forget `txid` and every later one, in all tables, staged files included; nothing of them is decided."""
        self.resources.close()
        self.resources = Resources(txid, self._tables)
        for member in self._tables.members:
            member.drop_from(txid)

    def stage(self, txids: Sequence[TxidRecord], epoch: int) -> list[IntentTable]:
        """Write the rows of `txids` durably beside their tables; returns the tables they touch, in a fixed order."""
        staging = (member.staging(txids, epoch) for member in self._tables.members)
        return together([one for one in staging if one is not None])

    def apply(self, last: int) -> None:
        """The txids up to `last` are published: they enter the index."""
        for member in self._tables.members:
            member.apply(last)


def _declared(kind: str, component: str, name: str, known: Mapping[str, tuple[str, G]]) -> G:
    if name in known:
        owner, group = known[name]
        if owner == component:
            return group
        msg = f"{component}: {kind} {name!r} belongs to component {owner!r}; a {kind} has one writer: declare another"
        raise StateError(msg)
    own = sorted(one for one, (owner, _) in known.items() if owner == component)
    msg = f"{component}: {kind} {name!r} is not declared{near(name, own)}; it declares {own}: set it as an attribute"
    raise StateError(msg)
