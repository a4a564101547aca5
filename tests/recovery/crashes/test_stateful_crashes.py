"""Stateful bolts that die at any step and in their hooks, with states in tables, in Redis and of a user's provider."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from scenarios.stateful import TXIDS, FileStateProvider
from scenarios.words import lines
from stateful_cases import CELL, STORES, cells

from txstorm.results.views import StateView
from txstorm.stateful import RedisStateProvider
from txstorm.testing import check_state_provider

pytestmark = pytest.mark.integration

POINTS = (
    "p1.before:2",
    "p5.staged.after:2",
    "p5.after:2",
    "p6.before:2",
    "p6.after:2",
    "p7.1.before:2",
    "p7.1.written:2",
    "p8.before:2",
    "hook pre_prepare:2",
    "hook pre_commit:2",
)


@pytest.fixture
def runs(stateful_runs):
    """Return a function from the name of a store to the runs of the word count."""
    return lambda store: stateful_runs("stateful", store)


def counts(runs, store) -> dict[str, int]:
    """Return the counts of both tasks."""
    if store == "delta":
        rows = StateView(runs.data_dir, "count").to_pylist()
        return {json.loads(row["key"]): int(row["value"]) for row in rows}
    return runs.stored(f"count-{task}" for task in range(2))


def words(txids=TXIDS) -> Counter[str]:
    return Counter(" ".join(lines(TXIDS)[: 4 * txids]).split())


@pytest.mark.parametrize(CELL, cells(POINTS))
def test_killed_at_any_step_and_in_hooks_and_started_again(runs, point, fault, store, spout):
    """In long runs with the other stores and spouts, too (25 processor seconds)."""
    some = runs(store)
    some.strike(spout, point, fault)
    last, _ = some.decided()
    assert set(some.hooks()["pre_commit"]) <= set(range(1, last + 1))
    some.again(spout)
    assert counts(some, store) == words()
    some.check_commits()


@pytest.mark.parametrize("store", STORES)
def test_a_hook_that_hangs_is_abandoned_and_its_transaction_replayed(runs, store):
    some = runs(store)
    argv = ["--hook", "pre_prepare:hang:2", "--set", "batch_timeout=0.4", "--set", "on_error=retry(5)"]
    status, output = some.run("transactional", *argv)
    assert status == 0, output
    assert counts(some, store) == words()


@pytest.mark.parametrize("store", ["redis", "file"])
@pytest.mark.parametrize(
    ("spout", "faults", "hooks"),
    [
        ("transactional", {"p6.before:kill:2": 1, "p0.after:kill:1": 1}, {"pre_rollback": [0, 0]}),
        ("opaque", {"p6.after:kill:2": 1, "p1.before:kill:1": 2}, {"pre_commit": [1, 1, 2, 2]}),
    ],
    ids=["prepared and not decided, it is rolled back", "decided, it is committed"],
)
def test_the_next_start_decides_what_was_prepared_before_anything_is_planned(runs, store, spout, faults, hooks):
    some = runs(store)
    for fault, committed in faults.items():
        some.killed(fault, spout)
        assert counts(some, store) == words(committed)
    if store == "redis" or spout == "opaque":  # the provider of files does not say what is prepared
        assert {name: some.hooks()[name] for name in hooks} == hooks


def test_a_provider_of_files_keeps_all_rules(tmp_path):
    check_state_provider(FileStateProvider, conf={"path": str(tmp_path / "states")})


def test_redis_keeps_all_rules(redis_server):
    check_state_provider(RedisStateProvider, conf=redis_server.conf(), seeds=range(5))
