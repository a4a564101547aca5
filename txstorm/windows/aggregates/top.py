"""Top per window: the results of a window aggregate with the greatest values, per window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import AssembledBolt, AssembledCommitter, Assembly, Results, Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import CollectionState
from txstorm.errors import InputError
from txstorm.keys import groups_of, hash_rows, tasks_of
from txstorm.row_order import order_of
from txstorm.typed import restored
from txstorm.windows.aggregates.groups import Groups, Numbers, integers, numbered, ranked, whole
from txstorm.windows.aggregates.panes import WINDOW_END
from txstorm.windows.aggregates.partials import GROUP
from txstorm.windows.aggregates.result_rows import INSTANT, among
from txstorm.windows.rules.event_time import END
from txstorm.windows.rules.forms import BOUNDS, BoundNames

GONE = "window_gone"
"""Column of kept results: whether the result no longer holds."""
RANK = "rank"


class TopPerWindow(AssembledBolt):
    """The results with the `n` greatest values of a field, per window: SQL's ``RANK() <= n``, so ties are all emitted.

    Subscribe it to a `WindowAggregate`. It emits the fields of the results, and ``rank``, ordered by end, rank and
    order of arrival; values of None and NaN have no rank. If the results can change, because the aggregate has an
    allowed lateness, changed top results are emitted again, after the old ones on the stream ``retractions``::

        builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("counts")

    Args:
        n: the highest rank that is emitted.
        by: the field whose values are compared.
        names: what its input calls ``start`` and ``end``; a `WindowAggregate` directly before it says so itself.

    Raises:
        InputError: `n` is no int of at least 1, `by` no name of a field, or `names` no names of the two columns.
    """

    def __init__(self, n: int, by: str, names: Mapping[str, str] | None = None) -> None:
        if type(n) is not int or n < 1:
            raise InputError(f"TopPerWindow: expected a number of ranks, an int of at least 1, got {n!r}")
        bounds = BoundNames.of("TopPerWindow", names)
        if not isinstance(by, str) or not by or by in bounds:
            raise InputError(f"TopPerWindow: expected the name of a field with values to compare, got {by!r}")
        self.n, self.by, self.bounds = n, by, None if names is None else bounds

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that ranks."""
        first = site.inputs[0] if site.inputs else None
        fields = () if first is None else first.fields or ()
        results = None if first is None else first.results
        bounds = self.bounds or BOUNDS
        if results is not None and results.start is not None:
            bounds = BoundNames(results.start, results.time)
        faults = list(_faults(self, site, bounds))
        changing = None if results is None or results.final else results
        if changing is not None:
            assert first is not None
            if changing.retractions is None:
                faults.append(
                    f"TopPerWindow: the results of {first.component!r} can change, since it has an allowed lateness; "
                    "let it report which: WindowAggregate(…, retractions=True)"
                )
            elif first.grouping == "fields" and first.grouped_by != (bounds.end,):
                only = f"group them by {bounds.end!r} only"
                faults.append(f"TopPerWindow: the results of {first.component!r} can change; {only}")
            if len(site.inputs) > 1:
                faults.append("TopPerWindow: results that can change must be its only input")
        plan = RankPlan(site.id, self.n, self.by, fields, bounds, None if results is None else results.ends_of)
        if changing is None or first is None or faults:
            return Assembly(RankPerWindow(plan), tuple(faults))
        tasks = 1 if first.grouping == "global" else site.parallelism
        return Assembly(ChangingRanks(plan, first.component, changing, tasks), ())


