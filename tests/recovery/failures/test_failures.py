"""Failed batches: which results are retained, which batches are replayed, and which errors end the topology."""

import os
import threading
import time
from pathlib import Path

import pytest
from programs import loaded
from recovery_cases import check, committed_versions, ended, environment, eventually, open_books, sums
from watched import NUMBERS, SETTINGS, Keep, Watched, at, numbers, raising

from txstorm import FailedException, ReportedFailedException, TransactionalTopologyBuilder
from txstorm.engine.local import LocalEngine
from txstorm.errors import StateError, TopologyFailed
from txstorm.results.read import read_sink
from txstorm.runtime.commit import line as commit_line
from txstorm.sinks import DeltaSink

ONCE = dict.fromkeys(range(1, 11), 1)


def assert_everything_once(data_dir: Path) -> None:
    rows = [(row["_txid"], row["n"]) for row in read_sink(data_dir, "numbers").to_pylist()]
    assert rows == [((number + 1) // 2, number) for number in NUMBERS]
    assert sums(data_dir) == dict.fromkeys(NUMBERS, 1)
    check(data_dir, 10)


def test_an_exception_in_txid_5_of_a_pack_of_8_lets_1_to_4_commit_after_one_run(make_engine, watch):
    handle = watch.start(
        engine=make_engine(), process=at(5, raising(ValueError("five"))), max_jobs=1, available_now=True
    )
    with pytest.raises(TopologyFailed, match=r"txid 5 .* failed once: process\[0\] raised ValueError .*five"):
        handle.awaitTermination()

    assert handle.recentProgress[0].pack == 8
    assert watch.diary.calls("process") == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert watch.diary.calls("commit") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert handle.committed == 4
    assert committed_versions(watch.data_dir) == [1, 2, 3, 4]

    watch.ends(engine=make_engine())
    assert_everything_once(watch.data_dir)
    assert watch.diary.calls("process") == {**ONCE, 5: 2}


def test_txids_before_the_one_that_ends_the_topology_are_replayed_until_they_are_committed(watch, place):
    def trouble(txid, nth):
        if txid == 5:
            (place / "five").touch()
            raise ValueError("five")
        if txid == 3 and nth <= 2:
            eventually((place / "five").exists)
            time.sleep(0.2)  # the driver has heard of it
            raise FailedException("not yet")

    settings = {"max_pack_txids": 1, "max_jobs": 4, "max_spout_pending": 8, "retry_backoff": 0.02}
    handle = watch.start(process=trouble, available_now=True, **settings)
    with pytest.raises(TopologyFailed, match=r"txid 5 .* failed once"):
        handle.awaitTermination()
    assert handle.committed == 4
    assert watch.diary.calls("process")[3] == 3


def test_an_exception_in_finish_batch_of_txid_5_of_a_group_decides_1_to_4(make_engine, watch):
    handle = watch.ends(engine=make_engine(), commit=at(5, raising(FailedException()), times=1))
    groups = [(one.txid, one.group) for one in handle.recentProgress]
    assert groups[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]  # of a pack of 8
    assert watch.diary.calls("commit") == {**ONCE, 5: 2}
    assert_everything_once(watch.data_dir)


@pytest.mark.parametrize("phase", ["process", "commit"])
@pytest.mark.parametrize("error", [FailedException, ReportedFailedException])
def test_a_failed_batch_is_replayed_without_limit(watch, phase, error):
    handle = watch.ends(**{phase: at(3, raising(error("not yet")), times=12)})
    assert watch.diary.calls(phase)[3] == 13
    assert handle.progress.replays == 12
    assert_everything_once(watch.data_dir)


def test_a_batch_that_keeps_failing_waits_longer_and_longer(watch, place):
    journal = place / "journal"
    trouble = at(1, raising(FailedException()), times=6)
    watch.ends(process=trouble, max_spout_pending=1, retry_backoff=0.02, until_txid=1, journal=journal)
    text = journal.read_text()
    assert text.count("Failed") == 6
    # Storm replays at once; so does the first replay. The others are held until their time has come.
    assert text.count("Resume") == 5


def test_the_limit_of_failed_exceptions_can_be_set(watch):
    with pytest.raises(TopologyFailed, match=r"txid 2 .* failed 4 times.*never"):
        watch.ends(process=at(2, raising(FailedException("never"))), max_retries=3)
    assert watch.diary.calls("process")[2] == 4


def test_retry_n_allows_n_replays_and_counts_over_restarts(watch):
    trouble = {"commit": at(4, raising(KeyError("four"))), "on_error": "retry(2)"}
    with pytest.raises(TopologyFailed, match=r"txid 4 .* failed 3 times: commit\[0\] raised KeyError"):
        watch.ends(**trouble)
    assert watch.diary.calls("commit")[4] == 3
    with open_books(watch.data_dir) as books:
        assert books.failures()[4]["count"] == 3
        assert "KeyError" in books.failures()[4]["cause"]

    with pytest.raises(TopologyFailed, match=r"failed 4 times"):
        watch.ends(**trouble)
    assert watch.diary.calls("commit")[4] == 4  # the allowed ones were used up before the restart

    watch.ends(on_error="retry(2)")
    assert_everything_once(watch.data_dir)  # the count is gone with the commit


def test_an_exception_that_heals_in_time_is_no_failure_of_the_topology(make_engine, watch):
    def trouble(txid, nth):
        if txid % 4 == 0 and nth <= 2:
            raise OSError("for a moment")

    assert watch.ends(engine=make_engine(), process=trouble, on_error="retry(2)").exception() is None
    assert_everything_once(watch.data_dir)


def test_system_exit_in_a_bolt_is_an_exception_like_others(watch):
    handle = watch.start(process=at(2, raising(SystemExit(3))), available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 2 .*SystemExit"):
        handle.awaitTermination()
    assert handle.committed == 1


on_both_engines = pytest.mark.parametrize(
    "make_engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])], indirect=True
)


@on_both_engines
def test_a_batch_beyond_its_timeout_is_cancelled_and_replayed(make_engine, watch):
    # A job of a busy machine may be too late more than once, and one that is cancelled takes its Python workers along.
    engine = make_engine()
    timeout = 2 if isinstance(engine, LocalEngine) else 10
    trouble = at(3, lambda: time.sleep(20), times=1)
    handle = watch.ends(engine=engine, process=trouble, batch_timeout=timeout, on_error="retry(20)")
    assert handle.progress.replays >= 1
    assert_everything_once(watch.data_dir)


@on_both_engines
def test_a_batch_that_always_takes_too_long_is_named(make_engine, watch):
    engine = make_engine()
    timeout = 1.0 if isinstance(engine, LocalEngine) else 4.0
    with pytest.raises(TopologyFailed, match=rf"txid 3 .*failed 3 times.*no result within batch_timeout={timeout} s"):
        watch.ends(engine=engine, process=at(3, lambda: time.sleep(20)), batch_timeout=timeout, max_pack_txids=4)
    assert committed_versions(watch.data_dir) == [1, 2]


def test_late_results_of_a_discarded_attempt_are_ignored(watch, place):
    """The abandoned first attempt at txid 2 completes, and then fails, long after the second one was committed."""
    late, diary = place / "late", watch.diary

    def trouble(txid, nth):
        if txid == 2 and nth == 1:
            eventually(late.exists)
            diary.note("late")
            raise ValueError("nobody asks any more")
        if txid == 6:
            late.touch()
            eventually(lambda: diary.of("late"))

    watch.ends(process=trouble, batch_timeout=0.5, max_pack_txids=1, max_jobs=4, max_spout_pending=4)
    assert diary.of("late") == [[]]
    assert_everything_once(watch.data_dir)


@pytest.mark.parametrize("phase", ["process", "commit"])
def test_files_with_input_of_committers_do_not_outlive_their_txid(data_dir, diary, phase):
    """Committer input files are deleted with their txid, including those of failed attempts and of discarded txids."""

    def trouble(txid, nth):
        diary.note("files", len(list((data_dir / "spill").iterdir())))
        if txid % 3 == 0 and nth < 3:
            raise FailedException

    troubles = {phase: trouble}
    builder = TransactionalTopologyBuilder("spilling", "numbers", numbers(), 2)
    builder.set_bolt("process", Watched(diary, "process", troubles.get("process"))).global_grouping("numbers")
    builder.set_bolt("commit", Keep(diary, "commit", troubles.get("commit"))).global_grouping("process")
    # Its input is ready before "process".
    builder.set_bolt("raw", DeltaSink("raw", {"n": int})).global_grouping("numbers")
    handle = ended(builder.build_topology().with_settings({**SETTINGS, "spill_bytes": 0}), data_dir)
    assert handle.progress.replays >= 3  # some fail in packs that were given up already, and nobody counts those
    assert max(count for (count,) in diary.of("files")) >= 8
    assert_everything_once(data_dir)  # which says that no file is left


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
from txstorm.runtime.commit import line as commit_line
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


@pytest.mark.spark
def test_a_worker_that_dies_once_costs_a_replay_of_its_pack(spark, watch):
    handle = watch.ends(engine="spark", spark=spark, process=at(6, lambda: os._exit(1), times=1))
    assert handle.progress.replays >= 1
    assert_everything_once(watch.data_dir)


@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param("exit", marks=pytest.mark.long), "kill"])
def test_the_txid_whose_worker_always_dies_is_found_by_halving_and_named(spark, watch, how):
    ends = {"exit": lambda: os._exit(1), "kill": lambda: os.kill(os.getpid(), 9)}
    with pytest.raises(TopologyFailed, match=r"txid 6 .*worker"):
        watch.ends(engine="spark", spark=spark, process=at(6, ends[how]))

    assert committed_versions(watch.data_dir) == [1, 2, 3, 4, 5]
    # Packs of 8, 4, 2 and 1 were tried with it; nobody ran a txid before it after it was committed.
    assert watch.diary.calls("process")[6] >= 4

    watch.ends(engine="spark", spark=spark)
    assert_everything_once(watch.data_dir)


@pytest.mark.spark
def test_a_killed_pyspark_worker_does_not_fail_concurrent_packs(spark, watch):
    """Packs that run concurrently with the one whose worker died still complete; they are only delayed."""

    def trouble(txid, nth):
        if txid in (2, 5, 9) and nth == 1:
            os.kill(os.getpid(), 9)

    watch.ends(engine="spark", spark=spark, process=trouble, max_pack_txids=2, max_jobs=2)
    assert_everything_once(watch.data_dir)
