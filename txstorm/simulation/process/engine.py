"""Engine of a simulated process: jobs that end in any order, fail, lose their worker, hang, or answer too late."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from txstorm.engine.port import ErrorRow, LargeCommit, Pack, Processed, ShareDone, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import EngineError
from txstorm.lanes import complete
from txstorm.simulation import schedule as kinds
from txstorm.simulation.outside import extents_of

if TYPE_CHECKING:
    from txstorm.simulation.process.process import Process


class SimEngine:
    """Runs each pack on a lane of its own."""

    name = "simulated"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._cancelled: set[Future[Any]] = set()

    def start(self, program: Program) -> None:
        """Do nothing: simulated jobs need no program."""

    def warm_up(self) -> None:
        """Do nothing."""

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process a pack."""
        answer: Future[list[Processed]] = Future()
        job = partial(complete, answer, lambda: self._run(pack, answer))
        self._process.lanes.start(job, "job")
        return answer

    def _run(self, pack: Pack, answer: Future[Any]) -> list[Processed]:
        process, world = self._process, self._process.world
        done: list[Processed] = []
        for one in pack.inputs:
            world.reads(process, "process", one.attempt.txid)
            if world.unlucky():
                which = world.below(5)
                if which == 0:
                    world.count(kinds.WORKER, f"a worker of {process} dies at txid {one.attempt}")
                    raise EngineError("a worker died")
                if which == 1:
                    world.count(kinds.HANGS, f"the job of {process} hangs at txid {one.attempt}")
                    process.lanes.sleep(world.hang())
                if which > 1:
                    done.append(self._failed(one, lies=which == 2))
                    return done
            digests = {"source": str(extents_of(one.document))}
            tuples = sum(end - start for start, end in extents_of(one.document))
            done.append(Processed(one.attempt, digests=digests, counts={"source": tuples}))
        return done

    def _failed(self, one: TxidInput, *, lies: bool) -> Processed:
        """Return a batch that fails before or after it was read, or (if `lies`) another batch than the first time."""
        process, world = self._process, self._process.world
        digests = {"source": str(extents_of(one.document))} if world.below(2) else {}
        if lies and not world.schedule.opaque and process.has_read(one.attempt.txid):
            world.count(kinds.LIE, f"{process} gets another batch for txid {one.attempt}")
            process.lied_to = True
            return Processed(one.attempt, digests={"source": "another one"})
        world.count(kinds.BATCH, f"a batch of {process} fails: txid {one.attempt}")
        row = ErrorRow("bolt", 0, "failed", "FailedException", "simulated", "", "")
        return Processed(one.attempt, digests=digests, error=row)

    def commit(self, work: LargeCommit) -> Future[list[ShareDone]]:
        """Never called: no simulated commit is large."""
        raise NotImplementedError

    def how_far(self, future: Future[Any]) -> None:
        """Return None: simulated jobs are not watched."""

    def cancel(self, future: Future[Any]) -> None:
        """Ignore what a job still answers; like tasks of Spark, it may go on."""
        self._cancelled.add(future)

    def describe(self) -> Mapping[str, Any]:
        """Describe the engine."""
        return {"engine": self.name}

    def close(self) -> None:
        """Do nothing: jobs end with their process."""
