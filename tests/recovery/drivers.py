"""Drivers in processes of their own, each a ``txstorm run``; what they print goes to files that tests look into.

``drivers.py --serve`` has everything loaded and forks them, since loading takes a second and a fork nothing. It reads
lines of JSON ``{"argv", "name"}``, answers with pids, and writes the exit status of each, negative for a signal, to
``NAME.status`` when it has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from life_job import expected, life
from recovery_cases import check, environment, eventually
from watched import Diary

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm.cli.main import execute
from txstorm.errors import DataDirectoryError
from txstorm.runtime.lifecycle import read_status
from txstorm.state.ranges import table_ranges
from txstorm.state.read import read_state


def topology(diary: str, seconds: float = 0.01) -> Any:
    """The topology of `life_job`, for ``txstorm run "drivers:topology('…')"``."""
    return life(Diary(Path(diary)), seconds)


class Drivers:
    """The process that drivers are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A shell starts its background jobs with Ctrl-C ignored, and their children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def fork(self, argv: list[str], name: Path) -> int:
        """Start ``txstorm ARGV``, whose output goes to files of that name; returns its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "name": str(name)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate("")


class Drive:
    """Starts drivers of the topology in `place`; `options` are those of all of them."""

    def __init__(self, drivers: Drivers, place: Path) -> None:
        self._drivers = drivers
        self._place = place
        self._started: list[Driver] = []
        self.options: list[str] = []

    def __call__(self, *options: str) -> Driver:
        name = self._place / f"driver-{len(self._started)}"
        for suffix in (".out", ".err"):
            name.with_suffix(suffix).touch()
        data_dir = self._place / "data"
        target = f"drivers:topology({str(self._place / 'diary')!r})"
        command = ["run", target, "--engine", "local", "--data-dir", str(data_dir), "--json", *self.options, *options]
        self._started.append(Driver(self._drivers.fork(command, name), name, data_dir))
        return self._started[-1]

    def close(self) -> None:
        """Kill those that still live."""
        for driver in self._started:
            driver.kill()


class Driver:
    """One ``txstorm run``."""

    def __init__(self, pid: int, name: Path, data_dir: Path) -> None:
        self.pid = pid
        self._name = name
        self._data_dir = data_dir

    @property
    def said(self) -> str:
        """What it wrote to standard error so far."""
        return self._name.with_suffix(".err").read_text()

    @property
    def code(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        path = self._name.with_suffix(".status")
        return int(path.read_text()) if path.exists() else None

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
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power cut does, unless it has ended."""
        if self.code is None:
            self.signal(signal.SIGKILL)
            eventually(lambda: self.code is not None)

    def ends(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: exit code, and what it printed last."""
        code = eventually(lambda: None if self.code is None else (self.code,), 120)[0]
        lines = self._name.with_suffix(".out").read_text().splitlines()
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


# --- the process that forks -------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork a driver for each line of standard input; those that live at its end are killed."""
    living: dict[int, Path] = {}
    while True:
        reap(living)
        if not select.select([sys.stdin], [], [], 0.02)[0]:
            continue
        line = os.read(0, 65536).decode()  # one line at a time: the other side waits for the answer
        if not line:
            break
        request = json.loads(line)
        name = Path(request["name"])
        pid = os.fork()
        if pid == 0:
            os._exit(driven(request["argv"], name))
        living[pid] = name
        print(pid, flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def reap(living: dict[int, Path]) -> None:
    """Write the exit status of those that have ended."""
    for pid, name in list(living.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del living[pid]
            partial = name.with_suffix(".partial")
            partial.write_text(str(os.waitstatus_to_exitcode(status)))
            partial.rename(name.with_suffix(".status"))


def driven(argv: list[str], name: Path) -> int:
    """Run ``txstorm ARGV`` in this process."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        with name.with_suffix(suffix).open("w") as file:
            os.dup2(file.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = execute(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve()
