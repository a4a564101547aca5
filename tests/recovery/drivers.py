"""Drivers in separate processes, each a ``txstorm run``, whose output tests read while they run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import Program, loaded
from recovery_cases import check, environment, eventually
from scenarios.endless import expected, life
from table_ranges import table_ranges
from watched import Diary

from txstorm.errors import DataDirectoryError
from txstorm.operations.lifecycle import kill
from txstorm.operations.status import read_status
from txstorm.results.read import read_state


def topology(diary: str, seconds: float = 0.01) -> Any:
    """Build the topology `life`, for ``txstorm run "drivers:topology('…')"``."""
    return life(Diary(Path(diary)), seconds)


class Drive:
    """Starts drivers of one topology in `place`; `options` are common to all of them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._started: list[Driver] = []
        self.options: list[str] = []

    def __call__(self, *options: str) -> Driver:
        data_dir = self._place / "data"
        target = f"drivers:topology({str(self._place / 'diary')!r})"
        command = ["run", target, "--engine", "local", "--data-dir", str(data_dir), "--json", *self.options, *options]
        self._started.append(Driver(loaded().start("-m", "txstorm", *command, env=environment()), data_dir))
        return self._started[-1]

    def leader(self, *options: str) -> Driver:
        made = self(*options)
        made.leads()
        return made

    def close(self) -> None:
        for driver in self._started:
            driver.kill()


class Driver:
    """One ``txstorm run`` process."""

    def __init__(self, program: Program, data_dir: Path) -> None:
        self.pid = program.pid
        self._program = program
        self._data_dir = data_dir

    @property
    def said(self) -> str:
        return self._program.complained

    @property
    def code(self) -> int | None:
        return self._program.poll()

    def says(self, text: str) -> None:
        eventually(lambda: text in self.said or self.code is not None)
        assert text in self.said, self.said

    def leads(self) -> None:
        before = committed(self._data_dir)
        eventually(lambda: self.holds() and committed(self._data_dir) > before + 2)

    def holds(self) -> bool:
        """Return whether it holds the lease; fails if it has ended."""
        assert self.code is None, self.said
        try:
            return f"(pid {self.pid} on" in str(read_status(self._data_dir)["holder"])
        except DataDirectoryError:
            return False

    def signal(self, number: int) -> None:
        self._program.send_signal(number)

    def kill(self) -> None:
        """Kill it as in a power failure, unless it has ended."""
        if self.code is None:
            self.signal(signal.SIGKILL)
            eventually(lambda: self.code is not None)

    def ends(self) -> tuple[int, dict[str, Any]]:
        """Wait until it ends; return its exit code and the last line of its output."""
        code = eventually(lambda: None if self.code is None else (self.code,), 120)[0]
        lines = self._program.printed.splitlines()
        assert lines, self.said
        return code, json.loads(lines[-1])

    def ends_killed(self) -> None:
        """End it by the command ``kill``; check that all is as undisturbed."""
        told = kill(self._data_dir)
        assert told["ended"]
        assert self.ends()[0] == 0
        assert_as_undisturbed(self._data_dir, told["committed_txid"])

    def interrupt(self) -> tuple[int, dict[str, Any]]:
        """Interrupt it with SIGINT (Ctrl-C); return its exit code and the last line of its output."""
        self.signal(signal.SIGINT)
        return self.ends()


def committed(data_dir: Path) -> int:
    """Return the last committed txid, 0 if there is none yet."""
    try:
        return int(read_status(data_dir)["committed_txid"])
    except DataDirectoryError:
        return 0


def goes_on(committed: Callable[[], int], more: int) -> None:
    """Wait until more than `more` transactions are committed from now on."""
    before = committed()
    eventually(lambda: committed() > before + more)


def assert_as_undisturbed(data_dir: Path, txids: int) -> None:
    """Assert that states, history and ledger equal those of an undisturbed run of `txids` transactions."""
    seen = {row["n"]: row["times"] for row in read_state(data_dir, "seen").to_pylist()}
    assert (seen, read_state(data_dir, "total").to_pylist()[0]["n"]) == expected(txids)
    check(data_dir, txids)


def published(data_dir: Path) -> set[int]:
    """Return the last txids of the tables that every transaction changes."""
    return {ranges[-1].last for name, ranges in table_ranges(data_dir).items() if name.startswith("changes/")}
