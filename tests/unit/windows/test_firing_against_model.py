"""Random schedules of all window forms against a naive model of the rules, and the invariants that hold for all.

``SEED=n`` starts with that schedule; a failure names the seed of its schedule. ``SCHEDULES`` is the number of them; the
first 60 take all branches of the rules.
"""

import os
import random
from datetime import timedelta

import numpy as np
import pytest
from window_schedules import changed, window_rules, window_schedule
from windows_machine import Machine
from windows_model import INF, Model

from txstorm.windows.rules.firing import ARRIVAL_BITS, Moment, Rows, Unit, before, early
from txstorm.windows.rules.forms import sliding

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "2000"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_schedules_fire_what_the_model_fires():
    for seed in range(FIRST + SCHEDULES, FIRST + 50 * SCHEDULES):
        run_schedule(seed)
        if seed % 4 == 0:
            check_invariants(seed)
        if seed % 40 == 0:
            run_limited(seed, seed % 7 + 1)


def test_random_schedules_fire_what_the_model_fires():
    for seed in range(FIRST, FIRST + SCHEDULES):
        run_schedule(seed)


def run_schedule(seed):
    """Attempts that are discarded, the replays of opaque transactions and restarts leave nothing behind."""
    rng = random.Random(seed)
    rules = window_rules(rng)
    model, machine = Model(rules), Machine(rules)
    for txid, (stamp, rows, more) in enumerate(window_schedule(rng, rules), start=1):
        if rng.random() < 0.1:
            machine.attempt().transaction(txid, stamp, rows, **more)
            rows = changed(rng, rows, 4) if rng.random() < 0.5 else rows
        if rng.random() < 0.1:
            machine.restart()
        expected = model.transaction(txid, stamp, rows, **more)
        got = machine.transaction(txid, stamp, rows, **more)
        where = f"SEED={seed}, txid {txid}, {rules}"
        assert machine.watermark == model.w, where
        assert got[0] == expected[0], where
        assert got[1] == expected[1], where


def test_a_limit_of_ends_per_transaction_changes_neither_windows_nor_their_order():
    """Watermark, late tuples and content are those without a limit; transactions without data fire the rest."""
    for seed in range(FIRST, FIRST + SCHEDULES // 4):
        for limit in (1, 7):
            run_limited(seed, limit)


def run_limited(seed, limit):
    rng, schedule = random.Random(seed), random.Random(seed)
    rules = window_rules(schedule)
    rules.early = None
    model, machine = Model(rules), Machine(rules, limit)
    expected, got, txid, where = [], [], 0, f"SEED={seed}, limit {limit}, {rules}"
    for number, (stamp, rows, more) in enumerate(window_schedule(schedule, rules), start=1):
        lates, fired = model.transaction(number, stamp, rows, **more)
        expected += fired
        for few in [rows] + [[]] * rng.choice([0, 0, 1, 3, 200]):
            if few is not rows and not machine.ends.waiting:
                break
            if rng.random() < 0.1:
                machine.restart()
            txid += 1
            late, fired = machine.transaction(txid, stamp, few, **more)
            assert late == (lates if few is rows else []), where
            assert machine.watermark == model.w, where
            got += fired
            if rules.slide and rules.slide[0] == "time":
                assert len({one.end for one in fired}) <= limit, where
    while machine.ends.waiting:
        txid += 1
        got += machine.transaction(txid, stamp, [], **more)[1]
    assert got == expected, where


def test_invariants_of_all_forms():
    for seed in range(FIRST, FIRST + SCHEDULES // 4):
        check_invariants(seed)


def check_invariants(seed):
    rng = random.Random(seed)
    rules = window_rules(rng)
    rules.early = None
    machine, previous, ends, seen, late, appearances = Machine(rules), {}, {}, {}, set(), {}
    for txid, (stamp, rows, more) in enumerate(window_schedule(rng, rules), start=1):
        before = machine.watermark
        seen |= {id: time == before for time, _, _, _, id in rows if before != INF}
        lates, fired = machine.transaction(txid, stamp, rows, **more)
        late |= set(lates)
        for one in fired:
            old = [] if one.first else previous.get(one.unit, [])
            assert set(one.content) == set(old) - set(one.expired) | set(one.new), f"SEED={seed}"
            assert len(set(one.content)) == len(one.content) > 0, f"SEED={seed}"
            assert not set(one.content) & set(one.expired), f"SEED={seed}"
            if rules.slide and rules.slide[0] == "time":
                assert one.end > ends.get(one.unit, -INF), f"SEED={seed}"
            previous[one.unit], ends[one.unit] = one.content, one.end
            for id in one.content:
                appearances[id] = appearances.get(id, 0) + 1
    if machine.watermark == INF and not rules.processing_time and rules.ttl is None:
        check_appearances(rules, seen, late, appearances, f"SEED={seed}")


def check_appearances(rules, seen, late, appearances, where):
    """With a length that is a multiple of the slide, every tuple is late or in length/slide windows.

    One exactly at the watermark (true in `seen`) may come when the first of its windows have fired.
    """
    if rules.gap is not None:
        assert all(appearances.get(id, 0) == (id not in late) for id in seen), where
    elif rules.trigger is None and rules.length[0] == rules.slide[0] == "time":
        length, slide = rules.length[1], rules.slide[1]
        if length % slide == 0:
            for id, at_watermark in seen.items():
                fewest = 1 if at_watermark else length // slide
                assert (id in late) == (id not in appearances), where
                assert id in late or fewest <= appearances[id] <= length // slide, where


def test_batch_cuts_change_nothing_while_no_tuple_is_late():
    for seed in range(FIRST, FIRST + SCHEDULES // 40):
        rng = random.Random(seed)
        rules = window_rules(rng)
        rules.processing_time, rules.idle, rules.interval, rules.ttl, rules.early = False, None, 0, None, None
        rules.lag = 12
        rows, time = [], 0
        for id in range(1, 25):
            time += rng.choice([0, 0, 1, 5, 20])
            unit = f"k{rng.randrange(3)}" if rules.keyed else rng.randrange(2)
            # Strictly newer than the watermark can be: within the lag of the newest of every input.
            rows.append((time - rng.randrange(12), rng.randrange(rules.inputs), "", unit, id))
        assert cut(rules, rows, random.Random(seed)) == cut(rules, rows, random.Random(seed + 1)), f"SEED={seed}"


def cut(rules, rows, rng):
    machine, fired, txid, left = Machine(rules), [], 0, list(rows)
    while left:
        number = rng.randrange(0, 6)
        txid += 1
        lates, some = machine.transaction(txid, txid, left[:number])
        assert lates == []
        fired, left = fired + some, left[number:]
    _, some = machine.transaction(txid + 1, txid + 1, [], end=True)
    by_unit = {}
    for one in fired + some:
        by_unit.setdefault(one.unit, []).append(one)
    return by_unit


def test_an_early_result_reports_nothing_as_expired_that_an_end_without_content_has_dropped():
    """Windows of two that end at 5, 10, 15: the tuple at 7 is in none, and was dropped when the end at 10 passed."""
    form, moment = sliding(timedelta(microseconds=2), timedelta(microseconds=5)), Moment(2, 11, 11, keyed=True)
    rows = Rows(np.array([14], np.int64), np.array([2 << ARRIVAL_BITS], np.int64))
    (window,) = early(form, Unit(), moment, rows, 1, lambda low, number: rows)
    assert (window.end, window.old_low, window.final) == (15, before(11), False)
