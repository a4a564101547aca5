"""The rules of interval joins one by one: what is released, joined, unmatched and expired when, at the boundaries."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from txstorm import BatchBolt, Committer, Duration, TransactionalTopologyBuilder
from txstorm.joins import IntervalJoin, Side
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

FIELDS = ("id", "key", "ts", "part")
ROW = re.compile(r"(\w+?)(?:\.([\w-]+))?@(-?\d+)(?:/(\w+))?")
END = "end of input"


def ms(number):
    return timedelta(milliseconds=number)


def rows(text):
    """Return the rows of ``id.key@time/partition``; the key is x if there is none, and None if it is ``-``."""
    parts = [ROW.fullmatch(one).groups() for one in text.split()]
    return [(name, None if key == "-" else key or "x", int(time), part) for name, key, time, part in parts]


def topology(*, left=(), right=(), before=10, after=0, how="inner", opaque=False, tasks=1, **options):
    def made(stream, given):
        times = {"lag", "idle", "grace"}
        options = {name: ms(value) if name in times else value for name, value in dict(given).items()}
        return Side("feed", stream, **{"key": "key", "time": "ts", "id": "id", **options})

    if "select" not in options:
        options["select"] = ["l:id"] if how in ("semi", "anti") else ["l:id", "r:id"]
    join = IntervalJoin(made("l", left), made("r", right), before=ms(before), after=ms(after), how=how, **options)
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}, opaque=opaque))
    declarer = builder.set_bolt("join", join, tasks).fields_grouping("feed", "l", ["key"])
    declarer.fields_grouping("feed", "r", ["key"])
    return builder.build_topology()


def driver(made, **options):
    return TopologyTestDriver(made, clock=ManualClock(datetime(1970, 1, 1, tzinfo=UTC)), **options)


def feed(running, left, right, **options):
    return running.end_of_input() if left == END else running.feed({"l": rows(left), "r": rows(right)}, **options)


def ids(found):
    return sorted(one["id"] for one in found.to_pylist())


def seen(running, txid):
    """Return what a transaction gave: results, unmatched left and right rows, then pending and buffered rows."""
    texts = [" ".join("".join(one or "." for one in row) for row in running.emitted("join", txid))]
    texts.append(" ".join(row[0] for row in running.emitted("join", txid, stream="unmatched_left")))
    texts.append(" ".join(sorted(row[0] for row in running.emitted("join", txid, stream="unmatched_right"))))
    return texts + [" ".join(ids(running.state(f"join-{name}"))) for name in ("left", "right")]


def check(running, steps):
    for number, (left, right, expected, *how) in enumerate(steps, 1):
        txid = feed(running, left, right, **(how[0] if how else {}))
        running.commit(txid)
        wanted = [one.strip() for one in expected.split("/")]
        assert seen(running, txid)[: len(wanted)] == wanted, f"step {number}"


# Steps are left rows, right rows, and what is expected: results / unmatched left / unmatched right / pending / buffered.
RELEASE = {
    "a row at P waits, also for a second right row of that time": (
        {},
        [("a@5", "u@5", "/ / / a / u"), ("", "v@5", "/ / / a / u v"), ("", "w@6", "au av / / / / u v w")],
    ),
    "time + after at P waits": (
        {"after": 3},
        [("a@5", "u@8", "/ / / a / u"), ("", "v@9", "au / / / / u v")],
    ),
    "right lag": ({"right": {"lag": 2}}, [("a@5", "u@7", "/ / / a"), ("", "v@8", "/ a / / / u v")]),
    "order of time, then arrival, also over transactions": (
        {"how": "left"},
        [("c@3 a@1 b@1", "", "/ / / a b c"), ("d@1", "u@9", "a. b. d. c. / a b d c")],
    ),
    "no right data": (
        {"how": "left"},
        [
            ("a@1 b@1000000", "", "/ / / a b"),
            ("c@5000000", "", "/ / / a b c"),
            (END, "", "a. b. c. / a b c / / / "),
        ],
    ),
    "a row below P on arrival": ({}, [("", "u@20", "/ / / / u"), ("a@15", "v@15", "av / / / / u v")]),
    "rows just below P and at P": ({}, [("a@19 b@20", "u@20", "/ a / / b / u")]),
    "a partition that starts late does not lower P": (
        {"right": {"partition": "part"}},
        [("", "u@20/r0", "/ / / / u"), ("a@15", "v@1/r1", "/ a / v / / u")],
    ),
    "a partition that starts late holds P back from then on": (
        {"right": {"partition": "part"}},
        [
            ("", "u@20/r0 v@21/r1", ""),
            ("a@25", "w@90/r0", "/ / / a"),
            ("", "y@25/r1", "/ / / a"),
            ("", "z@26/r1", "au av ay"),
        ],
    ),
    "an announced partition without data": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"]}},
        [
            ("a@5", "u@9/r0", "/ / / a / u"),
            ("", "v@5/r1", "/ / / a / u v"),
            ("", "w@6/r1", "av / / / / u v w"),
        ],
    ),
    "the slowest partition, less lag": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"], "lag": 2}},
        [("a@5", "u@100/r0 v@7/r1", "/ / / a"), ("", "w@8/r1", "/ a")],
    ),
    "the newest row of a partition need not be the last one": ({}, [("a@5", "u@9 v@3", "av / / / / u v")]),
    "times before 1970": ({}, [("a@-5", "u@-5", "/ / / a"), ("", "v@-4", "au")]),
    "both sides in one transaction": ({}, [("a@5", "u@4 v@6", "au / / / / u v")]),
    "left rows do not move P": ({}, [("a@5 b@50", "u@5", "/ / / a b"), ("c@99", "", "/ / / a b c")]),
    "keys": ({}, [("a.x@5 b.y@5 c.z@5", "u.x@4 v.y@4 w.w@9", "au bv / c")]),
    "right rows are not used up": ({}, [("a@5 b@6", "u@4 v@9", "au bu"), ("c@8", "", "cu")]),
    "equal rows are different rows": ({}, [("a@5 a@5", "u@4 u@4 v@9", "au au au au / / / / u u v")]),
    "bounds are included": ({"after": 3}, [("a@20", "p@9 q@10 r@20 s@23 t@24", "aq ar as / / p / / q r s t")]),
    "bounds of one instant": ({"before": 0}, [("a@5", "p@4 q@5 z@6", "aq / / p / / q z")]),
    "right rows are earlier by at least 3": (
        {"after": -3},
        [("a@10", "p@0 q@7", "/ / / a / p q"), ("", "r@8", "ap aq / / / / p q r")],
    ),
    "right rows are later by at least 2": (
        {"before": -2, "after": 5},
        [("a@10", "p@11 q@12 r@15", "/ / p / a / q r"), ("", "s@16", "aq ar / / / / q r s")],
    ),
    "right rows are later by exactly 3": (
        {"before": -3, "after": 3},
        [("a@10", "p@12 q@13", "/ / p / a / q"), ("", "r@14", "aq / / / / q r")],
    ),
    "a transaction without rows changes nothing": ({}, [("a@5", "u@5", "/ / / a / u"), ("", "", "/ / / a / u")]),
}
EXPIRY = {
    "at B stays, below B goes": ({}, [("a@20", "p@9 q@10 z@21", "aq / / p / / q z")]),
    "a pending row keeps its right rows": (
        {},
        [("a@15 b@30", "p@4 q@5 y@15", "/ / p / a b / q y"), ("", "z@16", "aq ay / / z / b / ")],
    ),
    "the newest pending row holds B, too": ({}, [("a@15 b@30", "p@4 q@5 z@16", "aq / / p z / b / ")]),
    "left lag": ({"left": {"lag": 5}}, [("a@20", "p@4 q@5 z@21", "/ a / p / / q z")]),
    "a pending row later than the lag does": (
        {"left": {"lag": 5}},
        [("a@20 b@12", "p@1 q@2 z@12", "/ / p / a b / q z"), ("", "y@13", "bq bz / / / a / y z")],
    ),
    "a right row below B on arrival": (
        {},
        [("a@30", "z@31", "/ a / / / z"), ("", "p@19 q@20", "/ / p / / q z")],
    ),
    "left and right rows that are late together": (
        {},
        [("a@30", "z@31", "/ a / / / z"), ("b@15", "p@10 q@4", "bp / / q / / z")],
    ),
    "a left row whose right rows have expired": (
        {},
        [("a@30", "p@10 z@31", "/ a / p / / z"), ("b@15", "", "/ b / / / z")],
    ),
    "no left data": (
        {},
        [("", "p@0 q@100000", "/ / / / p q"), ("a@5000", "r@200000", "/ a / p / / q r")],
    ),
    "an announced left partition without data": (
        {"left": {"partition": "part", "partitions": ["l0", "l1"]}},
        [("a@50/l0", "p@0 z@51", "/ a / / / p z"), ("b@60/l1", "", "/ / p / b / z")],
    ),
    "the slowest left partition": (
        {"left": {"partition": "part"}},
        [("a@50/l0 b@20/l1", "p@9 q@10 z@60", "bq / a / p / / q z")],
    ),
    "a left partition that starts late counts from then on": (
        {"left": {"partition": "part"}},
        [
            ("a@30/l0 b@50/l0", "p@19 q@25 z@30", "/ / p / a b / q z"),
            ("c@20/l1", "y@31", "aq az / c / / b / q y z"),
            ("d@41/l1", "x@42", "dy / / / b / x y"),
        ],
    ),
    "a row that has matched in an earlier transaction": (
        {},
        [("a@10", "p@5 z@11", "ap / / / / p z"), ("b@100", "y@101", "/ b / z / / y")],
    ),
    "B does not go back for a pending row that is late": (
        {},
        [
            ("a@30", "z@12", "/ / z / a / "),
            ("b@15", "", "/ / / a b / "),
            ("", "w@14", "/ / w / a b / "),
            ("", "y@20", "/ b / / a / y"),
        ],
    ),
    "negative before: the bound is later than the left side": (
        {"before": -2, "after": 5},
        [("a@10", "z@99", "/ a / / / z"), ("b@20", "p@21 q@22", "bq / / p / / q z")],
    ),
    "end of input": ({}, [("a@5", "p@4 q@5", "/ / / a / p q"), (END, "", "ap aq / / / / ")]),
    "end of input of the right side alone": ({}, [("", "p@4", "/ / / / p"), (END, "", "/ / p / / ")]),
    "end of input without rows": ({}, [(END, "", "/ / / / ")]),
}
NONE_KEYS = {
    "None matches nothing, not even None": ({"how": "left"}, [("a.-@5", "u.-@4 z@9", "a. / a / / / u z")]),
    "a row with the key None waits like others": ({}, [("a.-@5", "u@5", "/ / / a / u"), ("", "z@6", "/ a / / / u z")]),
    "a right row with the key None expires like others": (
        {"how": "right"},
        [("a@13", "u.-@4", "/ / / a / u"), ("", "z@60", "/ a"), ("b@15", "", ".u / b / u")],
    ),
    "a pending row with the key None counts for B": (
        {},
        [("a.-@15 b@30", "p@4 q@5 y@15", "/ / p / a b / q y"), ("", "z@16", "/ a / q y z / b / ")],
    ),
}
STAMPED = {
    "grace: caught up, stamp - grace at the row and past it": (
        {"right": {"grace": 30}},
        [
            ("a@1000", "u@995", "/ / / a", {"at": 1000}),
            ("", "", "/ / / a", {"at": 1030, "caught_up": ["r"]}),
            ("", "", "au", {"at": 1031, "caught_up": ["r"]}),
        ],
    ),
    "grace: a source that is behind holds the left side back": (
        {"right": {"grace": 30}},
        [("a@1000", "u@995", "/ / / a", {"at": 1000}), ("", "", "/ / / a", {"at": 99999, "caught_up": ["l"]})],
    ),
    "no grace: a source that is read to its end holds it back, too": (
        {},
        [("a@1000", "u@995", "/ / / a"), ("", "", "/ / / a", {"at": 99999, "caught_up": ["r"]})],
    ),
    "grace: no right data ever": (
        {"right": {"grace": 30}},
        [
            ("a@1000", "", "/ / / a", {"at": 1030, "caught_up": ["r"]}),
            ("", "", "/ a / / / ", {"at": 1031, "caught_up": ["r"]}),
        ],
    ),
    "grace: an announced partition without data": (
        {"right": {"grace": 30, "partition": "part", "partitions": ["r0", "r1"]}},
        [
            ("a@1000", "u@998/r0", "/ / / a", {"at": 1030, "caught_up": ["r"]}),
            ("", "", "au", {"at": 1031, "caught_up": ["r"]}),
        ],
    ),
    "grace: only if it is more": (
        {"right": {"grace": 30}},
        [("a@1500", "u@1499 v@5000", "au", {"at": 1000, "caught_up": ["r"]})],
    ),
    "grace of 0: the stamp": (
        {"right": {"grace": 0}},
        [("a@1000 b@1001", "", "/ a / / b", {"at": 1001, "caught_up": ["r"]})],
    ),
    "grace is not reduced by the lag": (
        {"right": {"grace": 30, "lag": 500}},
        [("a@1000", "u@995", "au", {"at": 1031, "caught_up": ["r"]})],
    ),
    "grace: what comes later still matches later rows": (
        {"right": {"grace": 30}},
        [
            ("a@1000", "u@995", "au", {"at": 1031, "caught_up": ["r"]}),
            ("b@1005", "v@998", "/ / / b", {"at": 1032}),
            ("", "w@1006", "bu bv", {"at": 1033}),
        ],
    ),
    "idle: a partition that has had no data since the first transaction": (
        {"right": {"partition": "part", "partitions": ["r0", "r1"], "idle": 100}},
        [
            ("a@5", "u@9/r0", "/ / / a", {"at": 1000}),
            ("", "v@10/r0", "/ / / a", {"at": 1099}),
            ("", "w@11/r0", "/ a", {"at": 1100}),
            ("b@10", "y@3/r1", "by bu bv", {"at": 1101}),
        ],
    ),
    "idle: a partition that stops, and comes back": (
        {"right": {"partition": "part", "idle": 100}, "before": 5},
        [
            ("", "u@5/r0 v@5/r1", "", {"at": 1000}),
            ("a@7", "w@8/r0", "/ / / a", {"at": 1099}),
            ("", "y@9/r0", "au av", {"at": 1100}),
            ("b@9", "z@9/r1", "/ / / b", {"at": 1101}),
            ("", "t@10/r0", "/ / / b", {"at": 1102}),
            ("", "s@10/r1", "bu bv bw by bz", {"at": 1103}),
        ],
    ),
    "idle: the partitions with the latest data are never left out": (
        {"right": {"idle": 100}, "before": 60},
        [("a@50", "u@9", "/ / / a", {"at": 1000}), ("", "", "/ / / a", {"at": 99999})],
    ),
    "idle: all partitions, of which the latest stays": (
        {"right": {"partition": "part", "idle": 100}, "before": 60},
        [
            ("a@50", "u@20/r0", "/ / / a", {"at": 1000}),
            ("", "v@60/r1", "/ / / a", {"at": 1001}),
            ("", "", "au", {"at": 99999}),
        ],
    ),
    "idle of a left partition": (
        {"left": {"partition": "part", "partitions": ["l0", "l1"], "idle": 100}},
        [
            ("a@50/l0", "p@0 z@99", "/ a / / / p z", {"at": 1000}),
            ("b@51/l0", "", "/ b / / / p z", {"at": 1099}),
            ("c@52/l0", "", "/ c / p / / z", {"at": 1100}),
        ],
    ),
}
CASES = {**RELEASE, **EXPIRY, **NONE_KEYS, **STAMPED}


@pytest.mark.parametrize("name", CASES)
def test_a_rule(name):
    options, steps = CASES[name]
    with driver(topology(**options)) as running:
        check(running, steps)


@pytest.mark.parametrize("name", [*RELEASE, *EXPIRY, *NONE_KEYS])
def test_a_rule_with_a_restart_after_every_transaction(name, tmp_path):
    options, steps = CASES[name]
    with driver(topology(**options), data_dir=tmp_path / "data") as running:
        for step in steps:
            check(running, [step])
            running.restart()


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


class Names(BatchBolt, Committer):
    """Emits the field names and values of each tuple."""

    fields = ("names", "values")

    def prepare(self, context, collector, attempt):
        self.collector, self.found = collector, []

    def execute(self, tuple):
        self.found.append((list(tuple.fields), list(tuple.values)))

    def finish_batch(self):
        for one in self.found:
            self.collector.emit(*one)


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
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}))
    left, right = (Side("feed", name, key="key", time="ts") for name in "lr")
    declarer = builder.set_bolt("join", IntervalJoin(left, right, before=Duration(10), **options))
    declarer.fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    builder.set_bolt("names", Names()).global_grouping("join")
    with driver(builder.build_topology()) as running:
        running.commit(running.feed({"l": rows("a@5/l0"), "r": rows("u@4/r0 v@6/r0")}))
        assert running.emitted("names") == [(names, values)]
