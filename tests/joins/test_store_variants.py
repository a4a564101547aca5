"""The state and the store variant of a join agree on pairs and unmatched left rows, over random schedules; A16 to A18."""

import os
import random
from collections import Counter as Multiset

import pytest
from helpers.store_joins import net, spout
from servers.running import start_redis

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.joins import IntervalJoin, MemoryStore, RedisStore, Side
from txstorm.testing import TopologyTestDriver

SCHEDULES = int(os.environ.get("TXSTORM_STORE_SCHEDULES", "10"))
LAG = 8
"""How much the sides are out of order at most, in milliseconds."""


def sides(rng):
    parts = rng.random() < 0.5
    common = {"key": "key", "time": "ts", "id": "id", "lag": Duration(LAG)}
    if not parts:
        return Side("feed", "l", **common), Side("feed", "r", **common)
    left = Side("feed", "l", partition="part", partitions=["p0"], **common)
    return left, Side("feed", "r", partition="part", partitions=["p0", "p1"], **common)


def schedule(rng):
    """Return what is fed: rows of both sides that drift apart, in batches; every partition has data at the end."""
    batches, newest, number = [], {"l": 1000, "r": 1000}, 0
    for _ in range(rng.randint(3, 9)):
        rows = {"l": [], "r": []}
        for stream in ("l", "r"):
            for _ in range(rng.choice((0, 0, 2, 5, 9))):
                number += 1
                newest[stream] += rng.choice((0, 0, 1, 3, 12))
                part = "p0" if stream == "l" else rng.choice(("p0", "p1"))
                key = rng.choice(("a", "b", "c", None))
                rows[stream].append((key, newest[stream] - rng.randint(0, LAG), f"{stream}{number}", part))
        batches.append(rows)
    return batches


def interval_net(left, right, how, bounds):
    builder = TransactionalTopologyBuilder("state", "feed", spout())
    join = IntervalJoin(
        left, right, how=how, select=["left:id", "right:id"] if how == "left" else ["left:id"], **bounds
    )
    builder.set_bolt("match", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    return builder.build_topology()


def results(topology, batches, *, ends, rng=None):
    """Feed the batches, with failures and restarts if there is a generator; return pairs and unmatched left rows."""
    with TopologyTestDriver(topology) as driver:
        for rows in batches:
            txid = driver.feed(rows)
            if rng is not None and rng.random() < 0.2:
                driver.fail(txid)
            if rng is not None and rng.random() < 0.2:
                driver.ack(txid)
                driver.fail(txid) if rng.random() < 0.5 else driver.restart()
                driver.advance(60)
            driver.commit(txid)
            if rng is not None and rng.random() < 0.15:
                driver.restart()
                driver.heartbeat()
                driver.commit()
        if ends:
            driver.end_of_input()
            driver.commit()
        return Multiset(driver.emitted("match")), Multiset(driver.emitted("match", stream="unmatched_left"))


def compare(store, seed):
    rng = random.Random(seed)
    left, right = sides(rng)
    before, after = rng.choice(((0, 0), (10, 0), (25, 5), (3, 20)))
    how, ends, batches = rng.choice(("left", "anti", "semi")), rng.random() < 0.5, schedule(rng)
    bounds = {"before": Duration(before), "after": Duration(after)}
    expected = results(interval_net(left, right, how, bounds), batches, ends=ends)
    select = ["left:id", "right:id"] if how == "left" else ["left:id"]
    options = {"left": left, "right": right, "how": how, "select": select, "batch_size": rng.randint(1, 5)}
    sync, feed = {"after": Duration(after)}, {"retain": Duration.hours(1), "batch_size": rng.randint(1, 5)}
    topology = net(store, sync=sync, feed=feed, tasks=rng.choice((1, 2)), **options, **bounds)
    assert results(topology, batches, ends=ends, rng=rng) == expected, f"seed {seed}: replay with compare(…, {seed})"


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_random_schedules_over_the_store_in_memory(seed):
    compare(MemoryStore(), seed)


@pytest.mark.integration
def test_random_schedules_over_redis(tmp_path):
    with start_redis(tmp_path) as redis:
        for seed in range(1000, 1000 + max(3, SCHEDULES // 5)):
            compare(RedisStore(f"redis://{redis.address()}/0", prefix=f"seed{seed}"), seed)
