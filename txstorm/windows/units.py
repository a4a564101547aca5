"""Units of a task, the task itself or its keys: adds their tuples, fires their windows, keeps their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from txstorm.api.state import CollectionHandle, CollectionState, KeyTexts, StateHandle
from txstorm.keys import canonical
from txstorm.tagged import value_of
from txstorm.windows.buffer import UNIT, TupleBuffer, by_unit, position, rows_of
from txstorm.windows.plan import WindowPlan
from txstorm.windows.records import UnitRecord, unit_of_task
from txstorm.windows.rules.event_time import END, Times
from txstorm.windows.rules.firing import (
    START,
    FiringState,
    Moment,
    Oldest,
    Place,
    Rows,
    Window,
    covering_ends,
    earliest_open,
    early,
    end_at,
    fire,
    fire_sessions,
    is_needed,
    needed_from,
    nothing_before,
)

QUEUE, DUE = "queue", "due"
FIRE, DROP, EXPIRE, CHANGED = "fire", "drop", "expire", "changed"
"""Queues of the keys of a task: those with an end to fire, those to drop unless they get tuples, those whose time to
live may be over, and those that got tuples since the last early results."""


def queue_state(plan: WindowPlan) -> CollectionState:
    """Declare the queues of a component with windows per key."""
    return CollectionState(
        f"{plan.id}-due", key={QUEUE: str}, value={UNIT: str}, order={DUE: int}, key_texts=KeyTexts(UNIT)
    )


def queue_name(kind: str, task: int, tasks: int) -> str:
    """Return the name of a queue of a task; other numbers of tasks have other queues."""
    return f"{kind}/{task} of {tasks}"


class Fired(NamedTuple):
    """A window that fires, and its unit."""

    unit: str
    window: Window


class Units:
    """The units of one task in one transaction.

    Args:
        plan: the plan of the component.
        task: index of the task.
        moment: the transaction.
        stamp: its stamp.
        buffer, records, queue: the task's tables; no queue for windows per task.

    Attributes:
        records: unit → its record, of those that the transaction has looked at.
    """

    def __init__(
        self,
        plan: WindowPlan,
        task: int,
        moment: Moment,
        stamp: int,
        buffer: TupleBuffer,
        records: StateHandle,
        queue: CollectionHandle | None,
    ) -> None:
        self._plan = plan
        self._form = plan.form
        self._task = task
        self._moment = moment
        self._stamp = stamp
        self._buffer, self._records, self._queue = buffer, records, queue
        self._known: dict[str, UnitRecord] = {}
        self._needed: dict[str, Place] = {}
        self._adds = False
        self.records: dict[str, UnitRecord] = {}

    def evaluate(self, rows: pa.Table, gaps: Times) -> list[Fired]:
        """Add rows, sorted by unit and place, each with the gap that follows it; return the windows that fire."""
        added = dict(by_unit(rows))
        names = self._visited(added)
        self._known = {name: UnitRecord.read(text) for name, text in self._records.get_many(names).items()}
        expired = self._drop_expired(names, added)
        self._buffer.append(rows)
        self._adds = rows.num_rows > 0
        known = {**self._known, **expired}
        self.records = {name: known.get(name, UnitRecord(self._new_state(), self._stamp)) for name in names}
        self.records.update({name: replace(self.records[name], stamp=self._stamp) for name in added})
        if self._form.is_session:
            fired = self._sessions(rows, gaps, names)
        else:
            fired = self._slides(added, names)
        self._enqueue(FIRE, ((record.due, name) for name, record in self.records.items() if self._is_due_new(name)))
        self._enqueue(CHANGED, ((self._moment.txid, name) for name in added if self._plan.early is not None))
        return self._sorted(fired)

    def adopt(self, tasks: int) -> None:
        """Take over the queued keys that are now of this task, after a change from another number of `tasks`."""
        queue = self._queue
        if queue is None:
            return
        for kind in (FIRE, DROP, EXPIRE, CHANGED):
            for task in range(tasks):
                name = queue_name(kind, task, tasks)
                entries = queue.scan(name)
                mine = [(at, unit) for at, unit in entries if self._plan.owner(unit) == self._task]
                self._enqueue(kind, mine)
                if entries and task % self._plan.parallelism == self._task:
                    queue.evict_before(entries[-1][0] + 1, name)

    def early(self, since: int) -> list[Fired]:
        """Return the open windows that got tuples after txid `since`; call after `evaluate`."""
        names = [unit_of_task(self._task)]
        queue = self._queue
        if queue is not None:
            names = sorted({name for _, name in queue.scan(self._name_of(CHANGED), since + 1, None)})
            queue.evict_before(self._moment.txid + 1, self._name_of(CHANGED))
        if self._moment.reached == END:
            return []  # no window is open; the next end would exceed the range of timestamps
        missing = [name for name in names if name not in self.records]
        found = {name: UnitRecord.read(text) for name, text in self._records.get_many(missing).items()}
        fired = []
        buffer = self._buffer
        for name in names:
            record = self.records.get(name) or found.get(name)
            state = self._new_state() if record is None else record.state
            rows = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
            if not self._form.is_session:
                low = earliest_open(self._form, state, self._moment)
                rows = rows_of(buffer.scan([name], low, None))
                first = position(rows, low)
                rows = rows.sliced(first, len(rows.times))
            windows = early(self._form, state, self._moment, rows, since, self._oldest(name))
            fired += [Fired(name, one) for one in windows]
        return self._sorted(fired)

    def save(self) -> None:
        """Write the records that have changed, and evict what no later window needs; call when windows are read."""
        if self._adds or self._plan.key is not None or self._has_expired():
            self._buffer.evict(self._needed)
        changed = {name: record.text() for name, record in self.records.items() if record != self._known.get(name)}
        self._records.put_many(changed)

    def _has_expired(self) -> bool:
        """Whether any tuple of the task is to be evicted; if not, a transaction without tuples leaves the buffer alone.

        Nothing is left before the place up to which earlier transactions have evicted.
        """
        name = unit_of_task(self._task)
        known, needed = self._known.get(name), self._needed.get(name)
        if needed is None:
            return False
        low = START if known is None else known.state.low
        return self._buffer.has(name, low, needed)

    def next_end(self) -> int | None:
        """Return the next time at which a window may fire without further tuples; None if there is none."""
        queue = self._queue
        if queue is None:
            record = self.records.get(unit_of_task(self._task))
            return None if record is None else record.due
        return next((at for at, _ in queue.scan(self._name_of(FIRE), limit=1)), None)

    # -- which units are looked at -------------------------------------------------------------------------------------

    def _visited(self, added: Mapping[str, pa.Table]) -> list[str]:
        queue, reached = self._queue, self._moment.reached
        if queue is None:
            return [unit_of_task(self._task)]
        names = dict.fromkeys(added)
        for kind, upto in ((FIRE, reached), (DROP, reached), (EXPIRE, self._stamp)):
            if upto is not None and (kind != EXPIRE or self._plan.ttl is not None):
                due = queue.scan(self._name_of(kind), None, upto)
                names.update(dict.fromkeys(name for _, name in due))
                if due:
                    queue.evict_before(min(upto, END - 1) + 1, self._name_of(kind))
        return list(names)

    def _drop_expired(self, names: Iterable[str], added: Mapping[str, pa.Table]) -> dict[str, UnitRecord]:
        """Drop the keys whose time to live is over, unless an end needs what they have.

        Returns the records of those that only ends that wait still have: the watermark had reached these ends before.
        """
        ttl, known, kept = self._plan.ttl, self._known, dict[str, UnitRecord]()
        if ttl is None or self._moment.watermark == END:
            return kept
        silent = [name for name in names if name in known and self._stamp - known[name].stamp >= ttl]
        needed, end = self._needed_keys(silent), self._moment.waiting_end(self._form)
        gone = [name for name in silent if name not in needed]
        if end is None:
            for name in gone:
                del known[name]
            if gone:
                self._buffer.clear(gone)
                self._records.remove_many(gone)
        else:
            for name in gone:
                state = replace(known[name].state, expired=(*known[name].state.expired, end))
                kept[name] = replace(known[name], state=state, stamp=self._stamp)
        since = {name: self._stamp if name in silent or name not in known else known[name].stamp for name in names}
        stays = ((at + ttl, name) for name, at in since.items() if name in known or name in added)
        self._enqueue(EXPIRE, stays)
        return kept

    def _needed_keys(self, names: Sequence[str]) -> set[str]:
        """Return the keys that have tuples, or open sessions, that an end will need."""
        if not names:
            return set()
        watermark = self._moment.watermark
        lows = {name: needed_from(self._form, self._known[name].state, watermark) for name in names}
        found = {}
        if not self._form.is_session:
            found = {name: rows_of(part) for name, part in by_unit(self._buffer.scan(names, min(lows.values()), None))}
        needed = set()
        for name in names:
            rows = found.get(name, Rows(np.zeros(0, np.int64), np.zeros(0, np.int64)))
            rows = rows.sliced(position(rows, lows[name]), len(rows.times))
            if is_needed(self._form, self._known[name].state, watermark, rows):
                needed.add(name)
        return needed

    def _new_state(self) -> FiringState:
        step, passed = self._form.step, self._moment.passed
        if self._plan.key is None or step is None or passed is None or passed == END:
            return FiringState()
        end = self._moment.last_end(step)
        assert end is not None
        return nothing_before(end_at(end))

    # -- firing --------------------------------------------------------------------------------------------------------

    def _sessions(self, rows: pa.Table, gaps: Times, names: Iterable[str]) -> list[Fired]:
        fired, at, none = [], 0, np.zeros(0, np.int64)
        added = {}
        for name, part in by_unit(rows):
            times = rows_of(part).times
            added[name] = (times, times + gaps[at : at + len(times)])
            at += len(times)
        for name in names:
            record = self.records[name]
            windows, state = fire_sessions(record.state, self._moment, *added.get(name, (none, none)))
            fired += [Fired(name, one) for one in windows]
            self._settle(name, state, state.open[0].end if state.open else None)
            if self._plan.key is not None and not state.open:
                self._dropped(name, state)
        return fired

    def _slides(self, added: Mapping[str, pa.Table], names: list[str]) -> list[Fired]:
        limit = self._moment.limit(self._form)
        if limit is None:
            for name, rows in added.items():
                record = self.records[name]
                first = self._next_end(record.state, rows_of(rows).times)
                dues = [one for one in (record.due, first) if one is not None]
                self.records[name] = replace(record, due=min(dues, default=None))
            return []
        if not names:
            return []
        keyed = self._plan.key is not None
        start = min(self.records[name].state.covered for name in names)
        whole = keyed or self._moment.stamped or self._moment.closing is not None
        table = self._buffer.scan(names, start, None if whole else limit)
        found = dict(by_unit(table))
        fired = []
        for name in names:
            rows = rows_of(found.get(name, table.slice(0, 0)))
            fired += self._slide(name, rows, limit)
        return fired

    def _slide(self, name: str, rows: Rows, limit: Place) -> list[Fired]:
        state = self.records[name].state
        first, last = position(rows, state.covered), position(rows, limit)
        fresh, more = rows.sliced(first, last), last < len(rows.times)
        windows, after = fire(self._form, state, self._moment, fresh, self._oldest(name), more=more)
        self._settle(name, after, self._next_end(after, rows.times[last:]))
        step = self._form.step
        if self._plan.key is not None and step is not None and self._form.span is not None:
            passed = None if limit.time == END else limit.time
            if passed is None or after.last_end != passed:
                self._dropped(name, after)
            elif self.records[name].due != passed + step:
                self._enqueue(DROP, [(passed + step, name)])
        return [Fired(name, one) for one in windows]

    def _settle(self, name: str, state: FiringState, due: int | None) -> None:
        """Keep the record of a unit, and note what no later window needs."""
        before = self.records[name].state
        self.records[name] = replace(self.records[name], state=state, due=due)
        if state.low > max(before.low, START):
            self._needed[name] = state.low

    def _dropped(self, name: str, state: FiringState) -> None:
        """Forget a key whose last window end found no content; what it has got for later ends stays.

        That can be a tuple of the very time of that end, which came after the watermark had reached it.
        """
        record = self.records[name]
        self._needed[name] = Place(min(state.covered.time, END - 1) + (record.due is None), 0)
        if record.due is None:
            del self.records[name]
            self._records.remove(name)
            self._known.pop(name, None)
        else:
            self.records[name] = replace(record, state=nothing_before(state.covered, state.expired))

    def _next_end(self, state: FiringState, pending: Times) -> int | None:
        """Return the next time at which the unit fires, or might count a tuple, if nothing more comes."""
        step, span = self._form.step, self._form.span
        if step is None:
            return int(pending[0]) if len(pending) else None
        passed = self._moment.last_end(step) if self._moment.limit(self._form) is None else self._moment.reached
        if span is None:
            following = [] if passed is None or passed == END else [(passed // step + 1) * step]
            if state.kept:
                return following[0] if following else None
            return max([-(-int(pending[0]) // step) * step, *following]) if len(pending) else None
        times = pending if state.newest is None else np.concatenate(([np.int64(state.newest)], pending))
        return next(covering_ends(times, step, span, passed, None), None) if passed != END else None

    def _oldest(self, name: str) -> Oldest:
        return partial(self._buffer.oldest, name)

    def _is_due_new(self, name: str) -> bool:
        due, known = self.records[name].due, self._known.get(name)
        reached = self._moment.reached
        if due is None:
            return False
        # An entry up to the watermark has left the queue.
        return known is None or known.due != due or (reached is not None and due <= reached)

    def _enqueue(self, kind: str, entries: Iterable[tuple[int | None, str]]) -> None:
        if self._queue is not None:
            self._queue.append_many((self._name_of(kind), at, name) for at, name in entries)

    def _name_of(self, kind: str) -> str:
        return queue_name(kind, self._task, self._plan.parallelism)

    def _sorted(self, fired: list[Fired]) -> list[Fired]:
        if self._plan.key is None:
            return fired
        keys = {one.unit: canonical(value_of(one.unit)) for one in fired}
        return sorted(fired, key=lambda one: (one.window.end, keys[one.unit]))
