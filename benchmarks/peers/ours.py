"""txstorm itself, on Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve
from benchmarks.suite.topologies import state_name, topology_of
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import run
from txstorm.state.read import read_state


class Watch:
    """Tells a meter of the groups of a run."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.group: list[float] = []
        self.groups = self.txids = 0

    def __call__(self, progress: TransactionProgress) -> None:
        self.group.append(time.time() * 1e3 - progress.stamp / 1e3)
        if len(self.group) == progress.group:
            self.groups, self.txids = self.groups + 1, self.txids + progress.group
            self.meter.committed(progress.txid, sum(progress.commit_ms.values()), self.group)
            self.group = []


def worker(engine: str, session: Any = None) -> Work:
    """Runs jobs on an engine."""

    def work(job: Job) -> Outcome:
        directory, meter = Path(job.directory) / "data", Meter(job)
        watch = Watch(meter)
        options = {"compact_on_stop": False, **job.settings}
        handle = run(
            topology_of(job),
            engine=engine,
            spark=session,
            data_dir=directory,
            until_txid=job.last,
            settings=options,
            listeners=[watch],
        )
        handle.awaitTermination()
        outcome = meter.outcome(**{"txids/commit": watch.txids / max(1, watch.groups)})
        for number in range(job.tables):
            _leave(job, directory, number)
        return outcome

    return work


def _leave(job: Job, directory: Path, number: int) -> None:
    found = read_state(directory, state_name(job, number))
    leave(job, found.select(["n"] if job.kind == "total" else ["word", "n"]), number)


def main(engine: str) -> None:
    """Serve jobs on one session."""
    if engine == "local":
        serve(worker(engine))
        return
    from txstorm.clients.spark import make_session

    session = make_session("txstorm benchmarks")
    try:
        serve(worker(engine, session))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["spark"]))
