"""Fixtures of conformance tests: a world with batches of two lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from storm_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a directory that the test shares with its topology, with at most two lines per partition in a batch."""
    made = World(tmp_path / "world")
    made.amount = 2
    return made
