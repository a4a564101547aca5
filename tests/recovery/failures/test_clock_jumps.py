"""A wall clock that jumps, within a run and between runs: no decision depends on it, and stamps never decrease."""

from __future__ import annotations

import random
import time

import pytest
from recovery_cases import check, content, ended
from watched import ShelfSpout, watched_topology

from txstorm.storage.tables.history import read_history

NUMBERS = list(range(24))
TXIDS = len(NUMBERS) // 2
HOUR = 3600 * 10**9


class JumpingClock:
    """A clock that is off by up to an hour in either direction, by a different amount at every call."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.real, self.asked = rng, time.time_ns, 0

    def time_ns(self) -> int:
        self.asked += 1
        return self.real() + self.rng.randint(-HOUR, HOUR)

    def time(self) -> float:
        return self.time_ns() / 1e9


@pytest.mark.parametrize("ledger", ["sqlite", "delta"])
def test_the_clock_jumps_by_up_to_an_hour_whenever_it_is_asked(ledger, place, shelf, diary, monkeypatch, progress):
    seed = random.randrange(1 << 30)
    progress(f"seed {seed}")
    shelf.write(NUMBERS)
    named = {"ledger": f"delta:{place / 'ledger'}"} if ledger == "delta" else {}
    topology = watched_topology(ShelfSpout(shelf), diary, max_spout_pending=2)
    ended(topology, place / "well")
    clock = JumpingClock(random.Random(seed))
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    monkeypatch.setattr(time, "time", clock.time)
    for until in (4, 5, 9, TXIDS):
        ended(topology, place / "data", until_txid=until, **named)
    monkeypatch.undo()
    assert clock.asked > TXIDS
    stamps = read_history(place / "data")["stamp"].to_pylist()
    assert stamps == sorted(stamps)
    assert content(place / "data") == content(place / "well")
    if ledger == "sqlite":
        check(place / "data", TXIDS, thinned=True)
