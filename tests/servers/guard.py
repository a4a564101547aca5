"""Guard process for one server: ``guard.py COMMAND...`` starts it, prints its process id, and ends when it ends.

It also kills the server once the process that started the guard has ended, even by SIGKILL, so that a killed test
session leaves no server running. It uses only the standard library and is started with -I -S, to need only 8 MB.
"""

import os
import signal
import subprocess
import sys
import time

PAUSE = 0.05  # polling interval in seconds; a server outlives the tests by no more than this


def main(command: list[str]) -> int:
    """Run the server until it ends or is orphaned; return its exit code."""
    starter = os.getppid()
    # Ctrl-C in a terminal is for the tests, which stop their servers themselves.
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
