"""Pauses of the right side of an interval join: left rows wait, unless a grace period or idle time says how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.joins import IntervalJoin, Side
from txstorm.testing import FeedSpout, TopologyTestDriver

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def driver(**right: Any) -> TopologyTestDriver:
    """Return a driver of a join whose right rows may be a second older than left ones."""
    feed = FeedSpout({"l": ("id", "key", "ts", "part"), "r": ("id", "key", "ts", "part")})
    sides = [
        Side("feed", stream, key="key", time="ts", id="id", partition="part", **how)
        for stream, how in (("l", {}), ("r", right))
    ]
    join = IntervalJoin(*sides, before=Duration.seconds(1), how="left", select=["l:id", "r:id"])
    builder = TransactionalTopologyBuilder("pauses", "feed", feed)
    builder.set_bolt("join", join, 2).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    return TopologyTestDriver(builder.build_topology())


def committed(
    driver: TopologyTestDriver, at: datetime, left: str = "", right: str = "", caught_up: tuple[str, ...] = ("r",)
) -> list[Any]:
    """Commit a transaction of rows with the time `at`, each ``id/partition``; return what the join emits."""
    ms = round(at.timestamp() * 1000)
    rows = {
        stream: [(one.split("/")[0], "k", ms, one.split("/")[1]) for one in text.split()]
        for stream, text in (("l", left), ("r", right))
    }
    txid = driver.feed(rows, at=at, caught_up=caught_up)
    driver.commit(txid)
    return driver.emitted("join", txid)


def test_without_grace_left_rows_wait_however_long_the_pause():
    """U7: there is no hidden grace period; after two days the paused stream goes on, and the row is joined."""
    with driver() as it:
        assert committed(it, START, "l1/0", "r1/0") == []
        for hours in (1, 24, 25, 48):
            assert committed(it, START + timedelta(hours=hours)) == []
        assert committed(it, START + timedelta(hours=49), right="r2/0") == [("l1", "r1")]


@pytest.mark.parametrize("grace", [0, 30])
def test_with_grace_left_rows_wait_that_long(grace: int):
    """U7: exactly the given time; a stream that is not read to its end is waited for, whatever the grace period is."""
    with driver(grace=Duration.seconds(grace)) as it:
        assert committed(it, START, "l1/0", "r1/0") == []
        assert committed(it, START + timedelta(hours=1), caught_up=()) == []
        assert committed(it, START + timedelta(hours=1, seconds=1)) == [("l1", "r1")]
        last = START + timedelta(hours=2)
        assert committed(it, last, "l2/0") == []
        assert committed(it, last + timedelta(seconds=grace)) == []
        assert committed(it, last + timedelta(seconds=grace, milliseconds=1)) == [("l2", None)]


def test_a_partition_without_data_holds_left_rows_back_until_it_is_idle():
    """A2: the position is that of the slowest partition; with idle, partitions without data are left out."""
    for idle, expected in ((None, []), (Duration.minutes(1), [("l1", "r1")])):
        with driver(idle=idle, partitions=["0", "1"]) as it:
            assert committed(it, START, "l1/0", "r1/0") == []
            assert committed(it, START + timedelta(seconds=59), right="r2/0") == []
            assert committed(it, START + timedelta(seconds=61), right="r3/0") == expected
