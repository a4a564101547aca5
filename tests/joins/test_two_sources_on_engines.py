"""Two sources on both engines: caps, one that lags or pauses, facts fixed at planning, and joins of them."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.store_runs import compare, topology_of, write_lines
from runs import ended

from txstorm import BatchBolt, Committer, CompositeSpout, Duration, SinkTable, Topology, TransactionalTopologyBuilder
from txstorm.bolts import Map
from txstorm.errors import FailedException
from txstorm.joins import IntervalJoin, MemoryStore, Side
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout


class Noted(BatchBolt, Committer):
    """Stores the rows of each source, and the facts of both; fails the first attempt at a txid after adding lines."""

    state = SinkTable("rows", {"source": str, "line": str, "facts": str})

    def __init__(self, directory: Path, fails: int = 0) -> None:
        self.directory, self.fails = str(directory), fails

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.context, self.attempt, self.rows = context, attempt, []

    def execute(self, tuple: Any) -> None:
        self.rows.append((tuple.source_stream, str(tuple[0])))

    def finish_batch(self) -> None:
        facts = {name: [list(one.partitions), one.caught_up, one.ended] for name, one in self.context.sources.items()}
        directory = Path(self.directory)
        with open(directory / "seen", "a", encoding="utf-8") as seen:
            seen.write(json.dumps([self.attempt.txid, facts]) + "\n")
        if self.attempt.txid == self.fails and not (directory / "failed").exists():
            (directory / "failed").touch()
            with open(directory / "left.txt", "a", encoding="utf-8") as file:
                file.write("later\n" * 3)
            raise FailedException("once")
        sink = self.context.sink("rows")
        for source, line in self.rows:
            sink.append(source, line, json.dumps(facts))


def built(spout: CompositeSpout, directory: Path, fails: int = 0) -> Any:
    builder = TransactionalTopologyBuilder("two", "sources", spout, 2)
    noted = builder.set_bolt("noted", Noted(directory, fails))
    for name in spout.sources:
        noted.global_grouping("sources", name)
    builder.set_settings({"retry_backoff": 0.01, "max_spout_pending": 1})
    return builder.build_topology()


def by_txid(handle: Any) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in handle.sink("rows").to_pylist():
        found[row["source"]][row["_txid"]] += 1
    return found


def write(path: Path, lines: int, text: str = "line") -> None:
    path.write_text("".join(f"{text}-{number:04}\n" for number in range(lines)), encoding="utf-8")


def test_each_source_has_its_own_cap_of_rows_and_bytes(make_engine, tmp_path):
    """A1, A3: a source that is far behind reads at its own pace, and takes no room from the other."""
    write(tmp_path / "left.txt", 60)
    write(tmp_path / "right.txt", 300)
    spout = CompositeSpout(
        {
            "left": FileSpout(tmp_path / "left.txt", max_batch_rows=10),
            "right": FileSpout(tmp_path / "right.txt", max_batch_rows=1000, max_batch_bytes=250),
        }
    )
    found = by_txid(ended(built(spout, tmp_path), tmp_path / "data", make_engine()))
    assert found["left"] == dict.fromkeys(range(1, 7), 10)
    assert found["right"] == dict.fromkeys(range(1, 13), 25)  # of 10 bytes each


def test_facts_are_those_of_planning_also_in_a_replay(make_engine, tmp_path):
    """A3: partitions, caught_up and ended of each source do not change between attempts, though the source does."""
    write(tmp_path / "left.txt", 4)
    write(tmp_path / "right.txt", 2)
    spout = CompositeSpout(
        {
            "left": FileSpout(tmp_path / "left.txt", max_batch_rows=2),
            "right": FileSpout(tmp_path / "right.txt", max_batch_rows=2, bounded=True),
            "memory": MemoryTransactionalSpout([[1], [2]], "n"),
        }
    )
    topology = built(spout, tmp_path, fails=2)
    for _ in range(2):
        handle = ended(topology, tmp_path / "data", make_engine())
    attempts = defaultdict(list)
    for line in (tmp_path / "seen").read_text(encoding="utf-8").splitlines():
        txid, facts = json.loads(line)
        attempts[txid].append(facts)
    unknown = [[], False, False]
    assert attempts[1] == [{"left": unknown, "right": [[], True, True], "memory": unknown}]
    assert attempts[2] == [{"left": [[], True, False], "right": [[], True, True], "memory": unknown}] * 2
    assert attempts[3][0]["left"] == unknown
    assert attempts[4][0]["left"] == [[], True, False]
    assert sum(by_txid(handle)["left"].values()) == 7


@pytest.mark.integration
def test_two_topics_and_a_file(make_engine, kafka_broker, tmp_path):
    """A1, A3, A23: topics and files in one spout, each with its cap; a topic's facts have its partitions."""
    from confluent_kafka import Producer

    from txstorm.spouts import TransactionalKafkaSpout

    left, right = kafka_broker.make_topic(partitions=1), kafka_broker.make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 0})
    for number in range(30):
        producer.produce(left, f"l{number}", partition=0)
    for number in range(400):
        producer.produce(right, f"r{number}", partition=number % 2)
    assert producer.flush(30) == 0
    write(tmp_path / "file.txt", 10)

    def topic(name: str, rows: int) -> TransactionalKafkaSpout:
        return TransactionalKafkaSpout(name, kafka_broker.bootstrap, fields=["value"], max_batch_rows=rows)

    sources = {
        "left": topic(left, 10),
        "right": topic(right, 50),
        "file": FileSpout(tmp_path / "file.txt", max_batch_rows=3),
    }
    handle = ended(built(CompositeSpout(sources), tmp_path), tmp_path / "data", make_engine())
    found = by_txid(handle)
    assert {name: sum(counts.values()) for name, counts in found.items()} == {"left": 30, "right": 400, "file": 10}
    assert max(found["left"].values()) == 10
    assert max(found["right"].values()) == 50
    assert max(found["file"].values()) == 3
    facts = {row["_txid"]: json.loads(row["facts"]) for row in handle.sink("rows").to_pylist()}
    last_left, last_right = max(found["left"]), max(found["right"])
    assert facts[last_left]["left"] == [["0"], True, False]
    assert facts[min(found["left"])]["left"] == [["0"], False, False]
    assert facts[last_left]["right"] == [["0", "1"], False, False]
    assert facts[last_right]["right"] == [["0", "1"], True, False]
    assert last_left < last_right


