"""Runs of scenarios with stateful bolts: stores of their states, faults at a step or in a hook, one more start."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from recovery_cases import ends, killed, open_books, ran, strike
from scenarios.stateful import FileStateProvider

from txstorm.stateful import RedisStateProvider

FAULTS = ("kill", "exception", "hang")
STORES = ("delta", "redis", "file")
SPOUTS = ("transactional", "opaque")
CELL = ("point", "fault", "store", "spout")


def cells(points: Sequence[str]) -> list[Any]:
    """Return cells as parameters: each point or hook and fault with both spouts, and with two of the stores.

    Long runs only test all of them; others each hook with each fault, and each fault point with one, by turns.
    """
    found = []
    for i, point in enumerate(points):
        for j, fault in enumerate(FAULTS):
            for k in range(2):
                chosen = k == (i + j) % 2 and (point.startswith("hook ") or j == i % 3)
                cell = point, fault, STORES[(i + j + k) % 3], SPOUTS[(i + j + k) % 2]
                found.append(pytest.param(*cell, marks=() if chosen else pytest.mark.long))
    return found


class StatefulRuns:
    """Starts of one scenario over one data directory; its log of hooks is beside it.

    Attributes:
        data_dir: the data directory.
        conf: configuration of the provider.
        struck: the txids that were decided and not complete when a fault struck.
    """

    def __init__(self, place: Path, scenario: str, store: str, conf: dict[str, Any]) -> None:
        self.data_dir, self.conf = place / "data", conf
        self._scenario, self._store = scenario, store
        self.struck: set[int] = set()

    def argv(self, spout: str = "transactional", *more: Any, take: int = 2) -> list[Any]:
        """Return the arguments of a start."""
        conf = ["--conf", json.dumps(self.conf), "--spout", spout, "--take", take]
        return [self.data_dir, self._store, *conf, *more]

    def run(self, *arguments: Any, fault: str = "", **options: Any) -> tuple[int, str]:
        """Run once, with arguments as of `argv`; return exit status and output."""
        return ran(*self.argv(*arguments, **options), fault=fault, scenario=self._scenario)

    def killed(self, fault: str, spout: str) -> None:
        """Run until `fault` kills the run."""
        killed(fault, *self.argv(spout), scenario=self._scenario)

    def strike(self, spout: str, point: str, how: str) -> None:
        """Run until the fault has ended the run: at a fault point or, as ``hook METHOD:TXID``, in a hook."""
        again, hook = self.argv(spout), point.removeprefix("hook ")
        if hook == point:
            strike(point, how, *again, again=again, scenario=self._scenario)
        else:
            name, txid = hook.split(":")
            argv = [*again, "--hook", f"{name}:{how}:{txid}"]
            strike("", how, *argv, again=again, scenario=self._scenario, hook=f"hook.{name}")
        self.struck = self.decided()[1]

    def again(self, spout: str) -> None:
        """Run to the end of the input; transactions of an opaque spout are smaller than before."""
        ends(*self.argv(spout, take=1 if spout == "opaque" else 2), scenario=self._scenario)

    def decided(self) -> tuple[int, set[int]]:
        """Return the last decided txid, and those of live intents."""
        with open_books(self.data_dir) as books:
            live = {one.txid for intent in books.live_intents() for one in intent.txids}
            return max([books.currtx() - 1, *live]), live

    def check_commits(self) -> None:
        """Check that each decided txid was committed in both tasks: once, unless the fault struck its group."""
        called = Counter(self.hooks()["pre_commit"])
        assert set(called) == set(range(1, self.decided()[0] + 1))
        assert {called[txid] for txid in called if txid not in self.struck} <= {2}

    def stored(self, names: Iterable[str]) -> dict[Any, Any]:
        """Return the content of states that are not in tables."""
        provider = RedisStateProvider() if self._store == "redis" else FileStateProvider()
        found = {}
        for name in names:
            state = provider.new_state(name, self.conf, None)
            found.update(state)
            state.close()
        return found

    def hooks(self) -> dict[str, list[int]]:
        """Return the txids with which each hook was called."""
        found: dict[str, list[int]] = {"pre_prepare": [], "pre_commit": [], "pre_rollback": []}
        path = self.data_dir.with_name("hooks")
        for line in path.read_text().splitlines() if path.exists() else ():
            method, txid = line.split()
            found[method].append(int(txid))
        return found
