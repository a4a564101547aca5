"""Fixtures of the recovery tests: data directories, drivers, and what undisturbed runs leave."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from drivers import Drive
from recovery_cases import Content, check, content, ends, eventually, killed
from scenarios.endless import life
from scenarios.words import TXIDS
from watched import Diary, Shelf, Watch

from txstorm import run
from txstorm.runtime.handle import RunHandle

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty directory, on a RAM disk if available: that survives a killed process, too."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="txstorm-recovery-", dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def data_dir(place: Path) -> Path:
    return place / "data"


@pytest.fixture
def maps(place: Path) -> str:
    """Return the URL of a database for the maps of the scenario "words"."""
    return f"sqlite:///{place / 'own.db'}"


@pytest.fixture
def watch(place: Path) -> Watch:
    return Watch(place)


@pytest.fixture
def diary(place: Path) -> Diary:
    return Diary(place / "diary")


@pytest.fixture
def shelf(place: Path) -> Shelf:
    return Shelf(place / "shelf.json")


@pytest.fixture
def go(data_dir: Path, diary: Diary) -> Iterator[Callable[..., RunHandle]]:
    """Yield a function that starts the topology `life` in this process; its runs are stopped at the end of the test.

    It returns once the run has committed `more` transactions.
    """
    started: list[RunHandle] = []

    def go(engine: Any = "local", *, tasks: int = 1, trouble: Any = None, more: int = 0, **options: Any) -> RunHandle:
        started.append(run(life(diary, 0.002, tasks, trouble), engine=engine, data_dir=data_dir, **options))
        until = started[-1].committed + more
        eventually(lambda: started[-1].committed >= until)
        return started[-1]

    yield go
    for handle in started:
        handle.stop()


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
def crash(data_dir: Path, ends_as_undisturbed: Callable[..., None]) -> Callable[..., None]:
    """Return a function that runs "words" until each of the faults in turn kills it, then as `ends_as_undisturbed`."""

    def crash(faults: Sequence[str], *options: object, extra: Sequence[object] = (), **expected: int) -> None:
        for fault in faults:
            killed(fault, data_dir, *options, *extra)
        ends_as_undisturbed(data_dir, *options, extra=extra, **expected)

    return crash


@pytest.fixture
def drive(place: Path) -> Iterator[Drive]:
    """Yield a factory of drivers on the data directory in `place`; kill running drivers at the end of the test."""
    made = Drive(place)
    yield made
    made.close()


@pytest.fixture
def driving(drive: Drive, place: Path, request: pytest.FixtureRequest) -> Drive:
    """Return the factory of drivers, with the ledger named by the parameter: sqlite, zookeeper or delta."""
    if request.param == "delta":
        drive.options = ["--ledger", f"delta:{place / 'ledger'}"]
    elif request.param == "zookeeper":
        ledger = f"zookeeper:{request.getfixturevalue('zookeeper_server').new_chroot()}"
        drive.options = ["--ledger", ledger, "--set", "zookeeper_session_timeout=2"]
    return drive
