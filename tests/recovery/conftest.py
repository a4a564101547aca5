"""Where recovery tests put their data, and the process they fork."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import Drive
from recovery_cases import Content, Forks, content

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where there is such a place: what a killed process wrote stays either way."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="txstorm-recovery-", dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A loaded process to fork."""
    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="session")
def undisturbed(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Content]:
    """The content of an undisturbed run with SQLite, made once for each spout."""
    known: dict[str, Content] = {}

    def get(spout: str) -> Content:
        if spout not in known:
            data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
            assert forks.run([data_dir, "--spout", spout])[0] == 0
            known[spout] = content(data_dir)
        return known[spout]

    return get


@pytest.fixture
def drive(place: Path) -> Iterator[Drive]:
    """Starts drivers of the data directory in `place`; those that still live are killed in the end."""
    made = Drive(place)
    yield made
    made.close()
