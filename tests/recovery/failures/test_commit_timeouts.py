"""A committer that hangs: its txid fails on timeout, and its abandoned thread can no longer write."""

from __future__ import annotations

import threading
import time

import pytest
from programs import loaded
from recovery_cases import check, committed_versions, ended, environment, eventually, open_books, sums
from watched import NUMBERS, SETTINGS, Keep, at, numbers

from txstorm import TransactionalTopologyBuilder
from txstorm.engine.local import LocalEngine
from txstorm.errors import StateError, TopologyFailed
from txstorm.runtime.commit import thread as commit_line


def test_a_commit_that_hangs_once_is_replayed_and_what_was_before_it_is_decided(make_engine, watch):
    # A job of a busy machine may be too late more than once, and one that is cancelled takes its Python workers along.
    engine = make_engine()
    timeout = 2 if isinstance(engine, LocalEngine) else 10
    trouble = at(5, lambda: time.sleep(30), times=1)
    handle = watch.ends(engine=engine, commit=trouble, batch_timeout=timeout, on_error="retry(20)")

    assert handle.progress.replays >= 1  # a slow job may have been too late as well
    assert watch.diary.calls("commit") == {**dict.fromkeys(range(1, 11), 1), 5: 2}
    assert sums(watch.data_dir) == dict.fromkeys(NUMBERS, 1)
    check(watch.data_dir, 10)


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


def test_an_abandoned_thread_that_wakes_up_can_write_nothing(data_dir, diary):
    before = set(threading.enumerate())
    builder = TransactionalTopologyBuilder("watched", "numbers", numbers())
    builder.set_bolt("commit", Zombie(diary, "commit")).global_grouping("numbers")
    ended(builder.build_topology().with_settings({**SETTINGS, "batch_timeout": 1}), data_dir)

    assert len(diary.of("refused")) == 3
    assert len(diary.of("second")) == 1
    assert sums(data_dir) == dict.fromkeys(NUMBERS, 1)
    check(data_dir, 10)
    eventually(lambda: set(threading.enumerate()) <= before)


def test_a_commit_that_always_hangs_is_named(watch):
    with pytest.raises(TopologyFailed, match=r"txid 3 .*failed 3 times: commit\[0\].*within batch_timeout=0.5 s"):
        watch.ends(commit=at(3, lambda: time.sleep(30)), batch_timeout=0.5)
    assert committed_versions(watch.data_dir) == [1, 2]


@pytest.mark.parametrize("drain", [False, True])
def test_stop_waits_for_a_commit_that_hangs_no_longer_than_needed(watch, monkeypatch, drain):
    def hang():
        watch.diary.note("hangs")
        time.sleep(30)

    monkeypatch.setattr(commit_line, "STOP_SECONDS", 0.3)
    limits = {"batch_timeout": 0.5} if drain else {"enable_timeouts": False}
    handle = watch.start(commit=at(3, hang), **limits)
    eventually(lambda: watch.diary.of("hangs"))
    before = time.monotonic()
    if drain:
        with pytest.raises(TopologyFailed, match="txid 3"):
            handle.stop(drain=True)
            handle.awaitTermination()
    else:
        handle.stop()
        assert handle.exception() is None
        with open_books(watch.data_dir) as books:
            assert books.failures() == {}  # the end of the run is no failure of the txid's
    assert time.monotonic() - before < 25  # it sleeps for 30
    assert handle.committed == 2

    again = watch.ends()
    assert sums(watch.data_dir) == dict.fromkeys(NUMBERS, 1)
    check(watch.data_dir, again.committed)


SCRIPT = """
import sys, time
from pathlib import Path
from txstorm.runtime.commit import thread as commit_line
from watched import Watch

commit_line.STOP_SECONDS = 0.3
watch = Watch(Path(sys.argv[1]))

def trouble(txid, nth):
    watch.diary.note("hangs")
    time.sleep(3600)

handle = watch.start(commit=trouble)
while not watch.diary.of("hangs"):
    time.sleep(0.01)
"""


@pytest.mark.integration
def test_a_process_ends_although_a_committer_does_not(place):
    child = loaded().run("-c", SCRIPT, place, env=environment())
    assert child.returncode == 0, child.stderr
