"""Commit group: consecutive txids that are committed together, with their committers' handles and their staged rows.

It is one module, since handles and groups share the targets of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.names import near
from txstorm.api.state import CollectionHandle, SinkHandle, StateHandle
from txstorm.errors import StateError
from txstorm.lanes import THREADS, Lanes
from txstorm.state.collections import TaskCollection
from txstorm.state.external.targets import ExternalTarget
from txstorm.state.keyed import StateGroup
from txstorm.state.sinks import SinkGroup
from txstorm.state.target import Target, TaskHandle
from txstorm.storage.tables.directory import unshared
from txstorm.storage.tables.intent import Intent, IntentTable, Staged, TxidRecord
from txstorm.storage.upkeep.sweep import kept_by, sweep_unlogged

SINKS, MANAGED = "sink", "managed"
"""Accessors of targets that do not share their names with states."""
Patient = Callable[[Callable[[], None]], None]
"""Type of a function that makes a call and may retry it until the external system can be reached."""


def call(step: Callable[[], None]) -> None:
    """Call `step` once, without retrying if the external system cannot be reached."""
    step()


class Targets:
    """Commit targets of one run, in the order in which they are published: tables first, then those outside.

    Attributes:
        members: all of them.
        outside: those in external systems.
        lanes: stage rows concurrently, and give the locks of handles.
    """

    def __init__(self, members: Sequence[Target[Any, Any]], lanes: Lanes = THREADS) -> None:
        self.members, self.lanes = members, lanes
        self.outside = [one for one in members if isinstance(one, ExternalTarget)]
        # A state and a sink may have the same name; what is managed has the name of its component.
        self._named = {(self._space(one.accessor), one.name): one for one in members if one.name}
        self._at = {one.ref.uri: one for one in members}

    def __getitem__(self, uri: str) -> Target[Any, Any]:
        return self._at[uri]

    def __contains__(self, uri: str) -> bool:
        return uri in self._at

    def named(self, accessor: str, component: str, name: str) -> Target[Any, Any]:
        """Return the target `name`; raise `StateError` unless `component` declares it with handles of this kind."""
        space, target = self._space(accessor), self.find(accessor, name)
        if target is None:
            own = sorted(one for (in_, one), of in self._named.items() if (in_, of.component) == (space, component))
            raise StateError(
                f"{component}: {space} {name!r} is not declared{near(name, own)}; it declares {own}: set it as an "
                "attribute"
            )
        if target.component != component:
            raise StateError(
                f"{component}: {space} {name!r} belongs to component {target.component!r}; a {space} has one writer: "
                "declare another"
            )
        if target.accessor != accessor:
            raise StateError(
                f"{component}: state {name!r} holds {target.holds}; ask for it with context.{target.accessor}({name!r})"
            )
        return target

    def find(self, accessor: str, name: str) -> Target[Any, Any] | None:
        """Return the target `name` among those with handles of this kind; None if there is none."""
        return self._named.get((self._space(accessor), name))

    def begin(self, txid: int, stamp: int) -> None:
        """Begin the turn of `txid`, which was planned at `stamp` (UTC microseconds)."""
        for one in self.members:
            one.begin(txid, stamp)

    def lead(
        self,
        epoch: int,
        committed: int,
        recorded: Mapping[str, int],
        live: Sequence[Intent],
        *,
        number: int = 1,
        known: Patient = call,
        check_leads: Callable[[], None] = unshared,
    ) -> None:
        """Take over the targets outside; see `MarkedTarget.lead`.

        Args:
            epoch: epoch of this coordinator.
            committed: the last decided txid.
            recorded: target → its last txid according to the ledger.
            live: the decided groups that are not completed.
            number: the number of the first fault point; each target adds 1.
            known: makes the call for targets that were led before, whose address is therefore known to be correct; may
                retry it.
            check_leads: raises `FencedError` unless this coordinator leads; called before a target creates files.
        """
        decided = {table.uri for intent in live for table in intent.tables}
        for place, one in enumerate(self.outside, start=number):
            uri = one.ref.uri
            check_leads()
            lead = partial(one.lead, epoch, committed, recorded.get(uri), live)
            (known if uri in recorded or uri in decided else call)(lead)
            faults.point(f"p0.{place}.raised")

    def roll_forward(self, intent: Intent, epoch: int) -> None:
        """Publish a decided group to its targets outside; called once the topology's code is loaded."""
        for number, table in enumerate(intent.tables, start=1):
            if table.outside:
                self[table.uri].publish(number, table, intent, epoch)

    def settle(self) -> None:
        """Raise what user code has raised while a group was published, once it is completed."""
        for one in self.outside:
            one.conclude()

    def last_txids(self) -> dict[str, int]:
        """Return the last txid of each target outside that keeps rows, by its uri: that of its mark, if it has one."""
        return {one.ref.uri: one.last for one in self.outside if one.keeps_rows}

    def forget(self, before: int) -> None:
        """Delete the staged files of groups that end before txid `before`, whose intents are no longer kept."""
        for one in self.members:
            one.forget(before)

    def sweep(self, live: Sequence[Intent], epoch: int) -> list[str]:
        """Delete staged files outside of the tables that neither a kept intent nor this run references; return them."""
        return [
            f"{one.ref.uri}/{path}"
            for one in self.outside
            for path in sweep_unlogged(one.path, epoch, kept_by(live, one.ref.uri) | one.in_use())
        ]

    def close(self) -> None:
        """Close the connections of all targets outside."""
        for one in self.outside:
            one.close()

    @staticmethod
    def _space(accessor: str) -> str:
        return accessor if accessor in (SINKS, MANAGED) else "state"