def _faults(bolt: TopPerWindow, site: Site, bounds: BoundNames) -> Iterator[str]:
    """Yield the faults of a declaration that only show in its topology."""
    if bolt.bounds not in (None, bounds):
        called = " and ".join(map(repr, bounds))
        yield f"TopPerWindow: names: its input calls the bounds of windows {called} itself; leave names out"
    if bolt.by in bounds:
        yield f"TopPerWindow: {bolt.by!r} is a bound of the windows; rank by a field with values"
    fields = next((one.fields for one in site.inputs if one.fields is not None), ())
    for one in site.inputs:
        if one.fields is None:
            continue
        for fault in one.missing("TopPerWindow", (*bounds, bolt.by)):
            yield f"{fault}; subscribe it to a WindowAggregate, or say with names what the bounds of windows are called"
        if RANK in one.fields:
            yield f"TopPerWindow: {one.where} has a field {RANK!r}, which it adds itself; rename it upstream"
        if one.fields != fields:
            yield f"TopPerWindow: {one.where} has other fields than its other inputs; subscribe it to one of them"
        split = one.grouping == "fields" and set(one.grouped_by) <= set(bounds)
        if site.parallelism > 1 and one.grouping != "global" and not split:
            yield (
                f"TopPerWindow: its input {one.component!r} is grouped by {one.grouping}, so two tasks may get results "
                f"of one window; use {one.grouping_by([bounds.end])}"
            )


