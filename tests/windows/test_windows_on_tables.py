"""Random schedules of windowed bolts on real tables, with failures, replays and restarts, against the naive model.

``SEED=n`` starts with that schedule; a failure names the seed of its schedule. ``TABLE_SCHEDULES`` is the number of
them.
"""

import os
import random

import pytest
from window_schedules import FedSchedule, run_seeds, time, window_rules, window_schedule
from windows_model import INF, Fired, Model
from windows_world import FIELDS, ByUnit, bolt_of

from txstorm import TransactionalTopologyBuilder
from txstorm.results.windowed_components import component_windows
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("TABLE_SCHEDULES", "24"))
PARTS = [0, pytest.param(1, marks=pytest.mark.slow)]


def topology_of(rules, seed, parallelism, limit=10_000):
    rng = random.Random(seed)
    spout = FeedSpout({f"s{i}": FIELDS for i in range(rules.inputs)}, opaque=rng.random() < 0.5)
    builder = TransactionalTopologyBuilder("t", "feed", spout)
    declarer = builder.set_bolt("w", bolt_of(rules, rng), parallelism)
    for i in range(rules.inputs):
        if rules.keyed:
            declarer.fields_grouping("feed", f"s{i}", ["unit"])
        else:
            declarer.custom_grouping("feed", f"s{i}", ByUnit())
    return builder.set_settings({"retry_backoff": 0, "max_ends_per_txid": limit}).build_topology()


def fired_in(driver, txid):
    emitted = driver.emitted("w", txid)
    return [Fired(unit, start, end, *ids, first, final) for unit, start, end, *ids, first, final in emitted]


@pytest.mark.parametrize("part", PARTS)
def test_random_schedules_with_failures_fire_what_the_model_fires(part, tmp_path):
    run_seeds(run_schedule, range(FIRST + part * SCHEDULES // 2, FIRST + (part + 1) * SCHEDULES // 2), tmp_path)


def test_an_early_result_of_a_key_reports_nothing_from_before_an_end_without_content(tmp_path):
    run_seeds(run_schedule, [1429], tmp_path)


@pytest.mark.long
def test_many_random_schedules_with_failures_fire_what_the_model_fires(tmp_path):
    run_seeds(run_schedule, range(FIRST + SCHEDULES, FIRST + 45 * SCHEDULES), tmp_path)


def run_schedule(seed, directory):
    """With a limit of ends per transaction, further ones fire the rest: the same windows, in the same order."""
    rng = random.Random(seed)
    rules = window_rules(rng)
    limits = (1, 7, "none") if seed % 2 else ("none",)
    rules.early = None if seed % 2 else rules.early

    def streams(rows):
        return {
            f"s{i}": [(unit, part, time(t), id) for t, n, part, unit, id in rows if n == i] for i in range(rules.inputs)
        }

    def rescaled():
        return topology_of(rules, seed, rng.choice([1, 2, 3]) if rules.keyed else 2, rng.choice(limits))

    def fire(txid):
        got.extend(sorted(fired_in(driver, txid), key=lambda one: (not one.final, one.end, str(one.unit))))

    model, got, expected, more_txids = Model(rules), [], [], 0
    with TopologyTestDriver(rescaled(), data_dir=directory, clock=ManualClock(time(-100))) as driver:
        fed = FedSchedule(driver, rng, streams, number=1, id=4, rescaled=rescaled)
        for number, (stamp, rows, more) in enumerate(window_schedule(rng, rules), start=1):
            end = more["end"]
            txid, rows = fed.commit(stamp, rows, end=end)
            assert txid == number + more_txids
            late, fired = model.transaction(txid, stamp, rows, end=end)
            expected += fired
            where = f"SEED={seed}, txid {txid}, {rules}"
            fire(txid)
            if not rules.processing_time:
                assert sorted(one[-1] for one in driver.emitted("w", txid, stream="late")) == sorted(late), where
            assert not (end and model.w != INF), where
            left = 10_000 if end or "none" in limits[:1] else rng.choice([0, 1, 5, 200])
            while left and component_windows(directory, "w").waiting:
                left, more_txids = left - 1, more_txids + 1
                txid, _ = fed.commit(stamp, [], end=end)
                fire(txid)
            if left:
                assert got == expected, where
        assert got == expected[: len(got)], where
