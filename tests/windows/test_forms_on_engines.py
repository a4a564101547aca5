"""Storm's forms of windows, in Storm's spelling, and window aggregates (U3, U5), the same on both engines."""

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from runs import ended

from txstorm import Count, Duration, TopPerWindow, TransactionalTopologyBuilder, WindowAggregate, WindowedBolt, run
from txstorm.bolts import Map
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.topology.graph import Topology

FORMS = {
    "W2": (Count(3), Count(2)),
    "W3": (Count(2),),
    "W4": (Count(2), Duration.seconds(2)),
    "W5": (Duration.seconds(4), Duration.seconds(2)),
    "W6": (Duration.seconds(3),),
    "W7": (Duration.seconds(3), Count(2)),
}
TUMBLING = {"W8": Count(3), "W9": Duration.seconds(3)}
EXPECTED = {
    "W2": ["12", "234", "456"],
    "W3": ["1", "12", "23", "34", "45", "56"],
    "W4": ["12", "34", "56"],
    "W5": ["12", "1234", "3456", "56"],
    "W6": ["1", "12", "123", "234", "345", "456"],
    "W7": ["12", "234", "456"],
    "W8": ["123", "456"],
    "W9": ["123", "456"],
}


class Content(WindowedBolt):
    """Emits its component and the content of a window, after checking it against what is new and expired."""

    fields = ("form", "content")

    def prepare(self, context: Any, collector: Any) -> None:
        self.form, self.collector = context.component, collector

    def execute(self, inputWindow: Any) -> None:  # noqa: N803 - Storm's name
        content = [one["n"] for one in inputWindow.get()]
        new = [one["n"] for one in inputWindow.getNew()]
        assert content == [one["n"] for one in inputWindow] == inputWindow.table["n"].to_pylist()
        assert content[len(content) - len(new) :] == new == inputWindow.new_table["n"].to_pylist()
        expired = [one["n"] for one in inputWindow.getExpired()]
        assert not set(expired) & set(content)
        assert inputWindow.expired_table.num_rows == len(expired)
        assert inputWindow.getEndTimestamp() == inputWindow.end.timestamp() * 1000
        self.collector.emit(self.form, "".join(map(str, content)))


def keep() -> DeltaSink:
    return DeltaSink("windows", {"form": str, "content": str})


def topology(**settings: Any) -> Topology:
    spout = MemoryTransactionalSpout([[(n, n) for n in range(1, 7)]], ("n", "ts"), take=2)
    builder = TransactionalTopologyBuilder("forms", "numbers", spout)
    kept = builder.set_bolt("keep", keep())
    bolts = {name: Content().withWindow(*form) for name, form in FORMS.items()}
    bolts |= {name: Content().withTumblingWindow(length) for name, length in TUMBLING.items()}
    for name, bolt in bolts.items():
        bolt.withTimestampField("ts", unit="s").withLag(Duration.seconds(1))
        builder.set_bolt(name, bolt).global_grouping("numbers")
        kept.global_grouping(name)
    builder.set_settings(settings)
    return builder.build_topology()


