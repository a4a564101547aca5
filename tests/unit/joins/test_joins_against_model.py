"""Random schedules of interval joins in memory, with failures and restarts, against a naive model (A2, A5, A6).

The committer runs over tables in memory: rows are really evicted, and attempts can be discarded. ``SEED=n`` starts with
that schedule; a failure names the seed of its schedule. ``SCHEDULES`` is the number of them. The first 40 take all
branches of the rules and of the committer.
"""

import os
import random
from copy import copy

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from join_model import JoinModel
from join_schedules import FIELDS, NAMES, cut, join_of, join_rules, join_schedule, of_side, ordered_rows, streams_of
from window_schedules import changed

from txstorm.api.assembly import Site, SiteInput
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import PlanFacts, SourceFacts, TaskContext
from txstorm.api.names import DEFAULT_STREAM, map_side_id
from txstorm.joins.interval.join_records import TaskRecord, unit_of_task
from txstorm.windows.newest import REPORTED


class Records(dict):
    """A keyed state."""

    def get_many(self, keys):
        return {key: self[key] for key in keys if key in self}

    put = dict.__setitem__


class MemoryRows:
    """A collection state; what one attempt writes is not seen by another before `commit`."""

    def __init__(self, tables=(), cut=None, kept=None):
        self.tables, self.cut, self.kept, self.next_cut = list(tables), cut, kept, cut
        self.order = "txid" if self.tables and "txid" in self.tables[0].column_names else "time"

    def attempt(self):
        return MemoryRows(self.tables, self.cut, self.kept)

    def append_batch(self, rows):
        self.tables.append(rows)

    def evict_before(self, place):
        if self.next_cut is None or place > self.next_cut:
            self.next_cut = place

    def scan_table(self, keys=None, start=None, end=None):
        assert keys is None
        rows = pa.concat_tables(self.tables)
        low = start if self.cut is None else self.cut if start is None else max(start, self.cut)
        if low is not None:
            rows = rows.filter(pc.greater_equal(rows["time"], low))
        if end is not None:
            rows = rows.filter(pc.less_equal(rows["time"], end))
        return rows.sort_by([("time", "ascending")])  # stable

    def scan_parts(self, function, start=None, end=None):
        rows = self.scan_table(None, start, end)
        half = rows.num_rows // 2
        return function(iter([rows.slice(half), rows.slice(0, half)]))  # in no order

    def recall(self):
        kept, self.kept = self.kept, None
        return kept

    def remember(self, value):
        self.kept = value

    def commit(self):
        cut = self.next_cut
        tables = [one if cut is None else one.filter(pc.greater_equal(one[self.order], cut)) for one in self.tables]
        return MemoryRows([one for one in tables if one.num_rows] or tables[:1], cut, self.kept)

    def append(self, key, place, value):
        """Take rows that come and go in one transaction, which only the history of a key reads."""

    @property
    def ids(self):
        return sorted([int(id) for one in self.tables for id in one["id"].to_pylist()])


class Emitted(dict):
    """A collector: stream → tuples."""

    def emit(self, *values, stream=DEFAULT_STREAM):
        self.setdefault(stream, []).append(values)

    def emit_batch(self, batch, stream=DEFAULT_STREAM):
        self.setdefault(stream, []).extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def rows(self, stream=DEFAULT_STREAM):
        return self.get(stream, [])


class JoinMachine:
    """One task of the join that `bolt` declares; `subscribed`: the streams that are read, None: all."""

    def __init__(self, bolt, subscribed=None):
        self.subscribed = subscribed
        inputs = tuple(SiteInput("feed", name, FIELDS, frozenset({name}), "fields", ("key",)) for name in NAMES)
        made = bolt.assemble(Site("join", 1, inputs, ()))
        assert not made.faults, made.faults
        self.committer = made.committer
        self.plan = self.committer.plan
        self.stages = [self.committer.map_side("feed", name, FIELDS) for name in NAMES]
        self.records = Records()
        self.rows = {one.name: MemoryRows([schema_of(one).empty_table()]) for one in self.plan.states}

    def transaction(self, txid, step, rows):
        """Process a transaction; return what it emits, and a function that commits it."""
        attempt = TransactionAttempt(txid, 1)
        kind = "end" if step.end else "data"
        sources = {"l": SourceFacts(), "r": SourceFacts(caught_up=step.caught_up)}
        context = TaskContext("t", "join", 0, 1, attempt=attempt, stamp=step.stamp, facts=PlanFacts(kind, sources))
        context.subscribed = self.subscribed
        records, tables, emitted = Records(self.records), {n: one.attempt() for n, one in self.rows.items()}, Emitted()
        context.resources = Tables(records, tables)
        context.alarm = lambda when: None
        committer = copy(self.committer)
        committer.prepare(context, emitted, attempt)
        for name, stage, tuples in zip(NAMES, self.stages, streams_of(rows).values(), strict=True):
            if tuples:
                self.process(committer, context, attempt, name, stage, tuples)
        committer.finish_batch()

        def commit():
            self.records, self.rows = records, {name: one.commit() for name, one in tables.items()}

        return emitted, commit

    def process(self, committer, context, attempt, name, stage, tuples):
        columns = [list(column) for column in zip(*tuples, strict=True)]
        batch = pa.RecordBatch.from_arrays([pa.array(one) for one in columns], list(FIELDS))
        made, stage = MapSide(), copy(stage)
        stage.prepare(context, made, attempt)
        stage.execute_batch(batch)
        stage.finish_batch()
        for source, some in ((map_side_id("join", "feed", name), made.batches), ("everywhere", made.newest)):
            for one in some:
                stream = DEFAULT_STREAM if source != "everywhere" else "everywhere"
                context.source = (map_side_id("join", "feed", name), stream, 0)
                committer.execute_batch(one)

    def counted(self, name):
        return getattr(TaskRecord.read(self.records.get(unit_of_task(0))), name)

    def restart(self):
        """Forget what is held in memory."""
        for one in self.rows.values():
            one.kept = None


