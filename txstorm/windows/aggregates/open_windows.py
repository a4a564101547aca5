"""Open windows: the partial aggregates that a task keeps, and which windows they make final in a transaction.

One class for windows that slide by time, one for sessions. Both look at as many rows as are new, or as the windows that
fire have; nothing grows with the number of windows that are over, whose rows one bound evicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.state import CollectionState
from txstorm.keys import KEY_GROUPS
from txstorm.windows.aggregates.cells import TUPLES
from txstorm.windows.aggregates.groups import Groups, Mask, Numbers, integers
from txstorm.windows.aggregates.panes import PANE, WINDOW_END, WINDOW_START, Panes
from txstorm.windows.aggregates.partials import GROUP, AggregatePlan
from txstorm.windows.aggregates.result_rows import ResultRows, among, distinct, results_of
from txstorm.windows.aggregates.sessions import Sessions, live
from txstorm.windows.rules.backlog import Backlog
from txstorm.windows.rules.event_time import END


@dataclass(frozen=True)
class Outcome:
    """Outcome of adding rows.

    Attributes:
        late: which of the rows are late.
        old, new: results that no longer hold, and results that now do.
        without: windows that have fired without a result; see `results_of`.
    """

    late: Mask
    old: pa.Table
    new: pa.Table
    without: pa.Table


def states_of(plan: AggregatePlan) -> list[CollectionState]:
    """Declare what the open windows of a component are kept in."""
    id, columns = plan.windows.id, plan.cells.columns
    if plan.panes is not None:
        return [CollectionState(f"{id}-panes", {GROUP: int}, columns, order={PANE: int})]
    keys = {one.name: one.kind for one in plan.cells.keys}
    cells = {name: kind for name, kind in columns.items() if name not in keys}
    sessions = CollectionState(f"{id}-sessions", keys, {WINDOW_START: int, **cells}, order={WINDOW_END: int})
    return [sessions, CollectionState(f"{id}-due", {GROUP: int}, keys, order={WINDOW_END: int})]


def open_windows(
    plan: AggregatePlan, context: TaskContext, results: ResultRows, ends: tuple[Backlog, Backlog]
) -> OpenPanes | OpenSessions:
    """Return the open windows of a task; `ends`: those that have not fired, before and after the transaction."""
    panes = plan.panes
    return OpenSessions(plan, context) if panes is None else OpenPanes(plan, panes, context, results, ends)


class OpenPanes:
    """Open windows that slide by time, as partial aggregates per pane.

    A row that comes while ends wait which the watermark had reached is in none of these windows. The number of the
    windows of its pane that it is not in is in the high bits of its key group.
    """

    def __init__(
        self,
        plan: AggregatePlan,
        panes: Panes,
        context: TaskContext,
        results: ResultRows,
        ends: tuple[Backlog, Backlog],
    ) -> None:
        self._plan = plan
        self._cells = plan.cells
        self._panes = panes
        self._results = results
        self._before, self._after = ends
        self._own = plan.own_groups(context.task)
        self._stored = context.collection(f"{plan.windows.id}-panes")

    def add(self, rows: pa.Table, passed: int | None, reached: int | None) -> Outcome:
        """Add partial aggregates, and fire the windows that the watermark, now `reached`, has passed."""
        panes, all_panes = self._panes, integers(rows.column(PANE))
        covered = panes.covered(all_panes)
        late = np.zeros(rows.num_rows, bool) if passed is None else covered & (all_panes < panes.needed(passed))
        rows = self._plan.combined(rows.filter(pa.array(covered & ~late)))
        skipped = np.zeros(rows.num_rows, np.int64)
        if passed is not None and self._before.held is not None:
            skipped = panes.skipped(integers(rows.column(PANE)), panes.open_end(passed))
            skipped[integers(rows.column(PANE)) > self._before.held] = 0
        new, without = results_of(self._cells, self._empty())
        old = new
        if passed is not None and panes.lateness and rows.num_rows:
            new, without = results_of(self._cells, self._touched(rows, passed))
            if new.num_rows or without.num_rows:
                ends = [*self._cells.key_names, self._cells.bounds.end]
                old = self._results.standing(
                    pa.concat_tables([new.select(ends), without.select(ends)]), new.column_names
                )
        fired = self._after.fired
        if fired is not None and fired != self._before.fired:
            found, failed = results_of(self._cells, self._fired(rows, skipped, fired))
            new, without = pa.concat_tables([new, found]), pa.concat_tables([without, failed])
        self._keep(rows, skipped, fired)
        return Outcome(late, old, new, without)

    def next_end(self, reached: int, newest: int | None) -> int | None:
        """Return the next end after `reached` of a window that covers the `newest` pane, or an earlier one."""
        if newest is None:
            return None
        following = self._panes.next_end(reached)
        one = np.array([newest])
        last, first = int(self._panes.last_ends(one)[0]), int(self._panes.first_ends(one)[0])
        if last < following:
            return None
        return following if self._panes.span >= self._panes.step else max(following, first)

    def _fired(self, rows: pa.Table, skipped: Numbers, reached: int) -> pa.Table:
        """Return the windows up to `reached` that have not fired; `skipped`: see `Panes.windows`."""
        panes, passed = self._panes, self._before.fired
        low = None if passed is None else panes.next_end(passed)
        if low is not None and low > reached:
            return self._empty()
        start = None if low is None else panes.first_of(low)
        end = None if reached == END else reached // panes.step * panes.step
        stored, before = self._scan(self._own, start, end)
        both = pa.concat_tables([stored.select(rows.column_names), rows])
        return panes.windows(self._cells, both, low, reached, np.r_[before, skipped])

    def _scan(self, groups: pa.Table | None, start: int | None, end: int | None) -> tuple[pa.Table, Numbers]:
        """Return the rows of key groups with panes from `start` to `end`, and of how many windows each is not."""
        held = self._before.held
        if held is None or (start is not None and start > held):
            found = self._stored.scan_table(groups, start, end)
            return found, np.zeros(found.num_rows, np.int64)
        found = self._stored.scan_table(None, start, end)
        places = integers(found.column(GROUP))
        if groups is not None:
            mine = np.isin(places % KEY_GROUPS, integers(groups.column(GROUP)))
            found, places = found.filter(pa.array(mine)), places[mine]
        order = np.argsort(places // KEY_GROUPS, kind="stable")  # the later a row has come, the fewer windows it is in
        return found.take(pa.array(order)), places[order] // KEY_GROUPS

    def _touched(self, rows: pa.Table, passed: int) -> pa.Table:
        """Return the windows, among those that have fired, to which `rows` add something."""
        panes, cells = self._panes, self._cells
        assert self._before.fired is not None
        low, high = panes.open_end(passed), min(passed, self._before.fired) // panes.step * panes.step
        if low > high:
            return self._empty()
        touched = panes.windows(cells, rows, low, high)
        if not touched.num_rows:
            return touched
        keys, _ = distinct(touched, cells.key_names)
        groups = self._plan.groups(keys)
        stored, _ = self._scan(pa.table({GROUP: groups.unique()}), panes.first_of(low), high)
        both = pa.concat_tables([stored.select(rows.column_names), rows])
        both = both.filter(pa.array(among(both, keys, cells.key_names)))
        every = panes.windows(cells, both, low, high)
        return every.filter(pa.array(among(every, touched, [*cells.key_names, WINDOW_END])))

    def _keep(self, rows: pa.Table, skipped: Numbers, reached: int | None) -> None:
        """Keep what windows after `reached` need; `skipped`: see `Panes.windows`."""
        if reached is not None:
            needed = self._panes.needed(reached)
            later = integers(rows.column(PANE)) >= needed
            rows, skipped = rows.filter(pa.array(later)), skipped[later]
            self._stored.evict_before(needed)
        if rows.num_rows:
            groups = integers(pa.chunked_array([self._plan.groups(rows)]))
            self._stored.append_batch(rows.append_column(GROUP, pa.array(groups + skipped * KEY_GROUPS)))

    def _empty(self) -> pa.Table:
        return self._cells.empty(**{WINDOW_START: pa.int64(), WINDOW_END: pa.int64()})


class OpenSessions:
    """Open sessions, by key, and a queue of the keys by the ends of their sessions.

    A session that grows is stored again, which shows that its earlier row does not count any more; the bound evicts
    both. The queue has an entry for each session at an end that it had at some time. When an entry is due and its
    session has grown, there is a new entry for it, so a session costs one entry per gap, however often it grows.
    """

    def __init__(self, plan: AggregatePlan, context: TaskContext) -> None:
        self._plan = plan
        self._cells = plan.cells
        self._own = plan.own_groups(context.task)
        self._stored = context.collection(f"{plan.windows.id}-sessions")
        self._due = context.collection(f"{plan.windows.id}-due")

    def add(self, rows: pa.Table, passed: int | None, reached: int | None) -> Outcome:
        """Add partial aggregates, and fire the sessions that the watermark, now `reached`, has passed."""
        cells, due = self._cells, self._due_keys(passed, reached)
        keys = pa.concat_tables([rows.select(cells.key_names), due])
        before, often = self._live(self._stored.scan_table(keys if keys.num_rows else []))
        sessions = Sessions.of(cells, pa.concat_tables([before.select(rows.column_names), rows]))
        count = before.num_rows
        is_new = np.arange(count + rows.num_rows) >= count
        grown, known = sessions.having(is_new), sessions.having(~is_new)
        ends = sessions.ends
        late = np.zeros(len(ends), bool)
        if passed is not None:
            late = ~known & (ends <= passed - self._plan.lateness)
        fires = np.zeros(len(ends), bool)
        if reached is not None:
            fires = ~late & (ends <= reached) & (grown | (ends > (-END if passed is None else passed)))
        changed = grown[sessions.groups.of_row[:count]]
        fired = np.zeros(count, bool) if passed is None else integers(before.column(WINDOW_END)) <= passed
        made, of_row = sessions.table(cells)
        self._keep(made, (grown & ~late)[of_row], often, reached)
        waits = sessions.having(np.r_[~fired, np.zeros(rows.num_rows, bool)])
        self._wait(sessions, made.slice(0, len(ends)), grown & ~late & ~waits, due, reached)
        old, _ = results_of(cells, before.select(made.column_names).filter(pa.array(changed & fired)))
        new, without = results_of(cells, made.filter(pa.array(fires[of_row])))
        return Outcome(late[sessions.groups.of_row[count:]], old, new, without)

    def next_end(self, reached: int, newest: int | None) -> int | None:
        """Return the first end of a session after `reached`."""
        if reached == END:
            return None
        waiting, _ = self._live(self._stored.scan_table(None, reached + 1, None))
        return int(integers(waiting.column(WINDOW_END)).min()) if waiting.num_rows else None

    def _due_keys(self, passed: int | None, reached: int | None) -> pa.Table:
        """Return the keys with an entry of the queue that the watermark, now `reached`, has passed."""
        names = self._cells.key_names
        if reached is None or reached == passed:
            return self._cells.empty().select(names)
        return self._due.scan_table(self._own, None if passed is None else passed + 1, reached).select(names)

    def _live(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return those of stored rows that are live sessions, and the keys of which many are not."""
        names = self._cells.key_names
        codes, limit = self._cells.numbered(rows)
        sessions = np.flatnonzero(integers(rows.column(TUPLES)))  # parts of a sum follow the row of their session
        starts, lasts = (integers(rows.column(name)) for name in (WINDOW_START, WINDOW_END))
        alive = np.zeros(rows.num_rows, bool)
        alive[sessions] = live(codes[sessions], starts[sessions], lasts[sessions])
        alive = alive[np.maximum.accumulate(np.where(integers(rows.column(TUPLES)) > 0, np.arange(rows.num_rows), 0))]
        if alive.all():
            return rows, rows.select(names).slice(0, 0)
        over = np.flatnonzero(~alive)
        groups = Groups.of(codes[over], limit)
        often = groups.first[np.bincount(groups.of_row) >= _REPLACED]
        return rows.filter(pa.array(alive)), rows.select(names).take(pa.array(over[often]))

    def _keep(self, made: pa.Table, written: Mask, often: pa.Table, reached: int | None) -> None:
        """Write sessions that have changed, and evict those that take no more tuples."""
        names = self._cells.key_names
        if often.num_rows:
            self._stored.remove_many(often)  # all rows of these keys; those that are live are written again
            written = written | among(made, often, names)
        if reached is not None:
            over = min(reached - self._plan.lateness, END - 1)
            written = written & (integers(made.column(WINDOW_END)) > over)
            self._stored.evict_before(over + 1)
        if written.any():
            self._stored.append_batch(made.filter(pa.array(written)))

    def _wait(self, sessions: Sessions, made: pa.Table, new: Mask, due: pa.Table, reached: int | None) -> None:
        """Add entries to the queue: for sessions that have none, and for those that have grown since theirs."""
        if reached is not None:
            self._due.evict_before(min(reached, END - 1) + 1)
            again = ~new & (sessions.starts < reached) & (sessions.ends > reached)
            picked = np.flatnonzero(again)
            if len(picked) and due.num_rows:
                new = new.copy()
                new[picked] = among(made.take(pa.array(picked)), due, self._cells.key_names)
            new = new & (sessions.ends > reached)
        if new.any():
            entries = made.select([WINDOW_END, *self._cells.key_names]).filter(pa.array(new))
            self._due.append_batch(entries.append_column(GROUP, self._plan.groups(entries)))


_REPLACED = 16
"""Number of rows of a key that are not live any more from which on they are removed before the bound evicts them."""
