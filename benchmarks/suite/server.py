"""A side that stays alive: a process that does one job after the other, and whose tree is watched meanwhile.

`benchmarks.sides` starts a process for every run. Here a Spark session is started once for all comparisons: thirty
starts would take longer than what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import processes
from benchmarks.sides import SideFailed
from benchmarks.suite.exact import check
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.peers import ROOT, Peer

EVERY = 0.5
PATIENCE = 900.0
"""Seconds that a side may take to start, or for one job."""


class Server:
    """One process, started when first used; `close` ends it."""

    def __init__(self, peer: Peer, logs: Path) -> None:
        self.peer = peer
        self.log = logs / f"{peer.name}.log"
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job) -> Outcome:
        """Do a job in a directory of its own, and check what was counted.

        Raises:
            Inexact: a count is wrong.
            SideFailed: the side says why.
        """
        process = self._started()
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory, _Watch(process.pid) as watch:
            placed = job.within(directory)
            assert process.stdin is not None
            process.stdin.write(placed.line() + "\n")
            process.stdin.flush()
            answer = self._answer(process)
            check(self.peer.name, placed)
        return replace(Outcome(**answer), peak_mib=watch.peak)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
            with self.log.open("a") as log:
                self._process = subprocess.Popen(
                    self.peer.command,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._answer(self._process)
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, object]:
        assert process.stdout is not None
        with _deadline(process.kill):
            line = process.stdout.readline()
        if not line:
            self.close()
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            msg = f"{self.peer.name} ended (or took more than {PATIENCE:.0f} s): {' | '.join(tail)}"
            raise SideFailed(msg)
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            msg = f"{self.peer.name}: {answer['error']}"
            raise SideFailed(msg)
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            print(f"{self.peer.name} did not end by itself", file=sys.stderr)
            process.kill()
            process.wait()
        process.stdout.close()


class _deadline:  # noqa: N801 - a context manager, used as a word
    """Calls `then` if what is done within takes too long."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._timer = threading.Timer(PATIENCE, then)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class _Watch:
    """Samples the resident memory of a process and of all below it."""

    def __init__(self, root: int) -> None:
        self.peak = 0.0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, processes.memory(self._root) / (1 << 20))
            if self._over.wait(EVERY):
                return

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
