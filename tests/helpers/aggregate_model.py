"""Naive model of window aggregates, written from the rules alone: it keeps all tuples and looks at them one by one."""

from dataclasses import dataclass, field

INF = 1 << 62


@dataclass
class AggregateRules:
    """Times are in microseconds; `gap` is a function of the id for sessions, with `length` None."""

    length: int | None
    slide: int | None
    gap: object = None
    lateness: int = 0
    lag: int = 0
    inputs: int = 1
    processing_time: bool = False
    large: bool = False
    closed: str = "right"


@dataclass(frozen=True)
class Row:
    key: str
    time: int
    arrival: tuple
    id: int
    value: int | None
    number: int


@dataclass
class AggregateModel:
    rules: AggregateRules
    w: int | None = None
    newest: dict = field(default_factory=dict)
    windows: dict = field(default_factory=dict)
    sessions: list = field(default_factory=list)
    without: int = 0

    def transaction(self, txid, stamp, rows, end=False):
        """Return late rows, retracted results, and emitted results, of rows (key, time, id, value, input)."""
        rules, before = self.rules, self.w
        if rules.processing_time:
            passed = -INF if before is None or rules.gap else before // rules.slide * rules.slide
            rows = [(key, max(stamp, passed + 1 - self._left), *more) for key, _, *more in rows]
            self.w = INF if end else stamp if before is None else max(before, stamp)
        else:
            for _, time, _, _, number in rows:
                self.newest[number] = max(time, self.newest.get(number, -INF))
            if end:
                self.w = INF
            elif len(self.newest) == rules.inputs:
                reached = min(self.newest.values()) - rules.lag
                self.w = reached if before is None else max(before, reached)
        self.without = 0
        tuples = [Row(key, time, (txid, i), id, value, number) for i, (key, time, id, value, number) in enumerate(rows)]
        return (self._sessions if rules.gap else self._slides)(tuples, before)

    @property
    def _left(self):
        return self.rules.closed == "left"

    def _slides(self, tuples, before):
        rules, late, touched, old = self.rules, [], set(), {}
        for one in tuples:
            first = -(-(one.time + self._left) // rules.slide) * rules.slide
            ends = list(range(first, one.time + self._left + rules.length, rules.slide))
            live = [e for e in ends if before is None or e + rules.lateness > before]
            if ends and not live:
                late.append(one)
            for e in live:
                if before is not None and e <= before and (one.key, e) not in touched and (one.key, e) in self.windows:
                    old[one.key, e] = result(self.windows[one.key, e], e - rules.length, e)
                touched.add((one.key, e))
                self.windows.setdefault((one.key, e), []).append(one)
        again = {(k, e) for k, e in touched if before is not None and e <= before}
        fired = {
            (k, e) for k, e in self.windows if self.w is not None and (before is None or before < e) and e <= self.w
        }
        new = {(k, e): result(self.windows[k, e], e - rules.length, e) for k, e in again | fired}
        return late, *self._differing(old, new)

    def _sessions(self, tuples, before):
        rules, w = self.rules, self.w
        kept = [one for one in self.sessions if before is None or one[2] + rules.lateness > before]
        made = [(one.key, one.time, one.time + rules.gap(one.id), [one], []) for one in tuples]
        merged = [(*one, [one]) for one in kept]
        for one in made:
            overlap = True
            while overlap:
                overlap = [o for o in merged if o[0] == one[0] and o[1] < one[2] and one[1] < o[2]]
                merged = [o for o in merged if o not in overlap]
                for o in overlap:
                    one = (one[0], min(one[1], o[1]), max(one[2], o[2]), o[3] + one[3], o[4] + one[4])
            merged.append(one)
        late, old, new, self.sessions = [], {}, {}, []
        for key, start, end, content, parts in merged:
            fresh = len(content) > sum(len(part[3]) for part in parts)
            if not parts and before is not None and end + rules.lateness <= before:
                late += content
                continue
            self.sessions.append((key, start, end, content))
            if fresh and before is not None:
                old |= {(key, part[2]): result(part[3], part[1], part[2]) for part in parts if part[2] <= before}
            if w is not None and end <= w and (fresh or before is None or before < end):
                new[key, end] = result(content, start, end)
        return late, *self._differing(old, new)

    def _differing(self, old, new):
        self.without = sum(not in_range(one) for one in new.values())
        old, new = ({place: one for place, one in some.items() if in_range(one)} for some in (old, new))
        same = {place for place in old if place in new and old[place] == new[place]}
        by_end = lambda place: (place[1], place[0])  # noqa: E731
        return tuple(
            [(place[0], *some[place]) for place in sorted(some, key=by_end) if place not in same] for some in (old, new)
        )


def in_range(one):
    return one[3] is None or -(1 << 63) <= one[3] < 1 << 63


def result(content, start, end):
    """Return start, end, count, sum, min, max, mean, first, last and argmax."""
    content = sorted(content, key=lambda one: (one.time, one.arrival))
    values = [one.value for one in content if one.value is not None]
    least, most, total = (min(values), max(values), sum(values)) if values else (None, None, None)
    mean = total / len(values) if values else None
    top = max((one for one in content if one.value is not None), key=lambda one: one.value, default=None)
    first, last = content[0].id, content[-1].id
    return start, end, len(content), total, least, most, mean, first, last, None if top is None else top.id
