"""Drivers in processes of their own, started by ``txstorm run``; what they print goes to files that tests look into."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from life_job import life
from recovery_cases import environment, eventually
from watched import Diary

from txstorm.errors import DataDirectoryError
from txstorm.runtime.lifecycle import read_status


def topology(diary: str, seconds: float = 0.01) -> Any:
    """The topology of `life_job`, for ``txstorm run "drivers:topology('…')"``."""
    return life(Diary(Path(diary)), seconds)


class Driver:
    """One ``txstorm run`` of the topology in `place`."""

    def __init__(self, place: Path, name: str, *options: str, fault: str = "") -> None:
        self.data_dir = place / "data"
        self._out, self._err = place / f"{name}.out", place / f"{name}.err"
        target = f"drivers:topology({str(place / 'diary')!r})"
        command = [sys.executable, "-m", "txstorm", "run", target, "--engine", "local", "--data-dir", self.data_dir]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*map(str, command), "--json", *options],
                env=environment(TXSTORM_FAULT=fault),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it wrote to standard error so far."""
        return self._err.read_text()

    def says(self, text: str) -> None:
        """Wait until it has written `text`."""
        eventually(lambda: text in self.said or self._ended_early())
        assert text in self.said, self.said

    def _ended_early(self) -> bool:
        return self.process.poll() is not None

    def leads(self) -> None:
        """Wait until it has committed something."""
        before = committed(self.data_dir)
        eventually(lambda: self._holds() and committed(self.data_dir) > before + 2)

    def _holds(self) -> bool:
        assert not self._ended_early(), self.said
        try:
            return f"(pid {self.pid} on" in str(read_status(self.data_dir)["holder"])
        except DataDirectoryError:
            return False

    def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        self.process.wait()

    def ends(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: exit code, and what it printed last."""
        code = self.process.wait(120)
        lines = self._out.read_text().splitlines()
        assert lines, self.said
        return code, json.loads(lines[-1])

    def interrupt(self) -> tuple[int, dict[str, Any]]:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.ends()


def committed(data_dir: Path) -> int:
    """The last committed txid, 0 where there is nothing yet."""
    try:
        return int(read_status(data_dir)["committed_txid"])
    except DataDirectoryError:
        return 0
