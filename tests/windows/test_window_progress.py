"""Progress of windows, with each transaction and in total: watermark and its delay, fired windows, late tuples."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from runs import ended
from window_cases import Report

from txstorm import CompositeSpout, Count, Duration, TransactionalTopologyBuilder, WindowAggregate
from txstorm.bolts import Identity
from txstorm.errors import FailedException
from txstorm.monitor.live import Watcher, as_html, line
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.topology.graph import Topology

BATCHES = [[("a", 1), ("b", 8)], [("a", 12), ("b", 25)], [("a", 3), ("b", 26)]]


class FailsOnce(Report):
    """Fails the first evaluation of a run, so that its attempt is replayed."""

    transient = ("failed",)
    left = [1]

    def execute(self, window: Any) -> None:
        if self.left:
            self.left.clear()
            raise FailedException("the first evaluation")
        super().execute(window)


def topology(bolt: Any = None, tasks: int = 2, *, live: bool = False) -> Topology:
    spout = MemoryTransactionalSpout([[row for batch in BATCHES for row in batch]], ("id", "ts"), take=2)
    spout.live = live
    builder = TransactionalTopologyBuilder("t", "feed", spout)
    means = WindowAggregate("id", table="means", ttl=timedelta(days=1), n="count")
    for name, one in {"w": bolt or Report(), "means": means}.items():
        one.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
        builder.set_bolt(name, one, tasks).fields_grouping("feed", ["id"])
    return builder.build_topology()


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_each_transaction_reports_its_windows(tmp_path: Path, engine: str) -> None:
    handle = ended(topology(live=True), tmp_path / "data", engine, until_txid=3)
    progress = {one.txid: one for one in handle.recentProgress}
    assert list(progress) == [1, 2, 3]
    for name in ("w", "means"):  # the windows of a and b that end at 10, and that of a that ends at 20
        counted = [(one.windows[name].fired, one.windows[name].late) for one in progress.values()]
        assert counted == [(0, 0), (3, 0), (0, 1)]
    last = progress[3].windows["w"]
    assert last.watermark == datetime(1970, 1, 1, 0, 0, 26, tzinfo=UTC)
    assert last.delay == datetime.fromisoformat(progress[3].timestamp) - last.watermark
    document = json.loads(progress[3].json)["windows"]["w"]
    assert document == {
        "watermark": "1970-01-01T00:00:26+00:00",
        "delay": last.delay.total_seconds(),
        "fired": 0,
        "late": 1,
        "ahead": 0,
        "waiting": 0,
        "held_back_by": {"component": "feed", "stream": "default", "partition": "", "since": 0.0},
    }
    total = handle.progress.windows["w"]
    assert (total.watermark, total.fired, total.late) == (last.watermark, 3, 1)
    assert handle.status["windows"]["w"]["late"] == 1
    for text in (line(Watcher(handle)()), as_html(Watcher(handle)()), handle._repr_html_(), repr(handle.progress)):
        assert "windows of w" in text
        assert "3 windows fired, 1 late tuple" in text


def test_time_behind_counts_for_what_live_sources_feed(tmp_path: Path) -> None:
    """Of several sources, one may be live: only what its tuples reach is behind the present."""
    (tmp_path / "old.jsonl").write_text('{"id": "a", "ts": 1}\n{"id": "a", "ts": 12}\n')
    rows = MemoryTransactionalSpout([BATCHES[0]], ("id", "ts"))
    live = MemoryTransactionalSpout([BATCHES[0]], ("id", "ts"))
    live.live = True
    sources = {"files": FileSpout(str(tmp_path / "old.jsonl")), "rows": rows, "live": live}
    builder = TransactionalTopologyBuilder("t", "feed", CompositeSpout(sources))
    builder.set_bolt("pass", Identity("id", "ts")).shuffle_grouping("feed", "live")
    inputs = {"a": ("feed", "files"), "b": ("feed", "rows"), "c": ("feed", "live"), "d": ("pass", "default")}
    for name, (source, stream) in inputs.items():
        bolt = Report().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
        builder.set_bolt(name, bolt).fields_grouping(source, stream, ["id"])
    handle = ended(builder.build_topology(), tmp_path / "data")
    shown = {name: (one.watermark, one.delay is not None) for name, one in handle.progress.windows.items()}
    at = [datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (12, 8)]
    assert shown == {"a": (at[0], False), "b": (at[1], False), "c": (at[1], True), "d": (at[1], True)}
    assert line(Watcher(handle)()).count(" s behind") == 2


def test_an_attempt_that_fails_counts_nothing(tmp_path: Path) -> None:
    FailsOnce.left = [1]
    handle = ended(topology(FailsOnce(), 1), tmp_path / "data", end_of_input=True)
    total = handle.progress.windows["w"]
    assert not FailsOnce.left
    assert (total.fired, total.late, total.delay) == (3, 1, None)
    assert handle.progress.replays > 0
    assert "watermark end of input, 3 windows fired" in line(Watcher(handle)())


def test_ends_that_wait_and_tuples_ahead_are_counted_and_told_once(tmp_path: Path, caplog: Any) -> None:
    """A tuple of 1970 makes all ends since then due; one of the year 9999 counts as ahead. Each is warned of once."""
    rows = [("a", 0), ("b", 8029 * 365 * 86400), ("a", 1), ("b", 8029 * 365 * 86400)]
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([rows], ("id", "ts"), take=1))
    bolt = Report().with_window(Count(3), Duration.seconds(1)).with_timestamp_field("ts", unit="s")
    builder.set_bolt("w", bolt, 2).fields_grouping("feed", ["id"])
    handle = ended(builder.set_settings({"max_ends_per_txid": 1}).build_topology(), tmp_path / "data", until_txid=5)
    last, shown = handle.recentProgress[-1].windows["w"], handle.status["windows"]["w"]
    assert (last.late, shown["ahead"], last.waiting > 10**9, last.waiting_rate) == (0, 2, True, 1)
    assert shown["waiting"] == last.waiting
    assert last.waiting_since == datetime(1970, 1, 1, tzinfo=UTC)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [sum(text in one for one in warned) for text in ("window ends are due", "1 tuple of feed/default")] == [1, 1]


def test_a_task_that_is_repeated_without_a_window_reports_once(tmp_path: Path) -> None:
    class Fussy(Report):
        def execute(self, window: Any) -> None:
            if window.end.second == 10:
                raise ValueError("this window")
            super().execute(window)

    handle = ended(topology(Fussy(), 1), tmp_path / "data", until_txid=3, settings={"on_error": "dead_letter"})
    total = handle.progress.windows["w"]
    assert (total.fired, total.late) == (2, 1)
    assert handle.progress.dead_letters == 1
