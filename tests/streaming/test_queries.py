"""Real streaming queries that feed topologies: failures at each point, batches that come again, stops, refusals."""

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from recovery_cases import eventually

from txstorm import TransactionalTopologyBuilder, faults, foreach_batch, rewind, run, write_stream
from txstorm.bolts import SumByKey
from txstorm.errors import HeldError, InputError, SettingError, SpoutError
from txstorm.operations.lifecycle import kill
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout, StreamSpout

pytestmark = [pytest.mark.spark, pytest.mark.integration]
COLUMNS = "country STRING, cents BIGINT"
FILES = 5
POINTS = (
    "p1.before",
    "p1.after",
    "p2.after",
    "p4.after",
    "p5.before",
    "p6.before",
    "p6.after",
    "p7.1.written",
    "p8.before",
)
"""Fault points, in the driver, of a transaction."""


def rows(number: int) -> list[dict]:
    return [{"country": "abc"[(n * number) % 3], "cents": n + number} for n in range(number + 2)]


class Lake:
    """A directory of files, each of which is a batch, and topologies over them."""

    def __init__(self, spark, place: Path) -> None:
        self.spark, self.place, self.data_dir = spark, place / "lake", place / "data"
        self.place.mkdir()
        self.checkpoint = self.data_dir / "checkpoint"

    def add(self, *numbers: int) -> None:
        for number in numbers:
            hidden = self.place / f".{number}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows(number)))
            hidden.rename(self.place / f"{number}.json")

    def stream(self, columns: str = COLUMNS):
        return self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(self.place))

    def topology(self, **spout):
        builder = TransactionalTopologyBuilder("orders", "orders", StreamSpout(COLUMNS, **spout), 2)
        builder.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("orders", ["country"])
        builder.set_bolt("rows", DeltaSink("rows", {"country": str, "cents": int}), 2).shuffle_grouping("orders")
        return builder.set_settings({"max_retries": 0}).build_topology()

    def query(self, **options):
        """Run a query over what there is; return Spark's query, which has ended, and the function."""
        function = foreach_batch(self.topology(), data_dir=self.data_dir, **options)
        query = write_stream(self.stream(), function).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - of Spark, with the text of ours
            return str(error), function
        eventually(lambda: not function.handle.isActive)
        return "", function

    def begin_anew(self, after: int) -> None:
        """Delete the checkpoint, and the files up to `after`, which another query must not read again."""
        shutil.rmtree(self.checkpoint)
        for number in range(1, after + 1):
            (self.place / f"{number}.json").unlink()

    def check(self, upto: int) -> None:
        """Each row of the files counts once."""
        found = [row for number in range(1, upto + 1) for row in rows(number)]
        kept = read_sink(self.data_dir, "rows").to_pylist()
        assert Counter((row["country"], row["cents"]) for row in kept) == Counter(
            (row["country"], row["cents"]) for row in found
        )
        sums = Counter()
        for row in found:
            sums[row["country"]] += row["cents"]
        assert {row["country"]: row["cents"] for row in read_state(self.data_dir, "sums").to_pylist()} == sums


@pytest.fixture
def lake(spark, tmp_path):
    made = Lake(spark, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_failed_at_any_point_counts_once(lake, point):
    lake.add(*range(1, 4))
    faults.arm(f"{point}:raise:2")
    assert "injected" in lake.query()[0]
    faults.arm("")
    lake.add(4, FILES)
    assert lake.query()[0] == ""
    lake.check(FILES)


def test_a_decided_batch_that_comes_again_has_no_effect(lake):
    lake.add(1, 2, 3)
    assert lake.query()[0] == ""
    for gone in (lake.checkpoint / "commits" / "2", lake.checkpoint / "commits" / ".2.crc"):
        gone.unlink(missing_ok=True)  # as after a crash between our decision and Spark's
    lake.add(4)
    error, function = lake.query()
    assert (error, function.skipped) == ("", 1)
    lake.check(4)
    history = function.handle.history().to_pylist()
    assert [json.loads(row["extents"])["meta"]["batch"] for row in history] == [0, 1, 2, 3]


def test_another_query_is_refused_until_it_is_adopted(lake):
    lake.add(1, 2)
    assert lake.query()[0] == ""
    lake.begin_anew(after=2)
    lake.add(3)
    error, _ = lake.query()
    assert "is refused: the last committed one is batch 1 of query" in error
    lake.check(2)
    assert lake.query(adopt=True)[0] == ""
    lake.check(3)


def test_a_query_that_is_stopped_within_a_batch_leaves_nothing_half_done(lake):
    lake.add(1, 2)

    class Slow(SumByKey):
        def finish_batch(self):
            if self.attempt.txid == 2:
                (lake.data_dir / "at-work").touch()
                time.sleep(60)
            super().finish_batch()

    builder = TransactionalTopologyBuilder("orders", "orders", StreamSpout(COLUMNS), 2)
    builder.set_bolt("sums", Slow("country", "cents", "sums"), 2).fields_grouping("orders", ["country"])
    query = write_stream(lake.stream(), builder.build_topology(), data_dir=lake.data_dir).start()
    eventually((lake.data_dir / "at-work").exists)
    before = time.monotonic()
    query.stop()
    assert time.monotonic() - before < 20
    assert lake.query()[0] == ""
    lake.check(2)


def test_kill_ends_the_query_and_a_stop_gives_the_lease_back(lake):
    lake.add(1)
    function = foreach_batch(lake.topology(), data_dir=lake.data_dir)
    query = write_stream(lake.stream(), function).start()
    query.processAllAvailable()
    with pytest.raises(HeldError, match="another streaming query"):
        foreach_batch(lake.topology(), data_dir=lake.data_dir)
    kill(lake.data_dir)
    lake.add(2)
    eventually(lambda: not query.isActive)
    assert "was killed by" in str(query.exception())
    assert lake.query()[0] == ""
    lake.check(2)


def test_after_a_rewind_a_new_query_is_adopted(lake):
    lake.add(1, 2, 3)
    assert lake.query()[0] == ""
    rewind(lake.data_dir, 1)
    lake.add(4)
    assert "batches 1 to 2 of the query never came" in lake.query()[0]
    lake.begin_anew(after=1)
    assert lake.query(adopt=True)[0] == ""
    lake.check(4)


def refused(call, match, kind=InputError):
    with pytest.raises(kind, match=match):
        call()


def test_what_cannot_feed_a_topology_is_refused(lake, tmp_path):
    topology = lake.topology()
    refused(lambda: run(topology, data_dir=lake.data_dir), "foreach_batch or write_stream instead of run", SpoutError)
    refused(lambda: run(topology, engine="local", data_dir=lake.data_dir), "needs engine='spark'", SpoutError)
    assert not lake.data_dir.exists()
    refused(lambda: write_stream(lake.spark.range(3), topology), "got a batch one")
    refused(lambda: write_stream("rows", topology), "takes a streaming DataFrame")
    other = TransactionalTopologyBuilder("other", "rows", MemoryTransactionalSpout([["a"]], "word"))
    other.set_bolt("keep", DeltaSink("words", {"word": str})).shuffle_grouping("rows")
    refused(lambda: foreach_batch(other.build_topology(), data_dir=tmp_path / "o"), "expected a StreamSpout")
    options = {"data_dir": tmp_path / "p", "settings": {"max_spout_pending": 2}}
    refused(lambda: foreach_batch(topology, **options), "expected 1", SettingError)
    stream = lake.stream("country STRING, cents INT")
    refused(lambda: write_stream(stream, topology, data_dir=tmp_path / "q"), "'cents' is int, expected bigint")
