"""Run a command, and adopt its orphans: ``_adopter.py COMMAND...``.

A process whose parent has ended becomes a child of this one instead of a child of init, so /proc adds its processor
time to that of this process's children (see `processor_seconds` in ``_env.sh``). Only Linux knows this kind of parent;
elsewhere orphans are not counted.
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


def main(command: list[str]) -> int:
    """Run `command` and reap all children until it ends; return its exit code as a shell does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, env={**os.environ, "TXSTORM_ADOPTER": str(os.getpid())})
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to the command, too
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
