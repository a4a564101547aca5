"""Flink SQL: queries and joins in a local cluster with exactly-once checkpoints every second; one JVM for all jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.joins import results as joins
from benchmarks.joins.rows import FORMS
from benchmarks.nexmark.queries import DIGEST, QUERIES, until
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.serve import Work, serve

OPENED = ("java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util")
"""Packages of Java 17 to open for Flink's serializers."""
WARM_UPS = 2
"""Rounds of a query that are not measured, in a JVM that has not run it."""
WARM_UP_ROWS = 400_000
"""Rows of a join in such a round; queries take all events."""


def worker(home: Path) -> Work:
    """Return a function that runs queries; the setting ``state.backend.type`` is ``hashmap`` or ``rocksdb``."""
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    classes = f"{home / 'flink-classes'}:{home / 'flink'}/*"
    command = [java, *opened, "-Xmx3g", "-XX:+UseParallelGC", "-cp", classes, "Nexmark"]
    flink = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    warm: set[tuple[str, str]] = set()

    def ask(job: Job, backend: str, checkpoints: Path, events: int) -> list[str]:
        assert flink.stdin is not None
        assert flink.stdout is not None
        joins_ = job.kind in FORMS
        limit = joins.until(job.source, events) if joins_ else until(job.source, QUERIES[job.kind], events)
        flink.stdin.write(f"{job.kind} {job.source['directory']} {events} {limit} {checkpoints} {backend}\n")
        flink.stdin.flush()
        for line in flink.stdout:
            kind, *found = line.split()
            if kind == "RESULT":
                return found
            if kind == "ERROR":
                raise RuntimeError(line)
        msg = f"Flink ended with code {flink.wait()}"
        raise RuntimeError(msg)

    def work(job: Job) -> Outcome:
        rows = job.last * job.tuples
        place, backend = Path(job.directory), str(job.settings.get("state.backend.type", "hashmap"))
        for number in range(0 if (job.kind, backend) in warm else WARM_UPS):
            few = min(rows, WARM_UP_ROWS) if job.kind in FORMS else rows
            ask(job, backend, place / f"warm-up-{number}", few)
        warm.add((job.kind, backend))
        seconds, cpu, *found = ask(job, backend, place / "checkpoints", rows)
        (place / DIGEST).write_text(json.dumps([int(one) for one in found]))
        return Outcome(float(seconds), float(cpu), job.last, rows)

    return work


if __name__ == "__main__":
    serve(worker(Path(sys.argv[1]).resolve()))
