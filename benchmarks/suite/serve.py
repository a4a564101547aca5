"""Server loop inside a side: answers each input line with one line. Usable without txstorm.

``python -m benchmarks.suite.serve MODULE:FUNCTION`` serves one function, whose options are a line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from benchmarks.suite.job import Job, Outcome

Work = Callable[[Job], Outcome]
LOOK = 0.5
"""Seconds between two checks that the runner is alive."""
RUNNER = "TXSTORM_BENCH_RUNNER"
"""Environment variable with the runner's pid: the runner may have ended before this process could ask for it."""


def serve(work: Work) -> None:
    """Run jobs until standard input ends; their output goes to standard error."""
    serve_lines(lambda line: work(Job.of(line)).line())


def serve_lines(answer: Callable[[str], str]) -> None:
    """Answer lines until standard input ends; if the runner ends, kill this process tree at once."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=[int(os.environ.get(RUNNER, os.getppid()))], daemon=True).start()
    for line in sys.stdin:
        answers.write(_answer(answer, line) + "\n")
    with contextlib.suppress(OSError):
        answers.close()


def _answer(answer: Callable[[str], str], line: str) -> str:
    try:
        return answer(line)
    except Exception as error:  # noqa: BLE001 - a failed job is an answer; the runner reports it
        traceback.print_exc()
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def _end_with(runner: int) -> None:
    """Kill this process and its JVM when the runner ends, even by SIGKILL; workers end with their JVM."""
    while os.getppid() == runner:
        time.sleep(LOOK)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    serve_lines(lambda line: json.dumps({"result": function(json.loads(line))}))
