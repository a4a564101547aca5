"""Runs one server below a process that may be killed: ``guard.py COMMAND...`` prints its pid and ends when that does.

It also ends the server when the process that started the guard is gone, however that ended: a test session that was
killed with SIGKILL leaves no server behind. Standard library only, and started with -I -S: it costs 8 MB.
"""

import os
import signal
import subprocess
import sys
import time

PAUSE = 0.05  # seconds; also how long a server outlives the tests


def main(command: list[str]) -> int:
    """Run the server; return its exit code."""
    starter = os.getppid()
    # Ctrl-C in a terminal goes to the tests: they end their servers themselves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, stdout=2)
    print(server.pid, file=sys.__stdout__, flush=True)
    os.close(1)
    while server.poll() is None:
        if os.getppid() != starter:
            server.kill()
        time.sleep(PAUSE)
    return server.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
