"""The local engine: runs the same tasks as the Spark engine, but on threads and without a JVM."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from txstorm.engine.cargo import Cargo
from txstorm.engine.gather import destinations, gather
from txstorm.engine.port import LargeCommit, Pack, Processed, ShareDone
from txstorm.engine.program import Program
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_job import run_share
from txstorm.engine.task.stage import StageTask
from txstorm.errors import EngineError
from txstorm.lanes import THREADS, Lanes

A = TypeVar("A")


class LocalEngine:
    """Engine that runs each pack on one thread, and several packs concurrently.

    More threads per pack would only wait for the interpreter lock. Intended for tests, the test driver, and batches too
    small to be worth a Spark job.

    Args:
        observe: called with the emissions of every task of the processing phase, on the thread that runs the task.
        lanes: run the packs, each on a lane of its own.
    """

    name = "local"

    def __init__(self, observe: Observe | None = None, lanes: Lanes = THREADS) -> None:
        self._observe = observe
        self._lanes = lanes
        self._program: Program | None = None
        self._cancelled: dict[Future[Any], threading.Event] = {}

    def start(self, program: Program) -> None:
        """Keep the program for later packs."""
        self._program = program

    def warm_up(self) -> None:
        """Do nothing: threads need no warm-up."""

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` on a thread."""
        return self._on_thread(str(pack.inputs[0].attempt.txid), lambda cancelled: self.run(pack, cancelled))

    def _on_thread(self, name: str, work: Callable[[threading.Event], A]) -> Future[A]:
        cancelled = threading.Event()
        # No pool: a bolt that never returns must neither block another pack nor keep the process alive.
        future = self._lanes.call(lambda: work(cancelled), f"txstorm-local-{name}")
        self._cancelled[future] = cancelled
        future.add_done_callback(lambda done: self._cancelled.pop(done, None))
        return future

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Finish the shares of a large commit one after another on a single thread."""
        return self._on_thread(f"commit-{work.input.attempt.txid}", lambda cancelled: self._shares(work, cancelled))

    def cancel(self, future: Future[Any]) -> None:
        """Stop after the current txid or share; a bolt that never returns keeps its thread and is ignored."""
        cancelled = self._cancelled.get(future)
        if cancelled is not None:
            cancelled.set()

    def describe(self) -> Mapping[str, Any]:
        """Return the name of the engine and the number of cores."""
        return {"engine": self.name, "cores": os.cpu_count()}

    def close(self) -> None:
        """Cancel running packs, without waiting for bolts that hang."""
        for cancelled in list(self._cancelled.values()):
            cancelled.set()

    def _shares(self, work: LargeCommit, cancelled: threading.Event) -> list[ShareDone]:
        assert self._program is not None
        done = []
        for share in work.shares:
            _check_not(cancelled)
            done.append(run_share(self._program, work, share))
        return done

    def run(self, pack: Pack, cancelled: threading.Event | None = None) -> list[Processed]:
        """Process `pack` on the caller's thread; raises `EngineError` if `cancelled` is set meanwhile."""
        assert self._program is not None
        program = self._program
        arrived: dict[int, list[Cargo]] = {}
        for stage in program.stages:
            sent: dict[int, list[Cargo]] = defaultdict(list)
            last = stage.level == len(program.stages) - 1
            for task in range(stage.tasks):
                for cargo in self.task(stage.level, task, pack).run(arrived.get(task, ())):
                    _check_not(cancelled)
                    targets = (0,) if last else destinations(program, stage.level, task, cargo)
                    for target in targets:
                        sent[target].append(cargo)
            arrived = sent
        return gather(program, pack, arrived.get(0, ()))

    def task(self, level: int, number: int, pack: Pack) -> StageTask:
        """Create task `number` of the stage at `level`, for one pack."""
        assert self._program is not None
        return StageTask(self._program, level, number, pack, self._observe)


def _check_not(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        msg = "the job was cancelled"
        raise EngineError(msg)
