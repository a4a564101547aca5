"""Drivers in separate processes, each a ``txstorm run``; tests read their output while they run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from programs import Program, loaded
from recovery_cases import check, environment, eventually
from scenarios.endless import expected, life
from table_ranges import table_ranges
from watched import Diary

from txstorm.errors import DataDirectoryError
from txstorm.operations.status import read_status
from txstorm.results.read import read_state


def topology(diary: str, seconds: float = 0.01) -> Any:
    """The topology `life`, for ``txstorm run "drivers:topology('…')"``."""
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
        program = loaded().start("-m", "txstorm", *command, env=environment())
        self._started.append(Driver(program, data_dir))
        return self._started[-1]

    def close(self) -> None:
        """Kill those that still live."""
        for driver in self._started:
            driver.kill()


class Driver:
    """One ``txstorm run``."""

    def __init__(self, program: Program, data_dir: Path) -> None:
        self.pid = program.pid
        self._program = program
        self._data_dir = data_dir

    @property
    def said(self) -> str:
        """Its standard error so far."""
        return self._program.complained

    @property
    def code(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        return self._program.poll()

    def says(self, text: str) -> None:
        """Wait until it has written `text`."""
        eventually(lambda: text in self.said or self.code is not None)
        assert text in self.said, self.said

    def leads(self) -> None:
        """Wait until it has committed something."""
        before = committed(self._data_dir)
        eventually(lambda: self.holds() and committed(self._data_dir) > before + 2)

    def holds(self) -> bool:
        """Whether it has the lease; fails when it has ended."""
        assert self.code is None, self.said
        try:
            return f"(pid {self.pid} on" in str(read_status(self._data_dir)["holder"])
        except DataDirectoryError:
            return False

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._program.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut does, unless it has ended."""
        if self.code is None:
            self.signal(signal.SIGKILL)
            eventually(lambda: self.code is not None)

    def ends(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: exit code, and what it printed last."""
        code = eventually(lambda: None if self.code is None else (self.code,), 120)[0]
        lines = self._program.printed.splitlines()
        assert lines, self.said
        return code, json.loads(lines[-1])

    def interrupt(self) -> tuple[int, dict[str, Any]]:
        """Ctrl-C."""
        self.signal(signal.SIGINT)
        return self.ends()


def committed(data_dir: Path) -> int:
    """The last committed txid, 0 where there is nothing yet."""
    try:
        return int(read_status(data_dir)["committed_txid"])
    except DataDirectoryError:
        return 0


def assert_as_undisturbed(data_dir: Path, txids: int) -> None:
    """States and everything else are as after `txids` transactions of a run that nothing happened to."""
    seen = {row["n"]: row["times"] for row in read_state(data_dir, "seen").to_pylist()}
    assert (seen, read_state(data_dir, "total").to_pylist()[0]["n"]) == expected(txids)
    check(data_dir, txids)


def published(data_dir: Path) -> set[int]:
    """The last txids of the tables that every transaction changes."""
    return {ranges[-1].last for name, ranges in table_ranges(data_dir).items() if name.startswith("changes/")}
