"""Failed batches: which results are retained, which batches are replayed, and which errors end the topology."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from recovery_cases import check, committed_versions, eventually, open_books, sums
from watched import SETTINGS, Diary, Keep, Watched, watched_topology

from txstorm import FailedException, ReportedFailedException, TransactionalTopologyBuilder, run
from txstorm.engine.local import LocalEngine
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

TXIDS = 10
NUMBERS = list(range(1, 2 * TXIDS + 1))


def source():
    return MemoryTransactionalSpout([NUMBERS], ["n"], take=2)


@pytest.fixture
def diary(place: Path) -> Diary:
    return Diary(place / "diary")


def batch(txid: int) -> list[int]:
    return NUMBERS[2 * txid - 2 : 2 * txid]


def assert_everything_once(data_dir: Path, txids: int = TXIDS) -> None:
    rows = [(row["_txid"], row["n"]) for row in read_sink(data_dir, "numbers").to_pylist()]
    assert rows == [(txid, number) for txid in range(1, txids + 1) for number in batch(txid)]
    assert sums(data_dir) == dict.fromkeys(NUMBERS[: 2 * txids], 1)
    check(data_dir, txids)


def calls(diary: Diary, what: str) -> dict[int, int]:
    txids = [txid for txid, _ in diary.of(what)]
    return {txid: txids.count(txid) for txid in sorted(set(txids))}


# --- an exception in the middle of a pack -----------------------------------------------------------------------------


def test_an_exception_in_txid_5_of_a_pack_of_8_lets_1_to_4_commit_after_one_run(make_engine, place, diary):
    def trouble(txid, nth):
        if txid == 5:
            raise ValueError("five")

    topology = watched_topology(source(), diary, process=trouble, max_jobs=1)
    handle = run(topology, engine=make_engine(), data_dir=place / "data", available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 5 .* failed once: process\[0\] raised ValueError .*five"):
        handle.awaitTermination()

    assert handle.recentProgress[0].pack == 8
    assert calls(diary, "process") == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert calls(diary, "commit") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert handle.committed == 4
    assert committed_versions(place / "data") == [1, 2, 3, 4]

    again = run(watched_topology(source(), diary), engine=make_engine(), data_dir=place / "data", available_now=True)
    again.awaitTermination()
    assert_everything_once(place / "data")
    assert calls(diary, "process") == {**dict.fromkeys(range(1, 11), 1), 5: 2}


def test_an_exception_in_finish_batch_of_txid_5_of_a_group_decides_1_to_4(make_engine, place, diary):
    def trouble(txid, nth):
        if txid == 5 and nth == 1:
            raise FailedException

    topology = watched_topology(source(), diary, commit=trouble)
    handle = run(topology, engine=make_engine(), data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    groups = [(one.txid, one.group) for one in handle.recentProgress]
    assert groups[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]  # of a pack of 8
    assert calls(diary, "commit") == {**dict.fromkeys(range(1, 11), 1), 5: 2}
    assert_everything_once(place / "data")


# --- FailedException: without limit, with back-off --------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["process", "commit"])
@pytest.mark.parametrize("error", [FailedException, ReportedFailedException])
def test_a_failed_batch_is_replayed_without_limit(place, diary, phase, error):
    def trouble(txid, nth):
        if txid == 3 and nth <= 12:
            raise error("not yet")

    topology = watched_topology(source(), diary, **{phase: trouble})
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert calls(diary, phase)[3] == 13
    assert handle.progress.replays == 12
    assert_everything_once(place / "data")


def test_a_batch_that_keeps_failing_waits_longer_and_longer(place, diary):
    failing = 6
    journal = place / "journal"

    def trouble(txid, nth):
        if txid == 1 and nth <= failing:
            raise FailedException

    topology = watched_topology(source(), diary, process=trouble, max_spout_pending=1, retry_backoff=0.02)
    handle = run(topology, engine="local", data_dir=place / "data", until_txid=1, journal=journal)
    handle.awaitTermination()

    text = journal.read_text()
    assert text.count("Failed") == failing
    # Storm replays at once; so does the first replay. The others are held until their time has come.
    assert text.count("Resume") == failing - 1


def test_the_limit_of_failed_exceptions_can_be_set(place, diary):
    def trouble(txid, nth):
        if txid == 2:
            raise FailedException("never")

    topology = watched_topology(source(), diary, process=trouble, max_retries=3)
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 2 .* failed 4 times.*never"):
        handle.awaitTermination()
    assert calls(diary, "process")[2] == 4


# --- other exceptions: the policy -------------------------------------------------------------------------------------


def test_retry_n_allows_n_replays_and_counts_over_restarts(place, diary):
    cured = place / "cured"

    def trouble(txid, nth):
        if txid == 4 and not cured.exists():
            raise KeyError("four")

    def attempt():
        topology = watched_topology(source(), diary, commit=trouble, on_error="retry(2)")
        run(topology, engine="local", data_dir=place / "data", available_now=True).awaitTermination()

    with pytest.raises(TopologyFailed, match=r"txid 4 .* failed 3 times: commit\[0\] raised KeyError"):
        attempt()
    assert calls(diary, "commit")[4] == 3
    with open_books(place / "data") as books:
        assert books.failures()[4]["count"] == 3
        assert "KeyError" in books.failures()[4]["cause"]

    with pytest.raises(TopologyFailed, match=r"failed 4 times"):
        attempt()
    assert calls(diary, "commit")[4] == 4  # the allowed ones were used up before the restart

    cured.touch()
    attempt()
    assert_everything_once(place / "data")  # the count is gone with the commit


def test_an_exception_that_heals_in_time_is_no_failure_of_the_topology(make_engine, place, diary):
    def trouble(txid, nth):
        if txid % 4 == 0 and nth <= 2:
            raise OSError("for a moment")

    topology = watched_topology(source(), diary, process=trouble, on_error="retry(2)")
    handle = run(topology, engine=make_engine(), data_dir=place / "data", available_now=True)
    handle.awaitTermination()
    assert handle.exception() is None
    assert_everything_once(place / "data")


def test_system_exit_in_a_bolt_is_an_exception_like_others(place, diary):
    def trouble(txid, nth):
        if txid == 2:
            raise SystemExit(3)

    topology = watched_topology(source(), diary, process=trouble)
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 2 .*SystemExit"):
        handle.awaitTermination()
    assert handle.committed == 1


# --- batches that take too long ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])], indirect=True
)
def test_a_batch_beyond_its_timeout_is_cancelled_and_replayed(make_engine, place, diary):
    def trouble(txid, nth):
        if txid == 3 and nth == 1:
            time.sleep(20)

    # A job of a busy machine may be too late more than once, and one that is cancelled takes its Python workers along.
    engine = make_engine()
    timeout = 2 if isinstance(engine, LocalEngine) else 10
    topology = watched_topology(source(), diary, process=trouble, batch_timeout=timeout, on_error="retry(20)")
    handle = run(topology, engine=engine, data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert handle.progress.replays >= 1
    assert_everything_once(place / "data")


@pytest.mark.parametrize(
    "make_engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])], indirect=True
)
def test_a_batch_that_always_takes_too_long_is_named(make_engine, place, diary):
    def trouble(txid, nth):
        if txid == 3:
            time.sleep(20)

    engine = make_engine()
    timeout = 1.0 if isinstance(engine, LocalEngine) else 4.0
    topology = watched_topology(source(), diary, process=trouble, batch_timeout=timeout, max_pack_txids=4)
    handle = run(topology, engine=engine, data_dir=place / "data", available_now=True)
    with pytest.raises(TopologyFailed, match=rf"txid 3 .*failed 3 times.*no result within batch_timeout={timeout} s"):
        handle.awaitTermination()
    assert committed_versions(place / "data") == [1, 2]


def test_late_results_of_a_discarded_attempt_are_ignored(place, diary):
    """The abandoned first attempt at txid 2 completes, and then fails, long after the second one was committed."""
    late = place / "late"

    def trouble(txid, nth):
        if txid == 2 and nth == 1:
            eventually(late.exists)
            diary.note("late")
            raise ValueError("nobody asks any more")
        if txid == 6:
            late.touch()
            eventually(lambda: diary.of("late"))

    topology = watched_topology(
        source(), diary, process=trouble, batch_timeout=0.5, max_pack_txids=1, max_jobs=4, max_spout_pending=4
    )
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert diary.of("late") == [[]]
    assert_everything_once(place / "data")


@pytest.mark.parametrize("phase", ["process", "commit"])
def test_files_with_input_of_committers_do_not_outlive_their_txid(place, diary, phase):
    """Committer input files are deleted with their txid, including those of failed attempts and of discarded txids."""

    def trouble(txid, nth):
        diary.note("files", len(list((place / "data" / "spill").iterdir())))
        if txid % 3 == 0 and nth < 3:
            raise FailedException

    builder = TransactionalTopologyBuilder("spilling", "numbers", source(), 2)
    builder.set_bolt("process", Watched(diary, "process", trouble if phase == "process" else None)).global_grouping(
        "numbers"
    )
    builder.set_bolt("commit", Keep(diary, "commit", trouble if phase == "commit" else None)).global_grouping("process")
    builder.set_bolt("raw", DeltaSink("raw", {"n": int})).global_grouping(
        "numbers"
    )  # its input is ready before "process"
    topology = builder.build_topology().with_settings({**SETTINGS, "spill_bytes": 0})
    handle = run(topology, engine="local", data_dir=place / "data", available_now=True)
    handle.awaitTermination()

    assert handle.progress.replays >= 3  # some fail in packs that were given up already, and nobody counts those
    assert max(count for (count,) in diary.of("files")) >= 8
    assert_everything_once(place / "data")  # which says that no file is left


# --- workers that die -------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_worker_that_dies_once_costs_a_replay_of_its_pack(spark, place, diary):
    def trouble(txid, nth):
        if txid == 6 and nth == 1:
            os._exit(1)

    handle = run(
        watched_topology(source(), diary, process=trouble), spark=spark, data_dir=place / "data", available_now=True
    )
    handle.awaitTermination()
    assert handle.progress.replays >= 1
    assert_everything_once(place / "data")


@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param("exit", marks=pytest.mark.long), "kill"])
def test_the_txid_whose_worker_always_dies_is_found_by_halving_and_named(spark, place, diary, how):
    def trouble(txid, nth):
        if txid == 6:
            os._exit(1) if how == "exit" else os.kill(os.getpid(), 9)

    handle = run(
        watched_topology(source(), diary, process=trouble), spark=spark, data_dir=place / "data", available_now=True
    )
    with pytest.raises(TopologyFailed, match=r"txid 6 .*worker"):
        handle.awaitTermination()

    assert committed_versions(place / "data") == [1, 2, 3, 4, 5]
    # Packs of 8, 4, 2 and 1 were tried with it; nobody ran a txid before it after it was committed.
    assert calls(diary, "process")[6] >= 4

    again = run(watched_topology(source(), diary), spark=spark, data_dir=place / "data", available_now=True)
    again.awaitTermination()
    assert_everything_once(place / "data")


@pytest.mark.spark
def test_a_killed_pyspark_worker_does_not_fail_concurrent_packs(spark, place, diary):
    """Packs that run concurrently with the one whose worker died still complete; they are only delayed."""

    def trouble(txid, nth):
        if txid in (2, 5, 9) and nth == 1:
            os.kill(os.getpid(), 9)

    settings = {"max_pack_txids": 2, "max_jobs": 2}
    topology = watched_topology(source(), diary, process=trouble, **settings)
    run(topology, spark=spark, data_dir=place / "data", available_now=True).awaitTermination()
    assert_everything_once(place / "data")
