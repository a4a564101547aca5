"""The rules around interval joins one by one: what follows a join, positions for a time, and a side that has ended."""

from datetime import timedelta

import pytest
from fed import fed_bolt
from join_cases import FIELDS, driver, feed, rows, topology
from window_bolts import Emitting

from txstorm import CompositeSpout, Duration
from txstorm.joins import IntervalJoin, Side, first_at_or_after
from txstorm.spouts import FileSpout
from txstorm.testing import FeedSpout


def us(number):
    return timedelta(microseconds=number)


def chain(second, lag=0):
    """A left join of l and r within 10 before and 2 after in microseconds, then a bolt that reads its results."""
    left = Side("feed", "l", key="key", time="ts", unit="us", id="id", lag=us(lag))
    right = Side("feed", "r", key="key", time="ts", unit="us", id="id")
    first = IntervalJoin(left, right, before=us(10), after=us(2), how="left", select=["l:id", "l:key", "l:ts", "r:id"])
    builder = fed_bolt("first", first, "lr", ["key"], spout=FeedSpout(dict.fromkeys("lrs", FIELDS)))
    declarer = builder.set_bolt("join", second)
    if isinstance(second, IntervalJoin):
        declarer.fields_grouping("feed", "s", ["key"])
    declarer.fields_grouping("first", ["key"])
    return builder.build_topology()


# The frontier is min(P - after, newest left time - lag) - 1; c of s at 40 waits until it is more than 40.
FRONTIERS = [
    (0, "a@30 b@50", "v@43", False),
    (0, "a@30 b@50", "v@44", True),
    (0, "a@30 b@41", "v@90", False),
    (0, "a@30 b@42", "v@90", True),
    (3, "a@30 b@44", "v@90", False),
    (3, "a@30 b@45", "v@90", True),
]


@pytest.mark.parametrize(("lag", "left", "right", "passed"), FRONTIERS)
def test_the_frontier_of_a_join_is_the_position_of_the_next(lag, left, right, passed):
    sides = (Side("feed", "s", key="key", time="ts", unit="us"), Side("first", key="key", time="ts", unit="us"))
    second = IntervalJoin(*sides, before=us(10), how="left", select=["s:id", "right:l_id"])
    with driver(chain(second, lag)) as running:
        running.commit(running.feed({"l": rows(left), "r": rows(right), "s": rows("c@40")}))
        assert running.emitted("join") == ([("c", "a")] if passed else [])


def ends(field):
    row = lambda window: (window.end_timestamp, "".join(one[field] for one in window.get()))  # noqa: E731
    return Emitting("end ids", row).with_tumbling_window(Duration(10))


@pytest.mark.parametrize(("right", "expected"), [("v@40002", []), ("v@40003", [(40, "ab")])])
def test_windows_of_the_results_of_a_join(right, expected):
    """The window up to 40 ms takes a result at 40 ms, and fires when the frontier has reached 40 ms."""
    with driver(chain(ends("l_id").with_timestamp_field("ts", unit="us"))) as running:
        running.commit(running.feed({"l": rows("a@39000 b@40000 c@99000"), "r": rows(right), "s": []}))
        assert running.emitted("join") == expected


def test_unmatched_left_rows_of_a_slow_partition_are_not_late_in_windows():
    """The stream unmatched_left follows the frontier of the join, too."""
    left = Side("feed", "l", key="key", time="ts", partition="part", partitions=["l0", "l1"])
    right = Side("feed", "r", key="key", time="ts")
    join = IntervalJoin(left, right, before=Duration(10), how="inner", select=["l:id"])
    builder = fed_bolt("join", join, dict.fromkeys("lr", FIELDS), ["key"])
    builder.set_bolt("windows", ends("id").with_timestamp_field("ts")).global_grouping("join", "unmatched_left")
    with driver(builder.build_topology()) as running:
        found = []
        for left, right in (("a@5/l1 b@45/l0", "u@900"), ("c@6/l1 d@55/l0", ""), ("e@31/l1", "")):
            running.commit(feed(running, left, right))
            found.append(running.emitted("windows", running.committed))
        assert found == [[], [], [(10, "ac")]]


@pytest.mark.parametrize("wanted", [-1, 0, 4, 5, 6, 9, 10])
@pytest.mark.parametrize(("start", "end"), [(0, 5), (2, 5), (2, 3), (3, 3)])
def test_the_first_offset_of_a_time(wanted, start, end):
    times = [0, 5, 5, 5, 9]
    asked = []
    found = first_at_or_after(lambda offset: asked.append(offset) or times[offset], start, end, wanted)
    assert found == next((one for one in range(start, end) if times[one] >= wanted), end)
    assert all(start <= one < end for one in asked)


@pytest.mark.parametrize(("to", "txid"), [(10, 0), (20, 1), (21, 2), (25, 2), (26, 3)])
def test_a_rewind_goes_to_the_last_transaction_before_a_time(to, txid, tmp_path, command):
    """Up to it no partition of either side has reached the time."""
    sides = {"left": {"partition": "part"}, "right": {"partition": "part"}}
    with driver(topology(**sides), data_dir=tmp_path / "data") as running:
        for left, right in (("a@10/0", ""), ("", "u@5/0 v@20/1"), ("b@25/1 c@3/0", "w@7/0"), ("", "x@30/0")):
            running.commit(feed(running, left, right))
    arguments = ["rewind", tmp_path / "data", "--to-time", to]
    assert command.json(*arguments, "--dry-run")["txid"] == txid
    command.printed(*arguments, "--yes")
    with driver(topology(**sides), data_dir=tmp_path / "data") as running:
        assert running.committed == txid


def test_a_side_that_has_ended_holds_nothing_back(tmp_path):
    (tmp_path / "l.csv").write_text("id,key,ts\na,x,5\nb,x,500\n")
    (tmp_path / "r.csv").write_text("id,key,ts\nu,x,4\n")
    types = {"ts": int}
    sources = {
        name: FileSpout(str(tmp_path / f"{name}.csv"), types=types, max_batch_rows=1, bounded=True) for name in "lr"
    }
    left, right = (Side("feed", name, key="key", time="ts", id="id") for name in "lr")
    join = IntervalJoin(left, right, before=Duration(10), how="left", select=["l:id", "r:id"])
    made = fed_bolt("join", join, sources, ["key"], spout=CompositeSpout(sources)).build_topology()
    with driver(made) as running:
        found = []
        while running.active:
            running.commit()
            found.append(running.emitted("join", running.committed))
            running.next_tuple()
        assert found == [[("a", "u")], [("b", None)]]
