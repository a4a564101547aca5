"""Hailstorm topologies: snapshots at a clock with their stores, the negotiator and its registry, sources and sinks.

May import: operations, results, runtime and everything below it.
Start: builder.py, negotiator.py, stores.py.
"""

from txstorm.hailstorm.builder import HailstormTopologyBuilder
from txstorm.hailstorm.file_source import HailstormFileSource
from txstorm.hailstorm.sinks import Sink, console
from txstorm.hailstorm.stores import SnapshotStore, open_store
from txstorm.sinks.text_files import FileSink, LinesSink

__all__ = [
    "FileSink",
    "HailstormFileSource",
    "HailstormTopologyBuilder",
    "LinesSink",
    "Sink",
    "SnapshotStore",
    "console",
    "open_store",
]
