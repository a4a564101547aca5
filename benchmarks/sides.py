"""A side of a comparison: a process of its own that works, and says when what is measured begins and ends.

`measure` starts ``python -m benchmarks.sides MODULE:FUNCTION OPTIONS``; the function gets its options and a `Mark`. It
calls ``mark("begin")`` when it is in its stride, ``mark("end", …)`` when what is measured is over, and returns what is
to be checked. Meanwhile its whole tree of processes is watched from outside.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks import processes

ROOT = Path(__file__).resolve().parent.parent
LOOK = 0.25
"""Seconds between two looks at the memory."""


class Mark(Protocol):
    """Says that what is measured begins (``begin``) or is over (``end``), with values of the side's own."""

    def __call__(self, what: str, **values: Any) -> None: ...


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        function: ``module:function``, called with the options and a `Mark` in a process of its own.
        guarantee: what it promises about every record, in a few words.
        python: the interpreter; by default this one.
    """

    name: str
    function: str
    guarantee: str
    python: str = sys.executable


@dataclass(frozen=True)
class Run:
    """What one side did.

    Attributes:
        seconds: between its marks ``begin`` and ``end``; `cpu`: CPU seconds between them, by kind of process.
        peak: bytes of memory of the whole tree, the most that was seen at any time.
        begin, end: the values of the marks; result: what the function returned.
    """

    side: Side
    seconds: float
    cpu: Mapping[str, float]
    peak: int
    begin: Mapping[str, Any]
    end: Mapping[str, Any]
    result: Any

    @property
    def all_cpu(self) -> float:
        """CPU seconds of the whole tree."""
        return sum(self.cpu.values())


class SideFailed(Exception):
    """A side ended without a result; the message has the end of what it said."""


@dataclass
class _Watched:
    marks: dict[str, tuple[float, Mapping[str, float], Mapping[str, Any]]] = field(default_factory=dict)
    result: Any = None
    done: bool = False
    peak: int = 0

    def take(self, pid: int, message: Mapping[str, Any]) -> None:
        if message["what"] == "result":
            self.result, self.done = message["values"], True
        else:
            self.marks[message["what"]] = (message["at"], processes.cpu_by_kind(pid), message["values"])


def measure(side: Side, options: Mapping[str, Any], directory: Path) -> Run:
    """Run `side` in a process of its own, whose output goes to a file in `directory`.

    Raises:
        SideFailed: it did not come to its end.
    """
    watched = _Watched()
    log = directory / f"{side.name.replace(' ', '-').replace('/', '-')}.log"
    reading, writing = os.pipe()
    command = [side.python, "-m", "benchmarks.sides", side.function, json.dumps(dict(options)), str(writing)]
    with log.open("ab") as output, os.fdopen(reading, "rb") as messages:
        child = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, pass_fds=[writing], env=_environment(side)
        )
        os.close(writing)
        stop = threading.Event()
        sampler = threading.Thread(target=_sample, args=(child.pid, watched, stop), daemon=True)
        sampler.start()
        try:
            for line in messages:
                watched.take(child.pid, json.loads(line))
            code = child.wait()
        finally:
            stop.set()
            child.kill()
            sampler.join()
    if not watched.done or code not in (0, None) or {"begin", "end"} - set(watched.marks):
        tail = log.read_text(errors="replace")[-2000:]
        msg = f"{side.name}: ended with code {code} and without a result; it said:\n{tail}"
        raise SideFailed(msg)
    return _run(side, watched)


def _environment(side: Side) -> dict[str, str]:
    path = (
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])] if side.python == sys.executable else [str(ROOT)]
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "SPARK_LOCAL_IP": "127.0.0.1"}


def _sample(pid: int, watched: _Watched, stop: threading.Event) -> None:
    while not stop.wait(LOOK):
        watched.peak = max(watched.peak, processes.memory(pid))


def _run(side: Side, watched: _Watched) -> Run:
    began, before, at_begin = watched.marks["begin"]
    ended, after, at_end = watched.marks["end"]
    cpu = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    return Run(side, ended - began, cpu, watched.peak, at_begin, at_end, watched.result)


def _main(function: str, options: str, descriptor: int) -> None:
    def say(what: str, values: Any) -> None:
        # The clock is the same for all processes of a machine; the reader may be late.
        line = json.dumps({"what": what, "at": time.monotonic(), "values": values})
        os.write(descriptor, line.encode() + b"\n")

    def mark(what: str, **values: Any) -> None:
        say(what, values)

    module, _, name = function.partition(":")
    work: Callable[[Any, Mark], Any] = getattr(importlib.import_module(module), name)
    say("result", work(json.loads(options), mark))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
