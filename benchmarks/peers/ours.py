"""txstorm itself, on Spark."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import rss_mib
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve
from benchmarks.suite.topologies import leave_counts, topology_of
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import run


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
        _forget_highest()
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
        more = {"txids/commit": watch.txids / max(1, watch.groups), "driver MiB": _highest()}
        outcome = meter.outcome(**more)
        leave_counts(job, directory)
        return outcome

    return work


def _forget_highest() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _highest() -> float:
    """The most resident memory of this process since it was forgotten, in MiB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return rss_mib()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main(engine: str) -> None:
    """Serve jobs on one session."""
    if engine == "local":
        serve(worker(engine))
        return
    from txstorm.clients.spark import make_session

    session = make_session("txstorm benchmarks")
    try:
        serve(worker(engine, session), Job("words", 1_000, 200))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["spark"]))
