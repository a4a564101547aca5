"""Sides: processes that answer requests line by line; their process trees are monitored, and killed at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import processes
from benchmarks.suite.exact import check
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.serve import RUNNER
from txstorm.allocator import ARENAS

ROOT = Path(__file__).resolve().parents[2]
LOOK = 2.0
"""Seconds between two samples of the memory: a sample stops a JVM for some milliseconds."""
PATIENCE = 900.0
"""Maximum seconds that a side may take to start, or for one job."""


class SideFailed(Exception):
    """A side did not answer, or failed; the message contains the end of its output."""


class Side:
    """One side: a process started by `start` or by the first request, which ends with the ``with`` block.

    At the end of the block it may finish; if an exception leaves the block, its process tree is killed at once, so that
    an interrupted benchmark does not wait for a job.
    """

    def __init__(self, name: str, command: Sequence[str], logs: Path, patience: float = PATIENCE) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._command, self._patience = command, patience
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    @property
    def runs(self) -> bool:
        """Whether the process was started and has not been ended."""
        return self._process is not None

    def start(self) -> subprocess.Popen[str]:
        """Start the process, if it is not running; it reports that it is ready before it answers requests."""
        if self._process is None:
            with self.log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=ROOT,
                    env=_environment(self._command[0]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the runner, which ends its sides
                )
        return self._process

    def ask(self, line: str) -> tuple[Mapping[str, Any], float]:
        """Send a line; return the answer, and the maximum MiB of the process tree meanwhile.

        Raises:
            SideFailed: the side reports a failure, has ended, or was ended because it took too long.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with _Watch(process.pid) as watch, _deadline(self._patience, process.pid):
                with contextlib.suppress(BrokenPipeError):  # it has ended: reading the answer fails, too
                    process.stdin.write(line + "\n")
                    process.stdin.flush()
                said = process.stdout.readline()
        except BaseException:  # interrupted: it must not go on writing into a directory that is being removed
            self.kill()
            raise
        if not said:
            self.kill()
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            msg = f"{self.name} ended (or took more than {self._patience:.0f} s): {' | '.join(tail)}"
            raise SideFailed(msg)
        answer: Mapping[str, Any] = json.loads(said)
        if "error" in answer:
            msg = f"{self.name}: {answer['error']}"
            raise SideFailed(msg)
        return answer, watch.peak

    def run(self, job: Job) -> Outcome:
        """Run a job in a new directory, and check its counts.

        Raises:
            Inexact: a count is wrong.
            SideFailed: the side failed.
            WrongResult: the results of a query are wrong.
        """
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as directory:
            placed = job.within(directory)
            answer, peak = self.ask(placed.line())
            outcome = replace(Outcome(**answer), peak_mib=peak)
            check(self.name, placed, outcome)
        return outcome

    def close(self) -> None:
        """End the process by closing its input."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not end by itself", file=sys.stderr)
            kill_tree(process.pid)
            process.wait()
        process.stdout.close()

    def kill(self) -> None:
        """Kill the process and its descendants."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_tree(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def call(function: str, options: Mapping[str, Any], logs: Path) -> Any:
    """Call ``module:function`` with `options` in a separate process; return its result.

    Raises:
        SideFailed: the call failed.
    """
    name = function.rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.suite.serve", function]
    with Side(name, command, logs, patience=4 * 3600.0) as side:
        return side.ask(json.dumps(dict(options)))[0]["result"]


def kill_tree(root: int) -> None:
    """Kill a process and its descendants, whatever process groups they have created."""
    for one in processes.tree(root) or [processes.Process(root, "driver", 0.0)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)


def _environment(python: str) -> dict[str, str]:
    """Return the environment variables of a side, without this interpreter's paths if it uses another one."""
    own = [os.environ["PYTHONPATH"]] if python == sys.executable and os.environ.get("PYTHONPATH") else []
    path = os.pathsep.join([str(ROOT), *own])
    arenas = {"MALLOC_ARENA_MAX": str(ARENAS)}  # as `txstorm run` has it
    more = {"PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1", RUNNER: str(os.getpid()), **arenas}
    return {**os.environ, "PYTHONPATH": path, **more}


class _deadline:  # noqa: N801 - a context manager, used as a word
    """Context manager that kills a process if the block takes too long."""

    def __init__(self, patience: float, pid: int) -> None:
        self._timer = threading.Timer(patience, kill_tree, [pid])
        self._timer.daemon = True  # an interrupt can come before the block that cancels it

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class _Watch:
    """Sampler of the resident memory of a process and its descendants."""

    def __init__(self, root: int) -> None:
        self.peak = 0.0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        over = False
        while not over:  # the last sample is taken at the end
            over = self._over.wait(LOOK)
            self.peak = max(self.peak, processes.memory(self._root) / (1 << 20))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
