"""Cost of long table logs: for readers, and for a start, a commit, a checkpoint and an archiving pass of txstorm.

    python -m benchmarks.log_length [--place DIR] [--entries N ...] [--no-spark]

Writes a log of N entries, as txstorm does, with a checkpoint fifty entries before its end. Each kind of reader is
measured in a separate process. DIR should be on a fast disk, or in memory: N entries take N × 4 KiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

LATER = 50
"""Entries after the last checkpoint."""
FILES = 64
TIMES = 3


def write_log(table: Path, entries: int) -> None:
    """Create a table of `FILES` files of one row each, with a log of `entries` entries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from txstorm.clients.delta.entry import Commit, DataFile, entry_bytes
    from txstorm.clients.delta.handle import DeltaHandle, _info_of
    from txstorm.clients.delta.log import LOG, entry_name
    from txstorm.storage.tables.identity import log_properties

    schema = pa.schema([("n", pa.int64()), ("_txid", pa.int64())])
    handle = DeltaHandle.create(table, schema, log_properties(), Commit({"app": 0}, {"kind": "create"}))
    stats = json.dumps(
        {"numRecords": 1, "minValues": {"_txid": 1}, "maxValues": {"_txid": 1}, "nullCount": {"_txid": 0}}
    )
    for n in range(1, FILES + 1):
        pq.write_table(pa.table({"n": [n], "_txid": [n]}, schema=schema), table / f"{n}.parquet")
        handle.commit(
            Commit({"app": n}, {"n": n}, [DataFile(f"{n}.parquet", os.path.getsize(table / f"{n}.parquet"), 0, stats)])
        )
    handle.checkpoint(1)
    size, end = os.path.getsize(table / "1.parquet"), entries - LATER - 1
    checkpoint = table / LOG / f"{FILES:020d}.checkpoint.parquet"
    checkpoint.rename(table / LOG / f"{end:020d}.checkpoint.parquet")
    hint = table / LOG / "_last_checkpoint"
    hint.write_text(json.dumps({**json.loads(hint.read_text()), "version": end}))
    for version in range(FILES + 1, entries):
        commit = Commit({"app": version}, {"n": version}, [DataFile(f"{version % FILES + 1}.parquet", size, 0, stats)])
        (table / LOG / entry_name(version)).write_bytes(entry_bytes(commit, _info_of(commit), 0))


def median(call: Callable[[], object], times: int = TIMES) -> tuple[float, float]:
    """Return the median wall time and processor time of `call` in this process, in seconds."""
    taken = []
    for _ in range(times):
        started, used = time.perf_counter(), time.process_time()
        call()
        taken.append((time.perf_counter() - started, time.process_time() - used))
    return statistics.median(one for one, _ in taken), statistics.median(one for _, one in taken)


def readers(table: Path) -> dict[str, tuple[float, float]]:
    """Measure opening and reading the table with deltalake and polars."""
    from deltalake import DeltaTable

    found = {
        "deltalake: open": median(lambda: DeltaTable(str(table))),
        "deltalake: open, read 64 rows": median(lambda: DeltaTable(str(table)).to_pyarrow_table()),
    }
    try:
        import polars
    except ImportError:
        return found
    return {**found, "polars: read 64 rows": median(lambda: polars.scan_delta(str(table)).collect())}


def spark(table: Path) -> dict[str, tuple[float, float]]:
    """Measure reading the table with Spark: the first time in a session, and again."""
    from txstorm.clients.spark import make_session

    jars = ",".join(map(str, sorted((Path(__file__).parent.parent / ".cache" / "jars").glob("*.jar"))))
    session = make_session(
        "log length",
        extra={
            "spark.jars": jars,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    )
    small = table.with_name("warm")
    write_log(small, 200)

    def count(path: Path) -> None:
        session.read.format("delta").load(str(path)).selectExpr("sum(n)").collect()

    for _ in range(3):
        count(small)
    found = {"Spark: first query": median(lambda: count(table), 1), "Spark: next query": median(lambda: count(table))}
    session.stop()
    shutil.rmtree(small)
    return found


def txstorm(table: Path) -> dict[str, tuple[float, float]]:
    """Measure what a start, a commit, upkeep and a stop of txstorm do with one table."""
    from txstorm.clients.delta.archive import archive_entries
    from txstorm.clients.delta.entry import Commit
    from txstorm.clients.delta.handle import DeltaHandle
    from txstorm.storage.upkeep.sweep import sweep_table

    found = {"txstorm: open a table": median(lambda: DeltaHandle.open(table))}
    handle = DeltaHandle.open(table)
    numbers = iter(range(10**6))

    def commit() -> None:
        handle.commit(Commit({"app": next(numbers)}, {}))

    found["txstorm: commit"] = median(commit, 200)
    found["txstorm: look for a newer version"] = median(handle.refresh, 20)
    found["txstorm: a handle for upkeep"] = median(handle.opener())

    def checkpoint() -> None:
        commit()
        assert handle.checkpoint(1)

    found["txstorm: checkpoint"] = median(checkpoint)
    found["txstorm: look for old entries, beside commits"] = median(
        lambda: list(archive_entries(table, 86_400, time.time()))
    )
    staged = table / "_txstorm" / "staged"
    staged.mkdir(parents=True, exist_ok=True)
    (staged / "1-1-1-a-0-0.parquet").touch()
    found["txstorm: sweep at a stop, with a file to remove"] = median(lambda: sweep_table(table, 2, set(), handle), 1)
    for file in (table / "_delta_log").glob("*.json"):
        os.utime(file, (0, 0))
    for file in (table / "_delta_log").glob("*.parquet"):
        os.utime(file, (0, 0))
    steps = archive_entries(table, 86_400, time.time())
    found["txstorm: archive all of it, beside commits"] = median(lambda: list(steps), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--place", type=Path, help="where the tables are created; default: the directory for temporary files"
    )
    parser.add_argument("--entries", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "TABLE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, table = options.measure
        print(json.dumps({"readers": readers, "spark": spark, "txstorm": txstorm}[what](Path(table))))
        return
    place = Path(mkdtemp(prefix="log-length-", dir=options.place))
    try:
        for entries in options.entries:
            table = place / str(entries)
            write_log(table, entries)
            for what in ("readers", *([] if options.no_spark else ["spark"]), "txstorm"):
                command = [sys.executable, "-m", "benchmarks.log_length", "--measure", what, str(table)]
                answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                for name, (seconds, used) in json.loads(answer.splitlines()[-1]).items():
                    line = f"{entries:>9,}  {name:<50} {seconds * 1000:12,.1f} ms"
                    print(line if what == "spark" else f"{line} {used * 1000:12,.1f} ms of a processor", flush=True)
            shutil.rmtree(table)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
