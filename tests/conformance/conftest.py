"""Fixtures of conformance tests: a world with batches of two lines, and runs of a topology over it."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from storm_world import World, start_net

from txstorm.engine.local import LocalEngine
from txstorm.runtime.handle import RunHandle

LONG_ON_SPARK = re.compile(
    r"""test_(the_end_of_input|heartbeats_follow)_.*\[spark-(?!all)
    |test_audits_.*\[spark-plain
    |test_later_runs_.*\[spark
    |test_item_(32|47)_.*\[spark-(watch|emit|after|keep-finish)
    |test_item_43_.*\[spark-(?!OpaqueLog-after|PartitionedLog-keep)
    |test_random_networks_.*\[spark-1[3-6]
    |test_small_pieces_.*\[spark-.*300""",
    re.VERBOSE,
)
"""What each run of all tests does on threads, and for one of its parameters on Spark, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and LONG_ON_SPARK.match(item.name):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a directory that the test shares with its topology, with at most two lines per partition in a batch."""
    made = World(tmp_path / "world")
    made.amount = 2
    return made


@pytest.fixture
def start(world: World, make_engine, tmp_path: Path) -> Callable[..., RunHandle]:
    """Return a function that starts a run on the engine under test; its arguments are those of `start_net`."""
    return partial(start_net, world, tmp_path / "data", make_engine)


@pytest.fixture
def start_on_threads(world: World, tmp_path: Path) -> Callable[..., RunHandle]:
    """Return a function that starts a run on the local engine."""
    return partial(start_net, world, tmp_path / "data", LocalEngine)