def windows(data_dir: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in read_sink(data_dir, "windows").to_pylist():
        found.setdefault(row["form"], []).append(row["content"])
    return found


def test_every_form_fires_its_windows_on_both_engines(make_engine, tmp_path):
    """W1–W9, W11, W16, W23. What is behind the lag fires at the end of input; the second run has nothing to add."""
    for _ in range(2):
        run(topology(), engine=make_engine(), data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
        assert windows(tmp_path / "data") == EXPECTED


def test_no_timeout_of_messages_applies_to_buffered_tuples(tmp_path):
    """W24: Storm refuses a window of an hour whose tuples time out after a second; here none waits un-acked."""
    made = topology(**{"topology.message.timeout.secs": 1})
    run(made, engine="local", data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
    assert windows(tmp_path / "data") == EXPECTED


@pytest.mark.parametrize(("interval", "fired"), [(None, 3), (3600, 0)])
def test_the_watermark_advances_at_intervals(tmp_path, interval, fired):
    """W19: transactions in between do not advance it; the end of input always does."""
    bolt = Content().withTumblingWindow(Duration.seconds(2)).withTimestampField("ts", unit="s")
    if interval is not None:
        bolt.withWatermarkInterval(Duration.seconds(interval))
    spout = MemoryTransactionalSpout([[(n, n) for n in range(1, 7)]], ("n", "ts"), take=1)
    builder = TransactionalTopologyBuilder("ticks", "numbers", spout)
    builder.set_bolt("w", bolt).global_grouping("numbers")
    builder.set_bolt("keep", keep()).global_grouping("w")
    made = builder.build_topology()
    run(made, engine="local", data_dir=tmp_path / "data", available_now=True).awaitTermination(120)
    assert len(windows(tmp_path / "data").get("w", [])) == fired
    run(made, engine="local", data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
    assert windows(tmp_path / "data") == {"w": ["12", "34", "56"]}


def topology_of(files):
    builder = TransactionalTopologyBuilder("t", "lines", FileSpout(files, max_batch_rows=300), 2)
    builder.set_bolt("bids", Map(lambda row: json.loads(row["line"]), "auction", "price", "ts"), 2).shuffle_grouping(
        "lines"
    )
    hot = WindowAggregate(
        {"auction": int}, table="hot", ttl=timedelta(days=9), n="count", mean=("price", "mean"),
        top=("ts", "argmax", "price"),
    )  # fmt: skip
    hot.with_window(Duration.seconds(10), Duration.seconds(2)).with_timestamp_field("ts").with_lag(Duration.seconds(2))
    builder.set_bolt("hot", hot, 2).fields_grouping("bids", ["auction"])
    sessions = WindowAggregate({"auction": int}, table="sessions", ttl=timedelta(days=9), total=("price", "sum"))
    sessions.with_session_window(Duration.seconds(1)).with_timestamp_field("ts").with_allowed_lateness(
        Duration.seconds(5)
    )
    builder.set_bolt("sessions", sessions, 2).fields_grouping("bids", ["auction"])
    builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("hot")
    return builder.build_topology()


def expected(rows):
    """Return the number of rows, and the sum of prices, per auction and sliding window."""
    found = {}
    for auction, price, ts in rows:
        for end in range(-(-ts // 2000) * 2000, ts + 10_000, 2000):
            n, total = found.get((auction, end), (0, 0))
            found[auction, end] = n + 1, total + price
    return found


@pytest.fixture(scope="module")
def bids(tmp_path_factory):
    rng, folder = random.Random(7), tmp_path_factory.mktemp("bids")
    rows = [(rng.randrange(40), rng.randrange(1, 1000), 20 * i + rng.randrange(1500)) for i in range(2000)]
    (folder / "bids.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "*.txt", rows


def test_sliding_aggregates_are_those_of_a_loop_over_all_tuples(make_engine, bids, tmp_path):
    files, rows = bids
    handle = ended(topology_of(str(files)), tmp_path, make_engine(), end_of_input=True)
    stored = handle.state("hot").to_pylist()
    found = {(row["auction"], round(row["end"].timestamp() * 1000)): (row["n"], row["mean"]) for row in stored}
    assert len(stored) == len(found)
    assert found == {place: (n, total / n) for place, (n, total) in expected(rows).items()}
    assert sum(row["total"] for row in handle.state("sessions").to_pylist()) == sum(price for _, price, _ in rows)


@pytest.mark.spark
def test_both_engines_leave_the_same_states(spark, bids, tmp_path):
    texts = []
    for engine in ("local", "spark"):
        handle = ended(topology_of(str(bids[0])), tmp_path / engine, engine, end_of_input=True)
        texts.append([handle.state(name).to_json() for name in ("hot", "sessions")])
    assert texts[0] == texts[1]
