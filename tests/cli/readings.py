"""Topologies for commands that import them: readings with one form of windows, and numbers without times."""

from datetime import timedelta
from functools import partial

from window_bolts import Emitting

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowAggregate
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology

ROWS = [("a", 1), ("b", 3), ("c", 11), ("late", 2), ("d", 14), ("e", 27)]
TWENTY, TEN, FIVE = (Duration.seconds(seconds) for seconds in (20, 10, 5))


Sum = partial(Emitting, "end n", lambda window: (window.end, len([one["id"] for one in window.get()])))


def in_seconds(bolt):
    return bolt.with_timestamp_field("ts", unit="s")


def counts():
    return in_seconds(WindowAggregate("id", table="counts", ttl=timedelta(days=1), n="count"))


FORMS = {
    "time": lambda: in_seconds(Sum()).with_window(TWENTY, TEN),
    "left": lambda: in_seconds(Sum()).with_tumbling_window(Duration.seconds(9), closed="left"),
    "count": lambda: in_seconds(Sum()).with_window(Count(3), Count(4)),
    "session": lambda: in_seconds(Sum()).with_session_window(FIVE),
    "panes": lambda: counts().with_window(TWENTY, TEN),
    "sessions": lambda: counts().with_session_window(FIVE),
    "arrival": lambda: Sum().with_window(Count(4), Count(4)),
    "key": lambda: in_seconds(Sum()).with_tumbling_window(TEN).with_key("id"),
}


def topology(form: str = "time", parallelism: int = 1) -> Topology:
    spout = MemoryTransactionalSpout([ROWS], ("id", "ts"), take=3)
    builder = TransactionalTopologyBuilder("readings", "numbers", spout)
    builder.set_bolt("sum", FORMS[form](), parallelism).fields_grouping("numbers", ["id"])
    return builder.build_topology()


def numbers() -> Topology:
    builder = TransactionalTopologyBuilder("plain", "numbers", MemoryTransactionalSpout([[1, 2]], "n", take=1))
    builder.set_committer_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("numbers")
    return builder.build_topology()


default, plain = topology(), numbers()
