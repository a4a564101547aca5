"""Fork server for crash tests: runs scenarios as forks of one process that has all of them loaded.

Loading takes a second, a fork next to nothing. It reads requests from standard input, one line of JSON each, and
answers each with a line ``[pid, status]``: an exit status, negative for a signal; ``-SIGSTOP`` if it is frozen.

- ``{"scenario", "argv", "fault", "log", "kill_after", "trace", "awaited"}`` starts a scenario and waits until it ends or
  its process is frozen, or with `trace` (a file) until the point of the fault `awaited` is passed, where one thread hangs
  and the others continue.
- ``{"wake": pid}`` and ``{"kill": pid}`` resume or kill a frozen process, and wait for its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import scenarios

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm import faults

LOADED = ("words", "grid", "stateful", "windows", "joins", "sides")
FROZEN = -signal.SIGSTOP


def serve() -> None:
    """Serve requests until standard input is closed; then kill the runs that a failed test has left frozen."""
    for name in LOADED:
        scenarios.scenario(name)
    standing: set[int] = set()
    for line in sys.stdin:
        pid, status = _answer(json.loads(line))
        (standing.add if status == FROZEN else standing.discard)(pid)
        print(json.dumps([pid, status]), flush=True)
    for pid in standing:
        os.kill(pid, signal.SIGKILL)


def _answer(request: dict[str, Any]) -> tuple[int, int]:
    for order, number in (("wake", signal.SIGCONT), ("kill", signal.SIGKILL)):
        if order in request:
            os.kill(request[order], number)
            return request[order], os.waitstatus_to_exitcode(os.waitpid(request[order], 0)[1])
    child = os.fork()
    if child == 0:
        os._exit(_forked(request))
    return child, _waited(child, request)


def _waited(child: int, request: dict[str, Any]) -> int:
    """Return the exit status of `child`, or `FROZEN`; kill it if it runs for longer than ``kill_after`` seconds."""
    late = None if request["kill_after"] is None else time.monotonic() + request["kill_after"]
    looking = late is not None or request["trace"]
    while True:
        pid, status = os.waitpid(child, os.WUNTRACED | (os.WNOHANG if looking else 0))
        if pid:
            return FROZEN if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        if request["trace"] and _hangs(request):
            return FROZEN
        if late is not None and time.monotonic() >= late:
            os.kill(child, signal.SIGKILL)
            looking = late = None
        time.sleep(0.001)


def _hangs(request: dict[str, Any]) -> bool:
    """Return whether the awaited point was passed as often as its fault specification requires."""
    point, _, nth = request["awaited"].split(":")
    trace = Path(request["trace"])
    return trace.exists() and trace.read_text().split("\n").count(point) >= int(nth)


def _forked(request: dict[str, Any]) -> int:
    with open(request["log"], "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            faults.arm(request["fault"])
            faults._trace = request["trace"]
            scenarios.run(request["scenario"], *request["argv"])
        except BaseException:  # noqa: BLE001 - the parent reads it
            traceback.print_exc(file=file)
            return 1
    return 0


if __name__ == "__main__":
    serve()
