"""Spark's Python daemon, without the re-reading of zip directories before every task and without needless noise.

Every task of every job otherwise spends most of its fixed time in ``importlib.invalidate_caches()``, which reads
the directories of pyspark.zip, py4j.zip and the jars again. Started by Spark through
``spark.python.daemon.module``; nothing else imports it.
"""

import zipimport
from socket import socket


def main() -> None:
    """Run Spark's daemon."""
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    from pyspark import daemon

    worker = daemon.worker

    def quiet(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except BrokenPipeError:
            return 1  # Spark has hung up: the job was cancelled or the session has ended; nobody needs the traceback

    daemon.worker = quiet
    daemon.manager()


if __name__ == "__main__":
    main()