class MapSide:
    """Collector of a map-side stage."""

    def __init__(self):
        self.batches, self.newest = [], []

    def emit_batch(self, batch):
        self.batches.append(batch)

    def emit(self, *values, stream):
        self.newest.append(pa.RecordBatch.from_arrays([pa.array([one]) for one in values], list(REPORTED)))


class Tables:
    """Access of the committer to its tables."""

    def __init__(self, records, tables):
        self.records, self.tables = records, tables

    def state(self, component, task, name):
        return self.records

    def collection(self, component, task, name, tasks=1):
        return self.tables[name]


def schema_of(state):
    from txstorm.api.state import arrow_type

    columns = {**state.key, **state.order, **state.value}
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])


FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "100"))
LONG = 96 * SCHEDULES


@pytest.mark.parametrize("largest", [None, 3])
def test_random_schedules_with_failures_join_what_the_model_joins(largest, monkeypatch):
    """Each left row exactly once, each pair at most once and within bounds, and none too early (U6, U9, A20)."""
    if largest:  # blocks of few rows, mapped from files
        for module in ("rules.blocks", "rules.matching", "interval.interval_rows"):
            monkeypatch.setattr(f"txstorm.joins.{module}.LARGEST", largest)
    for seed in range(FIRST + bool(largest), FIRST + SCHEDULES, 2):
        run_named(run_schedule, seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(8))
def test_many_random_schedules_join_what_the_model_joins(part):
    first = FIRST + SCHEDULES + part * LONG // 8
    for seed in range(first, first + LONG // 8):
        run_named(run_schedule, seed)
        if seed % 40 == 0:
            run_named(run_cuts, seed)


def test_other_batch_cuts_change_no_total():
    """If no side is out of order by more than its lag."""
    for seed in range(FIRST, FIRST + SCHEDULES // 10):
        run_named(run_cuts, seed)


def run_named(run, seed):
    try:
        run(seed)
    except BaseException as error:
        error.add_note(f"SEED={seed}")
        raise


def run_schedule(seed):
    rng = random.Random(seed)
    rules = join_rules(rng)
    machine, model = JoinMachine(join_of(rules), rng.choice([None, frozenset()])), JoinModel(rules)
    pending, released, pairs, never = set(), set(), set(), 0
    for txid, step in enumerate(join_schedule(rng, rules), start=1):
        rows = step.rows
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            machine.transaction(txid, step, rows)  # fails
            rows = changed(rng, rows, 3) if rng.random() < 0.5 else rows
            if rng.random() < 0.3:
                machine.restart()
        emitted, commit = machine.transaction(txid, step, rows)
        commit()
        left, right = of_side(rows, 0), of_side(rows, 1)
        outcome = model.transaction(txid, step.stamp, left, right, caught_up=step.caught_up, end=step.end)
        where = f"SEED={seed}, txid {txid}, {rules}"
        assert emitted.rows() == outcome.pairs, where
        never += len(outcome.unmatched_right)
        assert machine.counted("unmatched_right") == never, where
        if machine.subscribed is None:
            assert [row[3] for row in emitted.rows("unmatched_left")] == outcome.unmatched_left, where
            assert [row[3] for row in emitted.rows("unmatched_right")] == outcome.unmatched_right, where
        else:
            assert not emitted.keys() & {"unmatched_left", "unmatched_right"}, where
        assert machine.rows["join-left"].ids == sorted(one.id for one in model.pending), where
        assert machine.rows["join-right"].ids == sorted(one.id for one in model.buffered), where
        new = {one[0] for one in outcome.matched} | set(outcome.unmatched_left)
        assert not new & released, where
        assert not pairs & set(outcome.matched), where
        released |= new
        pairs |= set(outcome.matched)
        pending |= {row[3] for row in left}
    if step.end:
        assert released == pending


def run_cuts(seed):
    rng = random.Random(seed)
    rules = join_rules(rng)
    rules.left.idle = rules.right.idle = rules.right.grace = None
    rows = ordered_rows(rng, rules)
    totals = []
    for _ in range(3):
        machine, found = JoinMachine(join_of(rules)), {}
        batches = [*cut(rng, rows), []]
        for txid, batch in enumerate(batches, start=1):
            emitted, commit = machine.transaction(txid, Step(txid == len(batches)), batch)
            commit()
            for stream, tuples in emitted.items():
                found.setdefault(stream, []).extend(map(repr, tuples))
        totals.append({stream: sorted(some) for stream, some in found.items() if stream != "frontier"})
    assert totals[0] == totals[1] == totals[2], rules


class Step:
    stamp, caught_up = 0, False

    def __init__(self, end):
        self.end = end
