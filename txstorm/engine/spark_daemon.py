"""Spark's Python daemon, minus per-task overhead that takes longer than the tasks themselves.

Spark calls ``importlib.invalidate_caches()`` before each task, which rereads the directories of pyspark.zip, py4j.zip
and the jars, and ``gc.collect()`` after it, which traverses all imported modules. Modules that every worker needs are
imported here, before workers are forked: Spark forks new ones after a minute without work, and after one has died. The
hash seed is 0 unless another one was chosen, so that all workers iterate sets of strings in the same order. Spark
starts this module through ``spark.python.daemon.module``; nothing else imports it.
"""

import gc
import itertools
import os
import sys
import zipimport
from socket import socket

WARM_TASKS = 3


def main() -> None:
    """Run Spark's daemon."""
    if os.environ.get("PYTHONHASHSEED", "random") == "random" and not sys.flags.ignore_environment:
        # A seed chosen in the driver's environment, or none at all in that of a Spark Connect server.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    from pyspark import daemon

    import txstorm.engine.spark  # noqa: F401

    worker = daemon.worker
    served = itertools.count(1)  # every forked worker has its own

    def lean(sock: socket, authenticated: bool) -> int:
        try:
            code = worker(sock, authenticated)
        except BrokenPipeError:
            return 1  # Spark closed the connection: the job was cancelled, or the session has ended
        if next(served) <= WARM_TASKS:
            # Objects that the first tasks loaded stay for good: exclude them from later collections.
            gc.collect()
            gc.freeze()
        return code

    daemon.worker = lean
    daemon.manager()


if __name__ == "__main__":
    main()
