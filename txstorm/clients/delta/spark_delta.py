"""Append to Delta tables through delta-spark: with a txid, under the table's lock, in the caller's session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from txstorm.clients.delta.writer_lock import LOCK, PATIENCE, is_held, one_thread, wait_for
from txstorm.clients.spark import explain_failure, is_alive, is_connect, spark_version
from txstorm.errors import BlockedError, ConflictError, InputError, MissingDependency, SessionLost, TableCorrupt

_PATTERN = re.compile(r"[\[\]{}*?\\]")
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
PROPERTIES: Mapping[str, str] = {
    # Spark writes a checkpoint with every tenth commit and waits for it; txstorm writes its own between commits.
    "delta.checkpointInterval": "1000",
    # Spark would delete old log entries; txstorm alone decides how long history is kept.
    "delta.enableExpiredLogCleanup": "false",
}
"""Table properties of tables that are declared with ``writer="spark"``."""

_SETTINGS: Mapping[str, str] = {
    # The default of 50 partitions costs 2 s per commit: the snapshot of the log is read with a shuffle.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # No synchronous compaction after a commit: txstorm merges small files in parallel to commits.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    # By default Spark retries ten million times; the coordinator decides what to do after a lost race.
    "spark.databricks.delta.maxCommitAttempts": "3",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.stats.collect": "true",
    # Values must round-trip exactly: microseconds, one calendar, UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}


def session_settings() -> Mapping[str, str]:
    """Return the Spark settings with which a session must be started to write Delta tables.

    Raises:
        MissingDependency: delta-spark is not installed; its version determines the version of the jars.
    """
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        raise MissingDependency("delta-spark", "delta-spark") from None
    major, minor = spark_version()
    jars = f"io.delta:delta-spark_{major}.{minor}_2.13:{delta}"
    return {"spark.jars.packages": jars, "spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}


class SparkDelta:
    """Writer that appends to Delta tables with one Spark session.

    Args:
        session: a classic session (not Spark Connect) that was started with Delta; its settings are not changed.

    Raises:
        InputError: the session is unsuitable; the message names the required settings.
    """

    def __init__(self, session: Any) -> None:
        _check(session)
        self._session = session.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)

    @contextmanager
    def locked(self, table: Path, patience: float = PATIENCE) -> Iterator[None]:
        """Context manager that holds the lock of `table` in Spark's process, which commits; it ends with that process.

        Raises:
            BlockedError: the lock was not free within `patience` seconds.
            SessionLost: the session has ended.
        """
        with one_thread(table, patience):
            with self._calling(table, "take its lock"):
                file = self._session._jvm.java.io.RandomAccessFile(str((table / LOCK).absolute()), "rw")  # noqa: SLF001
            try:
                with self._calling(table, "take its lock"):
                    wait_for(lambda: _try_lock(file), table, patience)
                yield
            finally:
                if is_alive(self._session):
                    file.close()

    def check_lock(self, table: Path) -> None:
        """Raise `InputError` unless a lock held by Spark's process on `table` excludes other processes."""
        with self.locked(table):
            if not is_held(table):
                raise InputError(
                    f"table {table}: cannot be written with Spark: a lock that Spark's process takes on {LOCK} does "
                    "not hold off this one (another machine, or a file system without POSIX locks), so two writers "
                    'could lose a commit; use writer="deltalake", or a data directory on a local disk of the driver'
                )

    def append(self, table: Path, files: Sequence[Path], app: str, txid: int, metadata: str) -> None:
        """Append the rows of Parquet `files` to `table`, with the app transaction (`app`, `txid`).

        Spark silently skips a txid that the table already has, regardless of the rows, so check the table's content
        afterwards. `metadata` becomes the ``userMetadata`` of the commit.

        Raises:
            ConflictError: another writer has committed in the meantime.
            TableCorrupt: the append failed for another reason, but may have taken effect nevertheless.
            SessionLost: the session has ended.
        """
        with self._calling(table, "read the staged rows"):
            frame = self._session.read.parquet(*map(_exactly, files))
        self.append_frame(table, frame, app, txid, metadata)

    def append_frame(self, table: Path, frame: Any, app: str, txid: int, metadata: str) -> None:
        """Append the rows of a Spark data frame; otherwise like `append`."""
        options = {"txnAppId": app, "txnVersion": str(txid), "userMetadata": metadata, "mergeSchema": "false"}
        with self._calling(table, "append to it"):
            frame.write.format("delta").mode("append").options(**options).save(str(table.absolute()))

    @contextmanager
    def _calling(self, table: Path, what: str) -> Iterator[None]:
        """Convert a failure of Spark within the block to an error that names the table and the operation `what`."""
        try:
            yield
        except BlockedError:
            raise
        except Exception as error:
            if not is_alive(self._session):
                raise SessionLost(
                    "the Spark session that writes tables has ended; nothing that was committed is lost: start the "
                    "topology again with a new session"
                ) from error
            raise _failure(table, what, error) from error


def _exactly(file: Path) -> str:
    """Return the absolute path for Spark, with pattern characters escaped; Spark's working directory may differ."""
    return _PATTERN.sub(r"\\\g<0>", str(file.absolute()))


def _try_lock(file: Any) -> bool:
    """Try to acquire the lock; return False if it is held. Java raises if another writer in the same JVM holds it."""
    try:
        return file.getChannel().tryLock() is not None
    except Exception as error:
        if "OverlappingFileLockException" in str(error):
            return False
        raise


def _failure(table: Path, what: str, error: Exception) -> ConflictError | TableCorrupt:
    text = str(error)
    if any(name in text for name in ("Concurrent", "MetadataChangedException", "ProtocolChangedException")):
        return ConflictError(f"{table}: another writer has committed while Spark did: {explain_failure(error)}")
    return TableCorrupt(
        f"{table}: Spark cannot {what}: {explain_failure(error)}; check disk space and permissions, then start again"
    )


def _check(session: Any) -> None:
    """Raise `InputError` unless `session` can write Delta tables and acquire their locks."""
    needs = 'writer="spark" needs a Spark session that was started with Delta'
    if is_connect(session):
        raise InputError(
            f"{needs}, and a classic one: through Spark Connect the table's lock cannot be taken where Spark runs, so "
            'two runs could lose a commit; use writer="deltalake"'
        )
    wanted = {"spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}
    missing = [f"{name}={value}" for name, value in wanted.items() if value not in session.conf.get(name, "")]
    if type(session._jvm.io.delta.tables.DeltaTable).__name__ != "JavaClass":  # noqa: SLF001
        missing.append("spark.jars.packages=io.delta:delta-spark_<Spark's version>_2.13:<the version of delta-spark>")
    if missing:
        msg = f"{needs}; this one lacks {', '.join(missing)}: start it with these, or let txstorm make the session"
        raise InputError(msg)
    if any("LocalLogStore" in session.conf.get(f"spark.delta.logStore{key}", "") for key in (".class", ".file.impl")):
        msg = f"{needs} and a safe log store: LocalLogStore has lost commits; leave spark.delta.logStore.* unset"
        raise InputError(msg)
