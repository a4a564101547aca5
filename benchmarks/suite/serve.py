"""Inside a side: takes jobs line by line and answers each with one line. Needs no txstorm."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable

from benchmarks.suite.job import Job, Outcome

Work = Callable[[Job], Outcome]


def serve(work: Work, warm_up: Job | None = None) -> None:
    """Do jobs until standard input ends; what they print goes to standard error.

    The first job, `warm_up`, is nobody's: a JVM has to load and compile before it shows what it can do.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if warm_up is not None:
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
            work(warm_up.within(directory))
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        answers.write(_answer(work, line) + "\n")
    with contextlib.suppress(OSError):
        answers.close()


def _answer(work: Work, line: str) -> str:
    try:
        return work(Job.of(line)).line()
    except Exception as error:  # noqa: BLE001 - a failed job is an answer; the runner reports it
        traceback.print_exc()
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
