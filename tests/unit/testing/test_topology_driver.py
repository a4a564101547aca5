"""`TopologyTestDriver`: phases that wait for acks, errors, time, restarts, and the outputs a test can observe."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from runs import ended
from watched import Gathering

from txstorm import Committer, FailedException, KeyedState, SinkTable, Topology, TransactionalTopologyBuilder, run
from txstorm.errors import HeldError, InputError, TopologyFailed
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.testing import ManualClock, TopologyTestDriver


class Double(Gathering):
    """A bolt that emits doubled numbers when the batch ends; first calls `trouble`, if any, with the attempt."""

    fields = ("n",)
    streams = {"count": ("count",)}

    def __init__(self, trouble=None):
        self.trouble = trouble

    def finish_batch(self):
        if self.trouble is not None:
            self.trouble(self.attempt)
        for number in self.taken:
            self.collector.emit(2 * number)
        self.collector.emit(len(self.taken), stream="count")


class Keep(Double, Committer):
    total = KeyedState("total", key={}, value={"n": int})
    rows = SinkTable("rows", {"n": int})

    def finish_batch(self):
        super().finish_batch()
        self.context.state("total").update((), lambda old: (old or 0) + sum(self.taken))
        for number in self.taken:
            self.context.sink("rows").append(number)


def topology(spout=None, double=None, keep=None, **settings) -> Topology:
    spout = spout or MemoryTransactionalSpout([list(range(1, 7))], "n", take=2)
    builder = TransactionalTopologyBuilder("numbers", "numbers", spout)
    builder.set_bolt("double", Double(double)).global_grouping("numbers")
    builder.set_bolt("keep", Keep(keep)).global_grouping("double")
    return builder.set_settings(settings).build_topology()


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., TopologyTestDriver]]:
    made: list[TopologyTestDriver] = []

    def make(*arguments, **options) -> TopologyTestDriver:
        made.append(TopologyTestDriver(*arguments, **{"data_dir": tmp_path / "data", **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_transaction_waits_in_each_phase_for_its_ack(drive) -> None:
    driver = drive(topology())
    assert driver.status(1) == "processing"
    assert driver.emitted("numbers") == [(1,), (2,)]
    assert driver.emitted("double") == [(2,), (4,)]
    assert driver.emitted("keep") == []
    driver.ack(1)
    assert driver.status(1) == "committing"
    assert driver.emitted("keep") == [(4,), (8,)]
    assert driver.emitted("keep", stream="count") == [(2,)]
    assert (driver.committed, driver.state("total").to_pylist()) == (0, [])
    driver.ack(1)
    assert (driver.committed, driver.state("total").to_pylist()) == (1, [{"n": 6}])
    assert [driver.status(txid) for txid in (1, 2, 3)] == ["committed", "processing", "not started"]


def test_one_transaction_is_pending_by_default(drive, tmp_path: Path) -> None:
    assert drive(topology()).active == {1: "processing"}
    other = drive(topology(max_spout_pending=3), data_dir=tmp_path / "b")
    assert other.active == dict.fromkeys((1, 2, 3), "processing")
    assert drive(topology(max_spout_pending=3), pending=2, data_dir=tmp_path / "c").active.keys() == {1, 2}
    by_settings = drive(topology(), settings={"topology.max.spout.pending": 4}, data_dir=tmp_path / "d")
    assert len(by_settings.active) == 4


@pytest.mark.parametrize("acks", [0, 1])
def test_a_failure_in_either_phase_replays_the_txid_and_all_later_ones(drive, acks: int) -> None:
    driver = drive(topology(), pending=2)
    for _ in range(acks):
        driver.ack(1)
    first = [driver.attempt(1), driver.attempt(2)]
    driver.fail(1, "to see what happens")
    assert driver.active == {1: "processing", 2: "processing"}
    assert [driver.attempts(txid)[0] for txid in (1, 2)] == first
    assert len({*first, driver.attempt(1), driver.attempt(2)}) == 4
    for attempt in (first[0], driver.attempt(1)):
        assert driver.emitted("double", 1, attempt) == [(2,), (4,)]
    driver.commit(3)
    assert driver.state("total").to_pylist() == [{"n": 42}]


def test_items_15_16_81_late_acks_and_fails_of_old_attempts_are_ignored(drive) -> None:
    driver = drive(topology(OpaqueMemoryTransactionalSpout([list(range(6))], "n", take=2)), pending=3)
    old = {txid: driver.attempt(txid) for txid in (1, 2, 3)}
    driver.fail(1)
    active, attempts = driver.active, [driver.attempt(txid) for txid in (1, 2, 3)]
    for attempt in old.values():
        driver.ack(attempt)
        driver.fail(attempt)
    assert (driver.active, [driver.attempt(txid) for txid in (1, 2, 3)]) == (active, attempts)
    driver.ack(1)
    driver.ack(old[1])
    driver.fail(old[1])
    assert driver.status(1) == "committing"


SEEN: list = []
"""Calls recorded by the `trouble` callbacks; global, because bolts and their callbacks are copied."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def note_thread(attempt) -> None:
    SEEN.append(threading.current_thread())


