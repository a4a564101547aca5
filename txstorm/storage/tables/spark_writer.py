"""The writer that publishes through Spark: the staged rows are read by Spark, which makes files and log entry.

What publishes the tables that a topology declares with ``writer="spark"``.
"""

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
    """Publishes with one Spark session, which several threads may use at once.

    The commit carries the txid as its one app transaction, and epoch, attempts and digests in its metadata. It is made
    under the table's lock, after a look that the table is at the version that was decided on: with that it is a
    compare-and-set like that of the default writer. What Spark has made of it is to be read back, since it skips a
    txid that the table has already, and tries again by itself when others have appended meanwhile.

    Args:
        spark: the session.
        close: called once, when no table is written any more.
    """

    def __init__(self, spark: SparkDelta, close: Callable[[], None] = lambda: None) -> None:
        self._spark = spark
        self._close = close

    def prepare(self, table: Path) -> bool:
        """Have everybody commit to `table` under its lock from now on; raises `InputError` where that does not hold."""
        fresh = share(table)
        self._spark.check_lock(table)
        return fresh

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """As the port says; `commit` only adds files, which are staged ones."""
        txid, before = commit.transactions[txid_app], handle.version
        stats = [json.loads(file.stats) for file in commit.adds]
        rows = sum(one["numRecords"] for one in stats)
        txids = min(one["minValues"]["_txid"] for one in stats), max(one["maxValues"]["_txid"] for one in stats)
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
        """Let go of the session."""
        close, self._close = self._close, lambda: None
        close()


def spark_writer(topology: Topology) -> SparkWriter | None:
    """The writer of `topology`'s tables that Spark writes; None where there are none.

    Called before anything is written, and before the engine starts, which then shares the session: this process's, or
    one that is made with Delta.

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


def let_go(writer: SparkWriter | None) -> None:
    """The run is not to be: nothing will be written."""
    if writer is not None:
        writer.close()
