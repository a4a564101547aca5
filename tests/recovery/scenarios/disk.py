"""Runs on failing disks, each start in a fork of this process; prints a line of JSON for each call or point.

- ``failing-disk HOME LEDGER CALL…``, with ``failing_disk.c`` preloaded: every CALL is ``sync:N`` or ``write:N``, the
  call below ``HOME/<CALL>/disk`` that fails, once; the topology is restarted until it is done. Prints the output of the
  starts, and the number of syncs and writes of the process.
- ``broken-disk HOME POINT…``: from a fault point on, every sync fails. The kernel itself refuses it: a seccomp filter
  answers ``fsync`` and ``fdatasync`` with EIO, whether Python, SQLite or delta-rs calls. Prints
  ``{"point", "said", "committed"}``; the run is in ``HOME/<point>/data``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import struct
from pathlib import Path
from typing import Any

from watched import Diary, Shelf, ShelfSpout, watched_topology

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm import faults, run
from txstorm.clients.delta import log as delta_log
from txstorm.runtime.commit.publisher import Publisher

FEW, NUMBERS = list(range(8)), list(range(40))
STARTS = 3


def topology(home: Path, numbers: list[int]) -> Any:
    """Build a topology of numbers from a file, two per transaction, one transaction at a time."""
    shelf = Shelf(home / "shelf.json").write(numbers)
    return watched_topology(ShelfSpout(shelf), Diary(home / "diary"), max_spout_pending=1, max_group_txids=1)


# --- one call that fails ----------------------------------------------------------------------------------------------


def start(home: Path, ledger: str | None, sync: int, write: int) -> dict[str, Any]:
    """Start the topology once, with the `sync`-th sync or the `write`-th write failing, counted from 0."""
    preloaded = ctypes.CDLL(None)
    preloaded.disk_begin(os.fsencode(home / "disk"), os.fsencode(home / "calls"), sync, write)
    message = ""
    try:
        data_dir = home / "disk" / "data"
        made = topology(home, FEW)
        run(made, engine="local", data_dir=data_dir, available_now=True, ledger=ledger).awaitTermination()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        message = f"{type(error).__name__}: {error}"
    return {"said": message, "syncs": preloaded.disk_syncs(), "writes": preloaded.disk_writes()}


def forked(home: Path, ledger: str | None, sync: int, write: int) -> dict[str, Any]:
    """Start the topology once, as `start` does, in a fork."""
    answer, child_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(child_end, json.dumps(start(home, ledger, sync, write)).encode())
        os._exit(0)
    os.close(child_end)
    with open(answer, "rb") as pipe:
        answered = json.loads(pipe.read())
    os.waitpid(child, 0)
    return dict(answered)


def until_done(home: Path, ledger: str | None, call: str) -> dict[str, Any]:
    """Start the topology on a failing disk, then restart it on a sound one until it is done."""
    (home / "disk").mkdir(parents=True)
    kind, _, number = call.partition(":")
    fails = {"sync": -1, "write": -1, kind: int(number)}
    starts = [forked(home, ledger, fails["sync"], fails["write"])]
    # What fails when the lease in a Delta table is given back, at the very end, is seen to by the next start only.
    while (starts[-1]["said"] or (ledger and len(starts) == 1)) and len(starts) < STARTS:
        starts.append(forked(home, ledger, -1, -1))
    first = starts[0]
    return {"call": call, "said": [one["said"] for one in starts], "syncs": first["syncs"], "writes": first["writes"]}


def failing(place: str, ledger: str, *calls: str) -> None:
    """Run with each of the calls failing in turn; logs are compacted early, and publishing is retried soon."""
    home = Path(place)
    Publisher.TRIES = 2
    delta_log.CHECKPOINT_EVERY = 5
    for call in calls:
        named = None if ledger == "sqlite" else f"{ledger}:{home / call / 'disk' / 'ledger'}"
        os.write(1, json.dumps(until_done(home / call, named, call)).encode() + b"\n")


# --- a disk that breaks -----------------------------------------------------------------------------------------------

FROM = 4
"""The txids before this one find a disk that is sound."""
CALLS = {"x86_64": (317, (74, 75)), "aarch64": (277, (82, 83))}
"""By processor, the numbers of the system calls seccomp, and fsync and fdatasync."""
NO_NEW_PRIVS, SET_FILTER, ALL_THREADS = 38, 1, 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def break_disk() -> None:
    """Make every sync of this process fail from now on."""
    seccomp, syncs = CALLS[platform.machine()]
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    steps += [(JUMP_IF_EQUAL, len(syncs) - at, 0, number) for at, number in enumerate(syncs)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | errno.EIO)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    program = Program(len(steps), code)
    assert libc.syscall(seccomp, SET_FILTER, ALL_THREADS, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())


def breaking(home: Path, point: str) -> dict[str, Any]:
    """Run once, with the disk breaking at `point` of the txid `FROM`."""
    passed, original = [], faults.point

    def watch(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == FROM:
                break_disk()
        original(name)

    faults.point = watch
    handle = run(topology(home, NUMBERS), engine="local", data_dir=home / "data", available_now=True)
    try:
        handle.awaitTermination()
        message = ""
    except Exception as error:  # noqa: BLE001 - the test looks at it
        message = f"{type(error).__name__}: {error}"
    return {"point": point, "said": message, "committed": handle.progress.committed}


def broken(place: str, *points: str) -> None:
    """Run one fork per point, all concurrently, with a shorter retry period for publishing than the default."""
    home = Path(place)
    Publisher.TRIES = 2
    children = []
    for point in points:
        (home / point).mkdir()
        children.append(os.fork())
        if children[-1] == 0:
            os.write(1, json.dumps(breaking(home / point, point)).encode() + b"\n")
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