def test_bolts_run_on_the_thread_of_the_test(drive) -> None:
    drive(topology(double=note_thread, keep=note_thread)).ack(1)
    assert SEEN == [threading.current_thread()] * 2


def fail_2_three_times(attempt) -> None:
    SEEN.append(attempt.txid)
    if attempt.txid == 2 and SEEN.count(2) <= 3:
        raise FailedException("not yet")


@pytest.mark.parametrize("place", ["double", "keep"])
def test_a_batch_failed_by_a_bolt_needs_no_ack_and_backs_off(drive, place: str) -> None:
    driver = drive(topology(retry_backoff=2, **{place: fail_2_three_times}))
    driver.commit()
    if place == "keep":
        driver.ack(2)
        assert len(driver.attempts(2)) == 2, "the first replay is immediate"
        driver.ack(2)
    assert driver.status(2) == "not started", "it waits for its back-off"
    with pytest.raises(InputError, match=r"txid 2: expected a transaction that waits for an ack .none is active"):
        driver.commit()
    driver.advance(1.9)
    assert driver.status(2) == "not started"
    driver.advance(0.2)
    if place == "keep":
        driver.ack(2)
    driver.advance(4)
    driver.commit(3)
    assert len(driver.attempts(2)) == 4
    assert driver.state("total").to_pylist() == [{"n": 42}]


def boom(attempt) -> None:
    if attempt.txid == 2:
        raise AssertionError("two is too much")


def test_an_exception_of_a_bolt_is_raised_by_the_triggering_call(drive) -> None:
    driver = drive(topology(double=boom))
    driver.ack(1)
    with pytest.raises(TopologyFailed, match=r"txid 2 .* double\[0\] raised AssertionError .*boom: two is too much"):
        driver.ack(1)
    assert driver.committed == 1
    with pytest.raises(TopologyFailed, match="two is too much"):
        driver.next_tuple()
    driver.close()
    with pytest.raises(TopologyFailed, match="two is too much"):
        TopologyTestDriver(topology(double=boom), pending=2, data_dir=driver.data_dir)
    drive(topology()).commit()  # a driver that fails on creation has released its lease


def test_transactions_before_the_fatal_one_can_be_acked(drive) -> None:
    driver = drive(topology(keep=boom), pending=3)
    driver.ack(2)
    driver.ack(1)
    with pytest.raises(TopologyFailed, match="two is too much"):
        driver.ack(1)
    assert driver.committed == 1
    again = topology(double=boom)
    with pytest.raises(TopologyFailed):
        driver.restart(again)
    driver.restart(topology())
    driver.commit(3)
    assert driver.state("total").to_pylist() == [{"n": 42}]


def test_time_advances_only_on_request(drive) -> None:
    clock = ManualClock(datetime.fromisoformat("2020-02-02T00:00:00+00:00"))
    driver = drive(topology(min_interval=10), clock=clock)
    driver.commit()
    assert driver.active == {}
    driver.advance(9.5)
    assert driver.active == {}
    driver.advance(0.5)
    driver.commit()
    stamps = [stamp.isoformat() for stamp in driver.history()["stamp"].to_pylist()]
    assert stamps == ["2020-02-02T00:00:00+00:00", "2020-02-02T00:00:10+00:00"]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_phase_without_an_ack_times_out(drive, acks: int) -> None:
    driver = drive(topology(batch_timeout=30, retry_backoff=0), pending=2)
    for _ in range(acks):
        driver.ack(1)
    driver.advance(30)
    assert len(driver.attempts(1)) == 1
    driver.advance(0.1)
    assert [len(driver.attempts(txid)) for txid in (1, 2)] == [2, 2]
    driver.advance(31)
    with pytest.raises(TopologyFailed, match=r"txid 1 .* failed 3 time.*no ack within batch_timeout=30.0 s"):
        driver.advance(31)
    driver.close()
    driver = drive(topology(enable_timeouts=False))
    driver.advance(1e9)
    assert len(driver.attempts(1)) == 1


