"""Python's hash seed of the command line: 0, so that sets of strings have one order in every run and replay."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

VARIABLE = "PYTHONHASHSEED"
COMMANDS = ("run", "replay")
"""Commands that run users' code; others start as quickly as they can."""


def fix(arguments: Sequence[str]) -> None:
    """Start this process anew with the hash seed 0, if one of `COMMANDS` is asked for and the seed is random.

    Called before anything is opened or printed. Process id, standard streams, ignored signals and the interpreter's own
    options stay. Nothing happens where a seed was chosen, or where it is not plain how this process was started.
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
        return  # the run says itself that its seed is random


def _is_ours(arguments: Sequence[str]) -> bool:
    """Whether the process is ``txstorm …`` or ``python -m txstorm …``, and not a program that calls its main."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    named = spec.name == "txstorm.__main__" if spec is not None else os.path.basename(file) == "txstorm"
    given = sys.orig_argv[len(sys.orig_argv) - len(arguments) :]
    return named and list(given) == list(arguments) and sys.gettrace() is None
