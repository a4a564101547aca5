"""Processes of a session: a session leader with all its descendants, including those that outlive their parent."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Member:
    """A process as listed in /proc; `pid` and `started` together identify it even if the process id is reused."""

    pid: int
    parent: int
    session: int
    started: int
    command: str

    def kill(self) -> bool:
        """Send SIGKILL unless the process has ended (or its id was reused); return whether it was still alive."""
        now = member(self.pid)
        if now is None or now.started != self.started:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            return True
        return False


def member(pid: int) -> Member | None:
    """Return the process with id `pid`; None if it has ended or is a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # a program's name may contain any character, even ")"
    if fields[0] in "ZX":
        return None
    return Member(pid, int(fields[1]), int(fields[3]), int(fields[19]), command)


def members(session: int) -> list[Member]:
    """Return the live processes of a session; an empty list on systems without /proc."""
    if not PROC.is_dir():
        return []
    found = [member(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [one for one in found if one is not None and one.session == session]


def end_session(session: int, seconds: float = 20.0) -> None:
    """Kill the processes of a session with SIGKILL until none is left; raise AssertionError after `seconds`."""
    until = time.monotonic() + seconds
    while left := members(session):
        for one in left:
            one.kill()
        assert time.monotonic() < until, f"these do not end: {left}"
        time.sleep(0.02)
