"""Inside a side: takes jobs line by line and answers each with one line. Needs no txstorm."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable

from benchmarks.suite.job import Job, Outcome

Work = Callable[[Job], Outcome]


def serve(work: Work) -> None:
    """Do jobs until standard input ends; what they print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
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
