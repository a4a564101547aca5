"""Random schedules of windows: rules and transactions, and the driver that disturbs and commits them on tables.

Tests draw everything from one generator, so a seed replays a schedule. What a schedule must lead to is said by
`windows_model` and `aggregate_model`.
"""

import shutil
from datetime import UTC, datetime, timedelta
from random import Random

from windows_model import Rules

from txstorm import Count, Duration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time(micros):
    return EPOCH + timedelta(microseconds=micros)


def micros(moment):
    return None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)


def duration(n):
    return Duration(timedelta(microseconds=n))  # a unit of time of the models is a microsecond


def extent(part):
    return Count(part[1]) if part[0] == "count" else duration(part[1])


def run_seeds(run, seeds, place):
    """Call `run` with each seed and a directory below `place`, removed if it succeeds; a failure names the seed."""
    for seed in seeds:
        directory = place / str(seed)
        try:
            run(seed, directory)
        except BaseException as error:
            error.add_note(f"SEED={seed}")
            raise
        shutil.rmtree(directory)


class FedSchedule:
    """Feeds transactions to a test driver; fails some of them in either phase, restarts or rescales it, then commits.

    `to_streams` makes rows of streams of the model's rows, whose input is at index `number`, and whose id at `id`: rows
    that an opaque replay adds have ids of their own. `rescaled` returns the topology with another parallelism;
    `restarts` is the share of the restarts that are made, the others are left out, or are failures.
    """

    def __init__(self, driver, rng, to_streams, *, number, id, rescaled=None, restarts=1):
        self.driver, self.rng, self.to_streams = driver, rng, to_streams
        self.number, self.id, self.rescaled, self.restarts = number, id, rescaled, restarts

    def commit(self, stamp, rows, *, end=False):
        """Commit one transaction; return its txid and the rows it has after all replays, in order of delivery."""
        if self.rng.random() < 0.1 * self.restarts:
            self._restart()
        rows = [] if end else self._ordered(rows)
        txid = self._feed(stamp, rows, end)
        for _ in range(self.rng.choice([0, 0, 0, 0, 0, 1, 1, 2])):
            rows = self._disturb(txid, stamp, rows, end)
        self.driver.commit(txid)
        return txid, rows

    def _ordered(self, rows):
        return sorted(rows, key=lambda row: row[self.number])

    def _feed(self, stamp, rows, end):
        if end:
            return self.driver.end_of_input(at=time(stamp))
        if not rows:
            return self.driver.heartbeat(at=time(stamp))
        return self.driver.feed(self.to_streams(rows), at=time(stamp))

    def _disturb(self, txid, stamp, rows, end):
        kind = self.rng.choice(["processing", "committing", "restart"])
        if kind == "restart" and (self.restarts == 1 or self.rng.random() < self.restarts):
            self._restart()
        else:
            if kind == "committing":
                self.driver.ack(txid)
            self.driver.fail(txid)
        if txid not in self.driver.active:  # of an opaque spout: its replay may have fewer rows, or others
            rows = self._ordered(changed(self.rng, rows, self.id))
            assert self._feed(stamp, rows, end) == txid
        return rows

    def _restart(self):
        if self.rescaled is not None and self.rng.random() < 0.5:
            self.driver.restart(self.rescaled())
        else:
            self.driver.restart()


def changed(rng, rows, id):
    """Return the rows of an opaque replay, of which some are missing and some are new; their ids are at index `id`."""
    more = [(*row[:id], row[id] + 100_000, *row[id + 1 :]) for row in rows if rng.random() < 0.3]
    return [row for row in rows if rng.random() < 0.7] + more


def beside(rng):
    """Return another generator, which leaves what `rng` draws as it would be without it."""
    return Random(rng.getstate()[1][0])


def window_rules(rng):
    """Draw the declaration of a windowed bolt: every form, per task or per key, 1 to 3 inputs."""
    slide = (rng.choice(["time", "count"]), rng.choice([1, 2, 3, 5, 7, 10]))
    length = (rng.choice(["time", "count"]), rng.choice([1, 2, 3, 5, 8, 10, 20]))
    rules = Rules(
        length, slide, keyed=rng.random() < 0.5, inputs=rng.choice([1, 1, 2, 3]), lag=rng.choice([0, 0, 3, 10])
    )
    kind = rng.random()
    if kind < 0.15:
        modulus = rng.choice([2, 3, 5])
        rules.slide, rules.trigger = None, lambda id: id % modulus == 0
    elif kind < 0.35:
        gap, more = rng.choice([1, 3, 8]), rng.choice([0, 0, 4])
        rules.slide = rules.length = None
        rules.gap = lambda id: gap + more * (id % 3)
    rules.processing_time = rng.random() < 0.25
    rules.idle = rng.choice([None, None, 5, 20])
    rules.interval = rng.choice([0, 0, 0, 8])
    rules.policy = rng.choice(["min", "min", "min", "max"])
    rules.ttl = rng.choice([None, None, 15]) if rules.keyed else None
    if rules.trigger is None and (rules.gap or rules.slide[0] == "time"):
        rules.early = rng.choice([None, None, 4])
        rules.closed = "right" if rules.gap else beside(rng).choice(["right", "right", "left"])
    return rules


def window_schedule(rng, rules):
    """Yield the transactions of one schedule: (stamp, rows, keyword arguments of the model).

    Rows are (time, input, partition, unit, id): out of order, and inputs are apart. Some inputs are idle for long, have
    partitions, or end. A transaction without rows is a heartbeat; the last one may be the end of input.
    """
    stamp, now, id = rng.randrange(50), rng.randrange(-30, 60), 0
    partitions = {i: frozenset({"p", "q"}) for i in range(rules.inputs) if rng.random() < 0.2}
    quiet = {i for i in range(rules.inputs) if rng.random() < 0.2}
    ended, length = set(), rng.randrange(3, 12)
    for number in range(1, length + 1):
        stamp += rng.choice([0, 1, 3, 10])
        now += rng.choice([0, 1, 4, 15, 40])
        rows = []
        for _ in range(rng.choice([0, 1, 2, 5, 9])):
            i = rng.randrange(rules.inputs)
            if i in ended or (i in quiet and rng.random() < 0.8):
                continue
            id += 1
            part = rng.choice("pq") if i in partitions else ""
            unit = f"k{rng.randrange(3)}" if rules.keyed else rng.randrange(2)
            rows.append((now + 15 * i - rng.randrange(12), i, part, unit, id))
        if rng.random() < 0.03:
            ended.add(rng.randrange(rules.inputs))
        end = number == length and rng.random() < 0.6
        yield stamp, rows, {"partitions": partitions, "ended": frozenset(ended), "end": end}
