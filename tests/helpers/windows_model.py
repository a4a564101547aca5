"""A deliberately naive model of event time and windows: lists of tuples, everything looked at again each time.

It is written from the text of the rules alone, without a thought for speed, and shares no code with the package. A row
is (time, arrival, input, unit, id); arrival is (txid, order of delivery). Times are small ints, None is undefined and
`INF` is the end of input.
"""

from dataclasses import dataclass, field
from types import MappingProxyType

INF = float("inf")
NOTHING = MappingProxyType({})


@dataclass
class Rules:
    """Declaration of one component, in plain values; a length or slide is ("time", n) or ("count", n)."""

    length: tuple = None
    slide: tuple = None
    trigger: object = None  # function of an id, instead of a slide
    gap: object = None  # function of an id
    keyed: bool = False
    ttl: int = None
    processing_time: bool = False
    inputs: int = 1
    lag: int = 0
    idle: int = None
    policy: str = "min"
    interval: int = 0
    early: int = None
    closed: str = "right"


@dataclass
class Fired:
    unit: object
    start: object
    end: object
    content: list
    new: list
    expired: list
    first: bool
    final: bool = True


@dataclass
class UnitModel:
    seen: list = field(default_factory=list)  # rows that can still be in a window or be reported
    counted: list = field(default_factory=list)  # count slides: rows counted, in order
    passed: list = field(default_factory=list)  # time slides: rows that an end has passed
    since: int = 0
    previous: list = field(default_factory=list)
    reported: list = field(default_factory=list)
    first: bool = True
    last_stamp: int = None


