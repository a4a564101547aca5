"""Random schedules of interval joins in memory, with failures and restarts, against a naive model (A2, A5, A6).

The committer runs over tables in memory. ``SEED=n`` starts with that schedule; a failure names the seed of its schedule.
``SCHEDULES`` is the number of them. The first 40 take all branches of the rules and of the committer.
"""

import os
import random

import pytest
from join_machine import JoinMachine
from join_model import JoinModel
from join_schedules import cut, join_of, join_rules, join_schedule, of_side, ordered_rows
from window_schedules import changed

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "100"))
LONG = 96 * SCHEDULES


@pytest.mark.parametrize("largest", [None, 3])
def test_random_schedules_with_failures_join_what_the_model_joins(largest, monkeypatch):
    """Each left row exactly once, each pair at most once and within bounds, and none too early (U6, U9, A20)."""
    if largest:  # blocks of few rows, mapped from files
        for module in ("rules.blocks", "rules.matching", "interval.interval_rows"):
            monkeypatch.setattr(f"txstorm.joins.{module}.LARGEST", largest)
    for seed in range(FIRST + bool(largest), FIRST + SCHEDULES, 2):
        run_named(run_schedule, seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(8))
def test_many_random_schedules_join_what_the_model_joins(part):
    first = FIRST + SCHEDULES + part * LONG // 8
    for seed in range(first, first + LONG // 8):
        run_named(run_schedule, seed)
        if seed % 40 == 0:
            run_named(run_cuts, seed)


def test_other_batch_cuts_change_no_total():
    """If no side is out of order by more than its lag."""
    for seed in range(FIRST, FIRST + SCHEDULES // 10):
        run_named(run_cuts, seed)


def run_named(run, seed):
    try:
        run(seed)
    except BaseException as error:
        error.add_note(f"SEED={seed}")
        raise


def run_schedule(seed):
    rng = random.Random(seed)
    rules = join_rules(rng)
    machine, model = JoinMachine(join_of(rules), rng.choice([None, frozenset()])), JoinModel(rules)
    pending, released, pairs, never = set(), set(), set(), 0
    for txid, step in enumerate(join_schedule(rng, rules), start=1):
        rows = step.rows
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            machine.transaction(txid, step, rows)  # fails
            rows = changed(rng, rows, 3) if rng.random() < 0.5 else rows
            if rng.random() < 0.3:
                machine.restart()
        emitted, commit = machine.transaction(txid, step, rows)
        commit()
        left, right = of_side(rows, 0), of_side(rows, 1)
        outcome = model.transaction(txid, step.stamp, left, right, caught_up=step.caught_up, end=step.end)
        where = f"SEED={seed}, txid {txid}, {rules}"
        assert emitted.rows() == outcome.pairs, where
        never += len(outcome.unmatched_right)
        assert machine.counted("unmatched_right") == never, where
        if machine.subscribed is None:
            assert [row[3] for row in emitted.rows("unmatched_left")] == outcome.unmatched_left, where
            assert [row[3] for row in emitted.rows("unmatched_right")] == outcome.unmatched_right, where
        else:
            assert not emitted.keys() & {"unmatched_left", "unmatched_right"}, where
        assert machine.rows["join-left"].ids == sorted(one.id for one in model.pending), where
        assert machine.rows["join-right"].ids == sorted(one.id for one in model.buffered), where
        new = {one[0] for one in outcome.matched} | set(outcome.unmatched_left)
        assert not new & released, where
        assert not pairs & set(outcome.matched), where
        released |= new
        pairs |= set(outcome.matched)
        pending |= {row[3] for row in left}
    if step.end:
        assert released == pending


def run_cuts(seed):
    rng = random.Random(seed)
    rules = join_rules(rng)
    rules.left.idle = rules.right.idle = rules.right.grace = None
    rows = ordered_rows(rng, rules)
    totals = []
    for _ in range(3):
        machine, found = JoinMachine(join_of(rules)), {}
        batches = [*cut(rng, rows), []]
        for txid, batch in enumerate(batches, start=1):
            emitted, commit = machine.transaction(txid, Step(txid == len(batches)), batch)
            commit()
            for stream, tuples in emitted.items():
                found.setdefault(stream, []).extend(map(repr, tuples))
        totals.append({stream: sorted(some) for stream, some in found.items() if stream != "frontier"})
    assert totals[0] == totals[1] == totals[2], rules


class Step:
    stamp, caught_up = 0, False

    def __init__(self, end):
        self.end = end
