"""Fixtures of conformance tests: a world with batches of two lines, and runs of a topology over it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from storm_world import World, start_net

from txstorm.engine.local import LocalEngine
from txstorm.runtime.handle import RunHandle


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
