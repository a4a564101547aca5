"""Packs and jobs: groups transaction attempts into packs, each of which runs as one job of the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WorkProgress
from txstorm.engine.port import Engine, Pack, Processed
from txstorm.runtime.batches.in_flight import InFlightWindow


@dataclass(frozen=True)
class Job:
    """A pack that has been submitted to the engine as a job."""

    number: int
    pack: Pack
    started: float
    future: Future[list[Processed]]

    @property
    def attempts(self) -> list[TransactionAttempt]:
        """The attempts of the pack, in txid order."""
        return [txid_input.attempt for txid_input in self.pack.inputs]


class PackQueue:
    """Queue of attempts waiting to be processed, and the running jobs. Call from the driver thread only.

    Args:
        make_pack: builds a pack, at the moment it is submitted, from the first of the given attempts, or all of them.
        done: called with a finished job, on a thread of the engine.
        limit: maximum number of concurrent jobs; 1 for task-planned spouts, where each job needs the extents read by
            the previous one.
        monotonic: a clock in seconds.
        full: back-pressure: returns whether the processed batches that await their commit take up too much memory; no
            job starts while it returns True. This cannot block forever: those batches precede the queued ones, and
            their commits free memory.
    """

    def __init__(
        self,
        engine: Engine,
        window: InFlightWindow,
        make_pack: Callable[[list[TransactionAttempt]], Pack],
        done: Callable[[Job], None],
        limit: int,
        monotonic: Callable[[], float],
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._window = window
        self._make_pack = make_pack
        self._done = done
        self._limit = limit
        self._monotonic = monotonic
        self._full = full
        self._queue: deque[TransactionAttempt] = deque()
        self._running: dict[int, Job] = {}
        self._number = 0
        self._cap: tuple[int, int] | None = None

    @property
    def running(self) -> list[Job]:
        """The jobs in progress, except abandoned jobs."""
        return list(self._running.values())

    @property
    def queued(self) -> int:
        """Number of attempts waiting to be submitted as part of a job."""
        return len(self._queue)

    def how_far(self, longer: float) -> WorkProgress | None:
        """Return how far the oldest job is, if it runs for `longer` seconds; unlike the rest, thread-safe."""
        job = next(iter(self.running), None)
        seconds = 0.0 if job is None else self._monotonic() - job.started
        if job is None or seconds < longer or (found := self._engine.how_far(job.future)) is None:
            return None
        return replace(found, first=job.attempts[0].txid, last=job.attempts[-1].txid, seconds=seconds)

    def add(self, attempt: TransactionAttempt) -> None:
        """Queue an attempt for the next job."""
        self._queue.append(attempt)

    def cap(self, size: int, upto: int) -> None:
        """After a failed job, limit the packs that start at or before the txid `upto` to `size` txids."""
        self._cap = (size, upto)

    def submit(self) -> None:
        """Submit packs as jobs until the queue is empty or no further job may start."""
        while self._queue and len(self._running) < self._limit and not self._full():
            self._submit_one()

    def _submit_one(self) -> None:
        size = self._window.pack_size
        if self._cap is not None:
            size = min(size, self._cap[0]) if self._queue[0].txid <= self._cap[1] else size
        self._number += 1
        faults.point("p2.before")
        pack = self._make_pack(list(islice(self._queue, size)))
        for _ in pack.inputs:
            self._queue.popleft()
        job = Job(self._number, pack, self._monotonic(), self._engine.submit(pack))
        faults.point("p2.after")
        self._running[job.number] = job
        number = job.number  # not the job: the future, which keeps its callbacks, would be in a reference cycle
        job.future.add_done_callback(lambda _: self._report(number))

    def _report(self, number: int) -> None:
        """Report the end of a job, unless it was abandoned."""
        job = self._running.get(number)
        if job is not None:
            self._done(job)

    def finish(self, job: Job) -> bool:
        """Remove a finished job from the running jobs; return False if it had already been abandoned."""
        return self._running.pop(job.number, None) is not None

    def discard(self, dead: Iterable[TransactionAttempt]) -> None:
        """Remove discarded attempts from the queue, and cancel the jobs that consist only of discarded attempts."""
        discarded = set(dead)
        self._queue = deque(attempt for attempt in self._queue if attempt not in discarded)
        for job in self.running:
            if discarded.issuperset(job.attempts):
                self.give_up(job)

    def give_up(self, job: Job) -> None:
        """Cancel a job and ignore its result."""
        self._running.pop(job.number, None)
        self._engine.cancel(job.future)

    def give_up_since(self, moment: float) -> list[Job]:
        """Cancel the jobs that started before `moment`, in seconds of the monotonic clock; return those jobs."""
        late = [job for job in self.running if job.started < moment]
        for job in late:
            self.give_up(job)
        return late

    def give_up_all(self) -> None:
        """Empty the queue and cancel all jobs."""
        self._queue.clear()
        for job in self.running:
            self.give_up(job)
