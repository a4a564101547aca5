"""Benchmark side without transactions: runs recorded packs again in the same Spark stages, and drops the output."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.machine import cpu_seconds
from benchmarks.suite.job import Job, Outcome
from txstorm.api.context import WorkProgress
from txstorm.api.state import CollectionState, arrow_type
from txstorm.engine.port import Engine, Pack, Processed
from txstorm.engine.program import Program, program_of
from txstorm.engine.spill import sweep_spilled
from txstorm.engine.task.commit_phase import CommitRun
from txstorm.plan.stages import compile_plan
from txstorm.topology.graph import Topology


@dataclass
class Recording:
    """Engine that records the packs submitted to it.

    Attributes:
        began: called when the first pack is submitted.
        packs: the packs, in the order of submission.
    """

    inner: Engine
    began: Callable[[], None]
    name: str = ""
    packs: list[Pack] = field(default_factory=list)

    def start(self, program: Program) -> None:
        self.inner.start(program)

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        if not self.packs:
            self.began()
        self.packs.append(pack)
        return self.inner.submit(pack)

    def how_far(self, future: Future[Any]) -> WorkProgress | None:
        return self.inner.how_far(future)

    def cancel(self, future: Future[list[Processed]]) -> None:
        self.inner.cancel(future)

    def describe(self) -> Mapping[str, Any]:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


def process(job: Job, topology: Topology, packs: Sequence[Pack], engine: Engine) -> Outcome:
    """Process `packs` again, as many at a time as txstorm does, without transactions and state.

    The form ``stages`` also runs the committers, on a separate thread, and drops what they write; the form ``jobs``
    ignores the results of the Spark jobs.
    """
    program = program_of(compile_plan(topology), job.directory)
    engine.start(program)
    tables = _NoTables(topology)
    waiting, running = deque(packs), dict[Future[list[Processed]], Pack]()
    finishing: list[Future[None]] = []

    def drop(pack: Pack, outcomes: Sequence[Processed]) -> None:
        if job.form == "stages":
            _finish(program, pack, outcomes, tables)
        sweep_spilled(program.spill_dir, outcomes[-1].attempt.txid)

    before, began = sum(cpu_seconds()), time.perf_counter()
    with ThreadPoolExecutor(1) as committers:
        while waiting or running:
            while waiting and len(running) < topology.settings.max_jobs:
                pack = waiting.popleft()
                running[engine.submit(pack)] = pack
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                finishing.append(committers.submit(drop, running.pop(future), future.result()))
    for finished in finishing:
        finished.result()
    seconds, cpu = time.perf_counter() - began, sum(cpu_seconds()) - before
    engine.close()
    txids = sum(len(pack.inputs) for pack in packs)
    return Outcome(seconds, cpu, txids, txids * job.tuples, more=about(packs))


def about(packs: Sequence[Pack]) -> dict[str, int]:
    """Return the number of Spark jobs, and the size of the largest one."""
    return {"jobs": len(packs), "largest pack": max(len(pack.inputs) for pack in packs)}


class _Nothing:
    """Empty `txstorm.api.state.StateHandle`, and a sink, that ignore all writes."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        return {}

    def put(self, key: Any, value: Any) -> None:
        pass

    def put_many(self, values: Mapping[Any, Any]) -> None:
        pass

    def update(self, key: Any, function: Callable[[Any], Any]) -> Any:
        return function(None)

    def update_many(self, partials: Mapping[Any, Any], function: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        return {key: function(None, partial) for key, partial in partials.items()}

    def merge(self, batch: Any, how: Mapping[str, str]) -> dict[Any, Any]:
        return {}

    def remove(self, key: Any) -> None:
        pass

    def remove_many(self, keys: Iterable[Any]) -> None:
        pass

    def previous(self, key: Any) -> Any:
        return None

    def append(self, *values: Any) -> None:
        pass

    def append_batch(self, batch: Any) -> None:
        pass


class _Records(_Nothing):
    """Keyed state in memory: the progress of a ready-made committer, which it reads in the next transaction."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        return self._values.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self._values[key] = value


class _Rows:
    """Collection in memory: the rows that a ready-made committer reads in later transactions."""

    def __init__(self, state: CollectionState) -> None:
        [self._order] = state.order
        columns = {**state.key, **state.order, **state.value}
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])
        self._tables = [schema.empty_table()]
        self._bound: Any = None

    def append_batch(self, rows: pa.Table) -> None:
        self._tables.append(rows.select(self._tables[0].column_names))

    def evict_before(self, place: Any) -> None:
        self._bound = place

    def scan_table(self, keys: None, start: Any, end: Any) -> pa.Table:
        assert keys is None, "only for one task"
        rows = pa.concat_tables(self._tables)
        if self._bound is not None:
            rows = rows.filter(pc.field(self._order) >= self._bound)
            self._tables = [rows]
        for bound, inside in ((start, pc.greater_equal), (end, pc.less_equal)):
            rows = rows if bound is None else rows.filter(inside(rows.column(self._order), bound))
        return rows


class _NoTables:
    """`txstorm.engine.task.component_run.Resources` that drops results; ready-made committers remember in memory."""

    def __init__(self, topology: Topology) -> None:
        self._kept: dict[str, Any] = {}
        for owner, states in topology.states.items():
            committer = topology.component(owner).object
            for one in states:
                if one.name in getattr(committer, "internal_states", ()):
                    self._kept[one.name] = _Rows(one) if isinstance(one, CollectionState) else _Records()

    def state(self, component: str, task: int, name: str) -> Any:
        return self._kept.get(name) or _Nothing()

    def collection(self, component: str, task: int, name: str, tasks: int) -> Any:
        return self._kept.get(name) or _Nothing()

    def sink(self, component: str, task: int, name: str) -> Any:
        return _Nothing()

    def activate(self, active: bool) -> None:
        pass

    def settle(self, component: str, task: int) -> None:
        pass

    def undo(self, component: str, task: int) -> None:
        pass


def _finish(program: Program, pack: Pack, outcomes: Sequence[Processed], tables: _NoTables) -> None:
    """Run the committers of the txids of `pack` on the results of its job, and drop what they write."""
    inputs = {one.attempt: one for one in pack.inputs}
    for outcome in outcomes:
        CommitRun(program, inputs[outcome.attempt], outcome.cargo, tables).run()
