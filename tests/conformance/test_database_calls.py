"""T49: one batch of a thousand tuples takes a thousandth of the database calls that a thousand batches of one take."""

import sqlite3
from pathlib import Path

from runs import ended
from watched import Gathering

from txstorm import Committer, TransactionalTopologyBuilder
from txstorm.engine.local import LocalEngine
from txstorm.spouts import MemoryTransactionalSpout

TUPLES = 1000


class GlobalCount(Gathering, Committer):
    """Storm's UpdateGlobalCount over a user's database: reads and writes (value, txid) once per batch."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def finish_batch(self):
        calls: list[str] = []
        database = sqlite3.connect(self.path, isolation_level=None)
        database.execute("PRAGMA synchronous=OFF")
        database.set_trace_callback(calls.append)
        [(value, txid)] = database.execute("SELECT value, txid FROM total").fetchall()
        if txid != self.attempt.txid:
            database.execute("UPDATE total SET value = ?, txid = ?", (value + len(self.taken), self.attempt.txid))
        database.set_trace_callback(None)
        database.execute("UPDATE calls SET n = n + ?", (len(calls),))
        database.close()


def calls(take: int, directory: Path) -> int:
    """Return the number of SQL statements executed to count the tuples in batches of `take`."""
    directory.mkdir()
    path = directory / "counts.db"
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE total (value, txid); INSERT INTO total VALUES (0, 0);"
            "CREATE TABLE calls (n); INSERT INTO calls VALUES (0)"
        )
    builder = TransactionalTopologyBuilder("calls", "tuples", MemoryTransactionalSpout([range(TUPLES)], "n", take=take))
    builder.set_bolt("count", GlobalCount(path)).global_grouping("tuples")
    assert ended(builder.build_topology(), directory / "data", LocalEngine()).committed == TUPLES // take
    assert database.execute("SELECT value, txid FROM total").fetchall() == [(TUPLES, TUPLES // take)]
    [(made,)] = database.execute("SELECT n FROM calls").fetchall()
    database.close()
    return made


def test_t49_database_calls(tmp_path: Path) -> None:
    together, one_by_one = calls(TUPLES, tmp_path / "together"), calls(1, tmp_path / "one-by-one")
    assert (together, one_by_one) == (2, 2000)
