"""The package's own rules of interval joins over rows in memory, as a task of the join applies them."""

import numpy as np
import pyarrow as pa

from txstorm.joins.rules.blocks import Rows
from txstorm.joins.rules.matching import RightWindow
from txstorm.joins.rules.positions import Arrivals, Bounds, PositionRule
from txstorm.windows.rules.event_time import Facts, Progress, WatermarkRule

HASHES = {key: np.uint64(number * 0x9E3779B97F4A7C15 % (1 << 64)) for number, key in enumerate("abc", start=1)}


def rule_of(side):
    return PositionRule(WatermarkRule(1, side.lag, side.idle), side.grace)


def rows_of(tuples):
    """Return rows (key, time, partition, id) as columns; they are stored with their ids."""
    keys = [row[0] for row in tuples]
    hashes = np.array([HASHES.get(key, np.uint64(0)) for key in keys], np.uint64)
    keyed = np.array([key is not None for key in keys], bool) if None in keys else None
    times = np.array([row[1] for row in tuples], np.int64)
    ids = pa.array([row[3] for row in tuples], pa.int64())
    return Rows(hashes, times, pa.table({"key": pa.array(keys, pa.string()), "id": ids, "arrival": ids}), keyed)


class RulesMachine:
    """A join after a transaction; `transaction` returns the next one, and changes nothing."""

    def __init__(self, rules):
        self.rules, self.bounds = rules, Bounds(rules.before, rules.after)
        self.left, self.right = Progress(), Progress()
        self.pending, self.window = [], RightWindow(exact=True)

    def transaction(self, txid, step, left, right):
        """Return the machine after rows (key, time, partition, id), its pairs and unmatched rows."""
        rules, made = self.rules, object.__new__(RulesMachine)
        made.rules, made.bounds = rules, self.bounds
        made.left, reached = self._moved(self.left, rules.left, left, step, caught_up=False)
        made.right, _ = self._moved(self.right, rules.right, right, step, caught_up=step.caught_up)
        released = self.bounds.released(made.right.watermark)
        waiting = self.pending + [(row, (txid, order)) for order, row in enumerate(left)]
        due = [] if released is None else [one for one in waiting if one[0][1] < released]
        made.pending = [one for one in waiting if one not in due]
        freed = rows_of([row for row, _ in sorted(due, key=lambda one: (one[0][1], one[1]))])
        # A right row without a key has a hash that no left row with a key has.
        new = len(self.window.blocks)
        window = self.window.with_rows(rows_of(right))
        pairs = window.pairs(freed, freed.times - rules.before, freed.times + rules.after, new)
        ids = freed.stored["id"].to_pylist()
        rights = window.stored(pairs, ["id"])["id"].to_pylist() if len(pairs) else []
        matched = [(ids[one], other) for one, other in zip(pairs.left.tolist(), rights, strict=True)]
        window, _ = window.marked(pairs)
        oldest = min((row[1] for row, _ in made.pending), default=None)
        made.window, never = window.expire(self.bounds.expired(reached, oldest), new)
        alone = [id for number, id in enumerate(ids) if number not in set(pairs.left.tolist())]
        expired = [id for block, at in never for id in block.stored["id"].take(pa.array(block.at[at])).to_pylist()]
        return made, matched, alone, expired

    def _moved(self, progress, side, rows, step, *, caught_up):
        newest = {}
        for _, time, part, _ in rows:
            newest[0, part] = max(time, newest.get((0, part), time))
        facts = Facts({0: frozenset(side.partitions)}, end_of_input=step.end)
        rule, arrivals = rule_of(side), Arrivals(newest, facts, caught_up)
        after = rule.after(progress, arrivals, step.stamp)
        return after, rule.reached(after, arrivals, step.stamp)
