"""Saving of snapshots beside the commits, and what a new data directory begins with: the newest common snapshot.

The states of a bolt with a key are divided among its instances as its tasks are, by key group, and are united again
when they are restored, so that their number may differ; a bolt without a key has a state per task, which the first
transaction merges if there are fewer tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm import keys
from txstorm.clocks import Clock
from txstorm.errors import InputError, TxstormError
from txstorm.hailstorm.entries import entries_of, is_object, keyed_entries, keyed_rows, state_texts, states
from txstorm.hailstorm.stores import SnapshotStore
from txstorm.lanes import Lanes
from txstorm.monoids.bolt import INSTANCE, STATE, MonoidPlan
from txstorm.monoids.committer import MonoidCommitter
from txstorm.monoids.ready_made import restored, stored
from txstorm.results.read import read_state
from txstorm.runtime.companion import Beginning
from txstorm.runtime.snapshots import ClockSnapshot
from txstorm.storage.rows.schema import key_fields, value_fields
from txstorm.topology.graph import Topology

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoltStates:
    """The states of one monoid bolt, between its table and a store.

    Attributes:
        bolt: its id.
        plan: its plan.
    """

    bolt: str
    plan: MonoidPlan

    @property
    def table(self) -> str:
        """The name of its table."""
        return self.plan.bolt.table

    @property
    def as_json(self) -> bool:
        """Whether its states are stored as JSON."""
        return self.plan.monoid.column is None

    def empty(self) -> pa.Table:
        """Return the entries of an instance without tuples."""
        if self.plan.key:
            return entries_of({})
        (field,) = value_fields(self.plan.state())
        state = pa.array([stored(self.plan.monoid, self.plan.monoid.empty())], field.type)
        return pa.table([state_texts(state, as_json=self.as_json)], [STATE])

    def instances(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the instances with their entries, given the rows of the table; the first instance comes last."""
        if not self.plan.key:
            texts = state_texts(rows[STATE], as_json=self.as_json)
            numbers = rows[INSTANCE].to_pylist()
            for at in sorted(range(len(numbers)), key=lambda at: -numbers[at]):
                yield numbers[at], pa.table([texts.slice(at, 1)], [STATE])
            return
        columns = [rows[name].combine_chunks() for name in self.plan.key]
        alone = self.plan.tasks == 1
        groups = keys.key_groups([] if alone else columns, rows.num_rows)
        tasks = pa.array(keys.tasks_of(groups, self.plan.tasks))
        for task in reversed(range(self.plan.tasks)):
            own = rows if alone else rows.filter(pc.equal(tasks, task))
            yield task, keyed_entries(own, self.plan.key, STATE, as_json=self.as_json)

    def rows(self, saved: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of the table, given the entries of the instances; raise `InputError` if they do not fit."""
        state = self.plan.state()
        (value,) = value_fields(state)
        if any(is_object(one) != bool(self.plan.key) for one in saved):
            kind = "an object with a state per key" if self.plan.key else "one state per instance"
            raise InputError(f"expected {kind}")
        fields = key_fields(state)
        if self.plan.key:
            parts = [keyed_rows(one, fields, value, as_json=self.as_json) for one in saved]
            found = pa.concat_tables(parts)
            if len(parts) > 1 and found.group_by(list(self.plan.key)).aggregate([]).num_rows < found.num_rows:
                found = self._merged(found)
        else:
            parts = [pa.table([states(one, value, as_json=self.as_json)], schema=pa.schema([value])) for one in saved]
            numbers = pa.array(range(len(saved)), fields[0].type)
            found = pa.concat_tables(parts).add_column(0, fields[0], numbers)
        for value in found[STATE].slice(0, 1).to_pylist():
            try:
                restored(self.plan.monoid, value)
            except Exception as error:
                msg = f"the state {str(value)[:80]!r} is none of {self.plan.monoid.name}: {error!r}"
                raise InputError(msg) from error
        return found

    def _merged(self, rows: pa.Table) -> pa.Table:
        """Merge the states of keys that several instances have."""
        parts: dict[Any, list[Any]] = {}
        for *key, state in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            parts.setdefault(tuple(key), []).append(restored(self.plan.monoid, state))
        new = [stored(self.plan.monoid, reduce(self.plan.monoid.merge, some)) for some in parts.values()]
        columns = [*zip(*parts, strict=True), new]
        made = [pa.array(list(one), field.type) for one, field in zip(columns, rows.schema, strict=True)]
        return pa.table(made, schema=rows.schema)


def bolt_states(topology: Topology) -> list[BoltStates]:
    """Return the monoid bolts of a topology."""
    committers = [(one.id, one.object) for one in topology.components if isinstance(one.object, MonoidCommitter)]
    return [BoltStates(name, committer.plan) for name, committer in committers]


def saved_instances(store: SnapshotStore, bolt: str) -> list[list[Clock]]:
    """Return the clocks that each instance of a bolt has, by instance; the first one without any is the end."""
    found: list[list[Clock]] = []
    while clocks := store.clocks(bolt, len(found)):
        found.append(list(clocks))
    return found


def common_clocks(instances: Sequence[Sequence[Clock]]) -> list[Clock]:
    """Return the clocks that all instances have, the one saved last first."""
    return [clock for clock in instances[0] if all(clock in one for one in instances)] if instances else []


def beginning(store: SnapshotStore, topology: Topology, *, from_beginning: bool = False) -> Beginning | None:
    """Return what a new data directory of `topology` begins with: the newest clock that all instances have.

    Returns None if nothing is saved, or `from_beginning` says that the source is to be read from its beginning.

    Raises:
        InputError: the store is another topology's, or damaged, or there is no common clock.
    """
    store.bind(topology.id)
    bolts = bolt_states(topology)
    if from_beginning or not bolts:
        return None
    found = {one.bolt: saved_instances(store, one.bolt) for one in bolts}
    if not any(found.values()):
        return None
    every = [clocks for instances in found.values() for clocks in instances or [[]]]
    common = common_clocks(every)
    if not common:
        known = [
            f"{bolt}[{at}]: {', '.join(map(str, clocks)) or 'none'}"
            for bolt, instances in found.items()
            for at, clocks in enumerate(instances or [[]])
        ]
        raise InputError(
            f"snapshot store {store.name}: no clock is common to all instances of all bolts of {topology.id!r}; they "
            f"have {'; '.join(known)}. Begin with an empty state and the beginning of the source: --from-beginning "
            "(in Python: from_beginning=True), or give another store"
        )
    tables = {one.table: _restored(store, one, len(found[one.bolt]), common[0]) for one in bolts}
    return Beginning(common[0], tables, store.name)


def _restored(store: SnapshotStore, states: BoltStates, instances: int, clock: Clock) -> pa.Table:
    saved = []
    for instance in range(instances):
        entries = store.restore_entries(states.bolt, instance, clock)
        if entries is None:
            where = f"instance {instance} of bolt {states.bolt!r}"
            raise InputError(f"snapshot store {store.name}: the state of {where} at {clock} is not there any more")
        saved.append(entries)
    try:
        return states.rows(saved)
    except InputError as error:
        msg = f"snapshot store {store.name}: the states of bolt {states.bolt!r} at {clock} cannot be restored: {error}"
        raise InputError(msg) from error


class Saver:
    """Saves complete snapshots of a run to a store, on a lane of its own; call from the driver thread.

    While one is being saved, only the newest of those that follow waits. A failure is logged, and the run goes on.

    Args:
        store: where they are saved.
        topology: the running topology.
        data_dir: its data directory.
        lanes: those of the run.

    Attributes:
        saved: the clock of the last snapshot that was saved, or what went wrong with it; None: there was none yet.

    Raises:
        InputError: the store is another topology's.
    """

    def __init__(self, store: SnapshotStore, topology: Topology, data_dir: Path, lanes: Lanes) -> None:
        store.bind(topology.id)
        self._store, self._data_dir = store, data_dir
        self._bolts = bolt_states(topology)
        self._lane = lanes.lane("txstorm-snapshots")
        self._lock = lanes.lock()
        self._waiting: ClockSnapshot | None = None
        self._calls = 0
        self.saved: Clock | str | None = None

    def save(self, snapshot: ClockSnapshot) -> None:
        """Save the states as of a complete snapshot; returns at once."""
        with self._lock:
            queued, self._waiting = self._waiting is not None, snapshot
            self._calls += not queued
        if not queued:
            self._lane.queue(self._save_waiting)

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being saved, or waits for that."""
        return self._calls > 0

    def close(self, timeout: float | None = 10.0) -> None:
        """End after the snapshots that are given; wait for that, at most `timeout` seconds."""
        self._lane.end()
        if not self._lane.join(timeout):
            log.warning("snapshot store %s: a snapshot was still being saved when the run ended", self._store.name)

    def _save_waiting(self) -> None:
        with self._lock:
            snapshot, self._waiting = self._waiting, None
        assert snapshot is not None
        try:
            save_states(self._store, self._bolts, self._data_dir, snapshot)
        except (TxstormError, OSError, pa.ArrowException) as error:
            self._failed(snapshot, str(error))
        except Exception as error:  # noqa: BLE001 - a store of a user may raise anything
            self._failed(snapshot, repr(error))
        else:
            self.saved = snapshot.clock
        finally:
            with self._lock:
                self._calls -= 1

    def _failed(self, snapshot: ClockSnapshot, why: str) -> None:
        self.saved = f"the snapshot at {snapshot.clock} is not saved: {why}"
        log.warning("%s; the run goes on", self.saved)


def save_states(
    store: SnapshotStore,
    bolts: Sequence[BoltStates],
    data_dir: Path,
    snapshot: ClockSnapshot,
    read: Callable[..., pa.Table] = read_state,
) -> None:
    """Save the states of `bolts` as of a snapshot.

    Instance 0 of each bolt is saved last, so that a save that is cut short is not taken for one of fewer instances.
    Instances that were there before, and are no longer, get the state of nothing.
    """
    known = {one.bolt: saved_instances(store, one.bolt) for one in bolts}
    common = common_clocks([clocks for instances in known.values() for clocks in instances])
    for bolt, instances in known.items():
        for instance, clocks in enumerate(instances):
            for clock in clocks:
                if clock not in common:  # a save that was cut short: it must not replace a complete one
                    store.forget(bolt, instance, clock)
    for one in bolts:
        rows = read(data_dir, one.table, snapshot.txid, snapshot.txid)
        made = list(one.instances(rows))
        for former in range(max((number for number, _ in made), default=-1) + 1, len(known[one.bolt])):
            store.save_entries(one.bolt, former, one.empty(), snapshot.clock)
        for instance, entries in made:
            store.save_entries(one.bolt, instance, entries, snapshot.clock)
