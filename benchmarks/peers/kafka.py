"""Counts per key of a Kafka topic in a Delta table: txstorm, a hand-written loop, and Structured Streaming with MERGE.

All read committed records of eight partitions in batches of about the same size and count them by key. Each writes its
counts for the check, and the offsets up to which it has read.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve


def _topology(job: Job) -> Any:
    from txstorm import TransactionalTopologyBuilder
    from txstorm.bolts import CountBy, SumByKey
    from txstorm.spouts import TransactionalKafkaSpout

    topic, bootstrap = job.source["topic"], job.source["bootstrap"]
    spout = TransactionalKafkaSpout(topic, bootstrap, fields=["key"], max_batch_rows=job.tuples)
    builder = TransactionalTopologyBuilder("kafka-counts", "records", spout, 2)
    builder.set_bolt("partial", CountBy("key"), 2).local_or_shuffle_grouping("records")
    builder.set_bolt("counts", SumByKey("key", "n", "counts"), 2).fields_grouping("partial", ["key"])
    return builder.build_topology()


def txstorm(engine: str, session: Any) -> Work:
    """Return a function that runs the topology on Spark: exactly once, in txid order."""
    from benchmarks.peers.ours import Watch, measured
    from txstorm.results.views import StateView, read_directory_history

    def work(job: Job) -> Outcome:
        meter = Meter(job)
        watch = Watch(meter)
        directory = measured(job, _topology(job), engine, session, watch)
        counts = StateView(directory, "counts").to_arrow()
        leave(job, counts.select(["key", "n"]).rename_columns(["word", "n"]))
        history = read_directory_history(directory)
        read = json.loads(history["extents"][history.num_rows - 1].as_py())["meta"]
        return meter.outcome(**watch.about(), ends=read["topics"][job.source["topic"]]["next"])

    return work


def loop(job: Job) -> Outcome:
    """Run a hand-written loop: one consumer, a Counter, and one append of changed counts and positions per commit."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.source["bootstrap"],
            "group.id": "by-hand",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 65536,
        }
    )
    consumer.assign([TopicPartition(job.source["topic"], number, 0) for number in range(job.source["partitions"])])
    meter, counts, ends = Meter(job), Counter[bytes](), dict[int, int]()
    for number in range(1, job.last + 1):
        begun = time.perf_counter()
        batch = _consumed(consumer, job.tuples, ends)
        counts.update(batch)
        counted = time.perf_counter()
        _append(job, number, batch, counts, ends)
        ended = time.perf_counter()
        meter.committed(number, (ended - counted) * 1e3, [(ended - begun) * 1e3])
    consumer.close()
    leave(job, _rows({key.decode(): n for key, n in counts.items()}))
    return meter.outcome(ends=ends)


def _consumed(consumer: Any, left: int, ends: dict[int, int]) -> Counter[bytes]:
    """Consume the next messages; return their keys, and update `ends`."""
    from confluent_kafka import Message

    batch: Counter[bytes] = Counter()
    while left:
        messages = consumer.consume(min(left, 10_000), 1.0)
        if any(message.error() for message in messages):
            raise RuntimeError(str(next(m.error() for m in messages if m.error())))
        batch.update(map(Message.key, messages))
        for message in messages:
            ends[message.partition()] = message.offset() + 1
        left -= len(messages)
    return batch


def _append(job: Job, number: int, batch: Counter[bytes], counts: Counter[bytes], ends: Mapping[int, int]) -> None:
    from deltalake import CommitProperties, Transaction, write_deltalake

    rows = _rows({key.decode(): counts[key] for key in batch})
    properties = CommitProperties(
        custom_metadata={"offsets": json.dumps(ends)}, app_transactions=[Transaction("by-hand", number)]
    )
    rows = rows.append_column("batch", pa.array([number] * len(batch)))
    write_deltalake(str(Path(job.directory) / "loop"), rows, mode="append", commit_properties=properties)


def merge(session: Any) -> Work:
    """Return a function for Structured Streaming: the Kafka connector, and a MERGE into a Delta table per batch."""

    def work(job: Job) -> Outcome:
        path, meter = str(Path(job.directory) / "merge"), Meter(job)
        session.createDataFrame([], "key string, n bigint").write.format("delta").save(path)
        _stream(job, session, path, meter)
        offsets = (Path(f"{path}-checkpoint") / "offsets" / str(job.last - 1)).read_text().splitlines()[-1]
        counts = session.read.format("delta").load(path).toArrow()
        leave(job, counts.select(["key", "n"]).rename_columns(["word", "n"]))
        return meter.outcome(ends=json.loads(offsets)[job.source["topic"]])

    return work


