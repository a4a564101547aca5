"""``txstorm rewind --to-time``: the transaction that it goes to, the positions it shows, and what it refuses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import readings
from commands import Commands
from runs import ended
from seeded import seeded
from window_bolts import Emitting

import txstorm
from txstorm import Duration, TransactionalTopologyBuilder, rewind
from txstorm.errors import DataDirectoryError, InputError
from txstorm.operations import rewind_target as positions
from txstorm.operations.rewind_target import rewind_target
from txstorm.results.views import committed_txid, kept_txid
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def tumbling() -> Emitting:
    bolt = Emitting("end ids", lambda window: (window.end_timestamp, ",".join(one["id"] for one in window.get())))
    return bolt.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts")


def topology() -> Any:
    fields = ("id", "ts", "part")
    builder = TransactionalTopologyBuilder("clicks", "feed", FeedSpout({"l": fields, "r": fields}))
    for name in ("l", "r"):
        builder.set_bolt(f"sum-{name}", tumbling().with_partition_field("part")).global_grouping("feed", name)
    sink = builder.set_committer_bolt("keep", DeltaSink("results", {"end": int, "ids": str}))
    sink.global_grouping("sum-l").global_grouping("sum-r")
    return builder.build_topology()


def row(one: str, second: float, part: str = "0") -> tuple[str, datetime, str]:
    return one, at(second), part


FED = [
    {"l": [row("a", 1), row("b", 2, "1")], "r": [row("x", 1)]},
    {"l": [row("c", 12), row("d", 3, "1")]},
    {"r": [row("y", 14)]},
    {"l": [row("e", 25), row("f", 21, "1")], "r": [row("z", 31)]},
    {"l": [row("g", 41)]},
]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    with TopologyTestDriver(topology(), data_dir=tmp_path / "data", clock=ManualClock(NOON)) as driver:
        for rows in FED:
            driver.commit(driver.feed(rows))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("second", "component", "txid"),
    [(1, None, 0), (1.5, None, 0), (2.001, None, 1), (12, None, 1), (12.001, None, 2), (14.001, None, 3),
     (31, None, 3), (31.001, None, 4), (41, None, 4), (14, "sum-r", 2), (2.001, "sum-r", 2), (31.0, "sum-r", 3),
     (14.001, "sum-l", 3), (41, "sum-l", 4)],
)  # fmt: skip
def test_the_last_transaction_at_which_no_partition_had_reached_the_time(clicks, second, component, txid):
    """A4, U25: of all inputs, or of those of one component."""
    assert rewind_target(clicks, at(second), component).txid == txid


def test_the_positions_as_of_it_are_shown(clicks, command: Commands):
    """A4: each partition of each input, as text and as JSON; nothing is changed, nor without a confirmation."""
    shown = command.json("rewind", clicks, "--to-time", at(14).isoformat(), "--dry-run")
    assert (shown["txid"], shown["dry_run"], shown["time"]) == (2, True, at(14).isoformat())
    assert {(one["component"], one["partition"], one["position"]) for one in shown["inputs"]} == {
        ("sum-l", "0", at(12).isoformat()),
        ("sum-l", "1", at(3).isoformat()),
        ("sum-r", "0", at(1).isoformat()),
    }
    out = command.printed("rewind", clicks, "--to-time", int(at(14).timestamp() * 1000), "--dry-run")
    assert "clicks: txid 2 is the last one before 2026-01-31T12:00:14+00:00; the positions as of it:" in out
    assert "feed/l" in out
    code, out, err = command("rewind", clicks, "--to-time", at(14).isoformat())
    assert code == 2
    assert "nothing was undone; add --yes" in err
    assert "txid 2 is the last one" in out
    assert committed_txid(clicks) == len(FED)


def test_what_is_processed_again_has_no_duplicates(clicks, command: Commands):
    """A4, U25: after the rewind all tables are as they were, and the same input gives the same results, once."""
    before = txstorm.snapshot(clicks).to_arrow()
    out = command.printed("rewind", clicks, "--to-time", at(14).isoformat(), "--yes")
    assert "clicks: txids 3-5 are undone; the next start continues with 3" in out
    with TopologyTestDriver(topology(), data_dir=clicks, clock=ManualClock(NOON)) as driver:
        for rows in FED[2:]:
            driver.commit(driver.feed(rows))
    after = txstorm.snapshot(clicks).to_arrow()
    assert after["sinks/results"].num_rows == 4
    assert {name: rows.to_pylist() for name, rows in after.items()} == {
        name: rows.to_pylist() for name, rows in before.items()
    }
    assert rewind_target(clicks, at(14)).txid == 2


def test_in_python(clicks):
    for arguments, times in (((), {}), ((2,), {"to_time": at(2)})):
        with pytest.raises(InputError, match="one of to_txid=, to_time= and to_clock="):
            rewind(clicks, *arguments, **times)
    for time in (datetime(2026, 1, 31), 5):  # noqa: DTZ001
        with pytest.raises(InputError, match="with a zone"):
            rewind(clicks, to_time=time)
    found = rewind(clicks, to_time=at(14), component="sum-r")
    assert (found["txid"], found["taken_back"], len(found["inputs"])) == (2, [3, 5], 1)
    assert rewind(clicks, to_time=at(2))["txid"] == 0
    with pytest.raises(DataDirectoryError, match="no transaction is committed"):
        rewind(clicks, to_time=at(2))


WRONG = [
    (["--to-time", "2026-01-31T12:00:00"], "expected a time with a zone"),
    (["--to-time", "1" * 30], "expected a time with a zone"),
    (["--to-time", ""], "expected a time with a zone"),
    (["--to-time", at(41.001).isoformat()], "is after all that was read: as of txid 5, the last committed one, input "
     "feed/l of sum-l, partition 0 had reached 2026-01-31T12:00:41+00:00"),
    (["--to-time", "9999-12-31T00:00:00Z"], "is after all that was read"),
    (["--to-time", at(31).isoformat(), "--component", "sum"], "(did you mean"),
    (["--to-time", at(31).isoformat(), "--component", "keep"], "no windowed component or join 'keep'"),
    (["--to-time", at(31).isoformat(), "--to-txid", "2"], "expected --to-txid N, --to-time T or --to-clock JSON"),
    ([], "expected --to-txid N, --to-time T or --to-clock JSON"),
    (["--to-txid", "2", "--component", "sum-l"], "belong to --to-time"),
    (["--to-txid", "2", "--dry-run"], "belong to --to-time"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "match"), WRONG)
def test_bad_input_is_refused_with_exit_code_2(clicks, command: Commands, arguments, match):
    assert match in command.refused("rewind", clicks, *arguments, "--yes")
    assert committed_txid(clicks) == len(FED)


def test_a_directory_without_transactions(tmp_path, command: Commands):
    code, _, err = command("rewind", tmp_path, "--to-time", at(1).isoformat(), "--yes")
    assert code == 2
    assert str(tmp_path) in err.replace("\n", "")


def test_a_time_before_the_kept_history(tmp_path, command: Commands):
    """A4: transactions before the kept history cannot be a target; the error names the oldest one kept."""

    def go_on(until: int, **settings: Any) -> None:
        rows = [("a", at(number * 10)) for number in range(8)]
        spout = MemoryTransactionalSpout([rows], ("id", "ts"), take=1)
        builder = TransactionalTopologyBuilder("clicks", "rows", spout)
        builder.set_bolt("sum", tumbling()).global_grouping("rows")
        builder.set_settings({"max_group_txids": 1, **settings})
        ended(builder.build_topology(), tmp_path / "data", until_txid=until)

    go_on(4, history_retention=0.001)
    go_on(5, history_retention=0.001)
    go_on(8)
    kept = kept_txid(tmp_path / "data")
    assert kept >= 4
    for second in (15, 10 * kept - 10):
        said = command("rewind", tmp_path / "data", "--to-time", at(second).isoformat(), "--yes")
        before = f"is before the kept history: as of txid {kept}, the first one kept, input rows of sum"
        assert (said.code, before in said.message) == (2, True), said
    assert rewind(tmp_path / "data", to_time=at(10 * kept - 9))["txid"] == kept


def test_it_reads_few_transactions(tmp_path, monkeypatch):
    """A4: a binary search; and the target is what a scan finds, with partitions out of order."""
    rng = seeded()
    times: list[list[int]] = []
    with TopologyTestDriver(topology(), data_dir=tmp_path / "data", clock=ManualClock(NOON)) as driver:
        for number in range(24):
            times.append([number * 3 + rng.randrange(-40, 40) for _ in range(rng.randrange(4))])
            rows = [row("a", second, rng.choice("01")) for second in times[-1]]
            driver.commit(driver.feed({rng.choice("lr"): rows}))
    asked: list[int | None] = []
    read = positions.input_positions

    def counting(data_dir: Path, component: str, txid: int | None = None) -> Any:
        asked.append(txid)
        return read(data_dir, component, txid)

    monkeypatch.setattr("txstorm.operations.rewind_target.input_positions", counting)
    highest = max(second for one in times for second in one)
    for wanted in rng.sample(range(0, highest + 1), 5):
        expected = next(n for n, one in enumerate(times) if any(second >= wanted for second in one))
        asked.clear()
        assert rewind_target(tmp_path / "data", at(wanted)).txid == expected
        assert len({one for one in asked if one is not None}) <= 8


def test_a_component_that_was_added_later_has_reached_nothing_before(tmp_path):
    first, second = (
        TransactionalTopologyBuilder("clicks", "feed", FeedSpout({"l": ("id", "ts", "part")})) for _ in range(2)
    )
    for builder in (first, second):
        builder.set_committer_bolt("all", DeltaSink("all", {"id": str})).global_grouping("feed", "l")
    second.set_bolt("sum", tumbling()).global_grouping("feed", "l")
    with TopologyTestDriver(first.build_topology(), data_dir=tmp_path / "data", clock=ManualClock(NOON)) as driver:
        for number in range(8):
            if number == 4:
                driver.restart(second.build_topology())
            driver.commit(driver.feed({"l": [row("a", number)]}))
    assert rewind_target(tmp_path / "data", at(2)).txid == 4
    assert rewind_target(tmp_path / "data", at(6)).txid == 6


def test_without_event_time_and_topics_it_says_so(tmp_path, command: Commands):
    """A4: files and memory have no times of records."""
    data_dir = tmp_path / "data"
    txstorm.run(readings.plain, engine="local", data_dir=data_dir, available_now=True).awaitTermination(120)
    rewound = ["rewind", data_dir, "--to-time", at(1).isoformat(), "--yes"]
    assert "no source is a topic whose records have times" in command.refused(*rewound, "--topology", "readings:plain")
    assert "--topology readings:plain" in command.refused(*rewound)
    with pytest.raises(InputError, match="asked through the code of the topology"):
        rewind(data_dir, to_time=at(1))
