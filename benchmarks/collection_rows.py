"""Cost of large collections: appends, scans, evictions, bytes written, memory, and the first commit after a SIGKILL.

    python -m benchmarks.collection_rows [--place DIR] [--rows N ...] [--batch N]

For each number of buffered rows, one process fills a collection with batches of rows, one batch per transaction, and
then appends and evicts as many rows per transaction while it scans ranges. It is killed, and another process opens the
tables and commits once more. No engine and no ledger take part: transactions are staged, published and compacted as in
a run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

ROWS, BATCH, STEADY, SCANS = (100_000, 10_000_000), 100_000, 20, 15
SECOND, MAX_LAG = 1_000_000, 30.0


class Buffer:
    """One collection in a data directory, to which transactions append batches; `at` is the order of the next row."""

    def __init__(self, place: Path, batch: int, committed: int = 0) -> None:
        from txstorm.api.state import CollectionState
        from txstorm.state.store import DeclaredResources, RecordedTables, StateStore, StoreSettings
        from txstorm.storage.tables.identity import TopologyIdentity

        values = {"user": int, "cents": int, "shop": str}
        state = CollectionState("rows", key={"task": int}, order={"at": int}, value=values)
        resources = DeclaredResources({"window": [state]}, {})
        recorded = RecordedTables(not committed, committed)
        owner = TopologyIdentity("bench", "0a1b2c")
        self.store = StateStore.open(place, owner, resources, recorded, settings=StoreSettings(max_lag=MAX_LAG))
        self.epoch = 2 if committed else 1
        self.store.raise_epoch(self.epoch)
        self.batch, self.txid, self.at, self.arrow = batch, committed, committed * batch, 0
        self.compacts = not committed

    def commit(self, evict_before: int | None = None, work: Callable[[object], None] | None = None) -> None:
        """Append one batch in one transaction; then compact what is due, but not after a restart, which is measured."""
        import numpy as np
        import pyarrow as pa

        from txstorm.storage.tables.intent import Intent, TxidRecord

        self.txid += 1
        draw = np.random.default_rng(self.txid)
        rows = pa.table(
            {
                "task": pa.array(np.zeros(self.batch, np.int64)),
                "at": pa.array(np.arange(self.at, self.at + self.batch) * 7),
                "user": pa.array(draw.integers(0, 1_000_000, self.batch)),
                "cents": pa.array(draw.integers(0, 100_000, self.batch)),
                "shop": pa.array(np.array([f"shop {i}" for i in range(500)])[draw.integers(0, 500, self.batch)]),
            }
        )
        self.at, self.arrow = self.at + self.batch, self.arrow + rows.nbytes
        group = self.store.group(self.txid)
        resources = group.begin_txid(self.txid, stamp=self.txid * SECOND)
        group.activate(True)
        handle = resources.collection("window", 0, "rows")
        handle.append_batch(rows)
        if evict_before is not None:
            handle.evict_before(evict_before * 7)
        if work is not None:
            work(handle)
        group.end_txid(self.txid)
        records = (TxidRecord(self.txid, 1, "d", {}, self.txid * SECOND),)
        intent = Intent("bench", "0a1b2c", 0, self.epoch, records, tuple(group.stage(records, self.epoch)))
        self.store.publish(intent, self.epoch)
        group.apply(self.txid)
        if self.compacts:
            self._compact()

    def _compact(self) -> None:
        upkeep = self.store.upkeep
        while (uri := upkeep.due(time.monotonic())) is not None:
            work = upkeep.begin(uri, int(time.time() * 1000))
            if work is None:
                break
            for _ in work.steps():
                pass
            upkeep.finish(work, int(time.time() * 1000))


def fill(place: Path, rows: int, batch: int) -> None:
    """Fill a collection and keep it at `rows` rows for a while; print what that costs, then wait to be killed."""
    buffer = Buffer(place, batch)
    written, begun = _written(), time.perf_counter()
    for _ in range(rows // batch):
        buffer.commit()
    filled = time.perf_counter() - begun
    scans: dict[str, list[float]] = {"newest": [], "oldest": [], "last": []}

    def scan(handle: object) -> None:
        for name, arguments in (
            ("newest", {"start": (buffer.at - batch) * 7}),
            ("oldest", {"end": (buffer.at - rows) * 7}),
            ("last", {"last": 1000}),
        ):
            began = time.perf_counter()
            handle.scan_table([0], **arguments)  # type: ignore[attr-defined]
            scans[name].append(time.perf_counter() - began)

    begun = time.perf_counter()
    for _ in range(STEADY):
        buffer.commit(buffer.at - rows, scan)
    steady = time.perf_counter() - begun - sum(map(sum, scans.values()))
    found = {
        "rows/s while filling": round(rows / filled),
        "rows/s appended and evicted": round(STEADY * batch / steady),
        **{f"ms to scan, {name}": round(statistics.median(times) * 1000, 1) for name, times in scans.items()},
        "bytes written per Arrow byte": round((_written() - written) / buffer.arrow, 2),
        "MiB of memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "txid": buffer.txid,
    }
    print(json.dumps(found), flush=True)
    signal.pause()


def resume(place: Path, batch: int, txid: int, rows: int) -> None:
    """Open the tables and commit once, with a scan; print the memory that took."""
    buffer = Buffer(place, batch, txid)
    buffer.commit(buffer.at - rows, lambda handle: handle.scan_table([0], start=(buffer.at - batch) * 7))  # type: ignore[attr-defined]
    print(json.dumps({"MiB of memory, restarted": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))


def _written() -> int:
    """Return the number of bytes that this process has written to files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def measure(place: Path, rows: int, batch: int) -> dict[str, float]:
    """Measure one number of buffered rows."""
    command = [sys.executable, "-m", "benchmarks.collection_rows", "--place", str(place), "--batch", str(batch)]
    with subprocess.Popen([*command, "--rows", str(rows), "--measure", "fill"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found: dict[str, float] = json.loads(process.stdout.readline())
        process.kill()
    begun, txid = time.perf_counter(), int(found.pop("txid"))
    arguments = ["--rows", str(rows), "--measure", "resume", "--txid", str(txid)]
    found |= json.loads(subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE).stdout)
    return {**found, "s from SIGKILL to the next commit": round(time.perf_counter() - begun, 2)}


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, help="a directory; default: a new temporary one")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--measure", choices=["fill", "resume"], help=argparse.SUPPRESS)
    parser.add_argument("--txid", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure == "fill":
        fill(given.place, given.rows[0], given.batch)
    elif given.measure == "resume":
        resume(given.place, given.batch, given.txid, given.rows[0])
    else:
        for rows in given.rows:
            place = Path(mkdtemp(dir=given.place))
            try:
                for what, figure in measure(place, rows, given.batch).items():
                    print(f"{rows:>11,} rows  {what:<40}{figure:>14,}")
            finally:
                shutil.rmtree(place)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
