"""Admission and planning in txid order, with plans stored before use, and packs of attempts that share a Spark job."""

import gc
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from runtime_samples import Clock, PaperEngine, Source, flow_of

from txstorm.api.attempt import TransactionAttempt
from txstorm.books.books import Books
from txstorm.books.records import Meta
from txstorm.coordinator.machine import Config, initial
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.errors import SpoutError
from txstorm.ledger.memory import MemoryLedger
from txstorm.runtime.batches.flow import Flow, Job
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.batches.txn import Txn


class Desk:
    """Test harness: an in-memory ledger that outlives its planners, so that a test can simulate a restart."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.ledger, self.now = directory, MemoryLedger(), 1000

    def planning(self, source: Source) -> Planning:
        self.books = Books(MemoryLedger(beside=self.ledger), self.directory)
        self.books.raise_epoch()
        return Planning(self.books, source, lambda: self.now)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def outcome(txid: int, **changes: Any) -> Processed:
    return Processed(TransactionAttempt(txid, 1), **changes)


STATE = initial(Config(4))
ERROR = ErrorRow("bolt", 0, "failed", "FailedException", "no", "", "")


def test_each_txid_is_planned_from_its_predecessor_and_plans_are_stored_together(desk: Desk) -> None:
    source = Source(3)
    planning = desk.planning(source)
    assert [planning.plan(txid, replay=False) for txid in (1, 2, 3, 4)] == [True, True, True, False]
    assert source.asked == [(1, None, False), *((txid, {"taken": txid - 1}, False) for txid in (2, 3, 4))]
    assert desk.books.metas() == {}
    planning.save()
    documents = {txid: meta.document for txid, meta in desk.books.metas().items()}
    assert documents == {txid: {"taken": txid} for txid in (1, 2, 3)}


def planned(desk: Desk, source: Source, txids: int) -> Planning:
    """Return the planning of a source after it has planned `txids` transactions."""
    planning = desk.planning(source)
    for txid in range(1, txids + 1):
        assert planning.plan(txid, replay=False)
    return planning


def test_a_replay_uses_stored_metadata_only(desk: Desk) -> None:
    """A replay uses the stored metadata and does not call the source (T43)."""
    source = Source(5)
    planning = planned(desk, source, 2)
    desk.now = 2000
    assert planning.plan(1, replay=True)
    assert planning.plan(2, replay=True)
    assert len(source.asked) == 2
    given = planning.txid_input(TransactionAttempt(2, 9))
    assert (given.attempt, given.document, given.payload) == ((2, 9), {"taken": 2}, ["payload", 2])
    assert given.stamp == 1000


def test_an_opaque_replay_is_replanned_from_the_preceding_txid_and_timestamps_never_decrease(desk: Desk) -> None:
    source = Source(5, opaque=True)
    assert planned(desk, source, 2).plan(2, replay=True)
    assert source.asked[-1] == (2, {"taken": 1}, True)
    planning = desk.planning(Source(3))
    stamps = []
    for txid, now in ((1, 1000), (2, 400), (3, 1700)):
        desk.now = now
        planning.plan(txid, replay=False)
        stamps.append(planning.txid_input(TransactionAttempt(txid, 1)).stamp)
    assert stamps == [1000, 1000, 1700]


@pytest.mark.parametrize(("opaque", "kept"), [(False, (2, 3)), (True, ())], ids=["transactional", "opaque"])
def test_item_63_after_a_restart_undecided_plans_are_kept_or_dropped(opaque: bool, kept: tuple, desk: Desk) -> None:
    planned(desk, Source(5, opaque=opaque), 3).save()
    again = desk.planning(Source(5, opaque=opaque))
    assert again.open(2) == kept
    assert sorted(desk.books.metas()) == [1, *kept]
    assert again.document(1) == {"taken": 1}
    assert (again.document(2) is None) == opaque


def test_a_transactional_spout_that_replays_another_batch_is_rejected(desk: Desk) -> None:
    planning = planned(desk, Source(2), 1)
    planning.save()
    planning.processed([outcome(1, digests={"p": "aa", "q": "bb"})])
    planning.processed([outcome(1, digests={"p": "aa", "q": "bb"})])
    with pytest.raises(SpoutError, match=r"txid 1: .* another batch for q .*digest cc, expected bb"):
        planning.processed([outcome(1, digests={"p": "aa", "q": "cc"})])
    assert desk.books.metas()[1].digests == {}
    desk.books.write_status({})  # the next write to the ledger includes the pending digests
    again = desk.planning(Source(2))
    with pytest.raises(SpoutError, match="must replay exactly"):
        again.processed([outcome(1, digests={"p": "xx"})])


def test_an_opaque_spout_may_replay_another_batch(desk: Desk) -> None:
    planning = planned(desk, Source(2, opaque=True), 1)
    for digest in ("aa", "cc"):
        planning.processed([outcome(1, digests={"p": digest})])
    desk.books.write_status({})
    assert desk.books.metas()[1].digests == {"p": "cc"}


def test_digests_are_stored_at_once_for_committers_with_external_effects(desk: Desk) -> None:
    desk.planning(Source(2))
    planning = Planning(desk.books, Source(2), lambda: desk.now, external=True)
    planning.plan(1, replay=False)
    planning.save()
    planning.processed([outcome(1, digests={"p": "aa"})])
    assert desk.books.metas()[1].digests == {"p": "aa"}


def test_actual_extents_are_stored_once_the_tasks_have_reported(desk: Desk) -> None:
    planning = planned(desk, Source(2, parts=True), 1)
    planning.save()
    assert planning.carried(1) == {}
    planning.processed([outcome(1, parts={"0": {"batch": [0, 2]}})])
    assert desk.books.metas()[1].document == {"taken": 1, "parts": {"0": {"batch": [0, 2]}}}
    assert planning.carried(2) == {"0": {"batch": [0, 2]}}


@pytest.mark.parametrize("opaque", [False, True])
def test_extents_of_a_failed_txid_are_kept_if_its_replay_must_be_exact(opaque: bool, desk: Desk) -> None:
    planning = planned(desk, Source(2, opaque=opaque, parts=True), 1)
    planning.save()
    planning.emitted(outcome(1, parts={"0": {"batch": 7}}, error=ERROR))
    assert desk.books.metas()[1].document["parts"] == (None if opaque else {"0": {"batch": 7}})


def test_of_committed_txids_the_last_plan_stays_from_which_the_next_one_is_made(desk: Desk) -> None:
    planning = planned(desk, Source(5), 3)
    for _ in range(2):
        planning.committed(3)
        assert {txid: meta.document for txid, meta in planning.metas.items()} == {3: {"taken": 3}}


class Office:
    def __init__(self, *, pending: int = 8, pack: int | None = None, limit: int = 2) -> None:
        self.engine, self.done = PaperEngine(), []
        self.flow = flow_of(Source(99), self.engine, pending=pending, pack=pack, jobs=limit, held_bytes=0)
        self.flow.open(1, self.done.append, print, print)
        for txid in range(1, 13):
            self.flow.planning.plan(txid, replay=False)

    def add(self, *txids: int, attempt: int = 1) -> None:
        for txid in txids:
            self.flow.add(TransactionAttempt(txid, attempt))
        self.flow.submit(1)

    def finish(self, number: int) -> Job:
        self.engine.futures[number].set_result([])
        job = self.done.pop()
        assert self.flow.finish(job)
        return job

    @property
    def packs(self) -> list[list[int]]:
        return [[one.attempt.txid for one in pack.inputs] for pack in self.engine.packs]


def test_packs_are_half_the_window_but_small_after_a_killed_job_and_jobs_overlap() -> None:
    office = Office()
    office.add(*range(1, 13))
    assert office.packs == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert office.flow.queued == 4
    office.finish(1)
    office.flow.submit(1)
    assert office.packs[2:] == [[9, 10, 11, 12]]
    assert [job.attempts[0].txid for job in office.flow.running] == [1, 9]
    office = Office(limit=10)
    office.flow.cap(1, 3)
    office.add(*range(1, 9))
    assert office.packs == [[1], [2], [3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_jobs_max_pack_txids_and_bytes_that_await_commit_limit_jobs(limit: int) -> None:
    office = Office(pack=1, limit=limit)
    hold(office.flow, 9, 1)
    office.add(*range(1, 6))
    assert office.packs == []
    office.flow.ready.clear()
    office.flow.submit(1)
    assert office.packs == [[txid] for txid in range(1, limit + 1)]


def test_a_finished_job_is_reported_once_and_freed_at_once_and_one_given_up_not_at_all() -> None:
    office = Office()
    office.add(1)
    job = office.finish(0)
    assert job.started == 100.0
    assert not office.flow.finish(job)
    assert office.flow.running == []
    office.add(2)
    gc.disable()  # otherwise a reference cycle might be collected just here
    try:
        freed = weakref.ref(office.finish(1))
        assert freed() is None
    finally:
        gc.enable()
    office = Office(pack=1)
    office.add(*range(1, 6))
    running = office.flow.running
    office.flow.give_up_all()
    assert office.flow.running == []
    assert office.flow.queued == 0
    assert office.engine.cancelled == office.engine.futures
    office.engine.futures[0].set_result([])
    assert not office.flow.finish(running[0])


def test_discarded_attempts_are_dequeued_and_jobs_of_only_discarded_ones_cancelled() -> None:
    office = Office(pack=2)
    office.add(*range(1, 8))
    assert office.packs == [[1, 2], [3, 4]]
    office.flow.discard([TransactionAttempt(txid, 1) for txid in (2, 3, 4, 5, 6)])
    assert office.engine.cancelled == [office.engine.futures[1]]
    assert [job.attempts[0].txid for job in office.flow.running] == [1]
    office.flow.submit(1)
    assert office.packs[2:] == [[7]]
    office = Office(limit=1)
    office.add(1)
    office.add(2, attempt=2)
    office.flow.discard([TransactionAttempt(2, 1)])
    assert office.flow.queued == 1
    assert office.engine.cancelled == []


def hold(flow: Flow, txid: int, size: int) -> None:
    """Let a processed batch of `size` bytes await its commit."""
    attempt = TransactionAttempt(txid, 1)
    flow.ready[txid] = Txn(TxidInput(attempt, None, 0), Processed(attempt), size=size)


def opens(flow: Flow, txid: int = 1, taken: int | None = None, in_flight: int = 0) -> bool:
    flow.planning.metas = {} if taken is None else {txid - 1: Meta({"taken": taken}, 0)}
    return flow.opens(txid, in_flight=in_flight)


def test_window_bytes_in_flight_unpublished_groups_min_interval_and_until_txid_limit_admission() -> None:
    flow = flow_of(Source(9), held_bytes=100, pending=4)
    assert [opens(flow, in_flight=number) for number in (3, 4)] == [True, False]
    for txid, size in ((1, 60), (2, 40), (3, 1)):
        hold(flow, txid, size)
        assert opens(flow) is (txid < 3)
    flow.discard([TransactionAttempt(2, 1), TransactionAttempt(9, 1)])
    assert opens(flow)
    for flow.blocked in (True, False):  # a decided group cannot be published
        assert opens(flow) is not flow.blocked
    assert not flow.closed
    clock, waits, opened = Clock(), [], []
    flow = flow_of(Source(9), monotonic=clock, min_interval=10)
    flow.open(1, print, print, waits.append)
    for seconds in (0, 0, 9, 1, 0):
        clock.now += seconds
        opened.append(opens(flow))
    assert opened == [True, False, False, True, False]
    assert waits == [10, pytest.approx(1), 10]
    flow = flow_of(Source(9), until_txid=2)
    assert [opens(flow, 2), flow.closed, opens(flow, 3), flow.closed] == [True, False, False, True]
    assert [flow.past(txid) for txid in (1, 2, 3)] == [False, False, True]


def test_available_now_ends_at_present_data_or_until_txid_and_data_only_stays_open() -> None:
    for held, until, most in ((2, None, 2), (0, None, 0), (5, 1, 1), (1, 5, 1)):
        flow = flow_of(source := Source(held), bounded=True, until_txid=until)
        source.held += 3
        assert [opens(flow, txid, txid - 1 or None) for txid in range(1, most + 2)] == [True] * most + [False]
        assert flow.closed
    flow = flow_of(source := Source(1))
    assert opens(flow, 2, taken=1)
    flow.wait_for_all(Future(), STATE)
    assert not opens(flow, 2, taken=1)
    assert not flow.closed
    source.held = 2
    assert opens(flow, 2, taken=1)
    flow = flow_of(Source(tells=False))
    flow.wait_for_all(Future(), STATE)
    assert opens(flow, 2, taken=1)  # a source without marks is polled


@pytest.mark.parametrize("tuples", [3, 0])
def test_a_source_without_marks_has_been_read_when_a_batch_is_empty(tuples: int, desk: Desk) -> None:
    flow = flow_of(planned(desk, Source(1, tells=False), 1), bounded=True)
    attempt = TransactionAttempt(1, 1)
    flow.add(attempt)
    flow.submit(1)
    flow.processed(flow.running[0], [Processed(attempt, counts={"spout": tuples})], 0.1)
    assert flow.opens(2, in_flight=1) is (tuples > 0)
    assert flow.closed is (tuples == 0)


@pytest.mark.parametrize(
    ("pending", "limit", "width", "pack"),
    [(1, None, 1, 1), (4, None, 4, 2), (8, 3, 8, 3), (8, 100, 8, 4), (5, 1, 5, 1)],
)
def test_pack_size_with_a_fixed_window(pending: int, limit: int | None, width: int, pack: int) -> None:
    flow = flow_of(Source(), pending=pending, pack=limit)
    took(flow, 0.1, 0.09, 1)
    assert (flow.width, flow.pack_size) == (width, pack)


def took(flow: Flow, seconds: float, work: float, txids: int) -> None:
    flow.job_took(seconds, [{0: work}], txids)


def short_jobs(flow: Flow, jobs: int = 20) -> tuple[int, int]:
    """Report short jobs of full packs; return width and pack size after them."""
    for _ in range(jobs):
        took(flow, 0.1, 0.0, flow.pack_size)
        assert flow.width == 5 or flow.pack_size <= flow.width // 2
    return flow.width, flow.pack_size


def test_packs_grow_while_full_jobs_do_little_work_and_shrink_when_they_take_long() -> None:
    assert short_jobs(flow_of(Source(), pending=5), 4) == (5, 5)  # they fill a fixed window
    flow = flow_of(Source(), pack=3)  # max_pack_txids bounds them
    for _ in range(20):
        took(flow, 0.1, 0.0, 128)
    assert flow.pack_size == 3
    flow = flow_of(Source())
    assert (flow.width, flow.pack_size) == (8, 1)
    assert short_jobs(flow) == (256, 128)
    took(flow, 3.5, 3.0, 128)
    assert flow.pack_size == 64
    for _ in range(3):
        took(flow, 3.5, 3.0, 64)  # of concurrent jobs, the first shrinks the packs
    assert (flow.width, flow.pack_size) == (256, 32)
    took(flow, 2.0, 0.1, 32)  # a pack of twice the size would take too long
    assert (flow.width, flow.pack_size) == (256, 32)
    for size in (32, 16, 8, 4, 2):
        took(flow, 3.5, 3.0, size)
    assert (flow.width, flow.pack_size) == (32, 1)  # the window shrinks later
    flow = flow_of(Source())
    took(flow, 0.1, 0.09, 1)
    assert flow.pack_size == 1
    flow.pack = 8
    took(flow, 0.1, 0.0, 5)
    assert flow.pack_size == 8
