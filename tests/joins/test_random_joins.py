"""Interval joins on the test driver against the rules, written down once more without any index or column.

Each schedule is random: bounds, lags, partitions, types, keys, batches, failed attempts, restarts and rewinds.
"""

from __future__ import annotations

import copy
import math
import random
import time
from dataclasses import dataclass, field

import pytest
from join_cases import driver, topology

from txstorm import rewind

LATE, EARLY = math.inf, -math.inf


@dataclass
class Place:
    """What is known of one side: the newest time of each partition, and the stamp at which it last had data."""

    announced: list | None
    lag: int
    idle: int | None
    newest: dict = field(default_factory=dict)
    stamps: dict = field(default_factory=dict)
    first: int | None = None

    def reached(self, rows, stamp):
        """Take the rows of a transaction; return the lowest newest time less lag, None if a partition has no data."""
        self.first = stamp if self.first is None else self.first
        for row in rows:
            self.newest[row[3]] = max(row[2], self.newest.get(row[3], EARLY))
            self.stamps[row[3]] = stamp
        counted = set(self.newest) | set(self.announced or ())
        if self.idle is not None:
            latest = max(self.stamps.values(), default=None)
            counted = {
                one
                for one in counted
                if (latest is not None and self.stamps.get(one) == latest)
                or stamp - self.stamps.get(one, self.first) < self.idle
            }
        if not counted or any(one not in self.newest for one in counted):
            return None
        return min(self.newest[one] for one in counted) - self.lag


class Rules:
    """A join of rows (id, key, time, partition) after some transactions."""

    def __init__(self, options):
        self.before, self.after, self.how = options["before"], options["after"], options["how"]
        self.grace = options["right"].get("grace")
        self.places = [
            Place(one.get("partitions"), one["lag"], one.get("idle")) for one in (options["left"], options["right"])
        ]
        self.pending, self.window, self.matched = [], [], set()
        self.p = self.b = EARLY

    def transaction(self, left, right, stamp, *, caught_up=False, end=False):
        """Return results, unmatched left and unmatched right rows."""
        self.pending += left
        self.window += right
        left_reached, right_reached = (
            place.reached(some, stamp) for place, some in zip(self.places, (left, right), strict=True)
        )
        present = stamp - self.grace if self.grace is not None and caught_up else EARLY
        self.p = LATE if end else max(self.p, EARLY if right_reached is None else right_reached, present)
        released = sorted((one for one in self.pending if one[2] + self.after < self.p), key=lambda one: one[2])
        self.pending = [one for one in self.pending if one not in released]
        results, alone = [], []
        for one in released:
            found = sorted((other for other in self.window if self.joins(one, other)), key=lambda other: other[2])
            self.matched |= {other[0] for other in found}
            alone += [one] if not found else []
            if self.how in ("semi", "anti"):
                results += [(one[0],)] if bool(found) == (self.how == "semi") else []
            else:
                results += [(one[0], other[0]) for other in found]
                results += [(one[0], None)] if not found and self.how in ("left", "full") else []
        if end:
            self.b = LATE
        elif left_reached is not None:
            self.b = max(self.b, min([left_reached, *(one[2] for one in self.pending)]) - self.before)
        expired = [one for one in self.window if one[2] < self.b and one[0] not in self.matched]
        self.window = [one for one in self.window if one[2] >= self.b]
        if self.how in ("right", "full"):
            results += [(None, one[0]) for one in expired]
        return results, [one[0] for one in alone], [one[0] for one in expired]

    def joins(self, left, right):
        same = left[1] == right[1] and left[1] is not None
        return same and left[2] - self.before <= right[2] <= left[2] + self.after


def random_side(dice, name):
    side = {"lag": dice.choice([0, 0, 2, 7]), "partition": "part"}
    names = [f"{name}{n}" for n in range(dice.randint(1, 3))]
    if dice.random() < 0.5:
        side["partitions"] = names
    if dice.random() < 0.4:
        side["idle"] = dice.choice([1, 15, 40])
    if name == "r" and dice.random() < 0.5:
        side["grace"] = dice.choice([0, 10, 30])
    return side, names


