"""Pytest plugin with fixtures for testing topologies, without Spark and Java; active wherever txstorm is installed.

Fixtures: `txstorm_data_dir`, `txstorm_local`, `topology_test_driver`. Other modules of txstorm are imported only when
one of them is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from txstorm.runtime.handle import RunHandle
    from txstorm.testing.driver import TopologyTestDriver
    from txstorm.topology.graph import Topology


@pytest.fixture
def txstorm_data_dir(tmp_path: Path) -> Path:
    """An empty data directory, shared by the runs and drivers that the other fixtures create in one test."""
    return tmp_path / "txstorm-data"


@pytest.fixture
def txstorm_local(txstorm_data_dir: Path) -> Iterator[Callable[..., RunHandle]]:
    """Function ``txstorm_local(topology, …)``: runs to the end of the source on the local engine; returns the handle.

    It takes the arguments of `txstorm.run`, and raises the error that ended the run. With ``available_now=False``, the
    run continues until the end of the test.
    """
    from txstorm.runtime.run import run

    handles: list[RunHandle] = []

    def start(topology: Topology, **options: Any) -> RunHandle:
        options = {"engine": "local", "data_dir": txstorm_data_dir, "available_now": True, **options}
        handles.append(run(topology, **options))
        if options["available_now"] or options.get("until_txid"):
            handles[-1].awaitTermination()
        return handles[-1]

    yield start
    for handle in handles:
        handle.stop()


@pytest.fixture
def topology_test_driver(txstorm_data_dir: Path) -> Iterator[Callable[..., TopologyTestDriver]]:
    """Function ``topology_test_driver(topology, …)``: opens a `TopologyTestDriver`, which is closed after the test."""
    from txstorm.testing.driver import TopologyTestDriver

    drivers: list[TopologyTestDriver] = []

    def make(topology: Topology, **options: Any) -> TopologyTestDriver:
        drivers.append(TopologyTestDriver(topology, **{"data_dir": txstorm_data_dir, **options}))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
