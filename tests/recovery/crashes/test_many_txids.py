"""Scaling with the number of transactions: it must not increase the ledger entries and files read at a start."""

import os
import resource
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.results.read import read_state
from txstorm.spouts import MemoryTransactionalSpout

STEP = 100_000
"""Transactions between two starts."""
SETTINGS = {"max_spout_pending": 64, "max_group_txids": 32, "history_retention": 0.0001}


def go(data_dir: Path, until: int) -> None:
    """Run up to txid `until`; the source ends early, so all transactions but the first thirty are empty."""
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


def age(data_dir: Path) -> None:
    """Let the log entries of the history be two days old; by default they stay in the log for one."""
    then = time.time() - 2 * 86_400
    for entry in (data_dir / "history" / "_delta_log").iterdir():
        os.utime(entry, (then, then))


def peak() -> int:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.mark.parametrize(
    ("txids", "more"),
    [(4_000, 12), *(pytest.param(txids, 300, marks=pytest.mark.long) for txids in (100_000, 1_000_000))],
)
def test_nothing_that_a_start_reads_grows_with_their_number(txids, more, place, progress):
    few, many = place / "few", place / "many"
    go(few, 400)
    go(few, 401)
    for until in range(min(txids, STEP), txids + 1, STEP):
        go(many, until)
        age(many)
        if until == STEP:
            memory = peak()
        progress(f"{until:,} txids: {entries(many)} entries, {files(many).total()} files, {peak()} MiB at most")
    go(many, txids + 1)
    assert txids <= STEP or peak() <= memory + 64
    assert read_state(many, "counts").to_pylist() == read_state(few, "counts").to_pylist()
    assert entries(many) <= entries(few) + 64
    for directory, count in files(many).items():
        # What grows is the history's log, by an entry and a file for some thousand transactions, until it is shortened:
        # once there are a hundred entries of another day beyond the hundred that stay.
        assert count <= files(few)[directory] + more, directory
