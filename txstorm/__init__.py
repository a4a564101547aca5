"""txstorm: Storm 0.7's transactional topologies on Spark micro-batches, with exactly-once state in Delta tables.

Start: `TransactionalTopologyBuilder`, `run`. Names are imported on first use: this needs neither Java nor Spark.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstorm._version import __version__

if TYPE_CHECKING:
    from txstorm.api.attempt import TransactionAttempt
    from txstorm.api.bolt import BasicBolt, BatchBolt, Committer
    from txstorm.api.composite import CompositeSpout
    from txstorm.api.context import SourceFacts, TaskContext
    from txstorm.api.external import (
        KeyValueState,
        MapBackend,
        MapMark,
        MapRow,
        MapState,
        Mark,
        MarkedMapBackend,
        Outlet,
        OutletWriter,
        State,
        StateContext,
        StateProvider,
    )
    from txstorm.api.output import Collector, OutputFieldsDeclarer
    from txstorm.api.spout import (
        NOT_READY,
        CommitterEmitter,
        CommitterTransactionalSpout,
        Emitter,
        OpaquePartitionedCoordinator,
        OpaquePartitionedEmitter,
        OpaquePartitionedTransactionalSpout,
        PartitionedCoordinator,
        PartitionedEmitter,
        PartitionedTransactionalSpout,
        SpoutCoordinator,
        TransactionalSpout,
    )
    from txstorm.api.state import CollectionState, KeyedState, SinkTable
    from txstorm.api.tuples import Fields, Tuple
    from txstorm.clients.sql import SqlAlchemyBackend
    from txstorm.clocks import Clock, low_water_mark
    from txstorm.errors import FailedException, ReportedFailedException, TxstormError
    from txstorm.ledger.open import open_ledger
    from txstorm.ledger.port import Ledger
    from txstorm.ledger.rotating_state import RotatingState
    from txstorm.monoids.bolt import MonoidBolt
    from txstorm.monoids.ready_made import Monoid
    from txstorm.operations.restore import restore_savepoint
    from txstorm.operations.rewind import rewind
    from txstorm.operations.rewind_target import rewind_target
    from txstorm.operations.savepoints import create_savepoint, delete_savepoint, list_savepoints
    from txstorm.plan.explain import explain
    from txstorm.results.recent import recent_in_sink, recent_in_state, recent_in_topic
    from txstorm.results.snapshot import snapshot
    from txstorm.results.spark_views import register_views
    from txstorm.results.views import StateView
    from txstorm.runtime.run import run
    from txstorm.spouts.frames import FrameSpout
    from txstorm.state.external.memory import MemoryBackend
    from txstorm.stateful.bolt import BaseStatefulBolt, StatefulBolt
    from txstorm.stateful.windowed import BaseStatefulWindowedBolt, StatefulWindowedBolt
    from txstorm.streaming.query import foreach_batch, write_stream
    from txstorm.topology.builder import TransactionalTopologyBuilder
    from txstorm.topology.graph import Topology
    from txstorm.windows.aggregates.aggregate import WindowAggregate
    from txstorm.windows.aggregates.top import TopPerWindow
    from txstorm.windows.bolt import BaseWindowedBolt, WindowedBolt
    from txstorm.windows.rules.forms import Count, Duration
    from txstorm.windows.window import TupleWindow

# A library does not configure its host's logging; the command line does.
logging.getLogger("txstorm").addHandler(logging.NullHandler())

_HOME = {
    "TransactionAttempt": "txstorm.api.attempt",
    "Clock": "txstorm.clocks",
    "low_water_mark": "txstorm.clocks",
    "BasicBolt": "txstorm.api.bolt",
    "BatchBolt": "txstorm.api.bolt",
    "Committer": "txstorm.api.bolt",
    "CompositeSpout": "txstorm.api.composite",
    "SourceFacts": "txstorm.api.context",
    "TaskContext": "txstorm.api.context",
    "MapBackend": "txstorm.api.external",
    "MapMark": "txstorm.api.external",
    "MapRow": "txstorm.api.external",
    "MapState": "txstorm.api.external",
    "Mark": "txstorm.api.external",
    "MarkedMapBackend": "txstorm.api.external",
    "Outlet": "txstorm.api.external",
    "OutletWriter": "txstorm.api.external",
    "Collector": "txstorm.api.output",
    "OutputFieldsDeclarer": "txstorm.api.output",
    "NOT_READY": "txstorm.api.spout",
    "CommitterEmitter": "txstorm.api.spout",
    "CommitterTransactionalSpout": "txstorm.api.spout",
    "FrameSpout": "txstorm.spouts.frames",
    "foreach_batch": "txstorm.streaming.query",
    "write_stream": "txstorm.streaming.query",
    "Emitter": "txstorm.api.spout",
    "OpaquePartitionedCoordinator": "txstorm.api.spout",
    "OpaquePartitionedEmitter": "txstorm.api.spout",
    "OpaquePartitionedTransactionalSpout": "txstorm.api.spout",
    "PartitionedCoordinator": "txstorm.api.spout",
    "PartitionedEmitter": "txstorm.api.spout",
    "PartitionedTransactionalSpout": "txstorm.api.spout",
    "SpoutCoordinator": "txstorm.api.spout",
    "TransactionalSpout": "txstorm.api.spout",
    "CollectionState": "txstorm.api.state",
    "KeyedState": "txstorm.api.state",
    "SinkTable": "txstorm.api.state",
    "KeyValueState": "txstorm.api.external",
    "State": "txstorm.api.external",
    "StateContext": "txstorm.api.external",
    "StateProvider": "txstorm.api.external",
    "Fields": "txstorm.api.tuples",
    "Tuple": "txstorm.api.tuples",
    "SqlAlchemyBackend": "txstorm.clients.sql",
    "FailedException": "txstorm.errors",
    "ReportedFailedException": "txstorm.errors",
    "TxstormError": "txstorm.errors",
    "open_ledger": "txstorm.ledger.open",
    "Ledger": "txstorm.ledger.port",
    "RotatingState": "txstorm.ledger.rotating_state",
    "explain": "txstorm.plan.explain",
    "restore_savepoint": "txstorm.operations.restore",
    "rewind": "txstorm.operations.rewind",
    "rewind_target": "txstorm.operations.rewind_target",
    "run": "txstorm.runtime.run",
    "create_savepoint": "txstorm.operations.savepoints",
    "delete_savepoint": "txstorm.operations.savepoints",
    "list_savepoints": "txstorm.operations.savepoints",
    "recent_in_sink": "txstorm.results.recent",
    "recent_in_state": "txstorm.results.recent",
    "recent_in_topic": "txstorm.results.recent",
    "snapshot": "txstorm.results.snapshot",
    "register_views": "txstorm.results.spark_views",
    "StateView": "txstorm.results.views",
    "Monoid": "txstorm.monoids.ready_made",
    "MonoidBolt": "txstorm.monoids.bolt",
    "MemoryBackend": "txstorm.state.external.memory",
    "BaseStatefulBolt": "txstorm.stateful.bolt",
    "StatefulBolt": "txstorm.stateful.bolt",
    "BaseStatefulWindowedBolt": "txstorm.stateful.windowed",
    "StatefulWindowedBolt": "txstorm.stateful.windowed",
    "TransactionalTopologyBuilder": "txstorm.topology.builder",
    "Topology": "txstorm.topology.graph",
    "WindowAggregate": "txstorm.windows.aggregates.aggregate",
    "TopPerWindow": "txstorm.windows.aggregates.top",
    "BaseWindowedBolt": "txstorm.windows.bolt",
    "WindowedBolt": "txstorm.windows.bolt",
    "Count": "txstorm.windows.rules.forms",
    "Duration": "txstorm.windows.rules.forms",
    "TupleWindow": "txstorm.windows.window",
}

_EXTRA = {"SqlAlchemyBackend"}
"""Names that need an optional extra to be installed; ``import *`` omits them."""

__all__ = [  # noqa: PLE0604 - the names of _HOME, spelt once
    "__version__",
    *(name for name in _HOME if name not in _EXTRA),
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'txstorm' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_EXTRA})