BEFORE, AFTER = 10, 2
Row = tuple[str, int, str]
"""Key, time in seconds, id."""


def parsed(row: Any) -> Row:
    key, at, name = json.loads(row["line"])
    return key, at, name


def topology(tmp_path: Path, sides: dict[str, Sequence[Row]], caps: tuple[int, int], **right: Any) -> Topology:
    """Build a full join of two files, of which a transaction reads `caps` rows each, with all its streams in sinks."""
    for name, rows in sides.items():
        (tmp_path / f"{name}.txt").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {
        name: FileSpout(tmp_path / f"{name}.txt", max_batch_rows=cap) for name, cap in zip(sides, caps, strict=True)
    }
    builder = TransactionalTopologyBuilder("sides", "files", CompositeSpout(files), 2)
    for name in sides:
        builder.set_bolt(name, Map(parsed, "key", "at", "id"), 2).shuffle_grouping("files", name)
    options = {"key": "key", "time": "at", "unit": "s", "id": "id"}
    join = IntervalJoin(
        Side("left", **options),
        Side("right", **options, **right),
        before=Duration.seconds(BEFORE),
        after=Duration.seconds(AFTER),
        how="full",
        select=["left:id", "right:id"],
    )
    builder.set_bolt("join", join, 2).fields_grouping("left", ["key"]).fields_grouping("right", ["key"])
    pair = {"left_id": str, "right_id": str}
    for stream, columns in {
        "default": pair,
        "unmatched_left": {"key": str, "at": int, "id": str},
        "unmatched_right": {"key": str, "at": int, "id": str},
    }.items():
        builder.set_bolt(f"keep-{stream}", DeltaSink(stream, columns)).global_grouping("join", stream)
    return builder.build_topology()


