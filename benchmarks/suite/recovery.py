"""W10: time to the next commit after the loss of the coordinator, and after the kill of the whole driver."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.suite.exact import check
from benchmarks.suite.job import Job
from benchmarks.suite.sides import ROOT, SideFailed, kill_tree
from benchmarks.suite.topologies import leave_counts, topology_of
from txstorm import faults
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import run

BATCH = 1_000
LOST = "p6.before:raise:{}"
"""The coordinator dies when it is about to decide the group with this number."""


def coordinator(options: Mapping[str, Any]) -> float:
    """Measure the seconds from the last commit before the loss of the coordinator to the first one after it."""
    job = _job(options["directory"], int(options["txids"]))
    commits: list[float] = []
    session = _session(options["engine"])

    def note(progress: TransactionProgress) -> None:
        commits.append(time.monotonic())

    faults.arm(options["fault"])
    try:
        _handle(job, options["engine"], session, note).awaitTermination()
    except Exception as error:  # noqa: BLE001 - any end of the run is the intended loss
        print(f"lost as intended: {error}", file=sys.stderr)
    finally:
        faults.arm("")
    before = len(commits)
    if not before or before == job.last:
        msg = f"expected the coordinator to be lost in the middle of {job.last} transactions, it was after {before}"
        raise RuntimeError(msg)
    _handle(job, options["engine"], session, note).awaitTermination()
    leave_counts(job, Path(job.directory) / "data")
    check("txstorm", job)
    return commits[before] - commits[before - 1]


def killed_driver(directory: Path, txids: int, engine: str) -> tuple[float, int]:
    """Kill a driver with SIGKILL at full load and start it again.

    Returns:
        Seconds from the start of the second driver, Python and JVM included, to its first commit; and the number of
        tuples processed more than once.
    """
    job = _job(str(directory), txids)
    with (directory / "driver.log").open("ab") as log, ExitStack() as stack:
        first = _driver(job, engine, log, stack)
        next(committed for committed in _commits(first) if committed >= job.last // 4)
        first.kill()
        started = time.monotonic()
        second = _driver(job, engine, log, stack)
        seconds = next((time.monotonic() - started for _ in _commits(second)), None)
        collections.deque(_commits(second), maxlen=0)  # up to its end
        if second.wait() != 0 or seconds is None:
            msg = f"the second driver ended with {second.returncode}: {(directory / 'driver.log').read_text()[-1000:]}"
            raise SideFailed(msg)
        first.wait()
    leave_counts(job, directory / "data")
    check("txstorm", job)
    return seconds, sum(map(int, _notes(job).read_text().split())) - job.last * BATCH


def _driver(job: Job, engine: str, log: Any, stack: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.suite.recovery", job.line(), engine]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    driver = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )
    stack.callback(_end, driver)
    return driver


def _end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        kill_tree(driver.pid)


def _commits(driver: subprocess.Popen[bytes]) -> Iterator[int]:
    assert driver.stdout is not None
    return (json.loads(line)["committed"] for line in iter(driver.stdout.readline, b"") if line.startswith(b"{"))


def _notes(job: Job) -> Path:
    """Return the file in which the spout records the number of tuples of each emission."""
    return Path(job.directory) / "emitted"


def _job(directory: str, txids: int) -> Job:
    return Job("words", BATCH, txids, loaded=False, directory=directory)


def _session(engine: str) -> Any:
    if engine != "spark":
        return None
    from txstorm.clients.spark import make_session

    return make_session("recovery")


def _handle(job: Job, engine: str, session: Any, note: Any) -> Any:
    return run(
        topology_of(job, _notes(job)),
        engine=engine,
        spark=session,
        data_dir=Path(job.directory) / "data",
        until_txid=job.last,
        settings={"compact_on_stop": False},
        listeners=[note],
    )


def _say(progress: TransactionProgress) -> None:
    print(json.dumps({"committed": progress.txid}), flush=True)


if __name__ == "__main__":
    _handle(Job.of(sys.argv[1]), sys.argv[2], None, _say).awaitTermination()
