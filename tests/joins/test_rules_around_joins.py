"""The rules of joins one by one: what follows a join, windows, look-ups, duplicates, and positions for a time."""

from __future__ import annotations

import json
import random
import sqlite3
from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from join_cases import FIELDS, driver, feed, rows, topology

from txstorm import CompositeSpout, Count, Duration, TransactionalTopologyBuilder, WindowedBolt
from txstorm.cli.main import execute
from txstorm.joins import Deduplicator, IntervalJoin, JoinBolt, LookupJoin, Side, first_at_or_after
from txstorm.spouts import FileSpout
from txstorm.testing import FeedSpout


def us(number):
    return timedelta(microseconds=number)


def chain(second, lag=0):
    """A left join of l and r within 10 before and 2 after in microseconds, then a bolt that reads its results."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(dict.fromkeys("lrs", FIELDS)))
    left = Side("feed", "l", key="key", time="ts", unit="us", id="id", lag=us(lag))
    right = Side("feed", "r", key="key", time="ts", unit="us", id="id")
    first = IntervalJoin(left, right, before=us(10), after=us(2), how="left", select=["l:id", "l:key", "l:ts", "r:id"])
    declarer = builder.set_bolt("first", first).fields_grouping("feed", "l", ["key"])
    declarer.fields_grouping("feed", "r", ["key"])
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


class Ends(WindowedBolt):
    """Emits end and ids of each window."""

    fields = ("end", "ids")

    def prepare(self, context, collector):
        self.collector = collector

    def execute(self, window):
        self.collector.emit(window.end_timestamp, "".join(one["l_id"] for one in window.get()))


@pytest.mark.parametrize(("right", "expected"), [("v@40002", []), ("v@40003", [(40, "ab")])])
def test_windows_of_the_results_of_a_join(right, expected):
    """The window up to 40 ms takes a result at 40 ms, and fires when the frontier has reached 40 ms."""
    bolt = Ends().with_tumbling_window(Duration(10)).with_timestamp_field("ts", unit="us")
    with driver(chain(bolt)) as running:
        running.commit(running.feed({"l": rows("a@39000 b@40000 c@99000"), "r": rows(right), "s": []}))
        assert running.emitted("join") == expected


class Unmatched(Ends):
    """Emits end and ids of each window of unmatched rows."""

    def execute(self, window):
        self.collector.emit(window.end_timestamp, "".join(one["id"] for one in window.get()))


def test_unmatched_left_rows_of_a_slow_partition_are_not_late_in_windows():
    """The stream unmatched_left follows the frontier of the join, too."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(dict.fromkeys("lr", FIELDS)))
    left = Side("feed", "l", key="key", time="ts", partition="part", partitions=["l0", "l1"])
    join = IntervalJoin(
        left, Side("feed", "r", key="key", time="ts"), before=Duration(10), how="inner", select=["l:id"]
    )
    builder.set_bolt("join", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    bolt = Unmatched().with_tumbling_window(Duration(10)).with_timestamp_field("ts")
    builder.set_bolt("windows", bolt).global_grouping("join", "unmatched_left")
    with driver(builder.build_topology()) as running:
        found = []
        for left, right in (("a@5/l1 b@45/l0", "u@900"), ("c@6/l1 d@55/l0", ""), ("e@31/l1", "")):
            running.commit(feed(running, left, right))
            found.append(running.emitted("windows", running.committed))
        assert found == [[], [], [(10, "ac")]]


# -- joins per window --------------------------------------------------------------------------------------------------

JOINS = ("inner", "left")


def windows(rows, length, slide):
    """Return the ends of the windows (end - length, end] that have rows, and the rows of each stream in them."""
    times = [row[2] for some in rows.values() for row in some]
    for end in range(min(times) // slide * slide, max(times) + length + slide, slide):
        content = {name: [row for row in some if end - length < row[2] <= end] for name, some in rows.items()}
        if any(content.values()):
            yield end, content


def by_sql(content, kinds):
    """Join l, r and s, r to l and s to r, as SQLite does."""
    connection = sqlite3.connect(":memory:")
    for name, some in content.items():
        connection.execute(f"create table {name} (id text, key text, ts int, part text)")
        connection.executemany(f"insert into {name} values (?, ?, ?, ?)", some)
    joins = f"l {kinds[0]} join r on l.key = r.key {kinds[1]} join s on r.key = s.key"
    return connection.execute(f"select l.id, r.id, s.id from {joins}").fetchall()


@pytest.mark.parametrize("slide", [10, 5])
@pytest.mark.parametrize("kinds", [(one, two) for one in JOINS for two in JOINS])
def test_windows_are_joined_as_sql_joins(kinds, slide):
    random_ = random.Random(f"{kinds} {slide}")
    given = {
        name: [
            (f"{name}{n}", random_.choice(["x", "y", "z", None]), random_.randrange(-20, 40), None) for n in range(9)
        ]
        for name in "lrs"
    }
    bolt = JoinBolt("l", "key")
    bolt = bolt.left_join("r", "key", "l") if kinds[0] == "left" else bolt.join("r", "key", "l")
    bolt = bolt.left_join("s", "key", "r") if kinds[1] == "left" else bolt.join("s", "key", "r")
    bolt = bolt.select("window:end, l:id, r:id, s:id").with_window(Duration(10), Duration(slide))
    with driver(per_window(bolt.with_timestamp_field("ts"))) as running:
        running.commit(running.feed(given))
        running.commit(running.end_of_input())
        found = [(end.timestamp() * 1000, *more) for end, *more in running.emitted("joined")]
    wanted = [(end, *row) for end, some in windows(given, 10, slide) for row in by_sql(some, kinds)]
    assert sorted(found, key=str) == sorted([(float(end), *more) for end, *more in wanted], key=str)


def per_window(bolt, streams="lrs", tasks=1):
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(dict.fromkeys(streams, FIELDS)))
    declarer = builder.set_bolt("joined", bolt, tasks)
    for name in streams:
        declarer.fields_grouping("feed", name, ["key"])
    return builder.build_topology()


OTHER_FORMS = {
    "sessions": (
        lambda bolt: bolt.with_session_window(Duration(10)).with_timestamp_field("ts"),
        ("a@0 b@30", "u@9 v@41"),
        [("a", "u")],
    ),
    "every two tuples": (
        lambda bolt: bolt.with_tumbling_window(Count(2)).with_timestamp_field("ts"),
        ("a@1 b@2", "u@3 v@4"),
        [],
    ),
    "the last three, at each tuple": (
        lambda bolt: bolt.with_window(Count(3)).with_timestamp_field("ts"),
        ("a@1 b@3", "u@2 v@4"),
        [("a", "u"), ("a", "u"), ("b", "u"), ("b", "u"), ("b", "v")],
    ),
    "processing time": (lambda bolt: bolt.with_tumbling_window(Duration(10)), ("a@1", "u@99"), [("a", "u")]),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_joins_in_other_windows(name):
    form, (left, right), expected = OTHER_FORMS[name]
    bolt = form(JoinBolt("l", "key").join("r", "key", "l").select("l:id, r:id"))
    with driver(per_window(bolt, "lr")) as running:
        running.commit(feed(running, left, right))
        running.commit(running.end_of_input())
        assert running.emitted("joined") == expected


def test_a_name_without_stream_is_that_of_the_first_stream_that_has_one():
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": ("k", "a", "ts"), "r": ("k", "a", "b", "ts")}))
    bolt = JoinBolt("l", "k").leftJoin("r", "k", "l").select("a,b,r:a").with_timestamp_field("ts")
    declarer = builder.set_bolt("joined", bolt.with_tumbling_window(Duration(10)), 1)
    declarer.fields_grouping("feed", "l", ["k"]).fields_grouping("feed", "r", ["k"])
    with driver(builder.build_topology()) as running:
        running.commit(running.feed({"l": [(1, "la", 1), (2, "lb", 2)], "r": [(1, "ra", "rb", 3)]}))
        running.commit(running.end_of_input())
        assert running.emitted("joined") == [("la", "rb", "ra"), ("lb", None, None)]


# -- look-ups ----------------------------------------------------------------------------------------------------------


def looked_up(path, how="inner", **options):
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS}))
    options = {
        "refresh": Duration(0),
        "select": ["id"] if how in ("semi", "anti") else ["left:id", "table:city"],
        **options,
    }
    join = LookupJoin(("feed", "l"), path, on={"key": "user"}, how=how, **options)
    builder.set_bolt("join", join, 2).shuffle_grouping("feed", "l")
    return builder.build_topology()


