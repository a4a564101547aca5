"""Invalid topologies by name, which must be rejected when they are built; the command line loads them by `make`."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
from bad_input_cases import Says
from window_bolts import Emitting

from txstorm import (
    BasicBolt,
    CompositeSpout,
    Duration,
    Topology,
    TransactionalTopologyBuilder,
    WindowAggregate,
)
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


def start() -> Builder:
    return Builder("t", "lines", MemoryTransactionalSpout({0: ["a"]}, ["line"]))


def case(name: str, thing: str, found: str, cure: str) -> Callable[[Callable[[], Builder]], Callable[[], Builder]]:
    def add(build: Callable[[], Builder]) -> Callable[[], Builder]:
        CASES[name] = build, Says(TopologyError, thing, found, cure)
        return build

    return add


def bolt(declare: Callable[[Any], Any], made: Any = None) -> Builder:
    builder = start()
    declare(builder.set_bolt("b", Pass() if made is None else made))
    return builder


case("unknown component", "bolt 'b'", "no component 'lin'", "did you mean 'lines'")(
    lambda: bolt(lambda b: b.shuffle_grouping("lin"))
)


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


case("settings", "'max_spout_pendin'", "unknown setting", "did you mean 'max_spout_pending'")(
    lambda: start().set_setting("max_spout_pendin", 4)
)
case("setting value", "setting max_spout_pending", "got 0", "greater than or equal to 1 or input should be 'auto'")(
    lambda: start().set_setting("max_spout_pending", 0)
)


@case("holds a lock", "component 'b': Pass", "its attribute 'held'", "create such things in prepare")
def _() -> Builder:
    made = Pass()
    made.held = threading.Lock()
    return bolt(lambda b: b.shuffle_grouping("lines"), made)


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


case("csv without a file", "component 'lines'", "absent.csv cannot be read: No such file", "check that it exists")(
    lambda: Builder("t", "lines", FileSpout("/absent/absent.csv"))
)
