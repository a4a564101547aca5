"""Storm 1.2.4: its transactional topology, and Trident, in a LocalCluster; one JVM for each job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.serve import Work, serve
from benchmarks.words import pool, vocabulary

OPENED = ("java.lang", "java.lang.reflect", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
"""Packages of Java 17 to open for Storm's Clojure and Kryo."""
NAMES = ("localhost", "localhost/<unresolved>", socket.gethostname())
"""Host names that must resolve; the second is the form in which Storm's ZooKeeper writes its address on Java 17."""
PATIENCE = 600


def worker(form: str, home: Path) -> Work:
    """Return a function that runs jobs as ``storm`` or ``trident``."""

    def work(job: Job) -> Outcome:
        place = Path(job.directory)
        (place / "vocabulary.txt").write_text("\n".join(vocabulary().to_pylist()) + "\n")
        pool(max(job.keys, 2)).astype("<i4").tofile(place / "pool.bin")
        (place / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in NAMES))
        done = subprocess.run(
            _command(form, home, job), cwd=place, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        sys.stderr.write(done.stderr[-4000:])
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not found:
            msg = f"ended with code {done.returncode} and no result: {done.stderr.strip()[-500:]}"
            raise RuntimeError(msg)
        seconds, cpu, latency = map(float, found[0])
        return Outcome(seconds, cpu, job.txids, job.txids * job.tuples, latency)

    return work


def java(home: Path, place: Path, memory: str) -> list[str]:
    """Return the command of a JVM with Storm in its class path; `place` has the file ``hosts`` with `NAMES`."""
    program = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    return [
        program,
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
        f"-Xmx{memory}",
        f"-Djdk.net.hosts.file={place / 'hosts'}",
        f"-Djava.io.tmpdir={place}",
        "-cp",
        f"{home / 'storm-classes'}:{home / 'storm'}/*",
    ]


def _command(form: str, home: Path, job: Job) -> list[str]:
    place = Path(job.directory)
    pending = str(job.settings.get("max_spout_pending", 4))
    numbers = [str(number) for number in (job.tuples, job.keys, job.loads, job.start, job.last)]
    return [*java(home, place, "3g"), "Bench", form, job.kind, *numbers, pending, str(place)]


if __name__ == "__main__":
    serve(worker(sys.argv[1], Path(sys.argv[2]).resolve()))
