"""Fixtures for map tests: stores in memory, in SQLite, and on a real PostgreSQL server."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from txstorm import MemoryBackend
from txstorm.clients.sql import SqlAlchemyBackend

_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Yield a factory of empty stores; in a database, each has its own table."""
    made: list[SqlAlchemyBackend] = []

    def make() -> Any:
        if request.param == "memory":
            return MemoryBackend()
        server = request.param == "postgres"
        url = request.getfixturevalue("postgres").url if server else f"sqlite:///{tmp_path / 'own.db'}"
        made.append(SqlAlchemyBackend(url, f"map_{next(_numbers)}"))
        return made[-1]

    yield make
    for one in made:
        one.dispose()


@pytest.fixture
def backend(make_backend: Callable[[], Any]) -> Any:
    return make_backend()
