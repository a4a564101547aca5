"""Storm's forms of windows, in Storm's spelling, on both engines: the same windows, each exactly once."""

from pathlib import Path
from typing import Any

import pytest

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowedBolt, run
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
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