class CommitHandles:
    """Handles of the committers in one txid; implements `txstorm.api.context.CommitResources`."""

    def __init__(self, txid: int, targets: Targets) -> None:
        self.txid = txid
        self._targets = targets
        self._handles: list[TaskHandle] = []
        self._active = False
        self._closed = False
        self._lock = targets.lanes.lock()

    def state(self, component: str, task: int, name: str) -> StateHandle:
        """Return the handle of the state or map `name`; raise `StateError` unless `component` declares it."""
        handle: StateHandle = self._handle("state", component, task, name)
        return handle

    def collection(self, component: str, task: int, name: str, tasks: int = 1) -> CollectionHandle:
        """Return the handle of the collection state `name`; raise `StateError` unless `component` declares it.

        `tasks`: the number of tasks of the component, all of which have to agree on a bound for all keys.
        """
        handle: TaskCollection = self._handle("collection", component, task, name)
        handle.tasks = tasks
        return handle

    def sink(self, component: str, task: int, name: str) -> SinkHandle:
        """Return the handle of the sink `name`; raise `StateError` unless `component` declares it."""
        handle: SinkHandle = self._handle(SINKS, component, task, name)
        return handle

    def _handle(self, accessor: str, component: str, task: int, name: str) -> Any:
        return self._opened(self._targets.named(accessor, component, name), component, task, name)

    def _opened(self, target: Target[Any, Any], component: str, task: int, name: str) -> Any:
        with self._lock:
            if self._closed:
                raise StateError(
                    f"{component}: {name!r} asked for by an attempt at txid {self.txid} that was given up (it took "
                    "too long, or the run ended); nothing it does counts any more"
                )
            handle = target.handle(component, task, self.txid)
            handle.active = self._active
            self._handles.append(handle)
        return handle

    def managed(self, component: str, task: int) -> TaskHandle | None:
        """Return the handle of a component for its state and hooks outside of the tables, or its join store, if any."""
        target = self._targets.find(MANAGED, component)
        return None if target is None else self._opened(target, component, task, component)

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
        for one in self._targets.members:
            one.settle(component, task, self.txid)

    def undo(self, component: str, task: int) -> None:
        """Undo the writes of the task in this txid."""
        for one in self._targets.members:
            one.undo(component, task, self.txid)


class CommitGroup:
    """Group of consecutive txids that are committed by one intent.

    Order of calls, for each txid in turn: `begin_txid`, then `activate` around every `finish_batch`, then `end_txid`;
    for the group, `stage` once, and `apply` after the intent is published. If a txid fails, call `drop_from` with it;
    `stage` may then be called for the txids before it. A later group may begin while this one is being published; it
    sees this group's rows.
    """

    def __init__(self, first: int, targets: Targets) -> None:
        self.first = first
        self.resources = CommitHandles(first, targets)
        self._targets = targets

    def begin_txid(self, txid: int, resources: CommitHandles | None = None, stamp: int = 0) -> CommitHandles:
        """Begin `txid`; return its handles.

        Args:
            txid: the transaction.
            resources: its handles, if some were handed out before its turn; None: create them.
            stamp: the time at which the txid was planned, in UTC microseconds.
        """
        self._targets.begin(txid, stamp)
        if resources is not None or self.resources.txid != txid:
            self.resources.activate(False)
            self.resources = resources or CommitHandles(txid, self._targets)
        return self.resources

    def activate(self, active: bool) -> None:
        """Allow or forbid the use of the current txid's handles."""
        self.resources.activate(active)

    def take_over(self, component: str, txid: int, files: Mapping[str, Sequence[Staged]]) -> None:
        """Take over the files that tasks have staged for the tables of `component` in `txid`.

        `files`: the staged files of each table, by its uri. Raises the errors of `Target.take_over`.
        """
        for one in self._targets.members:
            if one.component == component:
                one.take_over(txid, files.get(one.ref.uri, ()))

    def keyed(self, name: str) -> StateGroup:
        """Return the unpublished rows of the keyed state `name`."""
        target = self._targets.find("state", name)
        assert isinstance(target, StateGroup)
        return target

    def divert(self, txid: int, letters: pa.Table) -> None:
        """Add the dead letters of `txid`; called after its committers have finished, before it ends."""
        target = self._targets["dead_letters"]
        assert isinstance(target, SinkGroup)
        target.handle("dead-letters", 0, txid).append_own(letters)

    def end_txid(self, txid: int) -> None:
        """End `txid`, whose committers have all finished.

        Raises:
            StateError: two tasks changed the same key, or a row does not fit its sink; call `drop_from` next.
        """
        self.resources.activate(False)
        for one in self._targets.members:
            one.end_txid(txid)

    def end_reads(self) -> None:
        """End reads of the first txid before its turn; raise `StateError` if there were writes."""
        self.resources.close()
        for one in self._targets.members:
            one.end_reads(self.first)

    def drop_from(self, txid: int) -> None:
        """Discard `txid` and all later txids, which must be undecided, from all tables, with their staged files."""
        self.resources.close()
        self.resources = CommitHandles(txid, self._targets)
        for one in self._targets.members:
            one.drop_from(txid)

    def stage(self, txids: Sequence[TxidRecord], epoch: int) -> list[IntentTable]:
        """Stage the rows of `txids` durably for all tables, in parallel; return the tables' entries for the intent."""
        staging = (one.staging(txids, epoch) for one in self._targets.members)
        return self._targets.lanes.together([one for one in staging if one is not None])

    def apply(self, last: int) -> None:
        """Move the rows of the published txids up to `last` into the index."""
        for one in self._targets.members:
            one.apply(last)
