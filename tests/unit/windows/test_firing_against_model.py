"""Random schedules of all window forms against a naive model of the rules, and the invariants that hold for all.

`Machine` has the package's own rules over sorted lists in memory, as a windowed bolt applies them. Rows that a unit can no
longer need are really deleted, so that a wrong eviction bound shows. ``SEED=n`` starts with that schedule; a failure names
the seed of its schedule. ``SCHEDULES`` is the number of them; the first 60 take all branches of the rules.
"""

import os
import random
from bisect import bisect_left, insort
from copy import copy
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from window_schedules import changed, extent, window_rules, window_schedule
from windows_model import INF, NOTHING, Fired, Model

from txstorm.windows.records import ComponentRecord, UnitRecord
from txstorm.windows.rules.backlog import Backlog, time_runs
from txstorm.windows.rules.event_time import END, Facts, Progress, WatermarkRule, late
from txstorm.windows.rules.firing import (
    ARRIVAL_BITS,
    PASSED,
    FiringState,
    Moment,
    Place,
    Rows,
    before,
    earliest_open,
    early,
    end_at,
    fire,
    fire_sessions,
    is_needed,
    needed_from,
)
from txstorm.windows.rules.forms import WindowForm, sliding


def form_of(rules):
    if rules.gap is not None:
        return WindowForm(gap=rules.gap)
    return WindowForm(extent(rules.length), rules.trigger or extent(rules.slide), closed=rules.closed)


class Machine:
    def __init__(self, rules, limit=None):
        self.r = rules
        self.limit, self.ends = limit, Backlog()
        self.form = form_of(rules)
        self.rule = WatermarkRule(rules.inputs, rules.lag, rules.idle, rules.policy, rules.interval)
        self.progress = Progress()
        self.stamped = None
        self.units, self.rows, self.last_stamp = {}, {}, {}
        self.early_at, self.early_txid = None, 0

    @property
    def watermark(self):
        w = self.stamped if self.r.processing_time else self.progress.watermark
        return INF if w == END else w

    def attempt(self):
        """Return a machine for an attempt that may be discarded: what this one has must not change with it."""
        made = copy(self)
        made.units, made.last_stamp = dict(self.units), dict(self.last_stamp)
        made.rows = {name: list(rows) for name, rows in self.rows.items()}
        return made

    def restart(self):
        """Continue with the stored records alone."""
        record = ComponentRecord.read(ComponentRecord(progress=self.progress, backlog=self.ends).text())
        self.progress, self.ends = record.progress, record.backlog
        self.units = {name: UnitRecord.read(UnitRecord(unit).text()).state for name, unit in self.units.items()}

    def transaction(self, txid, stamp, rows, partitions=NOTHING, ended=frozenset(), frontiers=NOTHING, end=False):
        self.early_at = stamp if self.early_at is None else self.early_at
        passed = self.stamped if self.r.processing_time else self.progress.watermark
        self.expire(Moment(txid, self.ends.fired, None, watermark=passed), stamp)
        times = np.array([row[0] for row in rows], np.int64)
        if self.r.processing_time:
            time = self.form.held(stamp)
            if self.form.step is not None and passed not in (None, END):
                time = max(time, Moment(txid, passed, passed).last_end(self.form.step) + 1)
            times = np.full(len(rows), time, np.int64)
            dropped = np.zeros(len(rows), bool)
            reached = self.stamped = END if end or passed == END else max(stamp, passed or stamp)
        else:
            dropped = late(times, passed, self.form)
            times, newest = self.form.held(times), {}
            for t, i, p, _, _ in rows:
                newest[i, p] = max(newest.get((i, p), t), t)
            facts = Facts(partitions, ended, frontiers, end)
            self.progress = self.rule.after(self.progress, newest, stamp, facts)
            reached = self.progress.watermark
        before, runs = self.ends, time_runs(self.form, times)
        self.ends = before.after(self.form, runs, reached, self.limit)
        closing = before.closing(reached)
        moment = Moment(txid, before.fired, self.ends.fired, self.r.keyed, self.r.processing_time, closing, passed)
        added = {}
        for order, (row, t, is_late) in enumerate(zip(rows, times.tolist(), dropped, strict=True)):
            if not is_late:
                at_passed = t == passed and self.form.step is not None and not self.r.processing_time
                place = Place(t, txid << ARRIVAL_BITS | order | PASSED * at_passed)
                insort(self.rows.setdefault(row[3], []), (place, row[4]))
                added.setdefault(row[3], []).append((t, row[4]))
                self.last_stamp[row[3]] = stamp
        fired = []
        for name in sorted(self.rows, key=str):
            fired += self.evaluate(name, moment, sorted(added.get(name, [])))
        fired.sort(key=lambda one: (one.end, str(one.unit)))
        return [row[4] for row, one in zip(rows, dropped, strict=True) if one], fired + self.early(moment, stamp)

    def expire(self, moment, stamp):
        silent = [one for one, at in self.last_stamp.items() if self.r.ttl and stamp - at >= self.r.ttl]
        for name in silent if moment.watermark != END else ():
            unit = self.units.get(name, FiringState())
            low, end = needed_from(self.form, unit, moment.watermark), moment.waiting_end(self.form)
            if is_needed(self.form, unit, moment.watermark, self.arrays(self.between(name, low, (INF, 0)))):
                continue
            if end is not None:
                self.units[name], self.last_stamp[name] = replace(unit, expired=(*unit.expired, end)), stamp
                continue
            for kept in (self.units, self.rows, self.last_stamp):
                kept.pop(name, None)

    def unit(self, name, moment):
        if name in self.units:
            return self.units[name]
        if self.r.keyed and self.form.step is not None and moment.passed is not None and moment.passed != END:
            return FiringState(covered=end_at(moment.last_end(self.form.step)))
        return FiringState()

    def evaluate(self, name, moment, added):
        unit = self.units[name] = self.unit(name, moment)
        if self.form.is_session:
            times = np.array([t for t, _ in added], np.int64)
            ends = np.array([t + self.r.gap(id) for t, id in added], np.int64)
            windows, after = fire_sessions(unit, moment, times, ends)
        elif moment.limit(self.form) is None:
            return []
        else:
            fresh = self.between(name, unit.covered, moment.limit(self.form))
            more = len(self.between(name, unit.covered, (INF, 0))) > len(fresh)
            oldest = lambda low, n: self.oldest(name, low, n)  # noqa: E731
            windows, after = fire(self.form, unit, moment, self.arrays(fresh), oldest, more=more)
        made = [self.shown(name, window) for window in windows]
        self.units[name] = after
        low = after.low
        if (
            self.r.keyed
            and self.form.span
            and self.form.step
            and after.last_end != moment.reached // self.form.step * self.form.step
        ):
            # The last end found no content: the key is dropped.
            del self.units[name]
            low = after.covered
        self.rows[name] = [one for one in self.rows[name] if one[0] >= low]
        return made

    def between(self, name, low, high):
        rows = self.rows[name]
        return rows[bisect_left(rows, (low, -1)) : bisect_left(rows, (high, -1))]

    def oldest(self, name, low, number):
        return self.arrays(self.between(name, low, (INF, 0))[:number])

    def arrays(self, rows):
        fires = np.array([self.r.trigger(id) for _, id in rows], bool) if self.r.trigger else None
        return Rows(*(np.array([place[k] for place, _ in rows], np.int64) for k in (0, 1)), fires)

    def shown(self, name, one):
        content, new, expired = (
            [id for _, id in self.between(name, *bounds)]
            for bounds in ((one.low, one.high), one.new, (one.old_low, one.low))
        )
        return Fired(name, one.start, one.end, content, new, expired, one.first, one.final)

    def early(self, moment, stamp):
        if self.r.early is None or stamp - self.early_at < self.r.early or self.ends.waiting:
            return []
        made = []
        for name in sorted(self.rows, key=str):
            unit = self.unit(name, Moment(moment.txid + 1, moment.reached, moment.reached))
            rows = self.arrays(self.between(name, earliest_open(self.form, unit, moment), (INF, 0)))
            windows = early(
                self.form, unit, moment, rows, self.early_txid, lambda low, n, k=name: self.oldest(k, low, n)
            )
            made += [self.shown(name, one) for one in windows]
        self.early_at, self.early_txid = stamp, moment.txid
        return sorted(made, key=lambda one: (one.end, str(one.unit)))


FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "2000"))


@pytest.mark.long
def test_many_random_schedules_fire_what_the_model_fires():
    for seed in range(FIRST + SCHEDULES, FIRST + 50 * SCHEDULES):
        run_schedule(seed)
        if seed % 4 == 0:
            check_invariants(seed)
        if seed % 40 == 0:
            run_limited(seed, seed % 7 + 1)


def test_random_schedules_fire_what_the_model_fires():
    for seed in range(FIRST, FIRST + SCHEDULES):
        run_schedule(seed)


def run_schedule(seed):
    """Attempts that are discarded, the replays of opaque transactions and restarts leave nothing behind."""
    rng = random.Random(seed)
    rules = window_rules(rng)
    model, machine = Model(rules), Machine(rules)
    for txid, (stamp, rows, more) in enumerate(window_schedule(rng, rules), start=1):
        if rng.random() < 0.1:
            machine.attempt().transaction(txid, stamp, rows, **more)
            rows = changed(rng, rows, 4) if rng.random() < 0.5 else rows
        if rng.random() < 0.1:
            machine.restart()
        expected = model.transaction(txid, stamp, rows, **more)
        got = machine.transaction(txid, stamp, rows, **more)
        where = f"SEED={seed}, txid {txid}, {rules}"
        assert machine.watermark == model.w, where
        assert got[0] == expected[0], where
        assert got[1] == expected[1], where


