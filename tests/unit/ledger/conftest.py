"""Fixtures: every implementation of the ledger, and other processes that use the SQLite ledger."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import txstorm.errors
from txstorm.clients.zookeeper.operations import ZooKeeperOptions
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.ledger.delta.ledger import DeltaLedger
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Ledger
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.ledger.zookeeper.ledger import ZooKeeperLedger

ROOT = Path(txstorm.errors.__file__).parents[1]
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PRELUDE = """
import sys
from pathlib import Path
from txstorm.errors import *
from txstorm.ledger.delta import ledger as delta
from txstorm.ledger.delta.ledger import DeltaLedger
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.ledger.port import *
path = Path(sys.argv[1])
"""


def _sqlite(request: pytest.FixtureRequest) -> Callable[[], Ledger]:
    tmp_path = request.getfixturevalue("tmp_path")
    return lambda: SqliteLedger(tmp_path / "ledger.db", create=True, clock=lambda: SINCE)


def _memory(request: pytest.FixtureRequest) -> Callable[[], Ledger]:
    first = MemoryLedger(clock=lambda: SINCE)
    return lambda: MemoryLedger(first, clock=lambda: SINCE)


def _delta(request: pytest.FixtureRequest) -> Callable[[], Ledger]:
    tmp_path = request.getfixturevalue("tmp_path")
    return lambda: DeltaLedger(str(tmp_path / "control"), create=True, clock=lambda: SINCE)


def _zookeeper(request: pytest.FixtureRequest) -> Callable[[], Ledger]:
    server = request.getfixturevalue("zookeeper_server")
    root = server.new_chroot().removeprefix(server.hosts)
    session = functools.partial(ZooKeeperSession, server.hosts, ZooKeeperOptions(connect_timeout=60))
    return lambda: ZooKeeperLedger(session(), root, create=True, clock=lambda: SINCE)


IMPLEMENTATIONS = {"sqlite": _sqlite, "memory": _memory, "delta": _delta, "zookeeper": _zookeeper}
MARKED = [pytest.param(name, marks=pytest.mark.integration if name == "zookeeper" else ()) for name in IMPLEMENTATIONS]


@pytest.fixture(params=MARKED)
def another(request: pytest.FixtureRequest) -> Iterator[Callable[[], Ledger]]:
    """Yield a function that opens another handle on the same ledger; all handles are closed after the test."""
    handles: list[Ledger] = []
    opening = IMPLEMENTATIONS[request.param](request)

    def opened() -> Ledger:
        handles.append(opening())
        return handles[-1]

    yield opened
    for handle in handles:
        handle.close()


@pytest.fixture
def ledger(another: Callable[[], Ledger]) -> Ledger:
    return another()


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    SqliteLedger(path, create=True).close()
    return path


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], object]:
    """Return a function that makes a call in a forked child; it returns 0, or 1 if the call raised."""

    def run(call: Callable[[], object]) -> int:
        child = os.fork()
        if child == 0:
            try:
                call()
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return run


class Processes:
    """Helper that starts Python processes using the ledger, and ends all of them after the test."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, path: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def holding(self, path: Path, owner: str) -> subprocess.Popen[str]:
        """Start a process that holds the lease of the ledger at `path` until its standard input is closed."""
        code = (
            f"ledger = SqliteLedger(path, create=True); ledger.acquire({owner!r}); print('held', flush=True); input()"
        )
        process = self.start(code, path)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    def run(self, code: str, path: Path) -> str:
        process = self.start(code, path)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
        return out

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()
