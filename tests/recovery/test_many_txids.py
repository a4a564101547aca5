"""Many transactions: ledger, files and what a start reads do not grow with their number."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout

SETTINGS = {"max_spout_pending": 64, "history_retention": 0.001, "max_group_txids": 32}


def go(data_dir: Path, until: int) -> None:
    """Up to a txid; the source has long been read, its transactions are empty but for the first ones."""
    spout = MemoryTransactionalSpout([["a", "b", "a"] * 10], "word", take=1)
    builder = TransactionalTopologyBuilder("many", "words", spout)
    builder.set_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    topology = builder.set_settings(SETTINGS).build_topology()
    run(topology, engine="local", data_dir=data_dir, until_txid=until).awaitTermination()


def entries(data_dir: Path) -> int:
    with sqlite3.connect(data_dir / "ledger.db") as ledger:
        [(count,)] = ledger.execute("SELECT count(*) FROM kv")
    ledger.close()
    return count


def files(data_dir: Path) -> Counter[str]:
    return Counter(str(path.parent.relative_to(data_dir)) for path in data_dir.rglob("*") if path.is_file())


if __name__ == "__main__":
    import sys, time, resource
    place = Path(sys.argv[1])
    for until in map(int, sys.argv[2:]):
        t = time.process_time()
        go(place, until)
        print(until, "cpu", round(time.process_time() - t, 1), "entries", entries(place), "files", sum(files(place).values()), dict(files(place)))
