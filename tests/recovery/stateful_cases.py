"""Runs of scenarios with stateful bolts: stores of their states, faults at a step or in a hook, one more start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recovery_cases import KILLED, Forks, open_books
from scenarios.stateful import SqliteStateProvider

from txstorm.stateful import RedisStateProvider

FAULTS = ("kill", "exception", "hang")
STORES = ("delta", "redis", "sqlite")
SPOUTS = ("transactional", "opaque")


def cells(points: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Return (point, fault, store, spout): each point and fault with both spouts, and with two of the stores."""
    return [
        (point, fault, STORES[(i + j + k) % 3], SPOUTS[(i + j + k) % 2])
        for i, point in enumerate(points)
        for j, fault in enumerate(FAULTS)
        for k in range(2)
    ]


class StatefulRuns:
    """Starts of one scenario over one data directory; its log of hooks is beside it.

    Attributes:
        data_dir: the data directory.
        conf: configuration of the provider.
    """

    def __init__(self, forks: Forks, place: Path, scenario: str, store: str, conf: dict[str, Any]) -> None:
        self.data_dir, self.conf = place / "data", conf
        self._forks, self._scenario, self._store = forks, scenario, store

    def run(self, spout: str = "transactional", fault: str = "", *more: Any, take: int = 2) -> tuple[int, str]:
        """Run once; return exit status and output."""
        return self._forks.run(self._argv(spout, take, *more), fault, scenario=self._scenario)

    def strike(self, spout: str, point: str, fault: str) -> None:
        """Run until the fault has ended the run: at a fault point or, as ``hook METHOD:TXID``, in a hook.

        While a run hangs, another start is refused; then it is killed.
        """
        name, nth = point.removeprefix("hook ").split(":")
        hook = name if point.startswith("hook ") else ""
        argv = self._argv(spout, 2, *(["--hook", f"{name}:{fault}:{nth}"] if hook else []))
        armed = "" if hook else f"{name}:{'raise' if fault == 'exception' else fault}:{nth}"
        if fault == "hang":
            standing = self._forks.stand_still(argv, armed, self._scenario, f"hook.{hook}" if hook else "")
            status, output = self.run(spout)
            assert (status, "HeldError" in output) == (1, True), output
            assert standing.kill() == KILLED
        else:
            status, output = self._forks.run(argv, armed, scenario=self._scenario)
            assert status == (KILLED if fault == "kill" else 1), output
            assert fault == "kill" or "injected" in output

    def again(self, spout: str) -> None:
        """Run to the end of the input; transactions of an opaque spout are smaller than before."""
        status, output = self.run(spout, take=1 if spout == "opaque" else 2)
        assert status == 0, output

    def decided(self) -> tuple[int, set[int]]:
        """Return the last decided txid, and those of live intents."""
        with open_books(self.data_dir) as books:
            live = {one.txid for intent in books.live_intents() for one in intent.txids}
            return max([books.currtx() - 1, *live]), live

    def stored(self, names: Iterable[str]) -> dict[Any, Any]:
        """Return the content of states that are not in tables."""
        provider = RedisStateProvider() if self._store == "redis" else SqliteStateProvider()
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

    def _argv(self, spout: str, take: int, *more: Any) -> list[Any]:
        conf = json.dumps(self.conf)
        return [self.data_dir, self._store, "--conf", conf, "--spout", spout, "--take", take, *more]
