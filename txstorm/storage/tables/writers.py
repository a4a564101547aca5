"""What publishes the tables that a topology declares with ``writer="spark"``."""

from __future__ import annotations

from functools import partial

from txstorm.api.state import SPARK
from txstorm.clients.delta.spark_delta import SparkDelta, session_settings
from txstorm.clients.spark import sessions
from txstorm.storage.tables.spark_writer import SparkWriter
from txstorm.topology.graph import Topology


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
