"""Ready-made committers that write their input to Delta tables, text files and Kafka topics.

May import: clients.
Start: delta.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstorm.sinks.delta import DeltaSink, FrameSink
from txstorm.sinks.text_files import FileSink, LinesSink

if TYPE_CHECKING:
    from txstorm.clients.kafka.producer import KafkaWriter
    from txstorm.sinks.kafka import KafkaSink

__all__ = ["DeltaSink", "FileSink", "FrameSink", "KafkaSink", "KafkaWriter", "LinesSink"]

# The client library is an optional extra, so these names are imported on first use.
_HOME = {"KafkaSink": "txstorm.sinks.kafka", "KafkaWriter": "txstorm.clients.kafka.producer"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'txstorm.sinks' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
