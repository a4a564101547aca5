"""The side of txstorm itself: serves jobs on Spark or on the local engine."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.joins import lookups
from benchmarks.joins import topologies as joins
from benchmarks.joins.check import KINDS
from benchmarks.joins.rows import FORMS
from benchmarks.machine import rss_mib
from benchmarks.nexmark import topologies as nexmark
from benchmarks.nexmark.queries import QUERIES
from benchmarks.suite.bare import Recording, about, process
from benchmarks.suite.exact import BARE
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve
from benchmarks.suite.topologies import leave_counts, topology_of
from txstorm.engine.port import Engine, Pack
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import make_engine, run
from txstorm.topology.graph import Topology

_MANY = 1_000_000
"""Number of keys from which on a separate process writes a job's counts."""


class Watch:
    """Listener of a run that reports its groups to a meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.steps: list[Mapping[str, float]] = []
        self.txids = 0
        self._group: list[float] = []
        self._measures = False

    def __call__(self, progress: TransactionProgress) -> None:
        self._group.append(time.time() * 1e3 - progress.stamp / 1e3)
        if len(self._group) == progress.group:
            self.steps.append(progress.commit_ms)
            self.txids += progress.group
            self.meter.committed(progress.txid, sum(progress.commit_ms.values()), self._group)
            self._group = []
            if not self._measures and progress.txid >= self.meter.job.start:
                self._measures = True
                _forgethighest()  # exclude the load

    def about(self) -> dict[str, Any]:
        """Return the mean number of transactions per commit, and the median milliseconds of its steps."""
        steps = {name: round(statistics.median(one.get(name, 0.0) for one in self.steps), 2) for name in self.steps[-1]}
        return {"txids/commit": self.txids / len(self.steps), "steps ms": steps}


def measured(job: Job, topology: Topology, engine: str | Engine, session: Any, watch: Watch) -> Path:
    """Run a topology up to the last transaction of a job; return its data directory."""
    directory = Path(job.directory) / "data"
    handle = run(
        topology,
        engine=engine,
        spark=session,
        data_dir=directory,
        until_txid=job.last,
        settings={"compact_on_stop": False, **job.settings},
        listeners=[watch],
    )
    handle.awaitTermination()
    return directory


def worker(engine: str, session: Any = None) -> Work:
    """Return a function that runs jobs on an engine; jobs without transactions repeat the packs recorded last."""
    recorded: list[Pack] = []

    def work(job: Job) -> Outcome:
        topology, meter = _topology_of(job), Meter(job)

        def fresh() -> Engine:
            return make_engine(engine, session, topology.settings.max_jobs)

        if job.form in BARE:
            return process(job, topology, recorded, fresh())
        elsewhere = job.kind in QUERIES or job.kind in KINDS  # the runner reads the results
        watched = bool(job.form) or elsewhere
        watch, recording = Watch(meter), Recording(fresh(), meter.begin, engine) if watched else None
        directory = measured(job, topology, recording or engine, session, watch)
        more = {**watch.about(), "driver MiB": highest()}
        if recording is not None:
            recorded[:] = recording.packs
            more |= about(recorded)
        outcome = meter.outcome(**more)
        if elsewhere:
            return outcome
        if job.keys < _MANY:
            leave_counts(job, directory)
        else:
            _leave_counts_elsewhere(job, directory)
        return outcome

    return work


def _topology_of(job: Job) -> Topology:
    if job.kind in FORMS:
        return joins.topology_of(job)
    if job.kind == lookups.KIND:
        return lookups.topology_of(job)
    return nexmark.topology_of(job) if job.kind in QUERIES else topology_of(job)


def _leave_counts_elsewhere(job: Job, directory: Path) -> None:
    """Call `leave_counts` in a separate process: it needs more memory than the run being measured."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.suite.job import Job; "
        "from benchmarks.suite.topologies import leave_counts; leave_counts(Job.of(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, job.line(), str(directory)], check=True)


def _forgethighest() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def highest() -> float:
    """Return the maximum resident memory of this process since `_forget_highest`, in MiB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return rss_mib()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def serve_on(engine: str, make: Callable[[str, Any], Work]) -> None:
    """Serve jobs on one session of Spark, or on the local engine."""
    if engine == "local":
        serve(make(engine, None))
        return
    from txstorm.clients.spark import make_session

    session = make_session("txstorm benchmarks")
    try:
        serve(make(engine, session))
    finally:
        session.stop()


if __name__ == "__main__":
    serve_on(sys.argv[1], worker)
