"""The rules of interval joins one by one: what is released, joined, unmatched and expired when, at the boundaries."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from fed import fed_bolt
from join_cases import END, FIELDS, check, driver, feed, ids, rows, seen, topology

from txstorm import BasicBolt, Duration, rewind
from txstorm.errors import InputError, TopologyFailed
from txstorm.joins import IntervalJoin, LookupJoin, MemoryStore, Side, StoreJoin

# Steps are left rows, right rows, and what is expected: results/unmatched left/unmatched right/pending/buffered.
RELEASE = {
    "a row at P waits, also for a second right row of that time": (
        {},
        [("a@5", "u@5", "///a/u"), ("", "v@5", "///a/u v"), ("", "w@6", "au av////u v w")],
    ),
    "time + after at P waits": ({"after": 3}, [("a@5", "u@8", "///a/u"), ("", "v@9", "au////u v")]),
    "right lag": ({"right": {"lag": 2}}, [("a@5", "u@7", "///a"), ("", "v@8", "/a///u v")]),
    "order of time, then arrival, also over transactions": (
        {"how": "left"},
        [("c@3 a@1 b@1", "", "///a b c"), ("d@1", "u@9", "a. b. d. c./a b d c")],
    ),
    "no right data": (
        {"how": "left"},
        [("a@1 b@1000000", "", "///a b"), ("c@5000000", "", "///a b c"), (END, "", "a. b. c./a b c///")],
    ),
    "a row below P on arrival": ({}, [("", "u@20", "////u"), ("a@15", "v@15", "av////u v")]),
    "rows just below P and at P": ({}, [("a@19 b@20", "u@20", "/a//b/u")]),
    "a partition that starts late does not lower P": (
        {"right": {"partition": "part"}},
        [("", "u@20/r0", "////u"), ("a@15", "v@1/r1", "/a/v//u")],
    ),
    "a partition that starts late holds P back from then on": (
        {"right": {"partition": "part"}},
        [("", "u@20/p v@21/q", ""), ("a@25", "w@90/p", "///a"), ("", "y@25/q", "///a"), ("", "z@26/q", "au av ay")],
    ),
    "an announced partition without data": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"]}},
        [("a@5", "u@9/r0", "///a/u"), ("", "v@5/r1", "///a/u v"), ("", "w@6/r1", "av////u v w")],
    ),
    "the slowest partition, less lag": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"], "lag": 2}},
        [("a@5", "u@100/r0 v@7/r1", "///a"), ("", "w@8/r1", "/a")],
    ),
    "the newest row of a partition need not be the last one": ({}, [("a@5", "u@9 v@3", "av////u v")]),
    "times before 1970": ({}, [("a@-5", "u@-5", "///a"), ("", "v@-4", "au")]),
    "both sides in one transaction": ({}, [("a@5", "u@4 v@6", "au////u v")]),
    "left rows do not move P": ({}, [("a@5 b@50", "u@5", "///a b"), ("c@99", "", "///a b c")]),
    "keys": ({}, [("a.x@5 b.y@5 c.z@5", "u.x@4 v.y@4 w.w@9", "au bv/c")]),
    "right rows are not used up": ({}, [("a@5 b@6", "u@4 v@9", "au bu"), ("c@8", "", "cu")]),
    "equal rows are different rows": ({}, [("a@5 a@5", "u@4 u@4 v@9", "au au au au////u u v")]),
    "bounds are included": ({"after": 3}, [("a@20", "p@9 q@10 r@20 s@23 t@24", "aq ar as//p//q r s t")]),
    "bounds of one instant": ({"before": 0}, [("a@5", "p@4 q@5 z@6", "aq//p//q z")]),
    "earlier by at least 3": ({"after": -3}, [("a@10", "p@0 q@7", "///a/p q"), ("", "r@8", "ap aq////p q r")]),
    "later by at least 2": (
        {"before": -2, "after": 5},
        [("a@10", "p@11 q@12 r@15", "//p/a/q r"), ("", "s@16", "aq ar////q r s")],
    ),
    "later by exactly 3": ({"before": -3, "after": 3}, [("a@10", "p@12 q@13", "//p/a/q"), ("", "r@14", "aq////q r")]),
    "a transaction without rows changes nothing": ({}, [("a@5", "u@5", "///a/u"), ("", "", "///a/u")]),
}
EXPIRY = {
    "at B stays, below B goes": ({}, [("a@20", "p@9 q@10 z@21", "aq//p//q z")]),
    "a pending row keeps right rows": ({}, [("a@15 b@30", "p@4 q@5 y@15", "//p/a b/q y"), ("", "z@16", "aq ay//z/b/")]),
    "the newest pending row holds B, too": ({}, [("a@15 b@30", "p@4 q@5 z@16", "aq//p z/b/")]),
    "left lag": ({"left": {"lag": 5}}, [("a@20", "p@4 q@5 z@21", "/a/p//q z")]),
    "a pending row later than the lag does": (
        {"left": {"lag": 5}},
        [("a@20 b@12", "p@1 q@2 z@12", "//p/a b/q z"), ("", "y@13", "bq bz///a/y z")],
    ),
    "a right row below B on arrival": ({}, [("a@30", "z@31", "/a///z"), ("", "p@19 q@20", "//p//q z")]),
    "left and right rows that are late together": ({}, [("a@30", "z@31", "/a///z"), ("b@15", "p@10 q@4", "bp//q//z")]),
    "a left row whose right rows have expired": ({}, [("a@30", "p@10 z@31", "/a/p//z"), ("b@15", "", "/b///z")]),
    "no left data": ({}, [("", "p@0 q@100000", "////p q"), ("a@5000", "r@200000", "/a/p//q r")]),
    "an announced left partition without data": (
        {"left": {"partition": "part", "partitions": ["l0", "l1"]}},
        [("a@50/l0", "p@0 z@51", "/a///p z"), ("b@60/l1", "", "//p/b/z")],
    ),
    "slowest left partition": ({"left": {"partition": "part"}}, [("a@50/l0 b@20/l1", "p@9 q@10 z@60", "bq/a/p//q z")]),
    "a left partition that starts late counts from then on": (
        {"left": {"partition": "part"}},
        [
            ("a@30/l0 b@50/l0", "p@19 q@25 z@30", "//p/a b/q z"),
            ("c@20/l1", "y@31", "aq az/c//b/q y z"),
            ("d@41/l1", "x@42", "dy///b/x y"),
        ],
    ),
    "a row that matched earlier": ({}, [("a@10", "p@5 z@11", "ap////p z"), ("b@100", "y@101", "/b/z//y")]),
    "B does not go back for a pending row that is late": (
        {},
        [("a@30", "z@12", "//z/a/"), ("b@15", "", "///a b/"), ("", "w@14", "//w/a b/"), ("", "y@20", "/b//a/y")],
    ),
    "negative before: the bound is later than the left side": (
        {"before": -2, "after": 5},
        [("a@10", "z@99", "/a///z"), ("b@20", "p@21 q@22", "bq//p//q z")],
    ),
    "end of input": ({}, [("a@5", "p@4 q@5", "///a/p q"), (END, "", "ap aq////")]),
    "end of input of the right side alone": ({}, [("", "p@4", "////p"), (END, "", "//p//")]),
    "end of input without rows": ({}, [(END, "", "////")]),
}
NONE_KEYS = {
    "None matches nothing, not even None": ({"how": "left"}, [("a.-@5", "u.-@4 z@9", "a./a///u z")]),
    "a row with the key None waits like others": ({}, [("a.-@5", "u@5", "///a/u"), ("", "z@6", "/a///u z")]),
    "a right row with the key None expires like others": (
        {"how": "right"},
        [("a@13", "u.-@4", "///a/u"), ("", "z@60", "/a"), ("b@15", "", ".u/b/u")],
    ),
    "a pending row with the key None counts for B": (
        {},
        [("a.-@15 b@30", "p@4 q@5 y@15", "//p/a b/q y"), ("", "z@16", "/a/q y z/b/")],
    ),
}
STAMPED = {
    "grace: caught up, stamp - grace at the row and past it": (
        {"right": {"grace": 30}},
        [("a@1000", "u@995", "///a", "1000"), ("", "", "///a", "1030 r"), ("", "", "au", "1031 r")],
    ),
    "grace: a source that is behind holds the left side back": (
        {"right": {"grace": 30}},
        [("a@1000", "u@995", "///a", "1000"), ("", "", "///a", "99999 l")],
    ),
    "no grace: a source at its end holds it back": ({}, [("a@1000", "u@995", "///a"), ("", "", "///a", "99999 r")]),
    "grace: no right data": ({"right": {"grace": 30}}, [("a@1000", "", "///a", "1030 r"), ("", "", "/a///", "1031 r")]),
    "grace: an announced partition without data": (
        {"right": {"grace": 30, "partition": "part", "partitions": ["r0", "r1"]}},
        [("a@1000", "u@998/r0", "///a", "1030 r"), ("", "", "au", "1031 r")],
    ),
    "grace: only if it is more": ({"right": {"grace": 30}}, [("a@1500", "u@1499 v@5000", "au", "1000 r")]),
    "grace of 0: the stamp": ({"right": {"grace": 0}}, [("a@1000 b@1001", "", "/a//b", "1001 r")]),
    "grace is not reduced by the lag": ({"right": {"grace": 30, "lag": 500}}, [("a@1000", "u@995", "au", "1031 r")]),
    "grace: what comes later still matches later rows": (
        {"right": {"grace": 30}},
        [("a@1000", "u@995", "au", "1031 r"), ("b@1005", "v@998", "///b", "1032"), ("", "w@1006", "bu bv", "1033")],
    ),
    "idle: a partition that has had no data since the first transaction": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"], "idle": 100}},
        [
            ("a@5", "u@9/r0", "///a", "1000"),
            ("", "v@10/r0", "///a", "1099"),
            ("", "w@11/r0", "/a", "1100"),
            ("b@10", "y@3/r1", "by bu bv", "1101"),
        ],
    ),
    "idle: a partition that stops, and comes back": (
        {"right": {"partition": "part", "idle": 100}, "before": 5},
        [
            ("", "u@5/r0 v@5/r1", "", "1000"),
            ("a@7", "w@8/r0", "///a", "1099"),
            ("", "y@9/r0", "au av", "1100"),
            ("b@9", "z@9/r1", "///b", "1101"),
            ("", "t@10/r0", "///b", "1102"),
            ("", "s@10/r1", "bu bv bw by bz", "1103"),
        ],
    ),
    "idle: the partitions with the latest data are never left out": (
        {"right": {"idle": 100}, "before": 60},
        [("a@50", "u@9", "///a", "1000"), ("", "", "///a", "99999")],
    ),
    "idle: all partitions, of which the latest stays": (
        {"right": {"partition": "part", "idle": 100}, "before": 60},
        [("a@50", "u@20/r0", "///a", "1000"), ("", "v@60/r1", "///a", "1001"), ("", "", "au", "99999")],
    ),
    "idle of a left partition": (
        {"left": {"partition": "part", "partitions": ["l0", "l1"], "idle": 100}},
        [
            ("a@50/l0", "p@0 z@99", "/a///p z", "1000"),
            ("b@51/l0", "", "/b///p z", "1099"),
            ("c@52/l0", "", "/c/p//z", "1100"),
        ],
    ),
}
CASES = {**RELEASE, **EXPIRY, **NONE_KEYS, **STAMPED}


@pytest.mark.parametrize("name", CASES)
def test_a_rule(name):
    options, steps = CASES[name]
    with driver(topology(**options)) as running:
        check(running, steps)


@pytest.mark.long
@pytest.mark.parametrize("name", [*RELEASE, *EXPIRY, *NONE_KEYS])
def test_a_rule_with_a_restart_after_every_transaction(name, tmp_path):
    options, steps = CASES[name]
    with driver(topology(**options), data_dir=tmp_path / "data") as running:
        for step in steps:
            check(running, [step])
            running.restart()


def test_rows_of_all_tasks_expire_by_the_oldest_pending_row_of_all_tasks():
    """B is that of the component: a row that is pending in one task keeps the right rows of all."""
    with driver(topology(tasks=4)) as running:
        others = " ".join(f"{key}.{key}@12" for key in "bcdefgh")
        check(running, [("a.a@20", others, "/ / / a / b c d e f g h"), ("z.z@90", "", "/ / / a z / b c d e f g h")])
        running.restart(topology(tasks=3))
        check(running, [("", "", "/ / / a z / b c d e f g h")])
        running.restart()
        check(running, [("y.y@91", "v.v@21", "/ a / b c d e f g h v / y z / ")])


TYPES = {
    "inner": ("au av", ""),
    "left": ("au av b.", ""),
    "right": ("au av", ".s .w"),
    "full": ("au av b.", ".s .w"),
    "semi": ("a", ""),
    "anti": ("b", ""),
}
SPELLINGS = {
    "left": ("leftouter", "left_outer"),
    "right": ("rightouter", "right_outer"),
    "full": ("outer", "fullouter", "full_outer"),
    "semi": ("leftsemi", "left_semi"),
    "anti": ("leftanti", "left_anti"),
}


@pytest.mark.parametrize("how", [*TYPES, *(one for some in SPELLINGS.values() for one in some)])
def test_a_join_type_and_its_spellings(how):
    kind = next((one for one, some in SPELLINGS.items() if how in some), how)
    first, last = TYPES[kind]
    select = ["left:id"] if kind in ("semi", "anti") else None
    with driver(topology(how=how, select=select or ["l:id", "r:id"])) as running:
        check(running, [("a.x@5 b.y@5", "u.x@4 v.x@5 w.z@4 s.x@9", f"{first} / b / / / s u v w")])
        running.commit(running.end_of_input())
        found = sorted("".join(one or "." for one in row) for row in running.emitted("join", 2))
        assert (" ".join(found), seen(running, 2)[1:]) == (last, ["", "s w", "", ""])


@pytest.mark.parametrize("make", [
    lambda how: IntervalJoin(Side("l", key="k", time="t"), Side("r", key="k", time="t"), before=Duration(1), how=how),
    lambda how: StoreJoin(Side("l", key="k", time="t"), MemoryStore(), before=Duration(1), how=how),
    lambda how: LookupJoin("l", "somewhere", on="k", how=how),
], ids=["IntervalJoin", "StoreJoin", "LookupJoin"])  # fmt: skip
def test_all_joins_read_their_type_alike(make):
    for kind, some in {"inner": (), **SPELLINGS}.items():
        for how in (kind, kind.upper(), *some):
            try:
                assert make(how).how == kind
            except InputError as error:
                assert kind in ("right", "full") and "how: expected one of inner, left, semi, anti" in str(error)
    for how in ("cross", "inne", "", None, 1):
        with pytest.raises(InputError, match="how: expected one of inner, left"):
            make(how)


class Names(BasicBolt):
    """Emits the field names and values of each tuple."""

    fields = ("names", "values")

    def execute(self, tuple, collector):
        collector.emit(list(tuple.fields), list(tuple.values))


@pytest.mark.parametrize(
    ("options", "names", "values"),
    [
        ({"select": ["r:id", "l:key"]}, ["id", "key"], ["u", "x"]),
        ({"select": ["r:id", "l:id"]}, ["r_id", "l_id"], ["u", "a"]),
        ({"select": ["right:ts", "left:id"]}, ["ts", "id"], [4, "a"]),
        (
            {"select": None},
            ["l_id", "l_key", "l_ts", "l_part", "r_id", "r_key", "r_ts", "r_part"],
            ["a", "x", 5, "l0", "u", "x", 4, "r0"],
        ),
        ({"select": None, "how": "semi"}, ["id", "key", "ts", "part"], ["a", "x", 5, "l0"]),
    ],
)
def test_names_of_selected_fields(options, names, values):
    left, right = (Side("feed", name, key="key", time="ts") for name in "lr")
    join = IntervalJoin(left, right, before=Duration(10), **options)
    builder = fed_bolt("join", join, dict.fromkeys("lr", FIELDS), ["key"])
    builder.set_bolt("names", Names()).global_grouping("join")
    with driver(builder.build_topology()) as running:
        running.commit(running.feed({"l": rows("a@5/l0"), "r": rows("u@4/r0 v@6/r0")}))
        assert running.emitted("names") == [(names, values)]


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMES = {
    "s": ({"unit": "s"}, lambda n: 1000 + n, 1000),
    "ms": ({}, lambda n: 1_000_000 + n * 1000, 1000),
    "us": ({"unit": "us"}, lambda n: 10**9 + n * 10**6, 1000),
    "datetimes": ({}, lambda n: NOON + timedelta(seconds=n), int(NOON.timestamp())),
    "datetimes of another zone": (
        {},
        lambda n: (NOON + timedelta(seconds=n)).astimezone(timezone(timedelta(hours=5))),
        int(NOON.timestamp()),
    ),
}


@pytest.mark.parametrize("name", TIMES)
def test_times(name):
    options, at, start = TIMES[name]
    made = topology(left=options, right=options, before=10_000, how="left", select=["l:ts", "r:id"])
    with driver(made) as running:
        running.commit(running.feed({"l": [("a", "x", at(5), None)], "r": [("u", "x", at(-5), None)]}, at=NOON))
        running.commit(running.feed({"l": [], "r": [("v", "x", at(5), None)]}))
        assert [row["time"] for row in running.state("join-left").to_pylist()] == [(start + 5) * 10**6]
        running.commit(running.feed({"l": [], "r": [("w", "x", at(6), None)]}))
        assert running.emitted("join") == [(at(5), "u"), (at(5), "v")]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, {"key": "3", "id": "7", "part": "1.5"}),
        ({"key": int, "id": int, "part": float}, {"key": 3, "id": 7, "part": 1.5}),
    ],
)
def test_columns_of_pending_and_buffered_rows(columns, expected):
    sides = {"left": {"columns": columns}, "right": {"columns": columns}}
    with driver(topology(**sides)) as running:
        running.commit(running.feed({"l": [(7, 3, 5, 1.5)], "r": [(7, 3, 5, 1.5)]}))
        for name in ("left", "right"):
            [row] = running.state(f"join-{name}").to_pylist()
            wanted = {**expected, "time": 5000, "partition": None}
            assert {field: row[field] for field in wanted} == wanted
        running.commit(running.end_of_input())
        assert running.emitted("join") == [(7, 7)]


def test_ids_by_default_are_txid_and_number():
    with driver(topology(left={"id": None}, right={"id": None})) as running:
        for _ in range(2):
            running.commit(feed(running, "a@5 a@5", "u@5 u@5"))
        assert ids(running.state("join-left")) == ["1/0", "1/1", "2/0", "2/1"]
        assert ids(running.state("join-right")) == ["1/2", "1/3", "2/2", "2/3"]


def test_keys_of_several_fields():
    fields = ("id", "one", "two", "ts")
    left, right = (Side("feed", name, key=["one", "two"], time="ts", id="id") for name in "lr")
    join = IntervalJoin(left, right, before=Duration(10), how="full", select=["l:id", "r:id"])
    builder = fed_bolt("join", join, dict.fromkeys("lr", fields), ["one", "two"], 2)
    lefts = [("a", "x", 1, 5), ("b", "x", "1", 5), ("c", "x", None, 5), ("d", None, None, 5), ("e", 1, "x", 5)]
    rights = [("u", "x", 1, 4), ("v", "x", None, 4), ("w", None, None, 4), ("y", "x", True, 4)]
    with driver(builder.build_topology()) as running:
        running.commit(running.feed({"l": lefts, "r": rights}))
        running.commit(running.end_of_input())
        pairs = {"au", "b.", "c.", "d.", "e.", ".v", ".w", ".y"}
        assert sorted("".join(one or "." for one in row) for row in running.emitted("join")) == sorted(pairs)


@pytest.mark.parametrize("committing", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_nothing_remains_of_a_failed_attempt(committing, restart, tmp_path):
    """Neither position, bound, rows nor matched flags; the opaque replay has other rows."""
    with driver(topology(how="full", opaque=True), data_dir=tmp_path / "data") as running:
        check(running, [("a@5", "u@4", "/ / / a / u")])
        txid = feed(running, "b@900 c@6", "v@5 w@999")
        if committing:
            running.ack(txid)
        running.restart() if restart else running.fail(txid)
        check(running, [("b@6", "w@5", "/ / / a b / u w"), ("", "z@6", "au aw / / / b / u w z")])
        check(running, [(END, "", "bu bw bz")])


def test_a_transactional_replay_gives_the_same():
    with driver(topology(how="full")) as running:
        txid = feed(running, "a@5 b@30", "u@4 v@20 z@30")
        running.ack(txid)
        first = running.emitted("join", txid), running.emitted("join", txid, stream="unmatched_right")
        running.fail(txid)
        running.commit(txid)
        assert (running.emitted("join", txid), running.emitted("join", txid, stream="unmatched_right")) == first
        assert seen(running, txid) == ["au", "", "", "b", "v z"]


def test_a_rewind_takes_rows_positions_and_flags_back(tmp_path):
    with driver(topology(how="right"), data_dir=tmp_path / "data") as running:
        check(running, [("a@15", "u@6 v@15", "/ / / a / u v"), ("b@99", "z@90", "au av / / / b / z")])
    rewind(tmp_path / "data", to_txid=1)
    with driver(topology(how="right"), data_dir=tmp_path / "data") as running:
        check(running, [("c@16", "w@15", "/ / / a c / u v w"), (END, "", "au av aw cu cv cw / / / / ")])


# Left rows by their bounds: late if these begin below B when they come, which is 20 here, as P is 31.
COUNTS = [
    ("b@30", "v@31", {"late": 0, "stragglers": 0}),
    ("b@29", "v@30", {"late": 1, "stragglers": 1}),
    ("b@40 c@31", "v@31 w@32", {"late": 0, "stragglers": 0}),
    ("b@29 c@1", "v@1 w@1", {"late": 2, "stragglers": 2}),
]


@pytest.mark.parametrize(("left", "right", "expected"), COUNTS)
def test_late_rows_and_stragglers_are_counted(left, right, expected, tmp_path, command):
    with driver(topology(), data_dir=tmp_path / "data") as running:
        check(running, [("a@30", "u@31", "/ a / / / u")])
        running.commit(feed(running, left, right))
    shown = command.json("join", tmp_path / "data", "join")
    assert {name: shown[name] for name in expected} == expected


ANNOUNCED = {"partition": "part", "partitions": ["r0", "r1"]}
TYPED = {"columns": {"id": str, "ts": int}}
BAD_ROWS = {
    "unannounced partition": (ANNOUNCED, ("z", "x", 5, "r9"), r"'part' .* is 'r9', expected one of partitions=\['r0'"),
    "no partition": (ANNOUNCED, ("z", "x", 5, None), "field 'part'"),
    "no time": (ANNOUNCED, ("z", "x", None, "r0"), "field 'ts' of .* got None"),
    "text as time": (ANNOUNCED, ("z", "x", "5", "r0"), "expected an int or an aware datetime, got str '5'"),
    "a naive time": (ANNOUNCED, ("z", "x", datetime(2026, 1, 1), "r0"), "has no time zone"),  # noqa: DTZ001 - the case
    "NaN as time": (ANNOUNCED, ("z", "x", float("nan"), "r0"), "join"),
    "a bool as time": (ANNOUNCED, ("z", "x", True, "r0"), "join"),
    "a time beyond the calendar": (ANNOUNCED, ("z", "x", 10**30, "r0"), "join"),
    "a time of another unit": (ANNOUNCED, ("z", "x", 1 << 62, "r0"), "is its unit really 'ms'"),
    "a key that is a list": (ANNOUNCED, ("z", ["x"], 5, "r0"), "join"),
    "another type than that of the column": (TYPED, (7, "x", 5, "r0"), "field 'id' does not fit the type string"),
    "a datetime as an int": (TYPED, ("z", "x", datetime(2026, 1, 1, tzinfo=UTC), "r0"), "field 'ts' does not fit"),
}


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_row_that_is_left_out_moves_no_position_and_no_bound(tasks):
    sides = {name: {"columns": {"id": str}} for name in ("left", "right")}
    with driver(topology(tasks=tasks, **sides), settings={"on_error": "dead_letter"}) as running:
        running.commit(
            running.feed({"l": [*rows("a@5 b@50"), (7, "x", 8, None)], "r": [*rows("u@9"), (7, "x", 500, None)]})
        )
        assert seen(running, 1) == ["", "a", "u", "b", ""]


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_fails_its_transaction_and_nothing_is_lost(name, tmp_path):
    right, bad, message = BAD_ROWS[name]
    with driver(topology(right=right, opaque=True), data_dir=tmp_path / "data") as running:
        running.commit(running.feed({"l": rows("a@5"), "r": rows("u@4/r0")}))
        with pytest.raises(TopologyFailed, match=message) as caught:
            running.feed({"l": [], "r": [bad]})
            running.ack(2)
        assert "Traceback" not in str(caught.value)
    with driver(topology(right=right, opaque=True), data_dir=tmp_path / "data") as running:
        running.commit(running.feed({"l": [], "r": rows("v@9/r0 w@9/r1")}))
        assert seen(running, 2) == ["au", "", "", "", "u v w"]
