"""Two sources in one topology: a cap of rows and bytes each, a lagging one, and facts that are fixed at planning."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from runs import ended

from txstorm import BatchBolt, Committer, CompositeSpout, SinkTable, TransactionalTopologyBuilder
from txstorm.errors import FailedException
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
