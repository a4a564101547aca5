"""Invalid topologies by name, which must be rejected when they are built; the command line loads them by `make`."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from bad_input_cases import Says
from topology_samples import Silent
from window_bolts import Emitting

from txstorm import (
    BasicBolt,
    BatchBolt,
    Committer,
    CompositeSpout,
    Duration,
    Topology,
    TransactionalTopologyBuilder,
    WindowAggregate,
)
from txstorm.api.state import KeyedState, SinkTable
from txstorm.bolts import CountByKey, SumByKey
from txstorm.errors import TopologyError
from txstorm.joins import IntervalJoin, MemoryStore, Side, StoreFeed
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout

Builder = TransactionalTopologyBuilder
CASES: dict[str, tuple[Callable[[], Builder], Says]] = {}


def make(name: str) -> Topology:
    return CASES[name][0]().build_topology()


class Pass(BasicBolt):
    fields = ("line",)

    def execute(self, tuple, collector):
        collector.emit(tuple["line"])


class Count(Silent, Committer):
    state: Any = KeyedState("counts", key={"word": str}, value={"n": int})


def start(id: Any = "t", spout_id: Any = "lines", **more: Any) -> Builder:
    return Builder(id, spout_id, MemoryTransactionalSpout({0: ["a"]}, ["line"]), **more)


def case(name: str, thing: str, found: str, cure: str) -> Callable[[Callable[[], Builder]], Callable[[], Builder]]:
    def add(build: Callable[[], Builder]) -> Callable[[], Builder]:
        CASES[name] = build, Says(TopologyError, thing, found, cure)
        return build

    return add


def bolt(declare: Callable[[Any], Any], made: Any = None, **more: Any) -> Builder:
    builder = start(**more)
    declare(builder.set_bolt("b", Pass() if made is None else made))
    return builder


def committer(made: Any) -> Builder:
    builder = start()
    builder.set_committer_bolt("keep", made).global_grouping("lines")
    return builder


def with_state(state: Any) -> Builder:
    return committer(type("Bolt", (Count,), {"state": state})())


case("unknown component", "bolt 'b'", "no component 'lin'", "did you mean 'lines'")(
    lambda: bolt(lambda b: b.shuffle_grouping("lin"))
)


@case("cycle", "cycle ", "a → b → a", "remove one of these subscriptions")
def _() -> Builder:
    builder = start()
    builder.set_bolt("b", Pass()).shuffle_grouping("a")
    builder.set_bolt("a", Pass()).shuffle_grouping("lines").shuffle_grouping("b")
    return builder


case("no grouping", "bolt 'b'", "subscribes to nothing", ".shuffle_grouping('lines')")(lambda: bolt(lambda b: None))
case("undeclared field", "bolt 'b'", "has no field 'lime'", "it has 'line'")(
    lambda: bolt(lambda b: b.fields_grouping("lines", ["lime"]))
)
case("field that is no column", "bolt 'b', DeltaSink", "has no field 'lime' (did you mean 'line'?)", "it has 'line'")(
    lambda: bolt(lambda b: b.global_grouping("lines"), DeltaSink("out", {"lime": str, "line": str}))
)
case("field to sum", "bolt 'b', SumByKey", "has no field 'n'", "it has 'line'")(
    lambda: bolt(lambda b: b.fields_grouping("lines", ["line"]), SumByKey("line", "n", "sums"))
)


class Texts(MemoryTransactionalSpout):
    def known_types(self) -> dict[str, Any]:
        return {"line": str}


def typed(made: Any) -> Builder:
    """Return a topology with a bolt that reads two streams of texts, and may take them as something else."""
    builder = Builder("t", "lines", Texts({0: ["a"]}, ["line"]))
    builder.set_bolt("other", Pass()).shuffle_grouping("lines")
    declarer = builder.set_bolt("b", made).fields_grouping("lines", ["line"])
    if isinstance(made, IntervalJoin):
        declarer.fields_grouping("other", ["line"])
    return builder


SIDES = [Side(name, key="line", time="line", id="line") for name in ("lines", "other")]
for name, made in {
    "column of another type": DeltaSink("out", {"line": int}),
    "key of another type": CountByKey({"line": bytes}, "counts"),
    "time of windows": Emitting("n", len).with_tumbling_window(Duration(1)).with_timestamp_field("line"),
    "aggregates": WindowAggregate("line", n="count").with_tumbling_window(Duration(1)).with_timestamp_field("line"),
    "time of a side": IntervalJoin(*SIDES, before=Duration(1)),
    "time of a lone side": StoreFeed(SIDES[0], MemoryStore(), retain=Duration(1)),
}.items():
    case(name, "'b'", "field 'line' of 'lines' has the type string, but is taken as", "convert it")(
        partial(typed, made)
    )
case("undeclared stream", "bolt 'b'", "no stream 'errors'", "it has 'default'")(
    lambda: bolt(lambda b: b.shuffle_grouping("lines", "errors"))
)


@case("one id twice", "component 'b'", "two components have this id", "give each its own")
def _() -> Builder:
    builder = start()
    builder.set_bolt("b", Pass()).shuffle_grouping("lines")
    builder.set_bolt("b", Pass()).shuffle_grouping("lines")
    return builder


@case("ids that differ in case", "'b' and 'B'", "differ only in case", "another id")
def _() -> Builder:
    builder = start()
    builder.set_bolt("b", Pass()).shuffle_grouping("lines")
    builder.set_bolt("B", Pass()).shuffle_grouping("lines")
    return builder


case(
    "parallelism",
    "component 'lines'",
    "parallelism is 0, expected a whole number from 1",
    "number of the component's tasks",
)(lambda: start(parallelism=0))
case("settings", "'max_spout_pendin'", "unknown setting", "did you mean 'max_spout_pending'")(
    lambda: start().set_setting("max_spout_pendin", 4)
)
case("setting value", "setting max_spout_pending", "got 0", "greater than or equal to 1 or input should be 'auto'")(
    lambda: start().set_setting("max_spout_pending", 0)
)
BAD_NAMES = {
    "dots": "..", "slash": "a/b", "nul": "a\0b", "empty": "", "space": "a b", "hidden": ".a", "newline": "a\n",
    "cyrillic": "а", "fullwidth": "ａ", "accent": "é", "dotless": "ı", "long": "a" * 65, "none": None, "number": 7,
}  # fmt: skip
NAME_CURE = "choose another one, it also names directories"


def _named(name: Any) -> None:
    def add(kind: str, build: Callable[[], Builder]) -> None:
        CASES[f"{kind} name {name!r}"] = (
            build,
            Says(TopologyError, f"{kind} {name!r}", "a letter followed by", NAME_CURE),
        )

    add("topology", lambda: start(id=name))
    add("component", lambda: start(spout_id=name))
    add("state", lambda: with_state(KeyedState(name, {"k": str}, {"v": int})))
    add("sink", lambda: with_state(SinkTable(name, {"v": int})))


for _name in BAD_NAMES.values():
    _named(_name)


def _held(name: str, make_it: Callable[[], Any]) -> None:
    def build() -> Builder:
        made = Pass()
        made.held = make_it()
        return bolt(lambda b: b.shuffle_grouping("lines"), made)

    CASES[name] = (
        build,
        Says(TopologyError, "component 'b': Pass", "its attribute 'held'", "create such things in prepare"),
    )


_held("holds a lock", threading.Lock)
_held("holds an open file", lambda: open("/dev/null", "w"))
_held("holds a generator", lambda: (i for i in range(3)))
_held("holds a thread", threading.Thread)


@case("global lock", "component 'b'", "something its code refers to cannot be serialised", "do not keep locks")
def _() -> Builder:
    lock = threading.Lock()

    class Locked(Pass):
        def execute(self, tuple, collector):
            with lock:
                collector.emit(tuple["line"])

    return bolt(lambda b: b.shuffle_grouping("lines"), Locked())


case("float key", "state 's', key: column 'k'", "double cannot be a key", "use int, str or Decimal")(
    lambda: with_state(KeyedState("s", {"k": float}, {"v": int}))
)


@case("state twice", "state 's'", "declared by both 'keep' and 'also'", "rename one, or let one component write it")
def _() -> Builder:
    state = KeyedState("s", {"k": str}, {"v": int})
    builder = with_state(state)
    builder.set_committer_bolt("also", type("Also", (Count,), {"state": state})()).global_grouping("lines")
    return builder


@case("states that differ in case", "'s' and 'S'", "differ only in case", "rename one")
def _() -> Builder:
    builder = with_state(KeyedState("s", {"k": str}, {"v": int}))
    other = type("Also", (Count,), {"state": KeyedState("S", {"k": str}, {"v": int})})
    builder.set_committer_bolt("also", other()).global_grouping("lines")
    return builder


@case("state in the processing phase", "component 'b' declares state 's'", "is not a committer", "set_committer_bolt")
def _() -> Builder:
    made = type("Batch", (BatchBolt,), {"execute": Count.execute, "state": KeyedState("s", {"k": str}, {"v": int})})
    return bolt(lambda b: b.global_grouping("lines"), made())


case("unknown column type", "state 's', value: column 'v'", "set is no column type", "use str, int")(
    lambda: with_state(KeyedState("s", {"k": str}, {"v": set}))
)


def frame(kind: str) -> Any:
    """A frame or query with columns whose names are those of attributes that the builder asks for."""
    columns = {"external": [1, 2], "kept_rows": [1, 2], "opaque": [1, 2]}
    made = {"arrow": pa.table, "pandas": pd.DataFrame, "batch": pa.RecordBatch.from_pydict}
    if kind in made:
        return made[kind](columns)
    return type(kind, (), {"__module__": "pyspark.sql.classic", "__getattr__": lambda self, name: columns[name]})()


KINDS = {"arrow": "Table", "pandas": "DataFrame", "batch": "RecordBatch", "DataFrame": "", "StreamingQuery": ""}
for kind, shown in KINDS.items():
    says = f"{shown or kind} (", "docs/from-structured-streaming.md"

    case(f"{kind} as a spout", "spout 'lines'", *says)(lambda kind=kind: Builder("t", "lines", frame(kind), 2))
    case(f"{kind} as a bolt", "bolt 'b'", *says)(
        lambda kind=kind: bolt(lambda b: b.shuffle_grouping("lines"), frame(kind))
    )
    case(f"{kind} as a source", "source 'a'", *says)(
        lambda kind=kind: Builder("t", "lines", CompositeSpout({"a": frame(kind)}))
    )

case("class instead of object", "bolt 'b'", "got the class Pass", "write Pass(...)")(
    lambda: bolt(lambda b: b.shuffle_grouping("lines"), Pass)
)
case("csv without a file", "component 'lines'", "absent.csv cannot be read: No such file", "check that it exists")(
    lambda: Builder("t", "lines", FileSpout("/absent/absent.csv"))
)