def test_the_clock_only_moves_forward() -> None:
    clock = ManualClock()
    clock.advance(1.5)
    assert clock.monotonic() == 1.5
    for seconds in (-1, float("nan")):
        with pytest.raises(InputError, match="expected a number >= 0"):
            clock.advance(seconds)
    with pytest.raises(InputError, match="time zone"):
        ManualClock(datetime.fromisoformat("2020-01-01"))


def test_added_data_are_read_by_the_next_transaction(drive) -> None:
    spout = MemoryTransactionalSpout([[1]], "n")
    driver = drive(topology(spout))
    spout.add(0, 2)
    spout.add(1, 3)
    driver.fail(1)
    assert driver.emitted("numbers") == [(1,)]
    driver.commit()
    assert driver.emitted("numbers", 2) == [(2,), (3,)]


def test_a_restart_replays_planned_batches_and_drops_undecided_ones(drive) -> None:
    driver = drive(topology(), pending=2)
    driver.commit()
    driver.ack(2)
    assert driver.active == {2: "committing", 3: "processing"}
    before = [driver.attempt(2), driver.attempt(3)]
    driver.restart()
    assert driver.active == {2: "processing", 3: "processing"}
    assert driver.emitted("numbers", 2) == driver.emitted("numbers", 2, before[0]) == [(3,), (4,)]
    assert min(driver.attempt(2).attempt_id, driver.attempt(3).attempt_id) > before[1].attempt_id
    driver.commit(3)
    assert driver.state("total").to_pylist() == [{"n": 42}]
    assert [row["n"] for row in driver.sink("rows").to_pylist()] == [2, 4, 6, 8, 10, 12]


def test_a_run_continues_where_the_driver_stopped(drive) -> None:
    driver = drive(topology())
    driver.commit(2)
    with pytest.raises(HeldError):
        run(topology(), engine="local", data_dir=driver.data_dir)
    driver.close()
    driver.close()
    assert ended(topology(), driver.data_dir).state("total").to_pylist() == [{"n": 42}]


def test_a_temporary_data_directory_is_deleted() -> None:
    with TopologyTestDriver(topology()) as driver:
        place = driver.data_dir
        driver.commit()
        assert (place / "ledger.db").exists()
    assert not place.exists()


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda driver: driver.ack(7), r"txid 7: .*1 processing, 2 processed\), got one that is not started"),
        (lambda driver: driver.ack(2), "txid 2: .*got one that is processed; ack one that is processing"),
        (lambda driver: driver.fail(9), "txid 9: expected an active transaction"),
        (lambda driver: driver.emitted("duoble"), "no component 'duoble'.*did you mean 'double'"),
        (lambda driver: driver.emitted("double", stream="cuont"), "stream 'cuont' is not declared.*'count'"),
        (lambda driver: TopologyTestDriver("numbers"), "takes a built topology, got str"),
        (
            lambda driver: TopologyTestDriver(pa.table({"a": [1]})),
            "pyarrow's Table .*docs/from-structured-streaming.md",
        ),
        (lambda driver: run(pa.table({"a": [1]})), "run takes .*pyarrow's Table .*docs/from-structured-streaming.md"),
    ],
)
def test_misuse_is_reported(drive, mistake: Callable, says: str) -> None:
    driver = drive(topology(), pending=2)
    driver.ack(2)
    with pytest.raises(InputError, match=says):
        mistake(driver)
    assert driver.active == {1: "processing", 2: "processed"}


def test_calls_on_a_closed_driver_raise(drive: Callable[..., TopologyTestDriver]) -> None:
    driver = drive(topology())
    driver.commit(1)
    end = driver.source_end()
    driver.close()
    for call, *arguments in (
        (driver.ack, 2),
        (driver.fail, 2),
        (driver.next_tuple,),
        (driver.source_end,),
        (driver.reached, end),
        (driver.advance, 1),
    ):
        with pytest.raises(InputError, match="numbers: the driver is closed"):
            call(*arguments)
    assert driver.committed == 1
