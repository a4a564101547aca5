"""Test tools for topologies: test driver, transcripts, pytest plugin; checks of user-defined spouts, states, ledgers.

May import: runtime and everything below it.
Start: driver.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txstorm.ledger.memory import MemoryLedger
    from txstorm.stateful.checkpoints import CheckpointMachine
    from txstorm.testing.checks.engines import check_engine
    from txstorm.testing.checks.ledgers import check_ledger
    from txstorm.testing.checks.rules import CheckFailed
    from txstorm.testing.checks.spouts import check_opaque_spout, check_transactional_spout
    from txstorm.testing.checks.state_providers import check_state_provider
    from txstorm.testing.checks.states import check_state
    from txstorm.testing.clock import ManualClock
    from txstorm.testing.driver import TopologyTestDriver
    from txstorm.testing.emissions import Emission
    from txstorm.testing.executors.batch_bolt_executor import BatchBoltExecutor
    from txstorm.testing.executors.stateful_bolt_executor import StatefulBoltExecutor
    from txstorm.testing.executors.stateful_windowed_bolt_executor import StatefulWindowedBoltExecutor
    from txstorm.testing.feed import FeedSpout
    from txstorm.testing.monoid_laws import check_monoid
    from txstorm.testing.network_driver import NetworkTestDriver
    from txstorm.testing.stores.counting_store import CountingStore
    from txstorm.testing.stores.join_stores import check_join_store
    from txstorm.testing.transcript import run_transcript

_HOME = {
    "MemoryLedger": "txstorm.ledger.memory",
    "CheckpointMachine": "txstorm.stateful.checkpoints",
    "BatchBoltExecutor": "txstorm.testing.executors.batch_bolt_executor",
    "ManualClock": "txstorm.testing.clock",
    "TopologyTestDriver": "txstorm.testing.driver",
    "Emission": "txstorm.testing.emissions",
    "FeedSpout": "txstorm.testing.feed",
    "check_engine": "txstorm.testing.checks.engines",
    "check_join_store": "txstorm.testing.stores.join_stores",
    "CountingStore": "txstorm.testing.stores.counting_store",
    "check_ledger": "txstorm.testing.checks.ledgers",
    "CheckFailed": "txstorm.testing.checks.rules",
    "check_monoid": "txstorm.testing.monoid_laws",
    "check_opaque_spout": "txstorm.testing.checks.spouts",
    "check_transactional_spout": "txstorm.testing.checks.spouts",
    "check_state": "txstorm.testing.checks.states",
    "check_state_provider": "txstorm.testing.checks.state_providers",
    "NetworkTestDriver": "txstorm.testing.network_driver",
    "StatefulBoltExecutor": "txstorm.testing.executors.stateful_bolt_executor",
    "StatefulWindowedBoltExecutor": "txstorm.testing.executors.stateful_windowed_bolt_executor",
    "run_transcript": "txstorm.testing.transcript",
}

__all__ = [*_HOME]  # noqa: PLE0604 - the names of _HOME, spelt once


def __getattr__(name: str) -> Any:  # on first use: pytest loads the plugin wherever txstorm is installed
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'txstorm.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