def test_a_limit_of_ends_per_transaction_changes_neither_windows_nor_their_order():
    """Watermark, late tuples and content are those without a limit; transactions without data fire the rest."""
    for seed in range(FIRST, FIRST + SCHEDULES // 4):
        for limit in (1, 7):
            run_limited(seed, limit)


def run_limited(seed, limit):
    rng, schedule = random.Random(seed), random.Random(seed)
    rules = window_rules(schedule)
    rules.early = None
    model, machine = Model(rules), Machine(rules, limit)
    expected, got, txid, where = [], [], 0, f"SEED={seed}, limit {limit}, {rules}"
    for number, (stamp, rows, more) in enumerate(window_schedule(schedule, rules), start=1):
        lates, fired = model.transaction(number, stamp, rows, **more)
        expected += fired
        for few in [rows] + [[]] * rng.choice([0, 0, 1, 3, 200]):
            if few is not rows and not machine.ends.waiting:
                break
            if rng.random() < 0.1:
                machine.restart()
            txid += 1
            late, fired = machine.transaction(txid, stamp, few, **more)
            assert late == (lates if few is rows else []), where
            assert machine.watermark == model.w, where
            got += fired
            if rules.slide and rules.slide[0] == "time":
                assert len({one.end for one in fired}) <= limit, where
    while machine.ends.waiting:
        txid += 1
        got += machine.transaction(txid, stamp, [], **more)[1]
    assert got == expected, where


def test_invariants_of_all_forms():
    for seed in range(FIRST, FIRST + SCHEDULES // 4):
        check_invariants(seed)


def check_invariants(seed):
    rng = random.Random(seed)
    rules = window_rules(rng)
    rules.early = None
    machine, previous, ends, seen, late, appearances = Machine(rules), {}, {}, {}, set(), {}
    for txid, (stamp, rows, more) in enumerate(window_schedule(rng, rules), start=1):
        before = machine.watermark
        seen |= {id: time == before for time, _, _, _, id in rows if before != INF}
        lates, fired = machine.transaction(txid, stamp, rows, **more)
        late |= set(lates)
        for one in fired:
            old = [] if one.first else previous.get(one.unit, [])
            assert set(one.content) == set(old) - set(one.expired) | set(one.new), f"SEED={seed}"
            assert len(set(one.content)) == len(one.content) > 0, f"SEED={seed}"
            assert not set(one.content) & set(one.expired), f"SEED={seed}"
            if rules.slide and rules.slide[0] == "time":
                assert one.end > ends.get(one.unit, -INF), f"SEED={seed}"
            previous[one.unit], ends[one.unit] = one.content, one.end
            for id in one.content:
                appearances[id] = appearances.get(id, 0) + 1
    if machine.watermark == INF and not rules.processing_time and rules.ttl is None:
        check_appearances(rules, seen, late, appearances, f"SEED={seed}")


def check_appearances(rules, seen, late, appearances, where):
    """With a length that is a multiple of the slide, every tuple is late or in length/slide windows.

    One exactly at the watermark (true in `seen`) may come when the first of its windows have fired.
    """
    if rules.gap is not None:
        assert all(appearances.get(id, 0) == (id not in late) for id in seen), where
    elif rules.trigger is None and rules.length[0] == rules.slide[0] == "time":
        length, slide = rules.length[1], rules.slide[1]
        if length % slide == 0:
            for id, at_watermark in seen.items():
                fewest = 1 if at_watermark else length // slide
                assert (id in late) == (id not in appearances), where
                assert id in late or fewest <= appearances[id] <= length // slide, where


def test_batch_cuts_change_nothing_while_no_tuple_is_late():
    for seed in range(FIRST, FIRST + SCHEDULES // 40):
        rng = random.Random(seed)
        rules = window_rules(rng)
        rules.processing_time, rules.idle, rules.interval, rules.ttl, rules.early = False, None, 0, None, None
        rules.lag = 12
        rows, time = [], 0
        for id in range(1, 25):
            time += rng.choice([0, 0, 1, 5, 20])
            unit = f"k{rng.randrange(3)}" if rules.keyed else rng.randrange(2)
            # Strictly newer than the watermark can be: within the lag of the newest of every input.
            rows.append((time - rng.randrange(12), rng.randrange(rules.inputs), "", unit, id))
        assert cut(rules, rows, random.Random(seed)) == cut(rules, rows, random.Random(seed + 1)), f"SEED={seed}"


def cut(rules, rows, rng):
    machine, fired, txid, left = Machine(rules), [], 0, list(rows)
    while left:
        number = rng.randrange(0, 6)
        txid += 1
        lates, some = machine.transaction(txid, txid, left[:number])
        assert lates == []
        fired, left = fired + some, left[number:]
    _, some = machine.transaction(txid + 1, txid + 1, [], end=True)
    by_unit = {}
    for one in fired + some:
        by_unit.setdefault(one.unit, []).append(one)
    return by_unit


def test_an_early_result_reports_nothing_as_expired_that_an_end_without_content_has_dropped():
    """Windows of two that end at 5, 10, 15: the tuple at 7 is in none, and was dropped when the end at 10 passed."""
    form, moment = sliding(timedelta(microseconds=2), timedelta(microseconds=5)), Moment(2, 11, 11, keyed=True)
    rows = Rows(np.array([14], np.int64), np.array([2 << ARRIVAL_BITS], np.int64))
    (window,) = early(form, FiringState(), moment, rows, 1, lambda low, number: rows)
    assert (window.end, window.old_low, window.final) == (15, before(11), False)
