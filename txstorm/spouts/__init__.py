"""Spouts: sources that come with txstorm, and the executors that run all three spout interfaces."""

from txstorm.spouts.files import FileSpout
from txstorm.spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

__all__ = ["FileSpout", "MemoryTransactionalSpout", "OpaqueMemoryTransactionalSpout"]
