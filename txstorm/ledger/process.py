"""Whether a process is gone for certain: known only of processes that this one can see.

A lease in a store that many machines reach cannot end with its holder's process by itself. But a process of this
machine that is gone writes nothing any more, so that its lease is free at once, as that of a file would be.
"""

from __future__ import annotations

import os
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_DEAD = "ZXx"


def machine_mark() -> str:
    """The boot of this machine and the process namespace of this process; empty where the system does not say."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_mark(pid: int | None = None) -> str:
    """What tells this process (or `pid`) from every other one, on any machine; empty where the system does not say.

    The machine's boot, the process namespace (containers see numbers of their own), the process, and when that was
    started (numbers are used again).
    """
    number = os.getpid() if pid is None else pid
    place, started = machine_mark(), started_at(number)
    return f"{place}/{number}/{started}" if place and started else ""


def is_gone(mark: str) -> bool:
    """Whether the process with this `process_mark` is gone for certain; False where that cannot be known from here."""
    place, own = mark.rsplit("/", 2), machine_mark()
    if not own or len(place) != 3 or place[0] != own or not place[1].isdecimal():
        return False
    return started_at(int(place[1])) != place[2]


def started_at(pid: int) -> str | None:
    """When a live process was started, in ticks since the boot; None when there is none."""
    try:
        # The name of the program stands in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in _DEAD else fields[19]
