"""``python -m soak_driver``: txstorm's command line, in a process that does not outlive the soak that started it."""

from __future__ import annotations

import os
import signal
import threading
import time

from txstorm.cli.main import main

STARTER = "TXSTORM_SOAK_PID"
"""The environment variable with the pid of the soak."""


def watch(starter: int) -> None:
    """SIGKILL to this process when it is nobody's child, or another one's; Spark's processes then end by themselves."""
    while os.getppid() == starter:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(int(os.environ[STARTER]),), daemon=True).start()
    main()
