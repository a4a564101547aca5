"""One measured run of a topology, and of its peer: the same packs through the same engine, outcomes dropped."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.discarding import finish
from benchmarks.machine import cpu_seconds, percentile
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine, Pack, Processed
from txstorm.engine.program import Program, program_of
from txstorm.engine.task import sweep_spilled
from txstorm.monitor.progress import TransactionProgress
from txstorm.plan.stages import compile_plan
from txstorm.runtime.run import run
from txstorm.topology.graph import Topology

SETTLED = 3
"""Groups before this one are apart: tables are created, code is loaded, the window is narrow."""
STEPS = ("finish", "stage", "decide", "publish", "complete")
MakeEngine = Callable[[], Engine]


def engines(kind: str, session: Any, jobs: int = 2) -> MakeEngine:
    """Makes engines of `kind` for one run each; those of Spark share `session`."""
    if kind == "local":
        return LocalEngine
    from txstorm.engine.spark import SparkEngine

    return lambda: SparkEngine(session, jobs=jobs)


@dataclass
class Recording:
    """An engine that remembers what it was given and what its tasks said.

    Attributes:
        packs: in the order they were submitted.
        began: when the first was.
        busy: seconds of work in tasks, over all stages.
    """

    inner: Engine
    name: str = ""
    packs: list[Pack] = field(default_factory=list)
    began: float = 0.0
    busy: float = 0.0

    def start(self, program: Program) -> None:
        self.inner.start(program)

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        if not self.packs:
            self.began = time.perf_counter()
        self.packs.append(pack)
        future = self.inner.submit(pack)
        future.add_done_callback(self._note)
        return future

    def _note(self, done: Future[list[Processed]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.busy += sum(sum(one.busy.values()) for one in done.result())

    def cancel(self, future: Future[list[Processed]]) -> None:
        self.inner.cancel(future)

    def describe(self) -> Mapping[str, Any]:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


def _recording(engine: Engine) -> Recording:
    return Recording(engine, engine.name)


@dataclass(frozen=True)
class Group:
    """One commit: how many txids it held, and its steps in milliseconds."""

    txids: int
    steps: Mapping[str, float]

    @property
    def total(self) -> float:
        """From the begin of P5 to the end of P8."""
        return sum(self.steps.values())


@dataclass(frozen=True)
class Measured:
    """What one run took.

    Attributes:
        seconds: from the submission of the first job to the end of the last commit.
        cpu, cpu_below: CPU seconds of the driver's process, and of the processes below it (JVM, workers).
        busy: seconds that tasks say they worked.
    """

    txids: int
    tuples: int
    seconds: float
    cpu: float
    cpu_below: float
    busy: float
    packs: Sequence[Pack]
    groups: Sequence[Group] = ()

    @property
    def all_cpu(self) -> float:
        """CPU seconds of the whole tree of processes: hardly moved by what else the machine does."""
        return self.cpu + self.cpu_below

    @property
    def txids_s(self) -> float:
        return self.txids / self.seconds

    @property
    def tuples_s(self) -> float:
        return self.tuples / self.seconds

    @property
    def settled(self) -> Sequence[Group]:
        """The groups but for the first ones."""
        return self.groups[SETTLED:] or self.groups

    def commit_ms(self, share: float) -> float:
        """The commit that `share` of the commits are quicker than, in milliseconds."""
        return percentile([one.total for one in self.settled], share)

    def step_ms(self, step: str) -> float:
        """Milliseconds of one step per commit, on average."""
        return sum(one.steps.get(step, 0.0) for one in self.settled) / max(1, len(self.settled))

    @property
    def group_size(self) -> float:
        """Txids per commit, on average."""
        return sum(one.txids for one in self.settled) / max(1, len(self.settled))


class _Watch:
    """A listener that keeps the commits and when the last one ended."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.ended = 0.0
        self.txids = 0
        self._of: Mapping[str, float] | None = None

    def __call__(self, progress: TransactionProgress) -> None:
        self.ended = time.perf_counter()
        self.txids += 1
        if progress.commit_ms is not self._of:
            self._of = progress.commit_ms
            self.groups.append(Group(progress.group, dict(progress.commit_ms)))


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="txstorm-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run_topology(
    topology: Topology, tuples: int, last: int, engine: MakeEngine, settings: Mapping[str, Any]
) -> Measured:
    """Run `topology`, of `tuples` tuples a batch, until txid `last` is committed."""
    recording, watch = _recording(engine()), _Watch()
    before = cpu_seconds()
    with scratch() as directory:
        options = {"compact_on_stop": False, **settings}
        handle = run(
            topology, engine=recording, data_dir=directory, until_txid=last, settings=options, listeners=[watch]
        )
        handle.awaitTermination()
        after = cpu_seconds()
    if watch.txids != last:
        msg = f"{topology.id}: expected {last} committed transactions, got {watch.txids}"
        raise RuntimeError(msg)
    return Measured(
        txids=last,
        tuples=last * tuples,
        seconds=watch.ended - recording.began,
        cpu=after[0] - before[0],
        cpu_below=after[1] - before[1],
        busy=recording.busy,
        packs=tuple(recording.packs),
        groups=tuple(watch.groups),
    )


def run_peer(
    topology: Topology, tuples: int, packs: Sequence[Pack], engine: MakeEngine, jobs: int, *, whole: bool
) -> Measured:
    """Process `packs` again, `jobs` at a time, and drop what comes out: no transactions, no state.

    The `whole` plan has its committers too, on a thread of their own, and drops what they write; otherwise nobody
    looks at what the jobs make.
    """
    recording = _recording(engine())
    before = cpu_seconds()
    with scratch() as directory:
        program = program_of(compile_plan(topology), str(directory))
        recording.start(program)
        waiting, running = deque(packs), dict[Future[list[Processed]], Pack]()
        finishing: list[Future[None]] = []

        def drop(pack: Pack, outcomes: Sequence[Processed]) -> None:
            if whole:
                finish(program, pack, outcomes)
            sweep_spilled(program.spill_dir, outcomes[-1].attempt.txid)

        with ThreadPoolExecutor(1) as committers:
            while waiting or running:
                while waiting and len(running) < jobs:
                    pack = waiting.popleft()
                    running[recording.submit(pack)] = pack
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    finishing.append(committers.submit(drop, running.pop(future), future.result()))
        for finished in finishing:
            finished.result()
        ended = time.perf_counter()
        after = cpu_seconds()
        recording.close()
    txids = sum(len(pack.inputs) for pack in packs)
    return Measured(
        txids=txids,
        tuples=txids * tuples,
        seconds=ended - recording.began,
        cpu=after[0] - before[0],
        cpu_below=after[1] - before[1],
        busy=recording.busy,
        packs=packs,
    )
