"""Naive model of interval joins, written from the rules alone: it keeps all rows and looks at them one by one."""

from dataclasses import dataclass, field

INF = 1 << 62


@dataclass
class JoinSide:
    """What is declared of a side; times are in microseconds."""

    lag: int = 0
    idle: int | None = None
    grace: int | None = None
    partitions: tuple = ("",)


@dataclass
class JoinRules:
    before: int
    after: int = 0
    how: str = "inner"
    left: JoinSide = field(default_factory=JoinSide)
    right: JoinSide = field(default_factory=JoinSide)


@dataclass(frozen=True)
class JoinRow:
    key: object
    time: int
    part: str
    id: int
    arrival: tuple = ()


@dataclass
class Outcome:
    """What one transaction emits and leaves behind.

    `pairs` are (left id, right id or None, or None and right id) in order, as far as they are of the default stream;
    `matched` are all pairs, whatever the type of the join emits.
    """

    pairs: list
    matched: list
    unmatched_left: list
    unmatched_right: list
    late: int
    stragglers: int


class Position:
    """The newest time of each partition of a side, less its lag; of those that are not idle the lowest."""

    def __init__(self, side):
        self.side, self.newest, self.stamps, self.first, self.reached = side, {}, {}, None, None

    def advance(self, stamp, rows, *, ended, caught_up=False):
        self.first = stamp if self.first is None else self.first
        for row in rows:
            self.newest[row.part] = max(row.time, self.newest.get(row.part, -INF))
            self.stamps[row.part] = stamp
        found = self.lowest(stamp)
        if caught_up and self.side.grace is not None:
            found = stamp - self.side.grace if found is None else max(found, stamp - self.side.grace)
        if ended:
            found = INF
        if found is not None and (self.reached is None or found > self.reached):
            self.reached = found
        return self.reached

    def lowest(self, stamp):
        parts = set(self.side.partitions) | set(self.newest)
        if self.side.idle is not None:
            latest = max(self.stamps.values(), default=None)
            parts = {
                one
                for one in parts
                if (one in self.stamps and self.stamps[one] == latest)
                or stamp - self.stamps.get(one, self.first) < self.side.idle
            }
        if not parts or any(one not in self.newest for one in parts):
            return None
        return min(self.newest[one] for one in parts) - self.side.lag


class JoinModel:
    def __init__(self, rules):
        self.rules = rules
        self.left_position, self.right_position = Position(rules.left), Position(rules.right)
        self.pending, self.buffered, self.matched = [], [], set()
        self.p = self.b = None

    def transaction(self, txid, stamp, left, right, *, caught_up=False, left_ended=False, right_ended=False, end=False):
        """Process rows (key, time, part, id) of both sides."""
        rules, p_before, b_before = self.rules, self.p, self.b
        left = [JoinRow(*row, (txid, order)) for order, row in enumerate(left)]
        right = [JoinRow(*row, (txid, order)) for order, row in enumerate(right)]
        late = sum(b_before is not None and one.time - rules.before < b_before for one in left)
        stragglers = sum(p_before is not None and one.time < p_before for one in right)
        self.pending += left
        self.buffered += right
        ends = {"ended": end or right_ended, "caught_up": caught_up}
        self.p = self.right_position.advance(stamp, right, **ends)
        self.left_position.advance(stamp, left, ended=end or left_ended)
        due = [one for one in self.pending if self.p is not None and (self.p == INF or one.time + rules.after < self.p)]
        due.sort(key=in_order)
        self.pending = [one for one in self.pending if one not in due]
        pairs, matched, unmatched_left = [], [], []
        for one in due:
            found = [other for other in sorted(self.buffered, key=in_order) if self.fits(one, other)]
            matched += [(one.id, other.id) for other in found]
            self.matched |= {other.id for other in found}
            if not found:
                unmatched_left.append(one.id)
            pairs += self.shown(one, found)
        bound = self.bound(INF if end or left_ended else self.left_position.lowest(stamp))
        if bound is not None and (self.b is None or bound > self.b):
            self.b = bound
        expired = sorted((one for one in self.buffered if self.b is not None and one.time < self.b), key=in_order)
        self.buffered = [one for one in self.buffered if one not in expired]
        unmatched_right = [one.id for one in expired if one.id not in self.matched]
        if rules.how in ("right", "full"):
            pairs += [(None, one) for one in unmatched_right]
        return Outcome(pairs, matched, unmatched_left, unmatched_right, late, stragglers)

    def bound(self, left_reached):
        """Return the expiry bound; None while a left partition has no data."""
        if left_reached is None:
            return None
        lowest = min([left_reached, *(one.time for one in self.pending)])
        return INF if lowest == INF else lowest - self.rules.before

    def fits(self, left, right):
        rules = self.rules
        return (
            left.key is not None
            and left.key == right.key
            and left.time - rules.before <= right.time <= left.time + rules.after
        )

    def shown(self, left, found):
        how = self.rules.how
        if how == "semi":
            return [(left.id,)] if found else []
        if how == "anti":
            return [] if found else [(left.id,)]
        if found:
            return [(left.id, other.id) for other in found]
        return [(left.id, None)] if how in ("left", "full") else []


def in_order(row):
    return row.time, row.arrival