def _stream(job: Job, session: Any, path: str, meter: Meter) -> None:
    from delta.tables import DeltaTable
    from pyspark.sql import functions

    over = threading.Event()
    begun = time.perf_counter()

    def upsert(frame: Any, number: int) -> None:
        # Spark counts from 0: when batch `number` begins, `number` batches are complete.
        nonlocal begun
        now = time.perf_counter()
        if number:
            meter.committed(number, 0.0, [(now - begun) * 1e3])
        begun = now
        if number >= job.last:
            over.set()
            raise _EnoughError
        counted = frame.groupBy("key").agg(functions.count("*").alias("n"))
        merging = DeltaTable.forPath(session, path).alias("t").merge(counted.alias("s"), "t.key = s.key")
        merging.whenMatchedUpdate(set={"n": "t.n + s.n"}).whenNotMatchedInsertAll().execute()

    query = (
        _records(job, session)
        .writeStream.foreachBatch(upsert)
        .option("checkpointLocation", f"{path}-checkpoint")
        .start()
    )
    while not over.wait(0.5) and query.isActive:
        pass
    with contextlib.suppress(Exception):  # the one that ended it
        query.awaitTermination(60)
    if not over.is_set():
        raise RuntimeError(str(query.exception()))


def _records(job: Job, session: Any) -> Any:
    from pyspark.sql import functions

    options = {
        "kafka.bootstrap.servers": job.source["bootstrap"],
        "kafka.isolation.level": "read_committed",
        "subscribe": job.source["topic"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(job.tuples),
    }
    return session.readStream.format("kafka").options(**options).load().select(functions.col("key").cast("string"))


class _EnoughError(Exception):
    """Raised to end the query of `merge`."""


def _rows(counts: Mapping[str, int]) -> pa.Table:
    return pa.table({"word": pa.array(counts, pa.string()), "n": pa.array(counts.values(), pa.int64())})


def planning(options: Mapping[str, Any]) -> dict[str, list[float]]:
    """Measure the milliseconds per txid of planning and of a ledger in ZooKeeper.

    The time of a group is divided among its txids; with ``alone`` each group has one txid.
    """
    from txstorm.ledger.zookeeper.ledger import ZooKeeperLedger
    from txstorm.runtime.run import run
    from txstorm.spouts.kafka.coordinator import KafkaCoordinator

    job = Job.of(options["job"])
    found: dict[str, list[float]] = {"plan": [], "ledger": [], "writes": []}
    with timed(KafkaCoordinator, "initialize_transaction") as plans, timed(ZooKeeperLedger, "commit") as commits:
        size = 0

        def watch(progress: Any) -> None:
            nonlocal size
            size += 1
            if size == progress.group:
                for name, value in (("plan", sum(plans)), ("ledger", sum(commits)), ("writes", len(commits) / 1000)):
                    found[name] += [1000 * value / size] * size
                size = 0
                plans.clear()
                commits.clear()

        handle = run(
            _topology(job),
            engine="local",
            data_dir=Path(options["directory"]) / "planning",
            until_txid=job.last,
            ledger=options["ledger"],
            settings={"compact_on_stop": False, **({"max_spout_pending": 1} if options["alone"] else {})},
            listeners=[watch],
        )
        handle.awaitTermination()
    settled = {name: values[job.last // 10 :] for name, values in found.items()}
    return {**settled, "both": [sum(pair) for pair in zip(settled["plan"], settled["ledger"], strict=True)]}


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Yield a list to which the seconds of every call of a method are appended."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def timing(*args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*args, **named)
        finally:
            seconds.append(time.perf_counter() - started)

    setattr(owner, name, timing)
    try:
        yield seconds
    finally:
        setattr(owner, name, method)


def main(side: str, *more: str) -> None:
    """Serve one of the sides: ``txstorm ENGINE``, ``loop``, or ``merge JARS…``."""
    if side == "txstorm":
        from benchmarks.peers.ours import serve_on

        serve_on(more[0], txstorm)
    elif side == "loop":
        serve(loop)
    else:
        from benchmarks.peers.structured import make_session

        session = make_session(*more)
        try:
            serve(merge(session))
        finally:
            session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
