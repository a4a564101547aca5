"""The package's own rules of event time and firing over sorted lists in memory, as a windowed bolt applies them.

Rows that a unit can no longer need are really deleted, so that a wrong eviction bound shows.
"""

from bisect import bisect_left, insort
from copy import copy
from dataclasses import replace

import numpy as np
from window_schedules import extent
from windows_model import INF, NOTHING, Fired

from txstorm.windows.records import ComponentRecord, UnitRecord
from txstorm.windows.rules.backlog import Backlog, time_runs
from txstorm.windows.rules.event_time import END, Facts, Progress, WatermarkRule, late
from txstorm.windows.rules.firing import (
    ARRIVAL_BITS,
    PASSED,
    Moment,
    Place,
    Rows,
    Unit,
    earliest_open,
    early,
    end_at,
    fire,
    fire_sessions,
    is_needed,
    needed_from,
)
from txstorm.windows.rules.forms import WindowForm


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
        self.units = {name: UnitRecord.read(UnitRecord(unit).text()).unit for name, unit in self.units.items()}

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
            unit = self.units.get(name, Unit())
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
            return Unit(covered=end_at(moment.last_end(self.form.step)))
        return Unit()

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
