"""Runs on failing disks, each start in a fork of this process, with ``failing_disk.c`` preloaded.

- ``failing-disk HOME LEDGER CALL…``: every CALL is ``sync:N`` or ``write:N``, the call below ``HOME/<CALL>/disk`` that
  fails, once; the topology is restarted until it is done. Prints, as a line of JSON, the output of the starts, and the
  number of syncs and writes of the process.
- ``broken-disk HOME POINT…``: from a fault point on, every sync below ``HOME/<POINT>`` fails. Prints a line of JSON with
  the point, the output, and the number of committed transactions; the run is in ``HOME/<POINT>/data``.
"""

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watched import Diary, Shelf, ShelfSpout, watched_topology

import txstorm.engine.local  # noqa: F401 - loaded before forks
from txstorm import faults, run
from txstorm.clients.delta import log as delta_log
from txstorm.runtime.commit.publication import Publisher

FEW, NUMBERS = list(range(8)), list(range(40))
STARTS = 3
FROM = 4
"""The txids before this one find a disk that is sound until it breaks."""


def topology(home: Path, numbers: list[int]) -> Any:
    """Build a topology of numbers from a file, two per transaction, one transaction at a time."""
    shelf = Shelf(home / "shelf.json").write(numbers)
    return watched_topology(ShelfSpout(shelf), Diary(home / "diary"), max_spout_pending=1, max_group_txids=1)


def attempt(made: Any, data_dir: Path, ledger: str | None = None) -> tuple[str, int]:
    """Start a topology once; return its error, empty if there is none, and the number of committed transactions."""
    handle = None
    try:
        handle = run(made, engine="local", data_dir=data_dir, available_now=True, ledger=ledger)
        handle.awaitTermination()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}", handle.progress.committed if handle else 0
    return "", handle.progress.committed


def forked(*works: Callable[[], Any]) -> list[Any]:
    """Do each work in a fork of this process, all of them at once; return what they return."""
    answers = []
    for work in works:
        answer, child_end = os.pipe()
        if os.fork() == 0:
            os.write(child_end, json.dumps(work()).encode())
            os._exit(0)
        os.close(child_end)
        answers.append(answer)
    found = []
    for answer in answers:
        with open(answer, "rb") as pipe:
            found.append(json.loads(pipe.read()))
        os.wait()
    return found


def told(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def start(home: Path, ledger: str | None, sync: int = -1, write: int = -1) -> dict[str, Any]:
    """Start the topology once, with the `sync`-th sync or the `write`-th write failing, counted from 0."""
    preloaded = ctypes.CDLL(None)
    preloaded.disk_begin(os.fsencode(home / "disk"), os.fsencode(home / "calls"), sync, write)
    message, _ = attempt(topology(home, FEW), home / "disk" / "data", ledger)
    return {"said": message, "syncs": preloaded.disk_syncs(), "writes": preloaded.disk_writes()}


def until_done(home: Path, ledger: str | None, call: str) -> dict[str, Any]:
    """Start the topology on a failing disk, then restart it on a sound one until it is done."""
    (home / "disk").mkdir(parents=True)
    kind, _, number = call.partition(":")
    starts = forked(lambda: start(home, ledger, **{kind: int(number)}))
    # What fails when the lease in a Delta table is given back, at the very end, is seen to by the next start only.
    while (starts[-1]["said"] or (ledger and len(starts) == 1)) and len(starts) < STARTS:
        starts += forked(lambda: start(home, ledger))
    return {**starts[0], "call": call, "said": [one["said"] for one in starts]}


def failing(place: str, ledger: str, *calls: str) -> None:
    """Run with each of the calls failing in turn; logs are compacted early, and publishing is retried soon."""
    Publisher.TRIES = 2
    delta_log.CHECKPOINT_EVERY = 5
    for call in calls:
        home = Path(place) / call
        told(until_done(home, None if ledger == "sqlite" else f"{ledger}:{home / 'disk' / 'ledger'}", call))


def breaking(home: Path, point: str) -> dict[str, Any]:
    """Run once, with the disk breaking at `point` of the txid `FROM`."""
    passed, original, preloaded = [], faults.point, ctypes.CDLL(None)
    preloaded.disk_begin(os.fsencode(home), os.fsencode(home / "calls"), -1, -1)

    def watch(name: str) -> None:
        if name == point:
            passed.append(name)
            if len(passed) == FROM:
                preloaded.disk_break()
        original(name)

    faults.point = watch
    message, committed = attempt(topology(home, NUMBERS), home / "data")
    return {"point": point, "said": message, "committed": committed}


def broken(place: str, *points: str) -> None:
    """Run one fork per point, all concurrently, with a shorter retry period for publishing than the default."""
    Publisher.TRIES = 2
    for point in points:
        (Path(place) / point).mkdir()
    for line in forked(*(lambda point=point: breaking(Path(place) / point, point) for point in points)):
        told(line)
