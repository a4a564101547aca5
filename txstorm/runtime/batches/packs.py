"""Packs and jobs: which emitted attempts run together, and which jobs run now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import Engine, Pack, Processed
from txstorm.runtime.batches.admission import InFlightWindow


@dataclass(frozen=True)
class Job:
    """A submitted pack."""

    number: int
    pack: Pack
    started: float
    future: Future[list[Processed]]

    @property
    def attempts(self) -> list[TransactionAttempt]:
        """The attempts of the pack, in txid order."""
        return [one.attempt for one in self.pack.inputs]


class PackQueue:
    """The queue of emitted attempts and the jobs that run.

    Args:
        make_pack: turns attempts into a pack, at submission.
        done: called with a finished job, on a thread of the engine.
        limit: jobs at once; 1 for task-planned spouts, whose txids chain.
        full: whether what is processed and waits for its turn is too much already; then no job begins. What waits
            comes before what is queued, so its commits end that.
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
        """Jobs that are not finished, given up ones not counted."""
        return list(self._running.values())

    @property
    def queued(self) -> int:
        """Attempts that wait for a job."""
        return len(self._queue)

    def add(self, attempt: TransactionAttempt) -> None:
        """Emit an attempt: it runs with the next job."""
        self._queue.append(attempt)

    def cap(self, size: int, upto: int) -> None:
        """Packs hold at most `size` txids until `upto` is processed: a job with them died."""
        self._cap = (size, upto)

    def submit(self) -> None:
        """Start as many jobs as may run."""
        while self._queue and len(self._running) < self._limit and not self._full():
            self._submit_one()

    def _submit_one(self) -> None:
        size = self._window.pack_size
        if self._cap is not None:
            size = min(size, self._cap[0]) if self._queue[0].txid <= self._cap[1] else size
        attempts = [self._queue.popleft() for _ in range(min(size, len(self._queue)))]
        self._number += 1
        faults.point("p2.before")
        pack = self._make_pack(attempts)
        job = Job(self._number, pack, self._monotonic(), self._engine.submit(pack))
        faults.point("p2.after")
        self._running[job.number] = job
        job.future.add_done_callback(lambda _: self._done(job))

    def finish(self, job: Job) -> bool:
        """Take a finished job off the list; False when it had been given up."""
        return self._running.pop(job.number, None) is not None

    def discard(self, dead: Iterable[TransactionAttempt]) -> None:
        """Forget attempts: out of the queue, and jobs without a living attempt are given up."""
        gone = set(dead)
        self._queue = deque(attempt for attempt in self._queue if attempt not in gone)
        for job in self.running:
            if gone.issuperset(job.attempts):
                self.give_up(job)

    def give_up(self, job: Job) -> None:
        """Cancel a job and ignore what it still says."""
        self._running.pop(job.number, None)
        self._engine.cancel(job.future)

    def give_up_since(self, moment: float) -> list[Job]:
        """Give up the jobs that began before `moment`; returns them."""
        late = [job for job in self.running if job.started < moment]
        for job in late:
            self.give_up(job)
        return late

    def give_up_all(self) -> None:
        """Cancel everything."""
        self._queue.clear()
        for job in self.running:
            self.give_up(job)
