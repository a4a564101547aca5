"""A side: a process that answers lines with lines, and whose whole tree of processes is watched and ended."""

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

ROOT = Path(__file__).resolve().parents[2]
LOOK = 2.0
"""Seconds between two looks at the memory: a look stops a JVM for some milliseconds."""
PATIENCE = 900.0
"""Seconds that a side may take to start, or for one job."""


class SideFailed(Exception):
    """A side did not answer, or says that it failed; the message has the end of what it said."""


class Side:
    """One process, started by `start` or when it is first asked; ends with the ``with`` block.

    It ends by itself after the block has, and is killed with all below it when the block is left by an exception:
    nobody waits for the job of a benchmark that was interrupted.
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
        """Whether it was started, and has not been ended."""
        return self._process is not None

    def start(self) -> subprocess.Popen[str]:
        """Start the process, if there is none; it says that it is ready before it answers anything."""
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
        """What it answers to a line, and the MiB its tree of processes held at most meanwhile.

        Raises:
            SideFailed: it says why it failed, or has ended, or was ended as it took too long.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with _Watch(process.pid) as watch, _deadline(self._patience, process.pid):
            with contextlib.suppress(BrokenPipeError):  # it has ended: it has no answer either
                process.stdin.write(line + "\n")
                process.stdin.flush()
            try:
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
        """Have a job done in a directory of its own, and check what was counted.

        Raises:
            Inexact: a count is wrong.
            SideFailed: the side says why.
        """
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as directory:
            placed = job.within(directory)
            answer, peak = self.ask(placed.line())
            outcome = replace(Outcome(**answer), peak_mib=peak)
            check(self.name, placed, outcome)
        return outcome

    def close(self) -> None:
        """End the process: it has nothing more to do when its input ends."""
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
        """Kill the process and all below it."""
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
    """What ``module:function`` returns for `options`, in a process of its own.

    Raises:
        SideFailed: it says why it failed.
    """
    name = function.rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.suite.serve", function]
    with Side(name, command, logs, patience=4 * 3600.0) as side:
        return side.ask(json.dumps(dict(options)))[0]["result"]


def kill_tree(root: int) -> None:
    """Kill a process and all below it, whatever process groups they made for themselves."""
    for one in processes.tree(root) or [processes.Process(root, "driver", 0.0)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)


def _environment(python: str) -> dict[str, str]:
    """Of a side; what is on the path of this interpreter is none of another environment's business."""
    own = [os.environ["PYTHONPATH"]] if python == sys.executable and os.environ.get("PYTHONPATH") else []
    path = os.pathsep.join([str(ROOT), *own])
    more = {"PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1", RUNNER: str(os.getpid())}
    return {**os.environ, "PYTHONPATH": path, **more}


class _deadline:  # noqa: N801 - a context manager, used as a word
    """Kills a process if what is done within takes too long."""

    def __init__(self, patience: float, pid: int) -> None:
        self._timer = threading.Timer(patience, kill_tree, [pid])

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
        over = False
        while not over:  # the last look is at the end
            over = self._over.wait(LOOK)
            self.peak = max(self.peak, processes.memory(self._root) / (1 << 20))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