def table(path, text, mode="overwrite"):
    pairs = [one.split("-") for one in text.split()]
    users = pa.array([one or None for one, _ in pairs], pa.string())
    write_deltalake(path, pa.table({"user": users, "city": [city for _, city in pairs]}), mode=mode)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", ["a-Oslo", "a-Rome", "c-Bern"]),
        ("left", ["a-Oslo", "a-Rome", "b-None", "c-Bern", "d-None"]),
        ("semi", ["a", "c"]),
        ("anti", ["b", "d"]),
    ],
)
def test_a_look_up_joins_as_sql_does(how, expected, tmp_path):
    table(tmp_path / "users", "x-Oslo x-Rome z-Bern -Nowhere")
    with driver(looked_up(tmp_path / "users", how)) as running:
        running.commit(running.feed({"l": rows("a.x@1 b.y@2 c.z@3 d.-@4")}))
        assert sorted("-".join(map(str, row)) for row in running.emitted("join")) == expected


def test_a_look_up_keeps_the_version_of_its_transaction(tmp_path):
    table(tmp_path / "users", "x-Oslo")
    with driver(looked_up(tmp_path / "users"), data_dir=tmp_path / "data") as running:
        txid = running.feed({"l": rows("a@1")})
        table(tmp_path / "users", "x-Rome")
        running.fail(txid)
        assert running.emitted("join", txid) == [("a", "Oslo")]
        running.restart()
        running.commit(txid)
        assert running.emitted("join", txid) == [("a", "Oslo")]
        txid = running.feed({"l": rows("b@1")})
        running.commit(txid)
        assert running.emitted("join", txid) == [("b", "Rome")]