def random_rows(dice, names, drift, now, txid):
    """Return rows of times around `now`, of which each partition has its own drift, and may be silent or start late."""
    rows = []
    for name in names:
        silent = dice.random() < 0.3 or (txid < 3 and name.endswith("2"))
        for _ in range(0 if silent else dice.choice([0, 1, 1, 2, 4])):
            ts = now + drift[name] - int(dice.expovariate(0.15))
            rows.append(
                (f"{name}-{txid}-{len(rows)}-{dice.random():.3f}", dice.choice(["x", "x", "y", None]), ts, name)
            )
    dice.shuffle(rows)
    return rows


class Schedule:
    """A join on the test driver, and the rules after each of its transactions."""

    def __init__(self, seed, path):
        self.dice = dice = random.Random(seed)
        (left, self.left), (right, self.right) = random_side(dice, "l"), random_side(dice, "r")
        before = dice.choice([0, 5, 20, -3])
        self.options = {
            "left": left,
            "right": right,
            "before": before,
            "after": dice.choice([0, 0, 4, -2]) if before > 0 else dice.choice([0, 6]) - min(before, 0),
            "how": dice.choice(["inner", "left", "right", "full", "semi", "anti"]),
        }
        self.drift = {name: dice.choice([0, 0, -10, 15, -40]) for name in self.left + self.right}
        self.now, self.path, self.rules = 1000, path, [Rules(self.options)]
        self.start()

    def start(self):
        self.driver = driver(topology(opaque=True, **self.options), data_dir=self.path)

    def run(self):
        steps = self.dice.randint(4, 9)
        while len(self.rules) <= steps:
            self.transaction(len(self.rules), end=len(self.rules) == steps)
            if len(self.rules) <= steps and self.dice.random() < 0.08:
                target = self.dice.randrange(len(self.rules) - 1)
                self.driver.close()
                rewind(self.path, to_txid=target)
                del self.rules[target + 1 :]
                self.start()

    def transaction(self, txid, *, end):
        dice, self.now = self.dice, self.now + self.dice.choice([0, 1, 8, 25])
        if dice.random() < 0.25:  # an attempt with other rows fails
            self.plan(txid, end)
            if dice.random() < 0.5:
                self.driver.ack(txid)
            self.driver.restart() if dice.random() < 0.5 else self.driver.fail(txid)
        # After a failure an end of input is planned again by itself.
        left, right, caught_up = ([], [], []) if self.driver.active else self.plan(txid, end)
        self.driver.commit(txid)
        after = copy.deepcopy(self.rules[-1])
        self.rules.append(after)
        self.compare(txid, *after.transaction(left, right, self.now, caught_up="r" in caught_up, end=end))

    def plan(self, txid, end):
        """Plan and process a transaction; return its rows, and the sources that are caught up."""
        if end:
            assert self.driver.end_of_input(at=self.now) == txid
            return [], [], []
        left, right = (random_rows(self.dice, names, self.drift, self.now, txid) for names in (self.left, self.right))
        caught_up = self.dice.choice([[], ["r"], ["l", "r"]])
        assert self.driver.feed({"l": left, "r": right}, at=self.now, caught_up=caught_up) == txid
        return left, right, caught_up

    def compare(self, txid, results, alone, expired):
        found = self.driver.emitted("join", txid)
        assert [one for one in found if one[0] is not None] == [one for one in results if one[0] is not None], txid
        assert sorted(found, key=str) == sorted(results, key=str), txid
        after = self.rules[-1]
        for name, gone, kept in (("left", alone, after.pending), ("right", expired, after.window)):
            emitted = self.driver.emitted("join", txid, stream=f"unmatched_{name}")
            assert sorted(row[0] for row in emitted) == sorted(gone), (txid, name)
            stored = self.driver.state(f"join-{name}").to_pylist()
            assert sorted(row["id"] for row in stored) == sorted(one[0] for one in kept), (txid, name)


def check_schedule(seed, path):
    schedule = Schedule(seed, path)
    try:
        schedule.run()
    finally:
        schedule.driver.close()


@pytest.mark.parametrize("number", range(4))
def test_random_schedules(number, tmp_path):
    check_random(1, tmp_path)


@pytest.mark.long
def test_many_random_schedules(tmp_path):
    check_random(500, tmp_path)


def check_random(number, tmp_path):
    first = time.time_ns() % 10**9
    for seed in range(first, first + number):
        print("seed", seed)
        check_schedule(seed, tmp_path / str(seed))
