"""Spark's Python daemon, without the re-reading of zip directories before every task.

Every task of every job otherwise spends most of its fixed time in ``importlib.invalidate_caches()``, which reads
the directories of pyspark.zip, py4j.zip and the jars again. Started by Spark through
``spark.python.daemon.module``; nothing else imports it.
"""

import zipimport


def main() -> None:
    """Run Spark's daemon."""
    zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