def joined(left: Sequence[Row], right: Sequence[Row]) -> set[tuple[str | None, str | None]]:
    """Return the rows of a full join, as a loop over all rows finds them."""
    pairs = {(a[2], b[2]) for a in left for b in right if a[0] == b[0] and a[1] - BEFORE <= b[1] <= a[1] + AFTER}
    alone = {(a[2], None) for a in left} | {(None, b[2]) for b in right}
    matched = {one for pair in pairs for one in pair}
    return pairs | {(a, b) for a, b in alone if (a or b) not in matched}


def test_a_right_side_far_behind_catches_up_and_every_row_comes_out_once(make_engine: Any, tmp_path: Path):
    """A2, A5, A6, A18, A20, A22, U6, U9: the article's deadlock, with room for five right rows in a transaction."""
    left = [(f"k{n % 3}", 1000 + n, f"l{n}") for n in range(12)]
    old = [(f"k{n % 3}", 23 * n, f"old{n}") for n in range(40)]
    new = [(f"k{n % 4}", 988 + 3 * n, f"r{n}") for n in range(8)]
    sides = {"left": left, "right": [*old, *new]}
    handle = ended(topology(tmp_path, sides, (4, 5)), tmp_path / "data", make_engine(), end_of_input=True)
    found = [(row["left_id"], row["right_id"]) for row in handle.sink("default").to_pylist()]
    wanted = joined(left, sides["right"])
    assert len(found) == len(wanted)
    assert set(found) == wanted
    alone = {
        name: [row["id"] for row in handle.sink(name).to_pylist()] for name in ("unmatched_left", "unmatched_right")
    }
    assert sorted(alone["unmatched_left"]) == sorted(a for a, b in wanted if b is None)
    assert sorted(alone["unmatched_right"]) == sorted(b for a, b in wanted if a is None)
    kept = [len(handle.state("join-right").as_of(txid).to_pylist()) for txid in range(3, 9)]
    assert kept == [0] * len(kept)  # what is too old expires in the transaction that reads it


@pytest.mark.parametrize("grace", [None, Duration(0)])
def test_a_paused_right_side_holds_back_for_its_grace_and_no_longer(make_engine: Any, grace: Any, tmp_path: Path):
    """A17, U7: left rows wait in a table, or are released as soon as the right side has been read to its end."""
    hour = int(time.time()) - 3600
    sides = {"left": [("k", hour, "l0"), ("k", hour + 60, "l1")], "right": [("k", hour - 1, "r0")]}
    handle = ended(topology(tmp_path, sides, (10, 10), grace=grace), tmp_path / "data", make_engine())
    found = [(row["left_id"], row["right_id"]) for row in handle.sink("default").to_pylist()]
    pending = [row["id"] for row in handle.state("join-left").to_pylist()]
    assert (found, pending) == (([], ["l0", "l1"]) if grace is None else ([("l0", "r0"), ("l1", None)], []))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("lines"))


def check(engine, lines, data_dir):
    compare(ended(topology_of(lines[0], MemoryStore()), data_dir, engine, end_of_input=True), lines)


def test_in_process(make_engine, lines, tmp_path):
    """A9, A12, A13, A16, A20: every pair within bounds, every other left row once."""
    check(make_engine(), lines, tmp_path)


@pytest.mark.spark
def test_on_spark(spark, lines, tmp_path):
    """A13: the same in a run that finds its Spark session itself."""
    check("spark", lines, tmp_path)
