"""Command line of `scripts/trending`."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servers.family import end_session, members
from servers.running import start_kafka, start_zookeeper
from servers.spark import is_worker

from jobs.producers.hashtags import emit
from jobs.trending_hashtags import HASHTAGS
from txstorm.operations.savepoints import list_snapshots
from txstorm.operations.status import read_status
from txstorm.results.views import StateView, read_clock

ROOT = Path(__file__).resolve().parents[2]
TOPIC, NUMBER, PATIENCE = "hashtags", 20, 600.0
DESCRIPTION = """\
Send the 20,000 hashtags of jobs/data/hashtags to Kafka, and find the most frequent ones with jobs/trending_hashtags.py
on Spark, its ledger and its registry in ZooKeeper. On the way a Python worker and the driver are killed with SIGKILL;
the driver is started again. The result is compared with a plain count of the files.
"""
EPILOG = """\
The last line of the output with --json: what the last `txstorm run` printed, and records, top ([[tag, count], …]), clock,
snapshots, killed, and equal: whether counts and top are those of the plain count.

Exit code: 0 if they are equal, 1 otherwise, 2 for wrong arguments.
"""


class Failed(Exception):
    """Raised when a run ends before it should, or makes no progress."""


class Runs:
    """Runs of the topology, one after the other, in one data directory."""

    def __init__(self, place: Path, servers: str, hosts: str) -> None:
        self.data_dir, self._log = place / "data", place / "log.txt"
        target = f"jobs.trending_hashtags:make('kafka://{servers}/{TOPIC}', n={NUMBER}, max_batch_rows=400)"
        options = ["--ledger", f"zookeeper:{hosts}/trending", "--set", "zookeeper_session_timeout=4"]
        options += ["--set", "zookeeper_acl=open", "--snapshot-every", "2", "--data-dir", str(self.data_dir)]
        self._command = [sys.executable, "-m", "txstorm", "hailstorm", "run", target, *options]

    def start(self, *options: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [*self._command, "--available-now", "--json", *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def committed(self) -> int:
        """Return the last committed txid; 0 if nothing is there yet."""
        try:
            return int(read_status(self.data_dir)["committed_txid"] or 0)
        except Exception:  # noqa: BLE001 - the directory is being made
            return 0

    def wait(self, process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not reached():
            if process.poll() is not None or time.monotonic() > until:
                raise Failed(f"the run has ended with {process.poll()}, or makes no progress:\n{self._log.read_text()}")
            time.sleep(0.2)


def run(place: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything in an empty directory; return the result."""
    say("starting Kafka and ZooKeeper")
    with start_kafka(place / "kafka") as kafka, start_zookeeper(place / "zookeeper") as zookeeper:
        say(f"sending {emit(kafka.bootstrap, TOPIC, 0, 1000, 20_000):,} hashtags")
        runs = Runs(place, kafka.bootstrap, zookeeper.hosts)
        driver = runs.start("--min-interval", "0.5")
        say("a run on Spark, its ledger in ZooKeeper")
        try:
            runs.wait(driver, lambda: runs.committed() >= 2)
            killed = [kill_worker(driver), "driver"]
            say("a Python worker is killed" if killed[0] else "no Python worker was found")
            before = runs.committed()
            runs.wait(driver, lambda: runs.committed() >= before + 3)
            say(f"the driver is killed after txid {runs.committed()}, and started again")
        finally:
            end_session(driver.pid)
            driver.wait()
        again = runs.start("--standby")  # ZooKeeper holds the lease of the killed driver until its session ends
        try:
            out, _ = again.communicate(timeout=PATIENCE)
        finally:
            end_session(again.pid)
        if again.returncode:
            raise Failed(out)
        return {**json.loads(out.splitlines()[-1]), **results(runs.data_dir), "killed": [one for one in killed if one]}


def kill_worker(driver: subprocess.Popen[str]) -> str | None:
    """Kill a Python worker of the driver's Spark; return what was killed, None if there was none for ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        family = {one.pid: one for one in members(driver.pid)}
        if any(is_worker(one, family) and one.kill() for one in family.values()):
            return "python worker"
        time.sleep(0.1)
    return None


def results(data_dir: Path) -> dict[str, Any]:
    """Return what was counted, and whether it equals a plain count of the files."""
    plain = Counter(tag for path in HASHTAGS for tag in path.read_text(encoding="utf-8").splitlines())
    best = sorted(plain.items(), key=lambda one: (-one[1], one[0]))[:NUMBER]
    counts = {row["tag"]: row["state"] for row in StateView(data_dir, "counts").to_pylist()}
    (top,) = StateView(data_dir, "top").to_pylist()
    found = [[one["key"], one["count"]] for one in top["state"]]
    return {
        "records": sum(counts.values()),
        "top": found,
        "clock": dict(read_clock(data_dir) or {}),
        "snapshots": [one.to_json() for one in list_snapshots(data_dir)],
        "equal": counts == plain and found == [list(one) for one in best],
    }


def main(given: Sequence[str] | None = None) -> int:
    """Run the command with the arguments `given` (None: those of the process); return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/trending",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="end standard output with one line of JSON")
    options = parser.parse_args(given)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="txstorm-trending-") as place:
        try:
            found = run(Path(place), say)
        except Failed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print("\n".join(f"{count:>7,} {tag}" for tag, count in found["top"]))
    said = "equal to the plain count" if found["equal"] else "NOT equal to the plain count"
    say(f"{found['records']:,} records, killed: {', '.join(found['killed'])}; {said}")
    if options.json:
        print(json.dumps(found))
    return int(not found["equal"])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
