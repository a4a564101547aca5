"""Packs (attempts that share a Spark job), the limit on concurrent jobs, and cancelled jobs."""

import gc
import weakref

import pytest
from runtime_samples import Clock, PaperEngine

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import Pack, TxidInput
from txstorm.runtime.batches.in_flight import InFlightWindow
from txstorm.runtime.batches.packs import Job, PackQueue


class Office:
    def __init__(self, *, pending: int = 8, pack: int | None = None, limit: int = 2) -> None:
        self.engine, self.done, self.clock, self.full = PaperEngine(), [], Clock(), False
        window = InFlightWindow(pending, pack)
        self.jobs = PackQueue(self.engine, window, self.make, self.done.append, limit, self.clock, lambda: self.full)

    @staticmethod
    def make(attempts: list[TransactionAttempt]) -> Pack:
        return Pack(tuple(TxidInput(attempt, {}, 0) for attempt in attempts))

    def add(self, *txids: int, attempt: int = 1) -> None:
        for txid in txids:
            self.jobs.add(TransactionAttempt(txid, attempt))
        self.jobs.submit()

    def finish(self, number: int) -> Job:
        self.engine.futures[number].set_result([])
        job = self.done.pop()
        assert self.jobs.finish(job)
        return job

    @property
    def packs(self) -> list[list[int]]:
        return [[one.attempt.txid for one in pack.inputs] for pack in self.engine.packs]


def test_packs_are_half_the_window_but_small_after_a_killed_job_and_jobs_overlap() -> None:
    office = Office()
    office.add(*range(1, 13))
    assert office.packs == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert office.jobs.queued == 4
    office.finish(1)
    office.jobs.submit()
    assert office.packs[2:] == [[9, 10, 11, 12]]
    assert [job.attempts[0].txid for job in office.jobs.running] == [1, 9]
    office = Office(limit=10)
    office.jobs.cap(1, 3)
    office.add(*range(1, 9))
    assert office.packs == [[1], [2], [3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_jobs_max_pack_txids_and_bytes_that_await_commit_limit_jobs(limit: int) -> None:
    office = Office(pack=1, limit=limit)
    office.full = True
    office.add(*range(1, 6))
    assert office.packs == []
    office.full = False
    office.jobs.submit()
    assert office.packs == [[txid] for txid in range(1, limit + 1)]


def test_a_finished_job_is_reported_once_and_freed_at_once_and_one_given_up_not_at_all() -> None:
    office = Office()
    office.add(1)
    job = office.finish(0)
    assert job.started == 100.0
    assert not office.jobs.finish(job)
    assert office.jobs.running == []
    office.add(2)
    gc.disable()  # otherwise a reference cycle might be collected just here
    try:
        freed = weakref.ref(office.finish(1))
        assert freed() is None
    finally:
        gc.enable()
    office = Office(pack=1)
    office.add(*range(1, 6))
    running = office.jobs.running
    office.jobs.give_up_all()
    assert office.jobs.running == []
    assert office.jobs.queued == 0
    assert office.engine.cancelled == office.engine.futures
    office.engine.futures[0].set_result([])
    assert not office.jobs.finish(running[0])


def test_discarded_attempts_are_dequeued_and_jobs_of_only_discarded_ones_cancelled() -> None:
    office = Office(pack=2)
    office.add(*range(1, 8))
    assert office.packs == [[1, 2], [3, 4]]
    office.jobs.discard([TransactionAttempt(txid, 1) for txid in (2, 3, 4, 5, 6)])
    assert office.engine.cancelled == [office.engine.futures[1]]
    assert [job.attempts[0].txid for job in office.jobs.running] == [1]
    office.jobs.submit()
    assert office.packs[2:] == [[7]]
    office = Office(limit=1)
    office.add(1)
    office.add(2, attempt=2)
    office.jobs.discard([TransactionAttempt(2, 1)])
    assert office.jobs.queued == 1
    assert office.engine.cancelled == []
