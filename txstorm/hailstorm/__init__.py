"""Hailstorm topologies: snapshots at a clock with their stores, the negotiator and its registry, sources and sinks.

May import: operations, results, runtime and everything below it.
Start: stores.py, saving.py.
"""

from txstorm.hailstorm.stores import SnapshotStore, open_store

__all__ = ["SnapshotStore", "open_store"]
