"""Real streaming queries that feed topologies: failures at each point, batches that come again, stops, refusals."""

import json
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from lakes import COLUMNS, Lake, Table, Topic, rows
from recovery_cases import ends, eventually, killed, long_if

from txstorm import (
    BasicBolt,
    BatchBolt,
    Committer,
    TransactionalTopologyBuilder,
    faults,
    foreach_batch,
    rewind,
    run,
    write_stream,
)
from txstorm.bolts import SumByKey
from txstorm.errors import HeldError, InputError, SettingError, SpoutError
from txstorm.operations.lifecycle import kill
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout, StreamSpout

pytestmark = [pytest.mark.spark, pytest.mark.integration]
FILES = 5
POINTS = tuple("p1.before p1.after p2.after p4.after p5.before p6.before p6.after p7.1.written p8.before".split())
"""Fault points, in the driver, of a transaction."""
SHORT = ("p1.after", "p6.before", "p7.1.written")


@pytest.fixture
def lake(spark, tmp_path):
    made = Lake(spark, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("point", long_if(lambda point: point not in SHORT, POINTS))
def test_a_batch_that_failed_at_any_point_counts_once(lake, point):
    lake.add(*range(1, 4))
    faults.arm(f"{point}:raise:2")
    assert "injected" in lake.query(tables=3)[0]
    faults.arm("")
    lake.add(4, FILES)
    assert lake.query(tables=3)[0] == ""
    lake.check(FILES, tables=3)


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


@pytest.mark.parametrize("opaque", [True, False])
def test_an_undecided_batch_that_comes_again_with_other_rows(lake, opaque):
    lake.add(1, 2)
    faults.arm("p6.before:raise:2")
    assert "injected" in lake.query(opaque=opaque)[0]
    more = {"country": "a", "cents": 100}
    for now in ([*rows(2), more], rows(2)[1:], [row for row in rows(2) if row["country"] != "b"]):
        faults.arm("p6.before:raise:1" if opaque else "")
        (lake.place / "2.json").write_text("".join(json.dumps(row) + "\n" for row in now))
        error, _ = lake.query(opaque=opaque)
        assert ("injected" if opaque else "txid 2: the spout emitted another batch") in error
    faults.arm("")
    if opaque:
        assert lake.query(opaque=opaque)[0] == ""
        kept = [(row["country"], row["cents"]) for row in read_sink(lake.data_dir, "rows").to_pylist()]
        assert Counter(kept) == Counter((row["country"], row["cents"]) for row in [*rows(1), *now])
    else:
        lake.check(1)


def test_a_stateful_stream_keeps_its_state_when_a_batch_comes_again(lake):
    def grouped():
        return lake.stream().groupBy("country").agg({"cents": "sum"}).toDF("country", "cents")

    def go():
        function = foreach_batch(lake.topology(), data_dir=lake.data_dir)
        write_stream(grouped(), function).outputMode("update").trigger(availableNow=True).start().awaitTermination()
        return function

    lake.add(1, 2)
    go()
    for gone in (lake.checkpoint / "commits" / "1", lake.checkpoint / "commits" / ".1.crc"):
        gone.unlink(missing_ok=True)
    for gone in lake.checkpoint.glob("state/0/*/2.*"):
        gone.unlink()  # as if Spark had lost what it kept of that batch
    lake.add(3)
    assert go().skipped == 1
    sums = Counter()
    for number in (1, 2, 3):
        for row in rows(number):
            sums[row["country"]] += row["cents"]
    assert dict(sums) == lake.newest()


def test_another_query_is_refused_until_it_is_adopted(lake):
    lake.add(1, 2)
    assert lake.query()[0] == ""
    lake.begin_anew(after=2)
    lake.add(3)
    error, _ = lake.query()
    assert "is refused: the last committed one is batch 1 of query" in error
    lake.check(2)
    shutil.rmtree(lake.checkpoint)
    assert lake.query(adopt=True)[0] == ""
    lake.check(3)


@pytest.mark.parametrize("source", ["kafka", "delta"])
def test_batches_of_topics_and_tables(spark, tmp_path, source, request):
    """A failure, a batch that comes again, and a new query that begins where the refusal of its first batch says."""
    broker = request.getfixturevalue("kafka_broker") if source == "kafka" else None
    lake = Table(spark, tmp_path) if broker is None else Topic(spark, tmp_path, broker)
    lake.add(1)
    assert lake.query()[0] == ""
    lake.add(2)
    faults.arm("p6.before:raise:1")
    assert "injected" in lake.query()[0]
    faults.arm("")
    assert lake.query()[0] == ""
    for gone in (lake.checkpoint / "commits" / "1", lake.checkpoint / "commits" / ".1.crc"):
        gone.unlink(missing_ok=True)
    lake.add(3)
    error, function = lake.query()
    assert (error, function.skipped) == ("", 1)
    lake.check(3)
    shutil.rmtree(lake.checkpoint)
    lake.add(4)
    name, value = re.search(r"\((starting\w+)=(.+?)\)", lake.query()[0]).groups()
    lake.options[name] = value
    assert "planned before it could be adopted" in lake.query(adopt=True)[0]  # it begins where the first one did
    shutil.rmtree(lake.checkpoint)
    assert lake.query(adopt=True)[0] == ""
    lake.check(4)


class Slow(BasicBolt):
    """Passes tuples on; with 5 cents it takes a minute, and leaves a file that says so."""

    fields = ("country", "cents")

    def __init__(self, note: str) -> None:
        self.note = note

    def execute(self, tup, collector):
        if tup["cents"] == 5:
            Path(self.note).touch()
            time.sleep(60)
        collector.emit(*tup.values)


def test_a_query_that_is_stopped_within_a_batch_leaves_nothing_half_done(lake, tmp_path):
    lake.add(1, 2)
    builder = TransactionalTopologyBuilder("orders", "orders", StreamSpout(COLUMNS), 2)
    builder.set_bolt("slow", Slow(str(tmp_path / "at-work")), 2).shuffle_grouping("orders")
    builder.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("slow", ["country"])
    function = foreach_batch(builder.build_topology(), data_dir=lake.data_dir)
    query = write_stream(lake.stream(), function).start()
    eventually((tmp_path / "at-work").exists)
    before = time.monotonic()
    query.stop()
    assert time.monotonic() - before < 30
    eventually(lambda: not function.handle.isActive)
    assert function.handle.committed == 1
    assert not (lake.checkpoint / "commits" / "1").exists()


def test_one_function_for_one_query_after_the_other(lake):
    function = foreach_batch(lake.topology(), data_dir=lake.data_dir)
    for number in (1, 2, 3):
        lake.add(number)
        write_stream(lake.stream(), function).trigger(availableNow=True).start().awaitTermination()
    lake.check(3)


def test_queries_that_cannot_be_continued_are_refused(lake, tmp_path):
    lake.add(1)
    function = foreach_batch(lake.topology(), data_dir=lake.data_dir)
    cases = {
        "no checkpoint that stays": (lake.stream(), {}),
        "directory of another topology": (lake.stream(), {"checkpointLocation": tmp_path / "other" / "cp"}),
    }
    (tmp_path / "other").mkdir()
    other = TransactionalTopologyBuilder("other", "rows", MemoryTransactionalSpout([["a"]], "word", take=1))
    other.set_bolt("keep", DeltaSink("words", {"word": str})).shuffle_grouping("rows")
    run(other.build_topology(), engine="local", data_dir=tmp_path / "other", until_txid=1).awaitTermination()
    for match, (stream, options) in cases.items():
        writer = stream.writeStream.foreachBatch(function).options(**{name: str(one) for name, one in options.items()})
        with pytest.raises(Exception, match=match):  # Spark's, with the text of ours
            writer.start().awaitTermination()
    assert function.handle.committed == 0


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


class Outside(BatchBolt, Committer):
    """A committer whose effects are not those of a transaction."""

    external = True

    def execute(self, tup):
        pass


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
    for columns, match in {
        "country STRING, cents INT": "'cents' is int, expected bigint",
        "country STRING": "'cents' is missing",
        "country STRING, cents BIGINT, land STRING": "'land' is not declared",
    }.items():
        stream = lake.stream(columns)
        refused(lambda stream=stream: write_stream(stream, topology, data_dir=tmp_path / "q"), match, SpoutError)
    twice = lake.stream().selectExpr("country", "cents", "cents + 1 AS cents")
    refused(lambda: write_stream(twice, topology, data_dir=tmp_path / "q"), "'cents' is there twice", SpoutError)
    refused(lambda: StreamSpout("a INT, `a` STRING"), "'a' is declared twice", SettingError)
    refused(lambda: StreamSpout("_txstorm_a INT"), "txstorm's own", SettingError)
    outside = TransactionalTopologyBuilder("outside", "orders", StreamSpout(COLUMNS))
    outside.set_bolt("mail", Outside()).shuffle_grouping("orders")
    refused(lambda: foreach_batch(outside.build_topology(), data_dir=tmp_path / "r"), "effects outside its tables")


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "point", "tables"),
    [
        ("files", "p1.before", 1),
        *(("files", point, 3) for point in (*POINTS, "p5.staged.after", "p8.after")),
        *(("delta", point, 3) for point in ("p1.after", "p6.before", "p7.1.written", "p8.after")),
        *(("kafka", point, 3) for point in ("p6.before", "p8.after")),
    ],
)
def test_killed_at_any_point_and_started_twice(request, tmp_path, source, point, tables):
    """After ``p8.after`` the transaction is complete, and Spark has not written its commit log."""
    jars = "" if source == "files" else request.getfixturevalue("spark").conf.get("spark.jars")
    if source == "kafka":
        lake = Topic(None, tmp_path, request.getfixturevalue("kafka_broker"))
        source = f"{lake.kafka.bootstrap}/{lake.name}"
    else:
        lake = (Table if source == "delta" else Lake)(None, tmp_path)
    lake.add(*range(1, FILES + 1))
    arguments = (tmp_path, tables, source, jars)
    killed(f"{point}:kill:3", *arguments, scenario="streamed")
    killed("p7.1.written:kill:1", *arguments, scenario="streamed")
    ends(*arguments, scenario="streamed")
    lake.check(FILES, tables)


def test_one_query_feeds_two_topologies_and_write_stream_replaces_its_query(lake, tmp_path):
    lake.add(1, 2)
    topology = lake.topology()
    both = [foreach_batch(topology, data_dir=place) for place in (lake.data_dir, tmp_path / "other")]
    writer = lake.stream().writeStream.option("checkpointLocation", str(tmp_path / "cp"))
    writer.foreachBatch(lambda frame, batch: [one(frame, batch) for one in both] and None).trigger(
        availableNow=True
    ).start().awaitTermination()
    lake.check(2)
    assert both[1].handle.committed == 2
    first = write_stream(lake.stream(), topology, data_dir=tmp_path / "third").start()
    first.processAllAvailable()
    second = write_stream(lake.stream(), topology, data_dir=tmp_path / "cp/../third").start()
    lake.add(3)
    second.processAllAvailable()
    assert (first.isActive, second.isActive, first.exception()) == (False, True, None)