def test_a_newer_version_is_looked_for_after_refresh(tmp_path):
    table(tmp_path / "users", "x-Oslo")
    with driver(looked_up(tmp_path / "users", refresh=Duration(100))) as running:
        found = []
        for at in (1000, 1099, 1100, 1150):
            running.commit(running.feed({"l": rows("a@1")}, at=at))
            found.append(running.emitted("join", running.committed)[0][1])
            table(tmp_path / "users", f"x-{at}")
        assert found == ["Oslo", "Oslo", "1099", "1099"]


# -- duplicates --------------------------------------------------------------------------------------------------------

# Steps are a stamp, ids, and those that pass; or a restart.
RESTART = "restart"
DUPLICATES = {
    "keep: an id passes once, and again when it has been kept for so long": (
        {"keep": Duration(100)},
        [(1000, "a b a", "a b"), (1050, "a c", "c"), (1099, "a b", ""), (1101, "a b c", "a b"), (1200, "a", "")],
    ),
    "keep: a restart changes nothing": (
        {"keep": Duration(100)},
        [(1000, "a", "a"), RESTART, (1050, "a b", "b"), RESTART, (1099, "a b", "")],
    ),
    "quiet: active from the start": (
        {"quiet": Duration(100)},
        [(1000, "a b a", "a b"), (1099, "a c", "c"), (1198, "b d", "d"), (1298, "a b", "a b"), (1299, "a a", "a a")],
    ),
    "quiet: off when the start is so long ago": (
        {"quiet": Duration(100)},
        [(1000, "a", "a"), (1099, "b", "b"), (1100, "a b", "a b")],
    ),
    "quiet: on again from the next start, without the ids of before": (
        {"quiet": Duration(100)},
        [(1000, "a", "a"), (1100, "a", "a"), RESTART, (1101, "a b b", "a b"), (1102, "a", "")],
    ),
    "quiet: a restart while it is active": (
        {"quiet": Duration(100)},
        [(1000, "a", "a"), RESTART, (1050, "a b", "b"), (1149, "b", ""), (1249, "b", "b")],
    ),
    "None passes": ({"keep": Duration(100)}, [(1000, "- - a", "- - a"), (1001, "- a", "-")]),
}


def deduplicated(**options):
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": ("id", "n")}))
    builder.set_bolt("once", Deduplicator("id", **options)).fields_grouping("feed", "l", ["id"])
    return builder.build_topology()


def passed(running, at, text):
    given = [(None if one == "-" else one, n) for n, one in enumerate(text.split())]
    txid = running.feed({"l": given}, at=at)
    running.commit(txid)
    return " ".join(one or "-" for one, _ in running.emitted("once", txid, stream="l"))


@pytest.mark.parametrize("name", DUPLICATES)
def test_duplicates(name, tmp_path):
    options, steps = DUPLICATES[name]
    with driver(deduplicated(**options), data_dir=tmp_path / "data") as running:
        for step in steps:
            if step == RESTART:
                running.restart()
            else:
                at, text, expected = step
                assert passed(running, at, text) == expected, step


