"""Tables of a run as sources of plain Spark: a paused streaming query, and queries during a fast run."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from txstorm import TransactionalTopologyBuilder, run
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import ARCHIVE, LOG
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]
BEFORE, AFTER, RUNS = 30, 10, 2
COUNT = 20_000


def go(data_dir: Path, until: int, **options):
    """Run transactions up to `until`, each of which adds one version with one row to the sink."""
    rows = MemoryTransactionalSpout([list(range(1, COUNT + 1))], "n", take=1)
    builder = TransactionalTopologyBuilder("numbers", "rows", rows)
    builder.set_bolt("keep", DeltaSink("numbers", {"n": int})).global_grouping("rows")
    settings = {"max_group_txids": 1, "max_spout_pending": 64, "compact_on_stop": False}
    topology = builder.set_settings(settings).build_topology()
    return run(topology, engine="local", data_dir=data_dir, until_txid=until, **options)


class Query:
    """A streaming query over the sink that can be stopped and restarted from its checkpoint."""

    def __init__(self, spark, sink: Path, place: Path) -> None:
        self.spark, self.sink, self.place = spark, sink, place

    def start(self):
        source = self.spark.readStream.format("delta").load(str(self.sink))
        writer = source.writeStream.format("parquet").option("checkpointLocation", str(self.place / "checkpoint"))
        return writer.start(str(self.place / "rows"))

    def catch_up(self) -> None:
        query = self.start()
        query.processAllAvailable()
        query.stop()

    def rows(self) -> list[int]:
        """Return the rows delivered so far, in order."""
        return sorted(row.n for row in self.spark.read.parquet(str(self.place / "rows")).collect())


@pytest.mark.parametrize("commits", [124, pytest.param(2000, marks=pytest.mark.long)])
def test_a_query_that_stands_still_delivers_each_row_once(spark, tmp_path, commits):
    sink = tmp_path / "data" / "sinks" / "numbers"
    go(tmp_path / "data", BEFORE).awaitTermination()
    query = Query(spark, sink, tmp_path)
    query.catch_up()
    assert query.rows() == list(range(1, BEFORE + 1))

    away = BEFORE + commits
    for until in range(BEFORE + commits // RUNS, away + 1, commits // RUNS):
        go(tmp_path / "data", until).awaitTermination()
    made = Counter(entry.info.get("kind") for entry in DeltaHandle.open(sink).history())
    assert made["commit"] == away
    assert made["regroup"] >= 1  # small files were gathered meanwhile
    assert made["epoch"] >= RUNS

    running = query.start()
    live = go(tmp_path / "data", away + AFTER)
    live.awaitTermination()
    running.processAllAvailable()
    running.stop()
    assert query.rows() == list(range(1, away + AFTER + 1))


def test_a_query_that_stands_still_for_longer_than_the_log_is_kept_is_refused(spark, tmp_path):
    """A query paused for longer than `log_retention` is refused; no row is ever skipped silently."""
    sink = tmp_path / "data" / "sinks" / "numbers"
    go(tmp_path / "data", BEFORE).awaitTermination()
    query = Query(spark, sink, tmp_path)
    query.catch_up()
    go(tmp_path / "data", BEFORE + 270).awaitTermination()
    old = time.time() - 2 * 86_400
    for file in (sink / LOG).iterdir():
        os.utime(file, (old, old))
    # Beside commits, by a thread that a short run on a busy machine may end before it has come to that.
    for until in range(BEFORE + 300, BEFORE + 900, 30):
        go(tmp_path / "data", until).awaitTermination()
        if len(list((sink / ARCHIVE).glob("*.json"))) >= BEFORE + 100:
            break
    else:
        pytest.fail("old entries stay in the log")
    running = query.start()
    with pytest.raises(Exception, match=r"DELTA_.*FILE_NOT_FOUND|no longer available|has been (deleted|cleaned)"):
        running.processAllAvailable()
    assert query.rows() == list(range(1, BEFORE + 1))


def test_plain_queries_beside_a_fast_run_do_not_fail(spark, tmp_path):
    """A plain query does not fail if runs commit more than a hundred versions between its planning and execution."""
    sink = tmp_path / "data" / "sinks" / "numbers"
    planned, counts = [], []
    for until in (20, 50):
        go(tmp_path / "data", until).awaitTermination()
        planned.append(spark.read.format("delta").load(str(sink)))
    go(tmp_path / "data", 170).awaitTermination()
    handle = go(tmp_path / "data", COUNT, settings={"min_interval": 0.2})
    try:
        for frame in planned:
            [(rows, last)] = frame.selectExpr("count(*)", "max(n)").collect()
            assert rows == last
            counts.append(rows)
        assert counts == sorted(set(counts))
        assert handle.isActive
    finally:
        handle.stop()
        handle.awaitTermination()
