"""Fixtures of the recovery tests: data directories, drivers, and what undisturbed runs leave."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from crash_cells import summary
from drivers import Drive
from recovery_cases import Content, check, content, ends
from scenarios.words import TXIDS
from stateful_cases import StatefulRuns

MEMORY = Path("/dev/shm")
GRIDS = ("test_whole_grid", "test_grid_on_zookeeper", "test_grid_with_spark_and_kafka")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory, on a RAM disk if available: that survives a killed process, too."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="txstorm-recovery-", dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Content]:
    """Return a function that gives the content of an undisturbed run of "words" with the given options, run once."""
    known: dict[tuple[object, ...], Content] = {}

    def get(*options: object) -> Content:
        if options not in known:
            data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
            ends(data_dir, *options)
            known[options] = content(data_dir)
        return known[options]

    return get


@pytest.fixture
def ends_as_undisturbed(undisturbed: Callable[..., Content]) -> Callable[..., None]:
    """Return a function that runs "words" to its end, and checks that all is as without crashes.

    `extra` are options that change nothing of the content.
    """

    def end(
        data_dir: Path, *options: object, extra: Sequence[object] = (), txids: int = TXIDS, intents: int = 3
    ) -> None:
        assert f'"committed": {txids},' in ends(data_dir, *options, *extra)
        assert content(data_dir) == undisturbed(*options)
        check(data_dir, txids, intents)

    return end


@pytest.fixture
def stateful_runs(request: pytest.FixtureRequest, place: Path) -> Callable[[str, str], StatefulRuns]:
    """Return a function from the names of a scenario and of a store to its runs in `place`; the store is empty."""

    def get(scenario: str, store: str) -> StatefulRuns:
        conf = {"path": str(place / "states.db")} if store == "sqlite" else {}
        if store == "redis":
            server = request.getfixturevalue("redis_server")
            server.flush()
            conf = server.conf()
        return StatefulRuns(place, scenario, store, conf)

    return get


@pytest.fixture
def drive(place: Path) -> Iterator[Drive]:
    """Yield a factory of drivers on the data directory in `place`; kill running drivers at the end of the test."""
    made = Drive(place)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the passed cells after a full run of the crash grid, with any number of pytest workers."""
    reports = [(report, kind) for kind in ("passed", "failed", "error") for report in terminalreporter.getreports(kind)]
    for grid in GRIDS:
        outcomes = {
            report.nodeid.rpartition("[")[2][:-1]: kind for report, kind in reports if f"::{grid}[" in report.nodeid
        }
        if outcomes:
            terminalreporter.section(grid)
            terminalreporter.write("\n".join(summary({id: kind == "passed" for id, kind in outcomes.items()})) + "\n")
