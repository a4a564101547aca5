"""Fixed hash seed (0) of the command line, so that sets of strings have the same order in every run and replay."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

VARIABLE = "PYTHONHASHSEED"
COMMANDS = ("run", "replay")
"""Commands that run user code; others are not restarted, to start quickly."""


def fix(arguments: Sequence[str]) -> None:
    """Restart this process with hash seed 0 if it runs one of `COMMANDS` and the seed is random.

    Call before anything is opened or printed. Process id, standard streams, ignored signals and options of the
    interpreter are preserved. Does nothing if the user chose a seed, or if it is unclear how this process was started.
    """
    chosen = os.environ.get(VARIABLE, "") not in ("", "random")
    if chosen or not sys.flags.hash_randomization or sys.flags.ignore_environment:
        return
    command = next((one for one in arguments if not one.startswith("-")), "")
    if command not in COMMANDS or not _is_ours(arguments):
        return
    environment = {**os.environ, VARIABLE: "0"}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - the same program
    except OSError:
        return  # the run records that its seed is random


def _is_ours(arguments: Sequence[str]) -> bool:
    """Return whether this process is ``txstorm …`` or ``python -m txstorm …``, not a program that calls `main`."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    named = spec.name == "txstorm.__main__" if spec is not None else os.path.basename(file) == "txstorm"
    given = sys.orig_argv[len(sys.orig_argv) - len(arguments) :]
    return named and list(given) == list(arguments) and sys.gettrace() is None
