"""Spout executors, which reduce every kind of spout to a planner and a task; composite, memory and rate spouts.

May import: clients.
Start: port.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstorm.spouts.delta.spout import DeltaSpout
from txstorm.spouts.files.spout import FileSpout
from txstorm.spouts.frames import FrameSpout, MemoryFrames, StreamSpout
from txstorm.spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.spouts.rate import RateSpout

if TYPE_CHECKING:
    from txstorm.spouts.kafka.decode import Avro
    from txstorm.spouts.kafka.spout import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout

__all__ = [
    "Avro",
    "DeltaSpout",
    "FileSpout",
    "FrameSpout",
    "MemoryFrames",
    "MemoryTransactionalSpout",
    "OpaqueMemoryTransactionalSpout",
    "OpaqueTransactionalKafkaSpout",
    "RateSpout",
    "StreamSpout",
    "TransactionalKafkaSpout",
]

# Their client library is an optional dependency, so they are imported on first use.
_HOME = {
    "Avro": "txstorm.spouts.kafka.decode",
    "OpaqueTransactionalKafkaSpout": "txstorm.spouts.kafka.spout",
    "TransactionalKafkaSpout": "txstorm.spouts.kafka.spout",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'txstorm.spouts' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
