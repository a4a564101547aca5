"""Every way into a typed column: one value is stored the same, or refused, whichever way it takes."""

import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from txstorm import BatchBolt, Committer, Duration, TransactionalTopologyBuilder, WindowAggregate
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.errors import TxstormError
from txstorm.sinks import DeltaSink
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATE = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))
VALUES = {
    Decimal: ["1.5", "1e30", "-1e30", "1e20", "99999999999999999999", "1e-18", "1e-19", "1e38", "-0"],
    int: [5, 2**63 - 1, -(2**63), 2**63],
    datetime: [EPOCH, datetime.max.replace(tzinfo=UTC), LATE, datetime.min.replace(tzinfo=UTC)],
    date: [date.min, date.max],
    float: [1.5, 2**53, 2**53 + 1, float("inf")],
}
CASES = [(kind, Decimal(one) if kind is Decimal else one) for kind, values in VALUES.items() for one in values]


def columns_of(value):
    """Return a table with the value as `v`, of the type that Arrow finds for it; None if there is none."""
    try:
        found = pa.table({"k": ["a"], "at": [1], "v": [value]})
        found.to_pylist()
    except (pa.ArrowException, OverflowError):
        return None
    return found


class Uses(BatchBolt, Committer):
    """Puts a value into tables with a call of their handles; `name` is part of the names of the tables."""

    def __init__(self, kind, use, name):
        self.use, self.name = use, name
        self.state = KeyedState(f"state_{name}", key={"k": str}, value={"v": kind})
        self.rows = CollectionState(f"rows_{name}", {"k": str}, {"v": kind}, order={"at": int})
        self.sink = SinkTable(f"sink_{name}", {"v": kind})

    def prepare(self, context, collector, attempt):
        self.context, self.given = context, []

    def execute(self, tuple):
        self.given.append(tuple["v"])

    def finish_batch(self):
        for value in self.given:
            self.use(self.context, self.name, value)


def put(call):
    return lambda context, name, value: call(context.state(f"state_{name}"), value)


def append(call):
    return lambda context, name, value: call(context.collection(f"rows_{name}"), value)


def sink(call):
    return lambda context, name, value: call(context.sink(f"sink_{name}"), value)


HANDLES = {
    "put": ("state", put(lambda state, value: state.put("a", value))),
    "put_many": ("state", put(lambda state, value: state.put_many({"a": value}))),
    "update": ("state", put(lambda state, value: state.update("a", lambda old: value))),
    "update_many": ("state", put(lambda state, value: state.update_many({"a": value}, lambda old, new: new))),
    "merge": ("state", put(lambda state, value: state.merge(columns_of(value), {"v": "last"}))),
    "append": ("rows", append(lambda rows, value: rows.append("a", 1, value))),
    "append_many": ("rows", append(lambda rows, value: rows.append_many([("a", 1, value)]))),
    "append_batch": ("rows", append(lambda rows, value: rows.append_batch(columns_of(value)))),
    "sink_append": ("sink", sink(lambda sink, value: sink.append(value))),
    "sink_append_batch": ("sink", sink(lambda sink, value: sink.append_batch(columns_of(value)))),
}
BOLTS = {"DeltaSink": "sink", "max": "state", "first": "state"}


def bolt_of(name, kind):
    if name in HANDLES:
        return Uses(kind, HANDLES[name][1], name)
    if name == "DeltaSink":
        return DeltaSink("sink_DeltaSink", {"v": kind})
    bolt = WindowAggregate("k", table=f"state_{name}", ttl=timedelta(days=1), v=({"v": kind}, name))
    return bolt.with_timestamp_field("at").with_tumbling_window(Duration(10))


def stored(ways, kind, value, directory):
    """Run the value through bolts; return by way what its table holds then, or that a bolt has refused the value."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": ("k", "v", "at")}))
    for name in ways:
        builder.set_bolt(name, bolt_of(name, kind)).fields_grouping("feed", "s", ["k"])
    with TopologyTestDriver(builder.build_topology(), data_dir=directory, clock=ManualClock(EPOCH)) as driver:
        try:
            driver.commit(driver.feed({"s": [("a", value, 1)]}))
            driver.commit(driver.end_of_input())
        except TxstormError as error:
            assert re.search(r"(expected|does not fit|is out of the|common) .*(fit|years|type)", str(error)), error
            return dict.fromkeys(ways, "refused")
        read = {"sink": driver.sink, "state": driver.state, "rows": driver.state}
        return {n: repr([row["v"] for row in read[of](f"{of}_{n}").to_pylist()]) for n, of in ways.items()}


@pytest.mark.parametrize(("kind", "value"), CASES, ids=lambda one: ascii(one)[:40])
def test_a_value_is_the_same_whichever_way_it_takes(kind, value, tmp_path):
    ways = {name: table for name, (table, _) in HANDLES.items()} | BOLTS
    if columns_of(value) is None:
        ways = {name: table for name, table in ways.items() if "batch" not in name and name != "merge"}
    found = stored(ways, kind, value, tmp_path / "all")
    if "refused" in found.values():  # by one of them: each alone
        for name, table in ways.items():
            found |= stored({name: table}, kind, value, tmp_path / name)
    assert len(set(found.values())) == 1, found
