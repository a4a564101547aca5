"""A committer that hangs: its txid fails on timeout, and its abandoned thread can no longer write."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from programs import loaded
from recovery_cases import check, committed_versions, environment, eventually, open_books, sums
from watched import SETTINGS, Diary, Keep, watched_topology

from txstorm import TransactionalTopologyBuilder, run
from txstorm.engine.local import LocalEngine
from txstorm.errors import StateError, TopologyFailed
from txstorm.runtime.commit import thread as commit_line
from txstorm.spouts import MemoryTransactionalSpout

NUMBERS = list(range(1, 21))


def source():
    return MemoryTransactionalSpout([NUMBERS], ["n"], take=2)


@pytest.fixture
def diary(place: Path) -> Diary:
    return Diary(place / "diary")


def test_a_commit_that_hangs_once_is_replayed_and_what_was_before_it_is_decided(make_engine, place, diary):
    def trouble(txid, nth):
        if txid == 5 and nth == 1:
            time.sleep(30)

    # A job of a busy machine may be too late more than once, and one that is cancelled takes its Python workers along.
    engine = make_engine()
    timeout = 2 if isinstance(engine, LocalEngine) else 10
    topology = watched_topology(source(), diary, commit=trouble, batch_timeout=timeout, on_error="retry(20)")
    handle = run(topology, engine=engine, data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert handle.progress.replays >= 1  # a slow job may have been too late as well
    times = [txid for txid, _ in diary.of("commit")]
    assert {txid: times.count(txid) for txid in times} == {**dict.fromkeys(range(1, 11), 1), 5: 2}
    assert sums(place / "data") == dict.fromkeys(NUMBERS, 1)
    check(place / "data", 10)


class Zombie(Keep):
    """A committer whose first attempt at txid 3 resumes in the middle of the second one, and tries to write then."""

    def finish_batch(self):
        if self.attempt.txid != 3:
            super().finish_batch()
            return
        first = not self.diary.of("first")
        state, sink = self.context.state("seen"), self.context.sink("numbers")
        if first:
            state.put(1000, 1000)
            self.diary.note("first")
            eventually(lambda: self.diary.of("second"))
            for what in (
                lambda: state.put(1001, 1001),
                lambda: sink.append(1001),
                lambda: self.context.state("seen").put(1002, 1),
            ):
                with pytest.raises(StateError):
                    what()
                self.diary.note("refused")
            self.diary.note("gone")
        else:
            super().finish_batch()
            self.diary.note("second")
            eventually(lambda: self.diary.of("gone"))


def test_an_abandoned_thread_that_wakes_up_can_write_nothing(place, diary):
    before = set(threading.enumerate())
    builder = TransactionalTopologyBuilder("watched", "numbers", source())
    builder.set_bolt("commit", Zombie(diary, "commit")).global_grouping("numbers")
    topology = builder.build_topology().with_settings({**SETTINGS, "batch_timeout": 1})
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert len(diary.of("refused")) == 3
    assert len(diary.of("second")) == 1
    assert sums(place / "data") == dict.fromkeys(NUMBERS, 1)
    check(place / "data", 10)
    eventually(lambda: set(threading.enumerate()) <= before)


def test_a_commit_that_always_hangs_is_named(place, diary):
    def trouble(txid, nth):
        if txid == 3:
            time.sleep(30)

    topology = watched_topology(source(), diary, commit=trouble, batch_timeout=0.5)
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 3 .*failed 3 times: commit\[0\].*within batch_timeout=0.5 s"):
        handle.awaitTermination()
    assert committed_versions(place / "data") == [1, 2]


@pytest.mark.parametrize("drain", [False, True])
def test_stop_waits_for_a_commit_that_hangs_no_longer_than_needed(place, diary, monkeypatch, drain):
    def trouble(txid, nth):
        if txid == 3:
            diary.note("hangs")
            time.sleep(30)

    monkeypatch.setattr(commit_line, "STOP_SECONDS", 0.3)
    limits = {"batch_timeout": 0.5} if drain else {"enable_timeouts": False}
    topology = watched_topology(source(), diary, commit=trouble, **limits)
    handle = run(topology, engine="local", data_dir=place / "data")
    eventually(lambda: diary.of("hangs"))
    before = time.monotonic()
    if drain:
        with pytest.raises(TopologyFailed, match="txid 3"):
            handle.stop(drain=True)
            handle.awaitTermination()
    else:
        handle.stop()
        assert handle.exception() is None
        with open_books(place / "data") as books:
            assert books.failures() == {}  # the end of the run is no failure of the txid's
    assert time.monotonic() - before < 25  # it sleeps for 30
    assert handle.committed == 2

    again = run(watched_topology(source(), diary), engine="local", data_dir=place / "data", available_now=True)
    again.awaitTermination()
    assert sums(place / "data") == dict.fromkeys(NUMBERS, 1)
    check(place / "data", again.committed)


SCRIPT = """
import sys, time
from pathlib import Path
from txstorm import run
from txstorm.runtime.commit import thread as commit_line
from txstorm.spouts import MemoryTransactionalSpout
from watched import Diary, watched_topology

commit_line.STOP_SECONDS = 0.3
diary = Diary(Path(sys.argv[1]) / "diary")

def trouble(txid, nth):
    diary.note("hangs")
    time.sleep(3600)

source = MemoryTransactionalSpout([[1, 2, 3, 4]], ["n"], take=2)
handle = run(watched_topology(source, diary, commit=trouble), engine="local", data_dir=sys.argv[1] + "/data")
while not diary.of("hangs"):
    time.sleep(0.01)
"""


@pytest.mark.integration
def test_a_process_ends_although_a_committer_does_not(place):
    path = place / "hangs.py"
    path.write_text(SCRIPT)
    child = loaded().run(path, place, env=environment())
    assert child.returncode == 0, child.stderr
