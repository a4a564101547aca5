"""Random schedules of interval joins on real tables, with failures, replays, restarts and rewinds, against a naive model.

``SEED=n`` starts with that schedule; a failure names the seed of its schedule. ``JOIN_SCHEDULES`` is the number of
them. Rows A2, A5, A6, A20, U6, U9.
"""

import os
import random
from copy import deepcopy

import pytest
from fed import fed_bolt
from join_model import JoinModel
from join_schedules import FIELDS, NAMES, cut, join_of, join_rules, join_schedule, of_side, ordered_rows, streams_of
from window_schedules import FedSchedule, run_seeds, time

from txstorm import rewind
from txstorm.testing import ManualClock, TopologyTestDriver

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("JOIN_SCHEDULES", "10"))


def topology_of(rules, *, opaque=False, parallelism=1):
    builder = fed_bolt("join", join_of(rules), dict.fromkeys(NAMES, FIELDS), ["key"], parallelism, opaque=opaque)
    return builder.set_settings({"retry_backoff": 0}).build_topology()


class FedJoin(FedSchedule):
    """Feeds the transactions of a join; those with `caught_up` say that the right source is read to its end."""

    caught_up = False

    def _feed(self, stamp, rows, end):
        if end or (not rows and not self.caught_up):
            return super()._feed(stamp, rows, end)
        return self.driver.feed(self.to_streams(rows), at=time(stamp), caught_up=["r"] if self.caught_up else [])


def test_random_schedules_with_failures_join_what_the_model_joins(tmp_path):
    run_seeds(run_schedule, range(FIRST, FIRST + SCHEDULES), tmp_path)


@pytest.mark.long
def test_many_random_schedules_with_failures_join_what_the_model_joins(tmp_path):
    for seed in range(FIRST + 4, FIRST + 40):
        test_other_batch_cuts_change_no_total(seed, tmp_path / f"cuts-{seed}")
    run_seeds(run_schedule, range(FIRST + SCHEDULES, FIRST + 60 * SCHEDULES), tmp_path)


def run_schedule(seed, directory):
    rng = random.Random(seed)
    rules = join_rules(rng)
    opaque, parallelism = rng.random() < 0.5, rng.choice([1, 1, 2])
    topology = topology_of(rules, opaque=opaque, parallelism=parallelism)
    kept, caught_up = [JoinModel(rules)], [False]
    driver = TopologyTestDriver(topology, data_dir=directory, clock=ManualClock(time(-100)))
    try:
        fed = FedJoin(driver, rng, streams_of, number=4, id=3, restarts=0.3)  # one takes as long as ten transactions
        for step in join_schedule(rng, rules):
            if len(kept) > 1 and rng.random() < 0.06:
                kept = kept[: rng.randrange(1, len(kept))]
                caught_up = caught_up[: len(kept)]
                driver.close()
                if len(kept) - 1 < driver.committed:
                    rewind(directory, len(kept) - 1)
                driver = fed.driver = TopologyTestDriver(topology, data_dir=directory, clock=driver.clock)
            fed.caught_up = step.caught_up and not step.end
            txid, rows = fed.commit(step.stamp, step.rows, end=step.end)
            assert txid == len(kept), f"SEED={seed}"
            model = deepcopy(kept[-1])
            kept.append(model)
            # A heartbeat does not ask the source: it is where the transaction before has left it.
            caught_up.append(fed.caught_up or (caught_up[-1] and not rows and not step.end))
            outcome = model.transaction(
                txid, step.stamp, of_side(rows, 0), of_side(rows, 1), caught_up=caught_up[-1], end=step.end
            )
            where = f"SEED={seed}, txid {txid}, {rules}"
            check_results(driver, outcome, parallelism, where)
            if step.end or txid % 5 == 0:  # reading states takes a fifth of the time
                check_states(driver, model, where)
    finally:
        driver.close()


def check_results(driver, outcome, parallelism, where):
    """Compare the results of one transaction with the model's; of several tasks, each has its own order."""
    txid = driver.committed
    pairs = driver.emitted("join", txid)
    unmatched_left = [row[3] for row in driver.emitted("join", txid, stream="unmatched_left")]
    unmatched_right = [row[3] for row in driver.emitted("join", txid, stream="unmatched_right")]
    if parallelism == 1:
        assert pairs == outcome.pairs, where
        assert unmatched_left == outcome.unmatched_left, where
        assert unmatched_right == outcome.unmatched_right, where
    else:
        assert sorted(pairs, key=str) == sorted(outcome.pairs, key=str), where
        assert sorted(unmatched_left) == sorted(outcome.unmatched_left), where
        assert sorted(unmatched_right) == sorted(outcome.unmatched_right), where


def check_states(driver, model, where):
    """Compare the rows that are kept with the model's."""
    assert ids(driver.state("join-left")) == sorted(one.id for one in model.pending), where
    assert ids(driver.state("join-right")) == sorted(one.id for one in model.buffered), where


def ids(state):
    return sorted(int(row["id"]) for row in state.to_pylist())


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 4))
def test_other_batch_cuts_change_no_total(seed, tmp_path):
    """If no side is out of order by more than its lag (A2, U6)."""
    rng = random.Random(seed)
    rules = join_rules(rng)
    rules.left.idle = rules.right.idle = rules.right.grace = None
    rows = ordered_rows(rng, rules)
    totals = [total(tmp_path / str(number), topology_of(rules), cut(rng, rows)) for number in range(3)]
    assert totals[0] == totals[1] == totals[2], f"SEED={seed}, {rules}"


def total(directory, topology, batches):
    """Return all results, and the unmatched rows of both sides, sorted."""
    with TopologyTestDriver(topology, data_dir=directory) as driver:
        for batch in batches:
            driver.feed(streams_of(batch))
            driver.commit()
        driver.end_of_input()
        driver.commit()
        streams = ("default", "unmatched_left", "unmatched_right")
        return [sorted(map(repr, driver.emitted("join", stream=stream))) for stream in streams]
