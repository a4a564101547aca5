"""The local engine: runs the same tasks as the Spark engine, but on threads and without a JVM."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from txstorm.api.context import WorkProgress
from txstorm.clients.spark import sessions
from txstorm.engine import frames
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.gather import destinations, gather
from txstorm.engine.port import LargeCommit, Pack, Processed, ShareDone
from txstorm.engine.program import Program
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_job import run_share
from txstorm.engine.task.stage import StageTask
from txstorm.errors import EngineError
from txstorm.lanes import THREADS, Lanes
from txstorm.user_code import Caught, ignore

A = TypeVar("A")


class LocalEngine:
    """Engine that runs each pack on one thread, and several packs concurrently.

    More threads per pack would only wait for the interpreter lock. Intended for tests, the test driver, and batches too
    small to be worth a Spark job.

    Args:
        observe: called with the emissions of every task of the processing phase, on the thread that runs the task.
        lanes: run the packs, each on a lane of its own.
        caught: called with every exception that functions of frame bolts raise.
    """

    name = "local"

    def __init__(self, observe: Observe | None = None, lanes: Lanes = THREADS, caught: Caught = ignore) -> None:
        self._observe = observe
        self._caught = caught
        self._spark: Any = None
        self._lanes = lanes
        self._program: Program | None = None
        self._work: dict[Future[Any], _Work] = {}

    def start(self, program: Program) -> None:
        """Keep the program for later packs; if it reads DataFrames, get the Spark session, or create one."""
        self._program = program
        if program.frames:
            self._spark = sessions.acquire(f"txstorm {program.topology}")
            frames.check(self._spark, program)

    def warm_up(self) -> None:
        """Do nothing: threads need no warm-up."""

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` on a thread."""
        return self._on_thread(str(pack.inputs[0].attempt.txid), lambda work: self.run(pack, work))

    def _on_thread(self, name: str, call: Callable[[_Work], A]) -> Future[A]:
        work = _Work()
        # No pool: a bolt that never returns must neither block another pack nor keep the process alive.
        future = self._lanes.call(lambda: call(work), f"txstorm-local-{name}")
        self._work[future] = work
        future.add_done_callback(lambda done: self._work.pop(done, None))
        return future

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Finish the shares of a large commit one after another on a single thread."""
        return self._on_thread(f"commit-{work.input.attempt.txid}", lambda meanwhile: self._shares(work, meanwhile))

    def how_far(self, future: Future[Any]) -> WorkProgress | None:
        """Return how far a pack or commit is, as its thread has noted."""
        work = self._work.get(future)
        return None if work is None else work.how_far()

    def cancel(self, future: Future[Any]) -> None:
        """Stop after the current txid or share; a bolt that never returns keeps its thread and is ignored."""
        work = self._work.get(future)
        if work is not None:
            work.cancelled.set()

    def describe(self) -> Mapping[str, Any]:
        """Return the name of the engine and the number of cores."""
        return {"engine": self.name, "cores": os.cpu_count()}

    def close(self) -> None:
        """Cancel running packs, without waiting for bolts that hang."""
        for work in list(self._work.values()):
            work.cancelled.set()
        if self._spark is not None:
            sessions.release(self._spark)
            self._spark = None

    def _shares(self, commit: LargeCommit, work: _Work) -> list[ShareDone]:
        assert self._program is not None
        work.tasks = len(commit.shares)
        done = []
        for share in commit.shares:
            work.check()
            done.append(run_share(self._program, commit, share))
            work.done += 1
        return done

    def run(self, pack: Pack, work: _Work | None = None) -> list[Processed]:
        """Process `pack` on the caller's thread, and note in `work` how far it is.

        Raises `EngineError` if it is cancelled meanwhile.
        """
        assert self._program is not None
        work = work or _Work()
        if self._program.frames and not pack.system:
            return frames.process_here(
                self._spark, self._program, pack, self._caught, lambda packs: self._stages(packs, work)
            )
        return self._stages([pack] * self._program.stages[0].tasks, work)

    def _stages(self, packs: Sequence[Pack], work: _Work) -> list[Processed]:
        """Process a pack, given what each task of the first stage gets of it."""
        assert self._program is not None
        program = self._program
        work.tasks, work.rows = sum(stage.tasks for stage in program.stages), 0
        arrived: dict[int, list[Cargo]] = {}
        for stage in program.stages:
            sent: dict[int, list[Cargo]] = defaultdict(list)
            last = stage.level == len(program.stages) - 1
            for task in range(stage.tasks):
                work.task = self.task(stage.level, task, packs[task if stage.level == 0 else 0])
                for cargo in work.task.run(arrived.get(task, ())):
                    work.check()
                    if stage.level == 0 and cargo.kind is Kind.RESULT:
                        work.rows += cargo.data["counts"].get(program.spout, 0)
                    targets = (0,) if last else destinations(program, stage.level, task, cargo)
                    for target in targets:
                        sent[target].append(cargo)
                work.done, work.task = work.done + 1, None
            arrived = sent
        return gather(program, packs[0], arrived.get(0, ()))

    def task(self, level: int, number: int, pack: Pack) -> StageTask:
        """Create task `number` of the stage at `level`, for one pack."""
        assert self._program is not None
        return StageTask(self._program, level, number, pack, self._observe)


class _Work:
    """Work on a pack or a large commit: what its thread has noted for others, and whether it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.done = self.tasks = 0
        self.rows: int | None = None
        self.task: StageTask | None = None

    def check(self) -> None:
        """Raise `EngineError` if the work is cancelled."""
        if self.cancelled.is_set():
            raise EngineError("the job was cancelled")

    def how_far(self) -> WorkProgress:
        """Return how far it is."""
        task = self.task
        place, row, emitted = ("", 0, 0) if task is None else task.at_work()
        rows = None if self.rows is None else self.rows + emitted
        return WorkProgress(done=self.done, tasks=self.tasks, rows=rows, place=place, row=row)
