"""Random schedules of all window forms against a naive model of the rules, and the invariants that hold for all.

``SEED=n`` starts with that schedule; a failure names the seed of its schedule. ``SCHEDULES`` is the number of them.
"""

import os
import random

import pytest
from windows_machine import Machine
from windows_model import INF, Model, Rules

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "20000"))


def some_rules(rng):
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
    return rules


def schedule(rng, rules):
    """Yield the transactions of one schedule: (txid, stamp, rows, keyword arguments)."""
    stamp, now, id = rng.randrange(50), rng.randrange(-30, 60), 0
    partitions = {i: frozenset({"p", "q"}) for i in range(rules.inputs) if rng.random() < 0.2}
    quiet = {i for i in range(rules.inputs) if rng.random() < 0.2}
    ended, length = set(), rng.randrange(3, 12)
    for txid in range(1, length + 1):
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
        end = txid == length and rng.random() < 0.6
        yield txid, stamp, rows, {"partitions": partitions, "ended": frozenset(ended), "end": end}


@pytest.mark.long
def test_many_random_schedules_fire_what_the_model_fires():
    for seed in range(FIRST + SCHEDULES, FIRST + 5 * SCHEDULES):
        run_schedule(seed)


@pytest.mark.parametrize("part", range(4))
def test_random_schedules_fire_what_the_model_fires(part):
    for seed in range(FIRST + part * SCHEDULES // 4, FIRST + (part + 1) * SCHEDULES // 4):
        run_schedule(seed)


def run_schedule(seed):
    rng = random.Random(seed)
    rules = some_rules(rng)
    model, machine = Model(rules), Machine(rules)
    for txid, stamp, rows, more in schedule(rng, rules):
        expected = model.transaction(txid, stamp, rows, **more)
        got = machine.transaction(txid, stamp, rows, **more)
        where = f"SEED={seed}, txid {txid}, {rules}"
        assert machine.watermark == model.w, where
        assert got[0] == expected[0], where
        assert got[1] == expected[1], where


@pytest.mark.parametrize("part", range(4))
def test_invariants_of_all_forms(part):
    for seed in range(FIRST + part * SCHEDULES // 16, FIRST + (part + 1) * SCHEDULES // 16):
        rng = random.Random(seed)
        rules = some_rules(rng)
        rules.early = None
        machine, previous, ends, seen, late, appearances = Machine(rules), {}, {}, [], set(), {}
        closed = False
        for txid, stamp, rows, more in schedule(rng, rules):
            seen += [] if closed else [row[4] for row in rows]
            lates, fired = machine.transaction(txid, stamp, rows, **more)
            late |= set(lates)
            closed = closed or machine.watermark == INF
            for one in fired:
                before = [] if one.first else previous.get(one.unit, [])
                assert set(one.content) == set(before) - set(one.expired) | set(one.new), f"SEED={seed}"
                assert not set(one.content) & set(one.expired) and one.content, f"SEED={seed}"
                if rules.slide and rules.slide[0] == "time":
                    assert one.end > ends.get(one.unit, -INF), f"SEED={seed}"
                previous[one.unit], ends[one.unit] = one.content, one.end
                for id in one.content:
                    appearances[id] = appearances.get(id, 0) + 1
        if closed and not rules.processing_time and rules.ttl is None:
            check_appearances(rules, seen, late, appearances, f"SEED={seed}")


def check_appearances(rules, seen, late, appearances, where):
    """With a length that is a multiple of the slide, every tuple is late or in length/slide windows."""
    if rules.gap is not None:
        assert all(appearances.get(id, 0) == (id not in late) for id in seen), where
    elif rules.trigger is None and rules.length[0] == rules.slide[0] == "time":
        length, slide = rules.length[1], rules.slide[1]
        if length % slide == 0:
            # A tuple at the watermark may come when the first of its windows have fired.
            assert all((id in late) == (id not in appearances) for id in seen), where
            assert all(number <= length // slide for number in appearances.values()), where


def test_batch_cuts_change_nothing_while_no_tuple_is_late():
    for seed in range(FIRST, FIRST + SCHEDULES // 40):
        rng = random.Random(seed)
        rules = some_rules(rng)
        rules.processing_time, rules.idle, rules.interval, rules.ttl, rules.early = False, None, 0, None, None
        rules.lag = 12
        rows, time = [], 0
        for id in range(1, 25):
            time += rng.choice([0, 0, 1, 5, 20])
            unit = f"k{rng.randrange(3)}" if rules.keyed else rng.randrange(2)
            # Strictly newer than the watermark can be: within the lag of the newest of every input.
            rows.append((time - rng.randrange(12), 0, "", unit, id))
        rules.inputs = 1
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
