"""Spark's Python daemon, without what costs every task of every job more than its work does.

``importlib.invalidate_caches()`` before a task reads the directories of pyspark.zip, py4j.zip and the jars again;
``gc.collect()`` after it goes through everything that was ever imported. What every worker needs is imported here,
before it is forked: there are new ones after a minute without work, and after one has died. Its hash seed is 0 unless
another one was chosen: every worker has sets of strings in the same order. Started by Spark through
``spark.python.daemon.module``; nothing else imports it.
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
        # Such as a driver's own environment says, or, by saying nothing, a server of Spark Connect.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    from pyspark import daemon

    import txstorm.engine.spark  # noqa: F401

    worker = daemon.worker
    served = itertools.count(1)  # every worker, being forked, has its own

    def lean(sock: socket, authenticated: bool) -> int:
        try:
            code = worker(sock, authenticated)
        except BrokenPipeError:
            return 1  # Spark has hung up: the job was cancelled or the session has ended; nobody needs the traceback
        if next(served) <= WARM_TASKS:
            # What the first tasks have loaded stays for good; from now on collections leave it out.
            gc.collect()
            gc.freeze()
        return code

    daemon.worker = lean
    daemon.manager()


if __name__ == "__main__":
    main()
