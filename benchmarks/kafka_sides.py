"""Counts per key of a Kafka topic in a Delta table: txstorm, a loop by hand, and Structured Streaming with MERGE.

All read committed records of eight partitions in batches of about the same size, and count them by their key. Each
returns where the counts stand and up to which offsets they go.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sides import ROOT, Mark

Options = Mapping[str, Any]
CACHE = ROOT / ".cache"


def _topology(options: Options) -> Any:
    from txstorm import TransactionalTopologyBuilder
    from txstorm.bolts import CountBy, SumByKey
    from txstorm.spouts import TransactionalKafkaSpout

    spout = TransactionalKafkaSpout(
        options["topic"], options["bootstrap"], fields=["key"], max_batch_rows=options["batch"]
    )
    builder = TransactionalTopologyBuilder("kafka-counts", "records", spout, 2)
    builder.set_bolt("partial", CountBy("key"), 2).local_or_shuffle_grouping("records")
    builder.set_bolt("counts", SumByKey("key", "n", "counts"), 2).fields_grouping("partial", ["key"])
    return builder.build_topology()


def txstorm(options: Options, mark: Mark) -> Any:
    """The topology on Spark: exactly once, in txid order."""
    from txstorm.runtime.reading import StateView, read_directory_history
    from txstorm.runtime.run import run

    warm, last = options["warm"], options["batches"]

    def watch(progress: Any) -> None:
        if progress.txid in (warm, last):
            mark("begin" if progress.txid == warm else "end", batches=progress.txid)

    directory = Path(options["directory"]) / "txstorm"
    handle = run(
        _topology(options),
        engine=options.get("engine", "spark"),
        data_dir=directory,
        until_txid=last,
        ledger=options.get("ledger"),
        settings={"compact_on_stop": False, **options.get("settings", {})},
        listeners=[watch],
    )
    handle.awaitTermination()
    counts = StateView(directory, "counts").to_arrow()
    history = read_directory_history(directory)
    read = json.loads(history["extents"][history.num_rows - 1].as_py())["meta"]
    ends = read["topics"][options["topic"]]["next"]
    return {"counts": dict(zip(counts["key"].to_pylist(), counts["n"].to_pylist(), strict=True)), "ends": ends}


def loop(options: Options, mark: Mark) -> Any:
    """By hand: one consumer, a Counter, and an append of the changed counts with the positions in the same commit."""
    import pyarrow as pa
    from confluent_kafka import Consumer, Message, TopicPartition
    from deltalake import CommitProperties, Transaction, write_deltalake

    consumer = Consumer(
        {
            "bootstrap.servers": options["bootstrap"],
            "group.id": "by-hand",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 65536,
        }
    )
    consumer.assign([TopicPartition(options["topic"], number, 0) for number in range(options["partitions"])])
    table, counts, ends = str(Path(options["directory"]) / "loop"), Counter[bytes](), dict[int, int]()
    for number in range(1, options["batches"] + 1):
        batch: Counter[bytes] = Counter()
        left = options["batch"]
        while left:
            messages = consumer.consume(min(left, 10_000), 1.0)
            if any(message.error() for message in messages):
                raise RuntimeError(str(next(m.error() for m in messages if m.error())))
            batch.update(map(Message.key, messages))
            for message in messages:
                ends[message.partition()] = message.offset() + 1
            left -= len(messages)
        counts.update(batch)
        rows = {"key": [key.decode() for key in batch], "n": [counts[key] for key in batch], "batch": number}
        write_deltalake(
            table,
            pa.table({**rows, "batch": pa.array([number] * len(batch))}),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"offsets": json.dumps(ends)},
                app_transactions=[Transaction("by-hand", number)],
            ),
        )
        if number in (options["warm"], options["batches"]):
            mark("begin" if number == options["warm"] else "end", batches=number)
    consumer.close()
    return {"counts": {key.decode(): n for key, n in counts.items()}, "ends": ends}


def merge(options: Options, mark: Mark) -> Any:
    """Structured Streaming: the Spark Kafka connector, and a MERGE into a Delta table for every batch."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions

    from benchmarks.peers.structured import make_session

    session = make_session(*(CACHE / name for name in ("jars", "connector-jars")))
    path = str(Path(options["directory"]) / "merge")
    session.createDataFrame([], "key string, n bigint").write.format("delta").save(path)
    over, last = threading.Event(), options["batches"]

    def upsert(frame: Any, number: int) -> None:
        # Spark counts from 0: when batch `number` begins, so many are done with all that belongs to them.
        if number in (options["warm"], last):
            mark("begin" if number == options["warm"] else "end", batches=number)
        if number >= last:
            over.set()
            raise _EnoughError
        counted = frame.groupBy("key").agg(functions.count("*").alias("n"))
        merging = DeltaTable.forPath(session, path).alias("t").merge(counted.alias("s"), "t.key = s.key")
        merging.whenMatchedUpdate(set={"n": "t.n + s.n"}).whenNotMatchedInsertAll().execute()

    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options["bootstrap"])
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", options["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options["batch"])
        .load()
        .select(functions.col("key").cast("string"))
    )
    query = records.writeStream.foreachBatch(upsert).option("checkpointLocation", f"{path}-checkpoint").start()
    while not over.wait(0.5) and query.isActive:
        pass
    with contextlib.suppress(Exception):  # the one that ended it
        query.awaitTermination(60)
    if not over.is_set():
        raise RuntimeError(str(query.exception()))
    offsets = json.loads((Path(f"{path}-checkpoint") / "offsets" / str(last - 1)).read_text().splitlines()[-1])
    ends = {int(number): end for number, end in offsets[options["topic"]].items()}
    counts = {row["key"]: row["n"] for row in session.read.format("delta").load(path).collect()}
    session.stop()
    return {"counts": counts, "ends": ends}


class _EnoughError(Exception):
    """Ends the query of `merge`."""


def planning(options: Options, mark: Mark) -> Any:
    """Milliseconds per txid that planning and the ledger take, with ZooKeeper.

    Those of a group of txids are shared by them; with ``pending`` 1 each is a group of its own.
    """
    from txstorm.ledger.zookeeper import ZooKeeperLedger
    from txstorm.runtime.run import run
    from txstorm.spouts.kafka_plan import KafkaCoordinator

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

        mark("begin")
        handle = run(
            _topology(options),
            engine="local",
            data_dir=Path(options["directory"]) / "planning",
            until_txid=options["batches"],
            ledger=options["ledger"],
            settings={"compact_on_stop": False, **({"max_spout_pending": 1} if options["alone"] else {})},
            listeners=[watch],
        )
        handle.awaitTermination()
        mark("end")
    settled = {name: values[options["batches"] // 10 :] for name, values in found.items()}
    return {**settled, "both": [sum(pair) for pair in zip(settled["plan"], settled["ledger"], strict=True)]}


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """The seconds of every call of a method, appended as they end."""
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
