"""Stateful bolts that die at any step and in their hooks, with states in tables, in Redis and of a user's provider."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from recovery_cases import KILLED, open_books
from scenarios.stateful import TXIDS, SqliteStateProvider
from scenarios.words import lines

from txstorm.results.views import StateView
from txstorm.stateful import RedisStateProvider
from txstorm.testing import check_state_provider

pytestmark = pytest.mark.integration

POINTS = {
    # the fault point, and how many transactions are decided when it is passed
    "p1.before:{}:2": None,
    "p5.staged.after:{}:2": None,
    "p5.after:{}:2": 1,
    "p6.before:{}:2": 1,
    "p6.after:{}:2": 2,
    "p7.1.before:{}:2": 2,
    "p7.1.written:{}:2": 2,
    "p8.before:{}:2": 2,
    "hook pre_prepare:{}:2": None,
    "hook pre_commit:{}:2": None,
}
FAULTS = ("kill", "raise", "hang")
STORES = ("delta", "redis", "sqlite")
CELLS = [
    (point, fault, STORES[(i + j + k) % 3], ("transactional", "opaque")[(i + j + k // 2) % 2])
    for i, point in enumerate(POINTS)
    for j, fault in enumerate(FAULTS)
    for k in range(2)
]


@pytest.fixture
def conf(request, place):
    """Return a function from a store's name to its configuration; the stores are empty."""

    def get(store):
        if store == "redis":
            server = request.getfixturevalue("redis_server")
            server.flush()
            return server.conf()
        return {"path": str(place / "states.db")} if store == "sqlite" else {}

    return get


def counts(data_dir, store, conf) -> dict[str, int]:
    """Return the counts of both tasks."""
    if store == "delta":
        rows = StateView(data_dir, "count").to_pylist()
        return {json.loads(row["key"]): int(row["value"]) for row in rows}
    provider = RedisStateProvider() if store == "redis" else SqliteStateProvider()
    states = [provider.new_state(f"count-{task}", conf, None) for task in range(2)]
    found = {word: n for state in states for word, n in state}
    for state in states:
        state.close()
    return found


def run(forks, place, store, conf, spout, fault="", *, take=2):
    argv = [place / "data", store, "--conf", json.dumps(conf), "--spout", spout, "--take", take]
    if fault.startswith("hook"):
        argv += ["--hook", fault.removeprefix("hook ").replace(":raise:", ":exception:")]
        fault = ""
    return forks.run(argv, fault, kill_after=1.5 if ":hang:" in f"{fault}{argv[-1]}" else None, scenario="stateful")


@pytest.mark.parametrize(("point", "fault", "store", "spout"), CELLS)
def test_killed_at_any_step_and_in_hooks_and_started_again(forks, place, conf, point, fault, store, spout):
    settings = conf(store)
    status, output = run(forks, place, store, settings, spout, point.format(fault))
    assert status == (1 if fault == "raise" else KILLED), output
    with open_books(place / "data") as books:
        live = {one.txid for intent in books.live_intents() for one in intent.txids}
        decided = max([books.currtx() - 1, *live])
    committed_before = hooks(place)["pre_commit"]
    assert set(committed_before) <= set(range(1, decided + 1))
    status, output = run(forks, place, store, settings, spout, take=1 if spout == "opaque" else 2)
    assert status == 0, output
    assert counts(place / "data", store, settings) == Counter(" ".join(lines(TXIDS)).split())
    with open_books(place / "data") as books:
        last = books.currtx() - 1
    called = Counter(hooks(place)["pre_commit"])
    assert set(called) == set(range(1, last + 1))
    assert {called[txid] for txid in called if txid not in live} <= {2}  # once in each task


def hooks(place) -> dict[str, list[int]]:
    """Return the txids with which each hook was called."""
    found: dict[str, list[int]] = {"pre_prepare": [], "pre_commit": [], "pre_rollback": []}
    path = place / "hooks"
    for line in path.read_text().splitlines() if path.exists() else ():
        method, txid = line.split()
        found[method].append(int(txid))
    return found


@pytest.mark.parametrize("store", STORES)
def test_a_hook_that_hangs_is_abandoned_and_its_transaction_replayed(forks, place, conf, store):
    settings = conf(store)
    argv = [place / "data", store, "--conf", json.dumps(settings), "--hook", "pre_prepare:hang:2"]
    argv += ["--set", "batch_timeout=0.4", "--set", "on_error=retry(5)"]
    status, output = forks.run(argv, scenario="stateful")
    assert status == 0, output
    assert counts(place / "data", store, settings) == Counter(" ".join(lines(TXIDS)).split())


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_what_is_prepared_and_not_decided_is_rolled_back_by_the_next_start(forks, place, conf, store):
    settings = conf(store)
    status, output = run(forks, place, store, settings, "transactional", "p6.before:kill:2")
    assert status == KILLED, output
    words = " ".join(lines(TXIDS)[:4]).split()
    assert counts(place / "data", store, settings) == Counter(words)
    status, output = run(forks, place, store, settings, "transactional", "p0.after:kill:1")
    assert status == KILLED, output
    assert counts(place / "data", store, settings) == Counter(words)
    if store == "redis":  # the provider on SQLite does not say what is prepared
        assert hooks(place)["pre_rollback"] == [0, 0]


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_what_is_decided_is_committed_by_the_next_start_before_anything_is_planned(forks, place, conf, store):
    settings = conf(store)
    status, output = run(forks, place, store, settings, "opaque", "p6.after:kill:2")
    assert status == KILLED, output
    assert sum(counts(place / "data", store, settings).values()) == len(" ".join(lines(TXIDS)[:4]).split())
    status, output = run(forks, place, store, settings, "opaque", "p1.before:kill:1")
    assert status == KILLED, output
    assert counts(place / "data", store, settings) == Counter(" ".join(lines(TXIDS)[:8]).split())
    assert hooks(place)["pre_commit"] == [1, 1, 2, 2]


def test_a_provider_on_sqlite_keeps_all_rules(tmp_path):
    check_state_provider(SqliteStateProvider, conf={"path": str(tmp_path / "states.db")})


def test_redis_keeps_all_rules(redis_server):
    check_state_provider(RedisStateProvider, conf=redis_server.conf(), seeds=range(5))
