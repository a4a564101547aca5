"""A wall clock that jumps, within a run and between runs: nothing expires by it, and stamps never decrease."""

import random
import time
from datetime import timedelta

import pytest
from recovery_cases import check, content, ended
from watched import ShelfSpout, watched_topology

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.engine.local import LocalEngine
from txstorm.errors import InputError
from txstorm.lanes import Threads
from txstorm.operations.lifecycle import accept_clock
from txstorm.operations.rewind import rewind
from txstorm.operations.status import read_status
from txstorm.results.read import read_state
from txstorm.runtime.opening import RunOptions
from txstorm.runtime.run import launch
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.history import read_history

NUMBERS = list(range(24))
TXIDS = len(NUMBERS) // 2
HALF_AN_HOUR = 1800 * 10**9


class JumpingClock:
    """A clock that is off by up to half an hour in either direction, by a different amount at every call."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.real, self.asked = rng, time.time_ns, 0

    def time_ns(self) -> int:
        self.asked += 1
        return self.real() + self.rng.randint(-HALF_AN_HOUR, HALF_AN_HOUR)

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


DAY = 86_400
YEAR, TTL = 365 * DAY, 1800


def eventually(holds):
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


class Shifted(Threads):
    """The lanes of a machine that was suspended, and whose wall clock is off, for some seconds."""

    off = suspended = 0

    def now(self) -> int:
        return super().now() + (self.off + self.suspended) * 1_000_000

    def boot(self) -> float:
        return super().boot() + self.suspended


class Machine:
    """A topology that counts the one word of its source, with a ttl or without, where the clock can be moved."""

    def __init__(self, place, ttl=TTL):
        self.place, self.lanes, self.spout = place, Shifted(), MemoryTransactionalSpout({0: []}, "word")
        builder = TransactionalTopologyBuilder("words", "feed", self.spout)
        counts = CountByKey("word", "counts", ttl=None if ttl is None else timedelta(seconds=ttl))
        builder.set_committer_bolt("count", counts).fields_grouping("feed", ["word"])
        self.topology = builder.build_topology()

    def start(self, **options):
        self.handle = launch(self.topology, LocalEngine(), self.place, RunOptions(lanes=self.lanes, **options))
        return self

    def word(self):
        self.spout.add(0, "word")
        return self

    def night(self, off=0, **options):
        """Count a word more in a run of its own, on a clock that is `off`; return the count."""
        self.lanes.off = off
        assert self.word().start(available_now=True, **options).handle.awaitTermination(60)
        return self.count

    @property
    def count(self):
        rows = read_state(self.place, "counts").to_pylist()
        return rows[0]["n"] if rows else 0

    @property
    def behind(self):
        """By how many seconds the last stamp is behind the clock."""
        return self.lanes.seconds() - read_history(self.place)["stamp"].to_pylist()[-1].timestamp()


@pytest.mark.parametrize("end", ["returns", "accepted", "stays"])
def test_a_clock_that_jumps_a_year_ahead_expires_nothing_before_it_is_believed(place, end):
    machine = Machine(place)
    assert machine.night() == 1
    handle = machine.start().handle
    handle.processAllAvailable()
    machine.lanes.off = YEAR
    machine.word()
    eventually(lambda: read_status(place)["wall_clock"])
    time.sleep(0.5)
    assert (machine.count, "CLOCK" in handle.status["message"]) == (1, True)
    if end == "returns":
        machine.lanes.off = 0
    elif end == "accepted":
        assert accept_clock(place)["doubt"]
    else:
        machine.lanes.suspended = 601  # patience is over
    eventually(lambda: handle.progress.rows)
    handle.stop()
    assert handle.exception() is None
    assert machine.count == (2 if end == "returns" else 1)  # believed, it has expired the word
    assert machine.behind >= 0


def test_a_suspended_machine_and_a_topology_without_a_ttl_go_on(place):
    for ttl, moved in ((TTL, "suspended"), (None, "off")):
        machine = Machine(place / moved, ttl)
        assert machine.night() == 1
        handle = machine.start().handle
        setattr(machine.lanes, moved, YEAR)
        machine.word()
        handle.processAllAvailable()
        handle.stop()
        assert machine.count == (1 if ttl else 2)
        assert (machine.behind > DAY) == (ttl is None)  # the jump may be a mistake, so no stamp has it yet
    machine.lanes.off = 0
    assert machine.night() == 3


def test_a_start_on_a_clock_far_ahead_is_refused_and_one_after_a_night_or_a_weekend_is_not(place):
    machine = Machine(place)
    counts = [machine.night(), machine.night(60), machine.night(DAY), machine.night(4 * DAY), machine.night(4 * DAY)]
    assert counts == [1, 2, 1, 1, 2]  # a ttl of 30 minutes
    machine.topology = machine.topology.with_settings({"clock_patience": 1})
    for _ in range(2):  # what a refused start has recorded is not believed by the next one
        with pytest.raises(InputError, match="accept-clock"):
            machine.night(YEAR)
        assert machine.count == 2
    machine.topology = machine.topology.with_settings({"clock_patience": 600})
    machine.lanes.off = YEAR
    handle = machine.start(available_now=True).handle
    eventually(lambda: read_status(place)["wall_clock"])
    machine.lanes.off = 4 * DAY  # it is set right
    assert handle.awaitTermination(60)
    assert machine.count == 4  # with the words of the refused runs
    assert machine.night(YEAR, accept_clock=True) == 1


def test_a_start_on_a_clock_before_the_last_stamp_is_refused_and_a_rewind_leads_out(place):
    machine = Machine(place, ttl=None)
    assert (machine.night(), machine.night()) == (1, 2)
    first = read_history(place)["txid"].to_pylist()[-1]
    assert machine.night(YEAR) == 3
    with pytest.raises(InputError, match="before txid"):
        machine.night(0)
    assert machine.count == 3
    assert machine.night(0, accept_clock=True) == 5  # stamps stand still
    with pytest.raises(InputError, match="txstorm rewind"):
        machine.night(0)
    rewind(place, first)
    assert machine.night(0) == 7
    assert machine.behind >= 0
