"""Stateful bolts that die at any step and in their hooks, with states in tables and in Redis."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovery_cases import ends, killed, open_books, strike
from scenarios.stateful import TXIDS
from scenarios.words import lines

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
FAULTS = ("kill", "exception", "hang")
STORES = ("delta", "redis")
SPOUTS = ("transactional", "opaque")


def cells() -> list[Any]:
    """Return cells as parameters: each point or hook and fault with each of the stores, and one of the spouts.

    Long runs only test all of them; others each hook with each fault, and each fault point with one, by turns.
    """
    found = []
    for i, point in enumerate(POINTS):
        for j, fault in enumerate(FAULTS):
            for k, store in enumerate(STORES):
                chosen = k == (i + j) % 2 and (point.startswith("hook ") or j == i % 3)
                cell = point, fault, store, SPOUTS[(i // 2 + j + k) % 2]
                found.append(pytest.param(*cell, marks=() if chosen else pytest.mark.long))
    return found


class Runs:
    """Starts of the word count over one data directory; `struck` are the txids that faults left decided, incomplete."""

    def __init__(self, data_dir: Path, store: str, conf: dict[str, Any]) -> None:
        self._data_dir, self._store, self._conf = data_dir, store, conf
        self.struck: set[int] = set()

    def argv(self, spout: str, *more: Any, take: int = 2) -> list[Any]:
        conf = ["--conf", json.dumps(self._conf), "--spout", spout, "--take", take]
        return [self._data_dir, self._store, *conf, *more]

    def strike(self, spout: str, point: str, how: str) -> None:
        """Run until the fault has ended the run: at a fault point or, as ``hook METHOD:TXID``, in a hook."""
        again, hook = self.argv(spout), point.removeprefix("hook ")
        if hook == point:
            strike(point, how, *again, again=again, scenario="stateful")
        else:
            name, txid = hook.split(":")
            argv = [*again, "--hook", f"{name}:{how}:{txid}"]
            strike("", how, *argv, again=again, scenario="stateful", hook=f"hook.{name}")
        self.struck = self.decided()[1]

    def decided(self) -> tuple[int, set[int]]:
        """Return the last decided txid, and those of live intents."""
        with open_books(self._data_dir) as books:
            live = {one.txid for intent in books.live_intents() for one in intent.txids}
            return max([books.currtx() - 1, *live]), live

    def check_commits(self) -> None:
        """Check that each decided txid was committed in both tasks: once, unless the fault struck its group."""
        called = Counter(self.hooks()["pre_commit"])
        assert set(called) == set(range(1, self.decided()[0] + 1))
        assert {called[txid] for txid in called if txid not in self.struck} <= {2}

    def counts(self) -> dict[str, int]:
        if self._store == "delta":
            rows = StateView(self._data_dir, "count").to_pylist()
            return {json.loads(row["key"]): int(row["value"]) for row in rows}
        found = {}
        for task in range(2):
            state = RedisStateProvider().new_state(f"count-{task}", self._conf, None)
            found.update(state)
            state.close()
        return found

    def hooks(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"pre_prepare": [], "pre_commit": [], "pre_rollback": []}
        path = self._data_dir.with_name("hooks")
        for line in path.read_text().splitlines() if path.exists() else ():
            method, txid = line.split()
            found[method].append(int(txid))
        return found


@pytest.fixture
def runs(request: pytest.FixtureRequest, data_dir: Path) -> Callable[[str], Runs]:
    """Return a function from the name of a store, which is empty, to the runs of the word count."""

    def get(store: str) -> Runs:
        if store == "delta":
            return Runs(data_dir, store, {})
        server = request.getfixturevalue("redis_server")
        server.flush()
        return Runs(data_dir, store, server.conf())

    return get


def words(txids=TXIDS) -> Counter[str]:
    return Counter(" ".join(lines(TXIDS)[: 4 * txids]).split())


@pytest.mark.parametrize(("point", "fault", "store", "spout"), cells())
def test_killed_at_any_step_and_in_hooks_and_started_again(runs, point, fault, store, spout):
    """In long runs with the other stores and spouts, too (20 processor seconds)."""
    some = runs(store)
    some.strike(spout, point, fault)
    last, _ = some.decided()
    assert set(some.hooks()["pre_commit"]) <= set(range(1, last + 1))
    # What is left of an opaque spout comes in smaller transactions.
    ends(*some.argv(spout, take=1 if spout == "opaque" else 2), scenario="stateful")
    assert some.counts() == words()
    some.check_commits()


@pytest.mark.parametrize("store", STORES)
def test_a_hook_that_hangs_is_abandoned_and_its_transaction_replayed(runs, store):
    some = runs(store)
    more = ["--hook", "pre_prepare:hang:2", "--set", "batch_timeout=0.4", "--set", "on_error=retry(5)"]
    ends(*some.argv("transactional", *more), scenario="stateful")
    assert some.counts() == words()


@pytest.mark.parametrize(
    ("spout", "faults", "hooks"),
    [
        ("transactional", {"p6.before:kill:2": 1, "p0.after:kill:1": 1}, {"pre_rollback": [0, 0]}),
        ("opaque", {"p6.after:kill:2": 1, "p1.before:kill:1": 2}, {"pre_commit": [1, 1, 2, 2]}),
    ],
    ids=["prepared and not decided, it is rolled back", "decided, it is committed"],
)
@pytest.mark.usefixtures("redis_server")
def test_the_next_start_decides_what_was_prepared_before_anything_is_planned(runs, spout, faults, hooks):
    some = runs("redis")
    for fault, committed in faults.items():
        killed(fault, *some.argv(spout), scenario="stateful")
        assert some.counts() == words(committed)
    assert {name: some.hooks()[name] for name in hooks} == hooks


def test_redis_keeps_all_rules(redis_server):
    check_state_provider(RedisStateProvider, conf=redis_server.conf(), seeds=range(5))
