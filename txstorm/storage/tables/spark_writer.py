"""Writer for tables declared with ``writer="spark"``: Spark reads the staged rows and writes data and log entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from txstorm.api.state import SPARK
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import spark_metadata
from txstorm.clients.delta.spark_delta import SparkDelta, session_settings
from txstorm.clients.delta.writer_lock import share
from txstorm.clients.spark import sessions
from txstorm.errors import ConflictError
from txstorm.topology.graph import Topology


class SparkWriter:
    """Writer that publishes rows through a Spark session. Thread-safe.

    The commit carries the txid as its only app transaction, and epoch, attempts and digests in its metadata. It is made
    under the table's lock, after a check that the table is still at the expected version, which makes it a
    compare-and-set like that of the default writer. The outcome has to be read back from the table: Spark skips a txid
    that the table already has, and retries on its own if other writers have appended in the meantime.

    Args:
        spark: the session.
        close: called once, when the writer is closed.
    """

    def __init__(self, spark: SparkDelta, close: Callable[[], None] = lambda: None) -> None:
        self._spark = spark
        self._close = close

    def prepare(self, table: Path) -> bool:
        """Make all writers commit to `table` under its lock from now on.

        Returns whether the lock is newly required. Raises `InputError` if Spark would commit without the lock.
        """
        newly_shared = share(table)
        self._spark.check_lock(table)
        return newly_shared

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """Have Spark append the staged files that `commit` adds (it removes none); see `Writer.commit`."""
        txid, before = commit.transactions[txid_app], handle.version
        stats = [json.loads(file.stats) for file in commit.adds]
        rows = sum(file["numRecords"] for file in stats)
        txids = min(file["minValues"]["_txid"] for file in stats), max(file["maxValues"]["_txid"] for file in stats)
        metadata = spark_metadata(commit.info, rows, txids, txid_app, txid, commit.label)
        with self._spark.locked(handle.path):
            handle.refresh()
            if handle.version != before:
                msg = f"{handle.path}: expected version {before} to be the newest, found {handle.version}"
                raise ConflictError(msg)
            files = [handle.path / file.path for file in commit.adds]
            self._spark.append(handle.path, files, txid_app, txid, metadata)
        return None

    def close(self) -> None:
        """Release the session; idempotent."""
        close, self._close = self._close, lambda: None
        close()


def spark_writer(topology: Topology) -> SparkWriter | None:
    """Return a writer for the tables that `topology` declares with ``writer="spark"``; None if there are none.

    Call before anything is written, and before the engine starts, which then shares the session: the current session of
    the process, or a new one with Delta.

    Raises:
        MissingDependency, InputError: pyspark, Java, delta-spark or a setting of the session is missing.
    """
    states = (state.writer for states in topology.states.values() for state in states)
    sinks = (sink.writer for sinks in topology.sinks.values() for sink in sinks)
    if SPARK not in (*states, *sinks):
        return None
    session = sessions.acquire(f"txstorm {topology.id}", session_settings)
    release = partial(sessions.release, session)
    try:
        return SparkWriter(SparkDelta(session), release)
    except BaseException:
        release()
        raise