def test_recent_ids_are_asked_for_at_each_start(tmp_path):
    answers = [["a", "b"], ["c"]]
    made = deduplicated(quiet=Duration(100), recent=lambda: answers.pop(0))
    with driver(made, data_dir=tmp_path / "data") as running:
        assert passed(running, 1000, "a c d") == "c d"
        assert passed(running, 1099, "b c") == ""
        running.restart()
        assert passed(running, 1100, "c e d a") == "e"
        assert answers == []


@pytest.mark.parametrize("answer", ["abc", None, 5])
def test_recent_ids_that_are_no_list_are_a_warning_and_drop_nothing(answer, caplog):
    with driver(deduplicated(quiet=Duration(100), recent=lambda: answer)) as running:
        assert passed(running, 1000, "a b a") == "a b"
    assert "once" in caplog.text


# -- positions for a time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [-1, 0, 4, 5, 6, 9, 10])
@pytest.mark.parametrize(("start", "end"), [(0, 5), (2, 5), (2, 3), (3, 3)])
def test_the_first_offset_of_a_time(wanted, start, end):
    times = [0, 5, 5, 5, 9]
    asked = []
    found = first_at_or_after(lambda offset: asked.append(offset) or times[offset], start, end, wanted)
    assert found == next((one for one in range(start, end) if times[one] >= wanted), end)
    assert all(start <= one < end for one in asked)


@pytest.mark.parametrize(("to", "txid"), [(10, 0), (20, 1), (21, 2), (25, 2), (26, 3)])
def test_a_rewind_goes_to_the_last_transaction_before_a_time(to, txid, tmp_path, capsys):
    """Up to it no partition of either side has reached the time."""
    sides = {"left": {"partition": "part"}, "right": {"partition": "part"}}
    with driver(topology(**sides), data_dir=tmp_path / "data") as running:
        for left, right in (("a@10/0", ""), ("", "u@5/0 v@20/1"), ("b@25/1 c@3/0", "w@7/0"), ("", "x@30/0")):
            running.commit(feed(running, left, right))
    arguments = ["rewind", str(tmp_path / "data"), "--to-time", str(to), "--json"]
    assert execute([*arguments, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["txid"] == txid
    assert execute([*arguments, "--yes"]) == 0
    with driver(topology(**sides), data_dir=tmp_path / "data") as running:
        assert running.committed == txid


# -- several sources ---------------------------------------------------------------------------------------------------


def test_each_source_has_its_own_caps(tmp_path):
    """One that is behind reads at its own pace, and takes no room from the other one."""
    for name, number in (("l", 6), ("r", 60)):
        (tmp_path / f"{name}.csv").write_text("id,key,ts\n" + "".join(f"{name}{n},x,{n}\n" for n in range(number)))
    types = {"ts": int}
    sources = {
        "l": FileSpout(str(tmp_path / "l.csv"), types=types, max_batch_rows=2, bounded=True),
        "r": FileSpout(str(tmp_path / "r.csv"), types=types, max_batch_rows=3, bounded=True),
    }
    builder = TransactionalTopologyBuilder("t", "feed", CompositeSpout(sources))
    left, right = (Side("feed", name, key="key", time="ts", id="id") for name in "lr")
    join = IntervalJoin(left, right, before=Duration(0), how="left", select=["l:id", "r:id"])
    builder.set_bolt("join", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    with driver(builder.build_topology()) as running:
        counts = []
        while running.active:
            txid = running.committed + 1
            counts.append(tuple(len(running.emitted("feed", txid, stream=name)) for name in "lr"))
            running.commit(txid)
            running.next_tuple()
        assert counts == [(2, 3)] * 3 + [(0, 3)] * 17
        assert running.emitted("join") == [(f"l{n}", f"r{n}") for n in range(6)]


def test_a_side_that_has_ended_holds_nothing_back(tmp_path):
    (tmp_path / "l.csv").write_text("id,key,ts\na,x,5\nb,x,500\n")
    (tmp_path / "r.csv").write_text("id,key,ts\nu,x,4\n")
    types = {"ts": int}
    sources = {
        name: FileSpout(str(tmp_path / f"{name}.csv"), types=types, max_batch_rows=1, bounded=True) for name in "lr"
    }
    builder = TransactionalTopologyBuilder("t", "feed", CompositeSpout(sources))
    left, right = (Side("feed", name, key="key", time="ts", id="id") for name in "lr")
    join = IntervalJoin(left, right, before=Duration(10), how="left", select=["l:id", "r:id"])
    builder.set_bolt("join", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    with driver(builder.build_topology()) as running:
        found = []
        while running.active:
            running.commit()
            found.append(running.emitted("join", running.committed))
            running.next_tuple()
        assert found == [[("a", "u")], [("b", None)]]
