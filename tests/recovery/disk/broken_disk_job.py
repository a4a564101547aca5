"""Runs a topology whose disk breaks in the middle: from a fault point on, the system refuses to sync anything.

``broken_disk_job.py HOME POINT...``: for each point, in a fork, a run in ``HOME/<point>/data``; prints a JSON line
``{"point", "said", "committed"}`` of each. The kernel itself refuses: a seccomp filter answers ``fsync`` and
``fdatasync`` with EIO, whoever calls them, Python, SQLite or delta-rs.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import struct
import sys
from pathlib import Path
from typing import Any

from watched import Diary, Shelf, ShelfSpout, watched_topology

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm import faults, run
from txstorm.runtime.commit.publisher import Publisher

NUMBERS = list(range(40))
FROM = 4
"""The txids before this one find a disk that is well."""
CALLS = {"x86_64": (317, (74, 75)), "aarch64": (277, (82, 83))}
"""By processor, the numbers of the system calls seccomp, and fsync and fdatasync."""
NO_NEW_PRIVS, SET_FILTER, ALL_THREADS = 38, 1, 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def break_disk() -> None:
    """From now on every sync of this process fails."""
    seccomp, syncs = CALLS[platform.machine()]
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    steps += [(JUMP_IF_EQUAL, len(syncs) - at, 0, number) for at, number in enumerate(syncs)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | errno.EIO)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    program = Program(len(steps), code)
    assert libc.syscall(seccomp, SET_FILTER, ALL_THREADS, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())


def topology(home: Path) -> Any:
    """Numbers from a file, two a transaction, one transaction after the other."""
    shelf = Shelf(home / "shelf.json").write(NUMBERS)
    return watched_topology(ShelfSpout(shelf), Diary(home / "diary"), max_spout_pending=1, max_group_txids=1)


def broken(home: Path, point: str) -> dict[str, Any]:
    """One run, whose disk breaks at `point` of the txid `FROM`."""
    passed, original = [], faults.point

    def watch(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == FROM:
                break_disk()
        original(name)

    faults.point = watch
    handle = run(topology(home), engine="local", data_dir=home / "data", available_now=True)
    try:
        handle.awaitTermination()
        said = ""
    except Exception as error:  # noqa: BLE001 - the test looks at it
        said = f"{type(error).__name__}: {error}"
    return {"point": point, "said": said, "committed": handle.progress.committed}


def main(home: Path, points: list[str]) -> None:
    """A fork for each point, all at once. What cannot be published is not tried for as long as usual."""
    Publisher.TRIES = 2
    children = []
    for point in points:
        (home / point).mkdir()
        children.append(os.fork())
        if children[-1] == 0:
            os.write(1, json.dumps(broken(home / point, point)).encode() + b"\n")
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
