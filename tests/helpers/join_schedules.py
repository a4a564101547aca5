"""Random schedules of interval joins: rules, rows and transactions; `join_model` says what they must lead to.

Rows are (key, time, partition, id, side), with times in microseconds; the side is 0 (left) or 1 (right).
"""

from dataclasses import dataclass
from datetime import timedelta

from join_model import JoinRules, JoinSide
from window_schedules import duration, time

from txstorm.joins import IntervalJoin, Side

LEFT, RIGHT = 0, 1
FIELDS = ("key", "ts", "part", "id", "note")
NAMES = ("l", "r")
TYPES = ("inner", "left", "right", "full", "semi", "anti")
KEYS = ("a", "b", "c", None)


def some_side(rng, name):
    partitions = tuple(f"{name}{i}" for i in range(rng.choice([1, 1, 2, 3])))
    return JoinSide(rng.choice([0, 0, 2, 6]), rng.choice([None, None, None, 12]), None, partitions)


def join_rules(rng):
    """Draw a join: every type, bounds that are asymmetric or begin after the left row, one to three partitions."""
    before = rng.choice([0, 3, 8, 20, -2])
    after = rng.choice([0, 0, 0, 4, 10, -3])
    if before + after < 0:
        after = -before
    rules = JoinRules(before, after, rng.choice(TYPES), some_side(rng, "l"), some_side(rng, "r"))
    rules.right.grace = rng.choice([None, None, None, 5, 15])
    return rules


@dataclass
class JoinStep:
    """One transaction: its stamp, rows, whether the right source is read to its end, and whether the input ends."""

    stamp: int
    rows: list
    caught_up: bool
    end: bool


def join_schedule(rng, rules):
    """Yield the transactions of one schedule: partitions start late, drift apart, and pause; rows are out of order."""
    stamp, ids, length = rng.randrange(50), 0, rng.randrange(3, 12)
    clocks = {
        (side, part): [rng.randrange(-20, 40), rng.choice([0, 0, 0, 3]), rng.choice([0, 2, 8])]
        for side, one in enumerate((rules.left, rules.right))
        for part in one.partitions
    }
    away = {place: range(start, start + rng.randrange(1, 6)) for place in clocks for start in (rng.randrange(30),)}
    for number in range(1, length + 1):
        stamp += rng.choice([0, 1, 3, 10])
        rows = []
        for place, (now, starts, disorder) in clocks.items():
            clocks[place][0] = now + rng.choice([0, 1, 4, 12])
            if number <= starts or number in away[place]:
                continue
            for _ in range(rng.choice([0, 1, 1, 2, 4])):
                ids += 1
                at = clocks[place][0] - rng.randrange(disorder + 1)
                rows.append((rng.choice(KEYS), at, place[1], ids, place[0]))
        rng.shuffle(rows)
        end = number == length and rng.random() < 0.6
        yield JoinStep(stamp, [] if end else rows, rng.random() < 0.4, end)


def ordered_rows(rng, rules):
    """Return the rows of both sides in a global order in which no side is out of order by more than its lag."""
    rows, ids = [], 0
    for side, one in enumerate((rules.left, rules.right)):
        for part in one.partitions:
            now = rng.randrange(-10, 20)
            for _ in range(rng.randrange(1, 14)):
                ids += 1
                now += rng.choice([0, 1, 2, 5])
                rows.append((now, side, part, ids))
    drift = {place: rng.choice([0, 0, 15, 40]) for place in {row[1:3] for row in rows}}
    lag = (rules.left.lag, rules.right.lag)
    # Sorted by a time that is off by up to the lag, a row follows none that is newer by more than the lag.
    rows.sort(key=lambda row: row[0] + drift[row[1:3]] + rng.randrange(lag[row[1]] + 1))
    return [(rng.choice(KEYS), at, part, id, side) for at, side, part, id in rows]


def cut(rng, rows):
    """Return the rows in batches of random sizes."""
    rows, batches = list(rows), []
    while rows:
        size = rng.choice([1, 1, 2, 5, 9, 20])
        batches.append(rows[:size])
        rows = rows[size:]
    return batches


def sides_of(rules, component="feed"):
    made = []
    for name, one in zip(NAMES, (rules.left, rules.right), strict=True):
        made.append(
            Side(
                component,
                name,
                key="key",
                time="ts",
                id="id",
                lag=duration(one.lag),
                idle=None if one.idle is None else duration(one.idle),
                grace=None if one.grace is None else duration(one.grace),
                partition="part",
                partitions=list(one.partitions),
            )
        )
    return made


def join_of(rules):
    left, right = sides_of(rules)
    return IntervalJoin(
        left,
        right,
        before=timedelta(microseconds=rules.before),
        after=timedelta(microseconds=rules.after),
        how=rules.how,
        select=["l:id"] if rules.how in ("semi", "anti") else ["l:id", "r:id"],
    )


def streams_of(rows):
    return {
        name: [(key, time(at), part, id, f"note {id}") for key, at, part, id, of in rows if of == side]
        for side, name in enumerate(NAMES)
    }


def of_side(rows, side):
    """Return the rows of one side as the model takes them."""
    return [row[:4] for row in rows if row[4] == side]
