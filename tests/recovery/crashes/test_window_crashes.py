"""Windows on two tables that die at any step and in hooks: no window twice, none missing, none with other content.

What a run must leave is computed by naive models, from the tuples that each committed transaction has read: an opaque
source brings fewer of them after the fault.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
from aggregate_model import AggregateModel, AggregateRules
from runs import ended
from scenarios.windows import LAG, LATENESS, LENGTH, PARTITIONS, SLIDE, Sums, rows, topology
from stateful_cases import CELL, SPOUTS, StatefulRuns, cells
from window_schedules import micros
from windows_model import Model, Rules

from txstorm.results.read import read_sink, read_state
from txstorm.storage.tables.history import read_history

pytestmark = pytest.mark.integration

POINTS = (
    "p1.before:2",
    "p5.staged.after:2",
    "p5.after:2",
    "p6.after:2",
    "p7.1.written:2",
    "p7.4.before:2",
    "hook pre_prepare:2",
    "hook pre_commit:2",
)


@pytest.mark.parametrize(CELL, cells(POINTS))
def test_every_window_fires_once_whatever_is_killed(stateful_runs, point, fault, store, spout):
    """In long runs with the other stores and spouts, too (50 processor seconds)."""
    runs = stateful_runs("windows", store)
    runs.strike(spout, point, fault)
    last, _ = runs.decided()
    runs.again(spout)
    sizes = [len(some) for some, end in batches(runs.data_dir) if not end]
    assert set(sizes[:last]) <= {4}
    assert set(sizes[last:]) == ({2} if spout == "opaque" else {4})
    check_windows(runs, store)
    runs.check_commits()


def batches(data_dir):
    """Return the rows that each committed transaction has read, and whether it was the end of input."""
    found = []
    for extent in read_history(data_dir)["extents"].to_pylist():
        plan = json.loads(extent)
        read = [] if "skipped" in plan else sorted(plan["meta"].items())
        some = [row for number, (start, count) in read for row in rows(int(number))[start : start + count]]
        found.append((some, plan.get("facts", {}).get("kind") == "end"))
    return found


def expected(data_dir):
    """Return the rows of every sink, with their txids, and the counts of windows and tuples, all from the models."""
    model = Model(Rules(("time", LENGTH), ("time", SLIDE), keyed=True, lag=LAG))
    aggregate = AggregateModel(AggregateRules(LENGTH, SLIDE, lateness=LATENESS, lag=LAG))
    sinks = {name: Counter() for name in ("windows", "late", "results", "retracted")}
    states, totals = {}, {}
    for txid, (some, end) in enumerate(batches(data_dir), start=1):
        late, fired = model.transaction(txid, txid, [(at, 0, "", unit, id) for unit, at, id, _ in some], end=end)
        sinks["late"].update((*row, txid) for row in some if row[2] in late)
        for one in fired:
            texts = map(json.dumps, (one.content, one.new, one.expired))
            sinks["windows"][one.unit, one.end, *texts, txid] += 1
            windows, tuples = states.get(one.unit, (0, 0))
            states[one.unit] = windows + 1, tuples + len(one.content)
        _, old, new = aggregate.transaction(txid, txid, [(*row, 0) for row in some], end)
        old, new = ([(*one[:5], one[9]) for one in results] for results in (old, new))
        sinks["retracted"].update((*one, txid) for one in old)
        sinks["results"].update((*one, txid) for one in new)
        for one in old:
            del totals[one[0], one[2]]
        totals |= {(one[0], one[2]): one for one in new}
    return sinks, states, sorted(totals.values())


def check_windows(runs, store):
    sinks, states, totals = expected(runs.data_dir)
    assert batches(runs.data_dir)[-1] == ([], True)
    read = [row for some, _ in batches(runs.data_dir) for row in some]
    assert Counter(read) == Counter(row for number in range(PARTITIONS) for row in rows(number))
    for name, wanted in sinks.items():
        found = read_sink(runs.data_dir, name).to_pylist()
        assert Counter(tuple(map(plain, row.values())) for row in found) == wanted, name
    result = [
        tuple(plain(row[name]) for name in ("unit", "start", "end", "n", "total", "last"))
        for row in read_state(runs.data_dir, "totals").to_pylist()
    ]
    assert sorted(result) == totals
    assert stored(runs, store) == states


def plain(value):
    return value if isinstance(value, str | int) else micros(value)


def stored(runs, store):
    if store == "delta":
        found = read_state(runs.data_dir, "sums").to_pylist()
        return {json.loads(row["key"]): tuple(json.loads(row["value"])["t"]) for row in found}
    return {unit: tuple(counts) for unit, counts in runs.stored(f"sums-{task}" for task in range(2)).items()}


def test_the_input_has_late_tuples_and_results_that_change(stateful_runs):
    """Without a fault, and all rows of a unit have different times: their order does not depend on tasks."""
    times = Counter(row[:2] for number in range(PARTITIONS) for row in rows(number))
    assert set(times.values()) == {1}
    runs = stateful_runs("windows", "delta")
    assert runs.run()[0] == 0
    check_windows(runs, "delta")
    sinks, _, _ = expected(runs.data_dir)
    assert all(sinks.values())


SERVERS = []


class KillsRedis(Sums):
    """Kills its server in a hook, before the state is prepared or committed; the server comes back a little later."""

    def called(self, method, txid):
        super().called(method, txid)
        if self.hook[0] == method and txid == 3 and SERVERS:
            server = SERVERS.pop()
            server.kill()
            threading.Timer(0.4, server.restart).start()


@pytest.mark.parametrize("spout", SPOUTS)
@pytest.mark.parametrize("method", ["pre_prepare", "pre_commit"])
def test_every_window_fires_once_if_redis_is_killed_and_restarted(place, own_redis, method, spout):
    SERVERS[:] = [own_redis]
    runs = StatefulRuns(place, "windows", "redis", own_redis.conf(timeout=500))
    bolt = KillsRedis(place / "hooks", f"{method}::0")
    settings = {"state_provider": "redis", "state_provider_config": json.dumps(runs.conf), "retry_backoff_max": 0.2}
    ended(topology(spout, 2, bolt), runs.data_dir, settings=settings, end_of_input=True)
    assert not SERVERS
    check_windows(runs, "redis")
    assert Counter(runs.hooks()["pre_commit"]) == dict.fromkeys(range(1, runs.decided()[0] + 1), 2)
