"""The rate spout: which rows are due when, and that replays and later runs go on with the same line."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from runs import ended

from txstorm import Topology, TransactionalTopologyBuilder
from txstorm.errors import SettingError
from txstorm.sinks import DeltaSink
from txstorm.spouts import RateSpout
from txstorm.testing import ManualClock, TopologyTestDriver
from txstorm.testing.clock import START


def topology(spout: RateSpout, tasks: int = 2) -> Topology:
    builder = TransactionalTopologyBuilder("rate", "rows", spout, tasks)
    builder.set_bolt("keep", DeltaSink("rows", {"timestamp": datetime, "value": int})).global_grouping("rows")
    return builder.build_topology()


def line(value: int, rate: int) -> datetime:
    return START + timedelta(microseconds=value * 1_000_000 // rate)


def rows_of(shown: Any) -> list[tuple[int, datetime, int]]:
    return [(row["value"], row["timestamp"], row["_txid"]) for row in shown.sink("rows").to_pylist()]


@pytest.mark.parametrize(("rate", "most"), [(1, 9), (3, 2), (7, 10_000), (1000, 10_000)])
def test_what_is_due_is_emitted_once_also_after_failures_and_restarts(rate: int, most: int):
    """Each row has its place on one line of times, none is early, and with enough transactions none is missing."""
    clock = ManualClock()
    spouts = [RateSpout(rate, rows=5 * rate, max_batch_rows=most, clock=clock.now) for _ in range(2)]
    with TopologyTestDriver(topology(spouts[0], 1), clock=clock, pending=1) as driver:
        driver.commit(1)
        for pause in (0.1, 0.9, 2.05, 60):
            driver.advance(pause)
            due = min(5 * rate, int(round(clock.monotonic() * rate, 6)) + 1)
            while len(rows_of(driver)) < due:
                driver.fail(driver.committed + 1)
                driver.advance(0)
                driver.restart(topology(spouts[driver.committed % 2], 1 + driver.committed % 3))
                driver.commit(driver.committed + 1)
            rows = rows_of(driver)
            assert rows == [(value, line(value, rate), txid) for value, (_, _, txid) in enumerate(rows)]
            assert len(rows) == due
            assert rows[-1][1] <= START + timedelta(seconds=clock.monotonic())
            assert max(Counter(txid for _, _, txid in rows).values()) <= most


def test_a_run_reads_what_is_due_or_all_and_another_rate_goes_on(make_engine: Any, tmp_path: Path):
    assert len(rows_of(ended(topology(RateSpout(5, rows=1)), tmp_path / "one", make_engine()))) == 1
    first = rows_of(ended(topology(RateSpout(1000, rows=20), 3), tmp_path / "rate", make_engine()))
    begin = first[0][1]
    assert [row[:2] for row in first] == [(value, begin + timedelta(milliseconds=value)) for value in range(20)]
    clock = ManualClock(begin + timedelta(seconds=1.02))
    rows = rows_of(ended(topology(RateSpout(10, clock=clock.now), 2), tmp_path / "rate", make_engine()))
    assert rows[:20] == first
    later = begin + timedelta(milliseconds=20)
    assert [row[:2] for row in rows[20:]] == [(20 + n, later + timedelta(milliseconds=100 * n)) for n in range(11)]


@pytest.mark.parametrize(
    "options", [{"rows_per_second": 0}, {"rows_per_second": 0.5}, {"rows": True}, {"max_batch_rows": -1}]
)
def test_numbers_are_checked(options: Any):
    with pytest.raises(SettingError, match="expected an int of at least 1"):
        RateSpout(**options)
