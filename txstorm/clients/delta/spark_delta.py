"""Delta tables through delta-spark: appends that carry a txid, made under the table's lock. Sessions are handed in."""

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
    # Spark would remove old entries of the log; how far back the history goes is for txstorm to decide.
    "delta.enableExpiredLogCleanup": "false",
}
"""Of tables that are made to be written with Spark."""

_SETTINGS: Mapping[str, str] = {
    # The default of 50 partitions costs 2 s per commit: the snapshot of the log is read with a shuffle.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # Synchronous rewriting behind a commit; txstorm gathers small files beside the commits.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    # By default Spark tries ten million times; what to do after a lost race is the coordinator's to decide.
    "spark.databricks.delta.maxCommitAttempts": "3",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.stats.collect": "true",
    # Values come out as they went in: microseconds, no other calendar, no time zone.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
}


def session_settings() -> Mapping[str, str]:
    """What a session is to be started with so that it can write Delta tables.

    Raises:
        MissingDependency: delta-spark is not installed, which says the version of the jars.
    """
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        raise MissingDependency("delta-spark", "delta-spark") from None
    major, minor = spark_version()
    jars = f"io.delta:delta-spark_{major}.{minor}_2.13:{delta}"
    return {"spark.jars.packages": jars, "spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}


class SparkDelta:
    """Appends to Delta tables with one Spark session.

    Args:
        session: a classic session that was started with Delta; its own settings are left alone.

    Raises:
        InputError: it is no such session; the message says what to set.
    """

    def __init__(self, session: Any) -> None:
        _check(session)
        self._session = session.newSession()
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)

    @contextmanager
    def locked(self, table: Path, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the lock of `table` in the process that commits, Spark's; it ends with that process.

        Raises:
            BlockedError: it is not to be had in `patience` seconds.
            SessionLost: the session is gone.
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
        """Raise `InputError` unless Spark's lock on `table` holds off other processes, such as this one."""
        with self.locked(table):
            if not is_held(table):
                msg = (
                    f"table {table}: cannot be written with Spark: a lock that Spark's process takes on {LOCK} does "
                    "not hold off this one (another machine, or a file system without POSIX locks), so two writers "
                    'could lose a commit; use writer="deltalake", or a data directory on a local disk of the driver'
                )
                raise InputError(msg)

    def append(self, table: Path, files: Sequence[Path], app: str, txid: int, metadata: str) -> None:
        """Append the rows of Parquet `files` to `table`, with the app transaction (`app`, `txid`).

        Spark skips a txid that the table has already, whatever the rows are, and says nothing: ask the table what
        it holds afterwards. `metadata` becomes the ``userMetadata`` of the commit.

        Raises:
            ConflictError: another writer committed meanwhile.
            TableCorrupt: it failed for another reason; it may have been made nevertheless.
            SessionLost: the session is gone.
        """
        with self._calling(table, "read the staged rows"):
            frame = self._session.read.parquet(*map(_exactly, files))
        self.append_frame(table, frame, app, txid, metadata)

    def append_frame(self, table: Path, frame: Any, app: str, txid: int, metadata: str) -> None:
        """As `append`, of the rows of a frame."""
        options = {"txnAppId": app, "txnVersion": str(txid), "userMetadata": metadata, "mergeSchema": "false"}
        with self._calling(table, "append to it"):
            frame.write.format("delta").mode("append").options(**options).save(str(table.absolute()))

    @contextmanager
    def _calling(self, table: Path, what: str) -> Iterator[None]:
        """Names what Spark could not do."""
        try:
            yield
        except BlockedError:
            raise
        except Exception as error:
            self._check_alive()
            raise _failure(table, what, error) from error

    def _check_alive(self) -> None:
        if not is_alive(self._session):
            msg = (
                "the Spark session that writes tables is gone; nothing that was committed is lost: start the topology "
                "again with a new session"
            )
            raise SessionLost(msg)


def _exactly(file: Path) -> str:
    """The path as Spark takes it, where brackets and stars would be patterns; Spark's directory may be another."""
    return _PATTERN.sub(r"\\\g<0>", str(file.absolute()))


def _try_lock(file: Any) -> bool:
    """Whether the lock was free; taken by another writer of the same JVM, Java raises instead of saying so."""
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
    """Raise `InputError` unless `session` can write Delta tables, and take locks for it."""
    needs = 'writer="spark" needs a Spark session that was started with Delta'
    if is_connect(session):
        msg = (
            f"{needs}, and a classic one: through Spark Connect the table's lock cannot be taken where Spark runs, so "
            'two runs could lose a commit; use writer="deltalake"'
        )
        raise InputError(msg)
    wanted = {"spark.sql.extensions": EXTENSION, "spark.sql.catalog.spark_catalog": CATALOG}
    missing = [f"{name}={value}" for name, value in wanted.items() if value not in session.conf.get(name, "")]
    if type(session._jvm.io.delta.tables.DeltaTable).__name__ != "JavaClass":  # noqa: SLF001
        missing.append("spark.jars.packages=io.delta:delta-spark_<Spark's version>_2.13:<the version of delta-spark>")
    if missing:
        msg = f"{needs}; this one lacks {', '.join(missing)}: start it with these, or let txstorm make the session"
        raise InputError(msg)
    if "LocalLogStore" in "".join(session.conf.get(f"spark.delta.logStore{one}", "") for one in _LOG_STORES):
        msg = f"{needs} and keeps its log safe: LocalLogStore has lost commits; leave spark.delta.logStore.* unset"
        raise InputError(msg)


_LOG_STORES = (".class", ".file.impl")
