"""Hailstorm topologies: snapshots at a clock with their stores, the negotiator and its registry, sources and sinks.

May import: operations, results, runtime and everything below it.
Start: builder.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "FileSink": "txstorm.sinks.text_files",
    "HailstormFileSource": "txstorm.hailstorm.file_source",
    "HailstormTopologyBuilder": "txstorm.hailstorm.builder",
    "LinesSink": "txstorm.sinks.text_files",
    "Sink": "txstorm.hailstorm.sinks",
    "console": "txstorm.hailstorm.sinks",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    # Imported on first use: commands that show their help must not load the libraries of tables.
    if name not in _HOME:
        msg = f"module 'txstorm.hailstorm' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_HOME[name]), name)
