"""Positions in event time out of the records of windows and joins, of states with such names, and of dropped ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.errors import StateError
from txstorm.operations.rewind_target import InputPosition, input_positions, timed_components
from txstorm.results.joins import store_parts_in
from txstorm.storage.tables.table import DeltaTableState
from txstorm.testing import FeedSpout, TopologyTestDriver
from txstorm.windows.records import ComponentRecord


class Recorded(BatchBolt, Committer):
    """Stores what it is given as the record of a component."""

    def __init__(self, name: str, columns: tuple[str, str] = ("unit", "record")) -> None:
        self.name = name
        self.state = KeyedState(f"{name}-progress", {columns[0]: str}, {columns[1]: str})

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.records = context.state(self.state.name)
        self.rows: list[tuple[str, str]] = []

    def execute(self, tuple: Any) -> None:
        self.rows.append((tuple["unit"], tuple["record"]))

    def finish_batch(self) -> None:
        for unit, record in self.rows:
            self.records.put(unit, record)


def recorded(data_dir: Path, *rows: tuple[str, str], bolts: Sequence[Recorded] = ()) -> Path:
    """Commit `rows` as the records of `bolts`, one component by default, and an empty transaction; return `data_dir`."""
    builder = TransactionalTopologyBuilder("recorded", "feed", FeedSpout({"s": ("unit", "record")}))
    for bolt in bolts or [Recorded("c")]:
        builder.set_bolt(bolt.name, bolt).global_grouping("feed", "s")
    with TopologyTestDriver(builder.build_topology(), data_dir=data_dir) as driver:
        driver.commit(driver.feed({"s": rows}))
        driver.commit(driver.feed({"s": []}))
    return data_dir


WINDOWS = {"newest": [[0, "", 5, 1], [1, "p", 7, 1]], "about": {"inputs": [["a", "default", []], ["b", "s", []]]}}
JOIN = {
    "left": {"position": 3, "partitions": [["l0", 4, 1]]},
    "right": {"position": None, "partitions": [["r0", 1, 1], ["r1", 2, 1]]},
    "about": {"left": {"input": ["feed", "l"]}, "right": {"input": ["feed", "default"]}},
}
LONE = {"newest": [[0, "0", 9, 1]], "about": {"retain": 5}}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (WINDOWS, [("a", "default", "", 5), ("b", "s", "p", 7)]),
        (JOIN, [("feed", "l", "l0", 4), ("feed", "default", "r0", 1), ("feed", "default", "r1", 2)]),
        (LONE, [("", "default", "0", 9)]),
        ({"newest": [], "about": None}, []),
        ({"watermark": 5}, []),
    ],
)
def test_records_of_windows_and_of_joins(tmp_path, record, expected):
    """A4: each partition of each input, of windows by input and of joins by side; nothing of processing time."""
    data = recorded(tmp_path / "data", ("component", json.dumps(record)), ("[0]", "of a task"))
    assert timed_components(data) == ["c"]
    positions = [InputPosition("c", *one) for one in expected]
    assert input_positions(data, "c") == input_positions(data, "c", 1) == positions
    assert input_positions(data, "c", 0) == []
    with pytest.raises(StateError, match="txid 3 is not committed"):
        input_positions(data, "c", 3)


def test_a_state_of_the_user_with_such_a_name_has_no_positions(tmp_path):
    data = recorded(tmp_path / "data", ("component", "{}"), bolts=[Recorded("c", ("key", "value"))])
    assert input_positions(data, "c") == []


@pytest.mark.parametrize(("about", "expected"), [({"retain": 5}, ["c"]), ({"inputs": []}, [])])
def test_a_feed_is_told_from_other_components_by_its_record(tmp_path, about, expected):
    record = ComponentRecord(about=about).text()
    assert store_parts_in(recorded(tmp_path / "data", ("component", record))) == expected


def test_dropped_components_are_not_listed(tmp_path, monkeypatch):
    data = recorded(tmp_path / "data", ("component", "{}"), bolts=[Recorded("c"), Recorded("d")])
    until = {"changes/c-progress": None, "changes/d-progress": 1}
    monkeypatch.setattr(DeltaTableState, "until", lambda table: until[table.handle.path.relative_to(data).as_posix()])
    assert timed_components(data) == ["c"]


def test_words():
    assert str(InputPosition("join", "feed", "l", "l0", 4)) == "input feed/l of join, partition l0"
    assert str(InputPosition("sum", "numbers", "default", "", 4)) == "input numbers of sum"
    assert str(InputPosition("fill", "", "default", "", 4)) == "the input of fill"
