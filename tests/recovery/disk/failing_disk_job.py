"""Runs a topology on a disk that fails once, in one place after the other, and starts it again until it is done.

``failing_disk_job.py HOME LEDGER CALL...``, with ``failing_disk.c`` preloaded: every CALL is ``sync:N`` or ``write:N``,
the call below ``HOME/<CALL>/disk`` that fails. Prints a JSON line for each: what the starts said, and how often the process
synced and wrote. Every start is a process of its own, forked from this one.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from watched import Diary, Shelf, ShelfSpout, watched_topology

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm import run
from txstorm.runtime.commit.publisher import Publisher
from txstorm.storage.tables import table as tables

NUMBERS = list(range(8))
STARTS = 3
disk = ctypes.CDLL(None)


def start(home: Path, ledger: str | None, sync: int, write: int) -> dict[str, Any]:
    """One start; the call with the number `sync` or `write` fails in it, counted from 0."""
    disk.disk_begin(os.fsencode(home / "disk"), os.fsencode(home / "calls"), sync, write)
    shelf = Shelf(home / "shelf.json").write(NUMBERS)
    topology = watched_topology(ShelfSpout(shelf), Diary(home / "diary"), max_spout_pending=1, max_group_txids=1)
    said = ""
    try:
        data_dir = home / "disk" / "data"
        run(topology, engine="local", data_dir=data_dir, available_now=True, ledger=ledger).awaitTermination()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "syncs": disk.disk_syncs(), "writes": disk.disk_writes()}


def forked(home: Path, ledger: str | None, sync: int, write: int) -> dict[str, Any]:
    """The same in a fork."""
    answer, child_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(child_end, json.dumps(start(home, ledger, sync, write)).encode())
        os._exit(0)
    os.close(child_end)
    with open(answer, "rb") as pipe:
        told = json.loads(pipe.read())
    os.waitpid(child, 0)
    return dict(told)


def to_the_end(home: Path, ledger: str | None, call: str) -> dict[str, Any]:
    """The first start on a disk that fails, the next ones on one that is well."""
    (home / "disk").mkdir(parents=True)
    kind, _, number = call.partition(":")
    fails = {"sync": -1, "write": -1, kind: int(number)}
    starts = [forked(home, ledger, fails["sync"], fails["write"])]
    # What fails when the lease in a Delta table is given back, at the very end, is seen to by the next start only.
    while (starts[-1]["said"] or (ledger and len(starts) == 1)) and len(starts) < STARTS:
        starts.append(forked(home, ledger, -1, -1))
    first = starts[0]
    return {"call": call, "said": [one["said"] for one in starts], "syncs": first["syncs"], "writes": first["writes"]}


def main(home: Path, ledger: str, calls: list[str]) -> None:
    """Every call in turn. Logs are shortened early, and what cannot be published is tried again soon."""
    Publisher.TRIES = 2
    tables.CHECKPOINT_EVERY = 5
    for call in calls:
        named = None if ledger == "sqlite" else f"{ledger}:{home / call / 'disk' / 'ledger'}"
        os.write(1, json.dumps(to_the_end(home / call, named, call)).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
