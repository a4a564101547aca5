"""Log of a run by replicas: one JSON object per line, for each command and all that happens to tuples and replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from txstorm.errors import InputError
from txstorm.lanes import Lanes, utc_time

TAIL = 1 << 16
"""Bytes at the end of a log in which the last logged transaction is looked for first."""


class RunLog:
    """Appends to the log; not thread-safe.

    Args:
        path: the file; it is created, or continued.
        lanes: give the time.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, path: Path, lanes: Lanes) -> None:
        self.path, self._lanes = path, lanes
        try:
            path.touch()
            self._cut_short = path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            msg = f"log {path} cannot be written: {error.strerror or error}; name another file with --log"
            raise InputError(msg) from error

    def write(self, event: str, text: str, **facts: Any) -> None:
        """Append one event; facts that are None are left out."""
        if self._cut_short:  # a process was killed in the middle of a line
            self._file.write("\n")
            self._cut_short = False
        at = utc_time(self._lanes.now()).isoformat(timespec="microseconds")
        known = {name: value for name, value in facts.items() if value is not None}
        self._file.write(json.dumps({"at": at, "event": event, "text": text, **known}, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def last_txid(self) -> int:
        """Return the last transaction of which tuples were logged; 0: there is none."""
        return max((one["txid"] for one in read_log(self.path) if one["event"] == "tuple"), default=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; a line that a killed process has left unfinished is skipped."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and "event" in found:
                yield found