class Model:
    def __init__(self, rules):
        self.r, self.units, self.early_txid = rules, {}, 0
        self.newest = {}  # (input, partition) -> (time, stamp)
        self.w = self.advanced = self.first_stamp = self.early_at = None
        self.fired_up_to = None  # F

    def active(self, stamps, stamp):
        """Leave out what has had no data for the idle timeout; never those with the latest data."""
        with_data = [s for s in stamps.values() if s is not None]
        keep = []
        for name, s in stamps.items():
            since = self.first_stamp if s is None else s
            idle = self.r.idle is not None and stamp - since >= self.r.idle
            if not idle or (s is not None and s == max(with_data)):
                keep.append(name)
        return keep

    def input_newest(self, i, stamp, partitions):
        stamps = dict.fromkeys(partitions.get(i, ()))
        for (of, p), (_, s) in self.newest.items():
            if of == i:
                stamps[p] = s
        times = [self.newest.get((i, p), (None,))[0] for p in self.active(stamps, stamp)]
        return None if not times or None in times else min(times)

    def watermark(self, stamp, partitions, ended, frontiers, end):
        running = [i for i in range(self.r.inputs) if i not in ended]
        if end or not running:
            return INF
        stamps = {}
        for i in running:
            own = [s for (of, _), (_, s) in self.newest.items() if of == i]
            stamps[i] = max(own) if own else None
        values = []
        for i in self.active(stamps, stamp):
            if i in frontiers:
                values.append(frontiers[i])
            else:
                newest = self.input_newest(i, stamp, partitions)
                values.append(None if newest is None else newest - self.r.lag)
        if not values or None in values:
            return None
        return max(values) if self.r.policy == "max" else min(values)

    def is_late(self, t):
        if self.w is None or t > self.w:
            return False
        if t < self.w:
            return True
        if self.r.gap is not None or self.r.trigger is not None:
            return False
        if self.r.length[0] != "time" or self.r.slide[0] != "time":
            return False
        return all(e <= self.w for e in range(self.first_end(t), self.last_end(t) + 1, self.r.slide[1]))

    def up_to(self, t, end):
        return t <= end if self.r.closed == "right" else t < end

    def first_end(self, t):
        end = -(-t // self.r.slide[1]) * self.r.slide[1]
        return end if self.up_to(t, end) else end + self.r.slide[1]

    def last_end(self, t):
        end = (t + self.r.length[1]) // self.r.slide[1] * self.r.slide[1]
        return end - self.r.slide[1] if self.up_to(t, end - self.r.length[1]) else end

    def transaction(self, txid, stamp, rows, partitions=NOTHING, ended=frozenset(), frontiers=NOTHING, end=False):
        """Take rows (time, input, partition, unit, id) in order of delivery; return (late ids, fired windows)."""
        if self.first_stamp is None:
            self.first_stamp = self.early_at = stamp
        before = self.w
        self.drop_expired(stamp)
        late, kept = [], []
        for order, (t, i, p, unit, id) in enumerate(rows):
            if self.r.processing_time:
                t = stamp
                if self.r.slide is not None and self.r.slide[0] == "time" and self.fired_up_to is not None:
                    t = max(stamp, self.fired_up_to + (self.r.closed == "right"))
            elif self.is_late(t):
                late.append(id)
            else:
                kept.append((t, (txid, order), unit, id))
            if self.r.processing_time:
                kept.append((t, (txid, order), unit, id))
            else:
                old = self.newest.get((i, p), (t, 0))[0]
                self.newest[i, p] = (max(old, t), stamp)
        for row in kept:
            unit = self.units.setdefault(row[2], UnitModel())
            unit.seen.append(row)
            unit.last_stamp = stamp
        for unit in self.units.values():
            unit.seen.sort()
        self.advance(stamp, partitions, ended, frontiers, end)
        fired = [] if self.w is None or before == INF else self.fire(txid)
        return late, fired + self.early(txid, stamp)

    def drop_expired(self, stamp):
        if self.r.ttl is not None and self.w != INF:
            alive = lambda one: stamp - one.last_stamp < self.r.ttl or self.needs(one)  # noqa: E731
            self.units = {u: one for u, one in self.units.items() if alive(one)}

    def needs(self, unit):
        """An end of a time slide, a session, or a count that the watermark holds back will need a tuple."""
        if self.r.gap is not None:
            return bool(unit.seen)
        if self.r.trigger is not None or self.r.slide[0] == "count":
            return any(row not in unit.counted for row in unit.seen)
        if self.r.length[0] == "count" or self.fired_up_to is None:
            return any(row not in unit.passed for row in unit.seen)
        ends = [(self.first_end(row[0]), self.last_end(row[0])) for row in unit.seen]
        return any(first <= last and last > self.fired_up_to for first, last in ends)

    def advance(self, stamp, partitions, ended, frontiers, end):
        if self.r.processing_time:
            self.w = INF if end or self.w == INF else max(stamp, stamp if self.w is None else self.w)
            return
        c = self.watermark(stamp, partitions, ended, frontiers, end)
        if c is None or (self.w is not None and c <= self.w):
            return
        if c != INF and self.advanced is not None and stamp - self.advanced < self.r.interval:
            return
        self.w, self.advanced = c, stamp

    def fire(self, txid):
        fired = []
        if self.r.gap is not None:
            for name, unit in self.units.items():
                for members, start, end in self.sessions(unit):
                    if end <= self.w:
                        ids = [m[3] for m in members]
                        fired.append(Fired(name, start, end, ids, ids, [], True))
                        unit.seen = [row for row in unit.seen if row not in members]
        elif self.r.trigger is None and self.r.slide[0] == "time":
            fired = self.fire_times()
        else:
            for name, unit in self.units.items():
                fired += self.fire_counts(name, unit)
        return sorted(fired, key=lambda one: (one.end, str(one.unit)))

    def sessions(self, unit):
        groups = [([row], row[0], row[0] + self.r.gap(row[3])) for row in sorted(unit.seen)]
        merged = True
        while merged:
            merged = False
            for a in groups:
                for b in groups:
                    if a is not b and a[1] < b[2] and b[1] < a[2]:
                        groups.remove(a)
                        groups.remove(b)
                        groups.append((sorted(a[0] + b[0]), min(a[1], b[1]), max(a[2], b[2])))
                        merged = True
                        break
                if merged:
                    break
        return sorted(groups, key=lambda g: g[1])

    def content_at(self, unit, end):
        covered = [row for row in unit.seen if self.up_to(row[0], end)]
        if self.r.length[0] == "time":
            return [row for row in covered if not self.up_to(row[0], end - self.r.length[1])]
        return covered[-self.r.length[1] :]

    def fire_times(self):
        slide = self.r.slide[1]
        everything = [row[0] for unit in self.units.values() for row in unit.seen]
        if not everything:
            if self.w != INF:
                self.fired_up_to = self.w // slide * slide
            return []
        e = self.first_end(min(everything)) if self.fired_up_to is None else self.fired_up_to + slide
        fired = []
        while e <= self.w:
            if self.w == INF and not self.more_to_come(e):
                break
            for name, unit in sorted(self.units.items(), key=lambda one: str(one[0])):
                if self.w == INF and self.r.length[0] == "count":
                    newest = max((row[0] for row in unit.seen), default=None)
                    if newest is None or self.up_to(newest, e - slide):
                        continue
                content = self.content_at(unit, e)
                if content:
                    fired.append(self.report(name, unit, e, content))
                elif self.r.keyed:  # dropped
                    unit.seen = [row for row in unit.seen if not self.up_to(row[0], e)]
                    unit.previous, unit.reported, unit.first = [], [], True
            e += slide
        before, self.fired_up_to = self.fired_up_to, self.w if self.w == INF else self.w // slide * slide
        if self.fired_up_to != before:  # else a tuple at the last end came after it, and waits for the next
            for unit in self.units.values():
                unit.passed = [row for row in unit.seen if self.up_to(row[0], self.fired_up_to)]
        return fired

    def more_to_come(self, e):
        newest = max(row[0] for unit in self.units.values() for row in unit.seen) if self.any_rows() else -INF
        reach = self.r.length[1] if self.r.length[0] == "time" else 0
        return e - self.r.slide[1] <= newest + reach

    def any_rows(self):
        return any(unit.seen for unit in self.units.values())

    def fire_counts(self, name, unit):
        fired = []
        fresh = [row for row in unit.seen if row[0] <= self.w and row not in unit.counted]
        there = [row for row in unit.seen if row[0] <= self.w]
        for row in fresh:
            unit.counted.append(row)
            unit.since += 1
            if unit.since == self.r.slide[1] if self.r.trigger is None else self.r.trigger(row[3]):
                unit.since = 0
                if self.r.length[0] == "count":
                    content = unit.counted[-self.r.length[1] :]
                elif self.r.processing_time:
                    content = [x for x in unit.counted if row[0] - self.r.length[1] < x[0] <= row[0]]
                else:
                    content = [x for x in there if row[0] - self.r.length[1] < x[0] <= row[0]]
                fired.append(self.report(name, unit, row[0], content))
        return fired

    def report(self, name, unit, end, content, final=True):
        new = [row for row in content if row not in unit.previous]
        expired = [row for row in unit.seen if row < content[0] and row not in unit.reported]
        start = end - self.r.length[1] if self.r.length[0] == "time" else None
        made = Fired(
            name, start, end, [r[3] for r in content], [r[3] for r in new], [r[3] for r in expired], unit.first, final
        )
        if final:
            unit.previous, unit.first = content, False
            unit.reported = unit.reported + expired
        return made

    def early(self, txid, stamp):
        if self.r.early is None or stamp - self.early_at < self.r.early:
            return []
        fired = []
        for name, unit in self.units.items():
            if self.w == INF:
                continue
            if self.r.gap is not None:
                for members, start, end in self.sessions(unit):
                    if any(m[1][0] > self.early_txid for m in members):
                        ids = [m[3] for m in members]
                        fired.append(Fired(name, start, end, ids, ids, [], True, False))
            else:
                got = [row for row in unit.seen if row[1][0] > self.early_txid]
                for end in self.open_ends(unit):
                    content = self.content_at(unit, end)
                    if any(row in content for row in got):
                        fired.append(self.report(name, unit, end, content, final=False))
        self.early_at, self.early_txid = stamp, txid
        return sorted(fired, key=lambda one: (one.end, str(one.unit)))

    def open_ends(self, unit):
        if not unit.seen:
            return []
        slide, newest = self.r.slide[1], max(row[0] for row in unit.seen)
        stop = self.last_end(newest) if self.r.length[0] == "time" else self.first_end(newest)
        start = self.first_end(min(row[0] for row in unit.seen))
        if self.fired_up_to is not None:
            start = max(start, self.fired_up_to + slide)
        return list(range(start, stop + 1, slide))