@dataclass(frozen=True)
class RankPlan:
    """Plan of a `TopPerWindow`: its id, the highest rank, the field that is compared, the fields of its input.

    `bounds`: those of them with the bounds of windows.
    `ends_of`: the closed side of the windows that are ranked; None: unknown.
    """

    id: str
    n: int
    by: str
    fields: tuple[str, ...]
    bounds: BoundNames
    ends_of: str | None = None

    def top(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the lowest ranks in their windows, by end and rank, with their rank."""
        ranks = window_ranks(rows, self.by, self.bounds)
        chosen = np.flatnonzero((ranks > 0) & (ranks <= self.n))
        chosen = chosen[order_of(integers(rows.column(self.bounds.end))[chosen], ranks[chosen])]
        return rows.take(pa.array(chosen)).append_column(RANK, pa.array(ranks[chosen]))


class RankPerWindow(AssembledCommitter):
    """Committer that takes the place of a `TopPerWindow` whose input has all results of a window in one transaction."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        results = Results(plan.bounds.end, None, (), final=True, retractions=None, columns={}, ends_of=plan.ends_of)
        self.published = {DEFAULT_STREAM: results}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields of the results, and the rank."""
        declarer.declare(*self.plan.fields, RANK)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: Any) -> None:
        """Take results."""
        self._batches.append(batch.select(self.plan.fields))

    def finish_batch(self) -> None:
        """Emit the results with the lowest ranks."""
        if self._batches:
            tables = [pa.Table.from_batches([one]) for one in self._batches]
            top = self.plan.top(pa.concat_tables(tables, promote_options="permissive"))
            if top.num_rows:
                self._collector.emit_batch(top)


class ChangingRanks(RankPerWindow):
    """Committer that takes the place of a `TopPerWindow` whose input can change.

    It keeps the results of the windows that can change: one row per result and change of it, of which the last counts.
    The frontier of its input evicts them.

    Args:
        plan: the plan.
        source: the component whose results are ranked.
        results: what is known of them.
        parallelism: number of the tasks that get results.
    """

    def __init__(self, plan: RankPlan, source: str, results: Results, parallelism: int) -> None:
        super().__init__(plan)
        assert results.retractions is not None
        assert results.frontier is not None
        self.source, self.retractions, self.frontier = source, results.retractions, results.frontier
        self.identity = [*plan.bounds, *results.key]
        self.parallelism = parallelism
        columns = {**dict.fromkeys(plan.bounds, INSTANT), **results.columns}
        ranked_by = {"ranks": f"{plan.n} by {plan.by}"}  # what was emitted is taken back by them
        self.kept = CollectionState(
            f"{plan.id}-results", {GROUP: int}, {**columns, GONE: bool}, order={WINDOW_END: int}, fixed=ranked_by
        )
        self.internal_states = {self.kept.name}
        self.also_reads = ((source, results.retractions), (source, results.frontier))
        self._schema = pa.schema({name: columns[name] for name in plan.fields})

    def retention(self, state: str) -> str:
        """Describe for how long the kept results stay."""
        return "evicted when its input cannot change any more"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields of the results with the rank, and the stream of those that no longer hold."""
        super().declare_output_fields(declarer)
        declarer.declare_stream(self.retractions, (*self.plan.fields, RANK))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._context = context
        self._gone: list[pa.RecordBatch] = []
        self._reached: int | None = None

    def execute_batch(self, batch: Any) -> None:
        """Take results, results that no longer hold, or the frontier."""
        source = self._context.source
        if source is not None and source[:2] == (self.source, self.frontier):
            self._reached = batch.column(0)[-1].as_py()
        elif source is not None and source[:2] == (self.source, self.retractions):
            self._gone.append(batch.select(self.plan.fields))
        else:
            super().execute_batch(batch)

    def finish_batch(self) -> None:
        """Emit what has become one of the top results, after what no longer is one."""
        stored = self._context.collection(self.kept.name)
        gone, new = self._rows(self._gone), self._rows(self._batches)
        # All tasks get all that no longer holds.
        gone = gone.filter(pa.array(tasks_of(np.asarray(self._groups(gone)), self.parallelism) == self._context.task))
        changes = pa.concat_tables([_flagged(gone, gone=True), _flagged(new, gone=False)])
        if changes.num_rows:
            ends = integers(changes.column(self.plan.bounds.end))
            groups = pa.table({GROUP: self._groups(changes).unique()})
            found = stored.scan_table(groups, int(ends.min()), int(ends.max())).select(changes.column_names)
            found = found.filter(pa.array(among(found, changes, [*self.plan.bounds])))
            before, after = self._top(found), self._top(pa.concat_tables([found, changes]))
            old = before.filter(pa.array(~among(before, after, before.column_names)))
            made = after.filter(pa.array(~among(after, before, before.column_names)))
            if old.num_rows:
                self._collector.emit_batch(old, stream=self.retractions)
            if made.num_rows:
                self._collector.emit_batch(made)
            places = {GROUP: self._groups(changes), WINDOW_END: pa.array(ends)}
            stored.append_batch(pa.table({**places, **dict(zip(changes.column_names, changes.columns, strict=True))}))
        if self._reached is not None:
            stored.evict_before(min(self._reached, END - 1) + 1)

    def _rows(self, batches: list[pa.RecordBatch]) -> pa.Table:
        return pa.concat_tables([restored(pa.Table.from_batches([one]), self._schema) for one in batches] or
                                [self._schema.empty_table()])  # fmt: skip

    def _top(self, changes: pa.Table) -> pa.Table:
        """Return the top results after changes, of which the last of each result counts."""
        codes, limit = numbered([whole(changes.column(name)) for name in self.identity], changes.num_rows)
        groups = Groups.of(codes, limit)
        last = np.sort(groups.greatest(np.zeros(changes.num_rows, np.int64)))
        rows = changes.take(pa.array(last))
        return self.plan.top(rows.filter(pc.invert(rows.column(GONE))).drop_columns([GONE]))

    def _groups(self, rows: pa.Table) -> pa.Array:
        return pa.array(groups_of(hash_rows([whole(rows.column(self.plan.bounds.end))], rows.num_rows)))


def _flagged(rows: pa.Table, *, gone: bool) -> pa.Table:
    return rows.append_column(GONE, pa.array(np.full(rows.num_rows, gone)))


def window_ranks(rows: pa.Table, by: str, bounds: BoundNames) -> Numbers:
    """Return the rank of each row in its window: 1 for the greatest value, equal ranks for equal ones; 0 for None."""
    codes, _ = numbered([whole(rows.column(name)) for name in bounds], rows.num_rows)
    values = ranked(whole(rows.column(by)))
    order = order_of(codes, -values)
    codes, values = codes[order], values[order]
    places = np.arange(len(order))
    window = np.r_[True, codes[1:] != codes[:-1]]
    other = window | np.r_[True, values[1:] != values[:-1]]
    begin = np.maximum.accumulate(np.where(window, places, 0))
    place = np.maximum.accumulate(np.where(other, places, 0))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.where(values < 0, 0, place - begin + 1)
    return ranks
