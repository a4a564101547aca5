"""The package's own rules of event time and firing over sorted lists in memory, as a windowed bolt applies them.

Rows that a unit can no longer need are really deleted, so that a wrong eviction bound shows.
"""

from bisect import bisect_left, insort
from copy import copy

import numpy as np
from window_schedules import extent
from windows_model import INF, NOTHING, Fired

from txstorm.windows.records import ComponentRecord, UnitRecord
from txstorm.windows.rules.event_time import END, Facts, Progress, WatermarkRule, late
from txstorm.windows.rules.firing import (
    ARRIVAL_BITS,
    Moment,
    Place,
    Rows,
    Unit,
    behind,
    earliest_open,
    early,
    fire,
    fire_sessions,
)
from txstorm.windows.rules.forms import WindowForm


def form_of(rules):
    if rules.gap is not None:
        return WindowForm(gap=rules.gap)
    return WindowForm(extent(rules.length), rules.trigger or extent(rules.slide))


class Machine:
    def __init__(self, rules):
        self.r = rules
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
        self.progress = ComponentRecord.read(ComponentRecord(progress=self.progress).text()).progress
        self.units = {name: UnitRecord.read(UnitRecord(unit).text()).unit for name, unit in self.units.items()}

    def transaction(self, txid, stamp, rows, partitions=NOTHING, ended=frozenset(), frontiers=NOTHING, end=False):
        self.early_at = stamp if self.early_at is None else self.early_at
        for name in [one for one, at in self.last_stamp.items() if self.r.ttl and stamp - at >= self.r.ttl]:
            for kept in (self.units, self.rows, self.last_stamp):
                kept.pop(name, None)
        passed = self.stamped if self.r.processing_time else self.progress.watermark
        times = np.array([row[0] for row in rows], np.int64)
        if self.r.processing_time:
            time = stamp
            if self.form.step is not None and passed is not None:
                time = max(stamp, Moment(txid, passed, passed).last_end(self.form.step) + 1)
            times = np.full(len(rows), time, np.int64)
            dropped = np.zeros(len(rows), bool)
            reached = self.stamped = END if end or passed == END else max(stamp, passed or stamp)
        else:
            dropped = late(times, passed, self.form)
            newest = {}
            for t, i, p, _, _ in rows:
                newest[i, p] = max(newest.get((i, p), t), t)
            facts = Facts(partitions, ended, frontiers, end)
            self.progress = self.rule.after(self.progress, newest, stamp, facts)
            reached = self.progress.watermark
        moment = Moment(txid, passed, reached, self.r.keyed, self.r.processing_time)
        added = {}
        for order, (row, t, is_late) in enumerate(zip(rows, times.tolist(), dropped, strict=True)):
            if not is_late:
                place = Place(t, txid << ARRIVAL_BITS | order)
                insort(self.rows.setdefault(row[3], []), (place, row[4]))
                added.setdefault(row[3], []).append((t, row[4]))
                self.last_stamp[row[3]] = stamp
        fired = []
        for name in sorted(self.rows, key=str):
            fired += self.evaluate(name, moment, sorted(added.get(name, [])))
        fired.sort(key=lambda one: (one.end, str(one.unit)))
        return [row[4] for row, one in zip(rows, dropped, strict=True) if one], fired + self.early(moment, stamp)

    def unit(self, name, moment):
        if name in self.units:
            return self.units[name]
        if self.r.keyed and self.form.step is not None and moment.passed is not None and moment.passed != END:
            return Unit(covered=behind(moment.last_end(self.form.step), moment.txid - 1))
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
            windows, after = fire(self.form, unit, moment, self.arrays(fresh), lambda n: self.oldest(name, unit, n))
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

    def oldest(self, name, unit, number):
        return self.arrays(self.between(name, unit.low, (INF, 0))[:number])

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
        if self.r.early is None or stamp - self.early_at < self.r.early:
            return []
        made = []
        for name in sorted(self.rows, key=str):
            unit = self.unit(name, Moment(moment.txid + 1, moment.reached, moment.reached))
            rows = self.arrays(self.between(name, earliest_open(self.form, unit, moment), (INF, 0)))
            windows = early(
                self.form, unit, moment, rows, self.early_txid, lambda n, u=unit, k=name: self.oldest(k, u, n)
            )
            made += [self.shown(name, one) for one in windows]
        self.early_at, self.early_txid = stamp, moment.txid
        return sorted(made, key=lambda one: (one.end, str(one.unit)))
