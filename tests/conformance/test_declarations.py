"""Declarations are compared whole at a start: a change is refused by name, and the former declaration goes on."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from runs import ended
from window_bolts import Emitting, Numbers

from txstorm import BasicBolt, Duration, Topology, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.bolts import CountByKey, SumByKey
from txstorm.errors import StateError
from txstorm.joins import DataDelaySync, Deduplicator, IntervalJoin, JoinBolt, Side
from txstorm.monoids import Max, MonoidBolt, Sum
from txstorm.results.views import identity_of
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.declared import DeclaredTable
from txstorm.storage.tables.identity import FIXED, TableRef
from txstorm.windows import TopPerWindow

TEN, TWENTY = Duration.seconds(10), Duration.seconds(20)
ROWS = [("a", 1, 1), ("b", 8, 2), ("a", 12, 3), ("b", 25, 4), ("c", 33, 5), ("a", 47, 6), ("b", 48, 7), ("c", 71, 8)]
FIELDS = ("id", "ts", "n")
ALL = dict(zip(FIELDS, (str, int, int), strict=True))


class Same(BasicBolt):
    """Emits what it gets."""

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare(*FIELDS)

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit(*tuple.values)


def one(bolt: Any, tasks: int = 2, by: str = "id", then: Any = None, **settings: Any) -> Topology:
    """Build a topology with a bolt ``w`` that reads the spout; `then` ranks its results."""
    spout = MemoryTransactionalSpout([ROWS], FIELDS, take=2)
    builder = TransactionalTopologyBuilder("t", "feed", spout).set_settings(settings)
    builder.set_bolt("source" if then else "w", bolt, tasks).fields_grouping("feed", [by])
    if then:
        builder.set_bolt("w", then).global_grouping("source")
    return builder.build_topology()


def two(bolt: Any, left: str = "id", right: str = "id", tasks: int = 2) -> Topology:
    """Build a topology with a join ``w`` of the streams of two bolts."""
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([ROWS], FIELDS, take=2))
    for name in ("x", "y"):
        builder.set_bolt(name, Same()).local_or_shuffle_grouping("feed")
    builder.set_bolt("w", bolt, tasks).fields_grouping("x", [left]).fields_grouping("y", [right])
    return builder.build_topology()


def windowed(length: Any = TEN, **more: Any) -> Any:
    return Emitting("n", lambda _: [0]).with_window(length, **more)


def timed(length: Any = TEN, unit: str = "s", field: str = "ts", **more: Any) -> Any:
    return windowed(length, **more).with_timestamp_field(field, unit)


def aggregate(key: Any = "id", length: Any = TEN, late: int = 0, aggregates: Any = None, **options: Any) -> Any:
    made = WindowAggregate(key, table="r", ttl=timedelta(days=1), **options, **(aggregates or {"s": ("n", "sum")}))
    return made.with_window(length, length).with_timestamp_field("ts", "s").with_allowed_lateness(Duration(late))


def folded(*way: str) -> Topology:
    return one(aggregate(aggregates={"s": way}))


def joined(first: str = "id", second: str = "id", how: str = "join", names: tuple[str, str] = ("x", "y")) -> Topology:
    bolt = getattr(JoinBolt(names[0], first), how)(names[1], second, names[0]).select("x:id")
    return two(
        bolt.with_window(TEN, TEN).with_timestamp_field("ts", "s"), *((first, second)[:: 1 if names[0] == "x" else -1])
    )


def near(before: Any = TEN, left: Any = (), right: Any = (), how: str = "inner", **more: Any) -> Topology:
    sides = [
        Side(name, **{"key": "id", "time": "ts", "unit": "s", **dict(given)})
        for name, given in (("x", left), ("y", right))
    ]
    by = [dict(given).get("key", "id") for given in (left, right)]
    return two(IntervalJoin(*sides, before=before, how=how, **more), *by)


def delayed(after: Any = TEN, **given: Any) -> Topology:
    return one(
        DataDelaySync(Side("feed", **{"key": "id", "time": "ts", "unit": "s", **given}), after=after, report=int)
    )


def counting(provider: str = "delta", tasks: int = 2, conf: Mapping[str, str] | None = None, **given: Any) -> Topology:
    bolt = type("Counting", (Numbers,), given)()
    more = {"state_may_be_lost": True, "state_provider_config": json.dumps(conf or {})} if provider == "memory" else {}
    return one(bolt, tasks, state_provider=provider, **more)


def top(n: int = 1, by: str = "s") -> Topology:
    return one(aggregate(late=1, retractions=True), then=TopPerWindow(n, by))


def monoid(made: Any = None, key: Any = "id", field: str = "n", tasks: int = 2) -> Topology:
    return one(
        MonoidBolt("m", made or Sum(), key, to_state=field),
        tasks,
        by=next(iter(key)) if isinstance(key, dict) else "id",
    )


Build = Callable[[], Topology]
HOUR = timedelta(hours=1)
FIXED_BY: dict[str, tuple[Build, dict[str, Build]]] = {
    "windowed bolt": (
        lambda: one(timed()),
        {
            "windows: length": lambda: one(timed(TWENTY)),
            "closed left": lambda: one(timed(slide=TEN, closed="left")),
            "sessions with a gap": lambda: one(Emitting("n", lambda _: [0]).with_session_window(TEN).with_timestamp_field("ts", "s")),
            "field 'ts' in ms": lambda: one(timed(unit="ms")),
            "field 'n' in s": lambda: one(timed(field="n")),
            "a function of the tuple": lambda: one(windowed().with_timestamp_extractor(len)),
            "processing time": lambda: one(windowed()),
            "key: none.*key: id": lambda: one(timed().with_key("id")),
            "watermark policy: max": lambda: one(timed().with_watermark_policy("max")),
            "tasks: 2; the code has tasks: 3": lambda: one(timed(), 3),
            "partition field: 'id'": lambda: one(timed().with_partition_field("id")),
            "column 'id'": lambda: one(timed().with_columns(ALL)),
        },
    ),
    "windows per key": (
        lambda: one(timed().with_key("id").with_columns(ALL)),
        {
            "key: id; the code has key: id, n": lambda: one(timed().with_key("id", "n").with_columns(ALL)),
            "key: none": lambda: one(timed().with_columns(ALL)),
            "column 'n' is declared as double": lambda: one(timed().with_key("id").with_columns({**ALL, "n": float})),
        },
    ),
    "aggregate": (
        lambda: one(aggregate()),
        {
            "windows": lambda: one(aggregate(length=TWENTY)),
            "key: id": lambda: one(aggregate("ts"), by="ts"),
            "columns": lambda: folded("n", "max"),
            "s: sum of ts": lambda: folded("ts", "sum"),
            "s_sum double": lambda: one(aggregate(aggregates={"s": ({"n": float}, "sum")})),
            "m: count": lambda: one(aggregate(aggregates={"s": ("n", "sum"), "m": "count"})),
            "allowed lateness: 0 us": lambda: one(aggregate(late=5)),
            "column 'until'": lambda: one(aggregate(names={"end": "until"})),
        },
    ),
    "aggregate of single values": (lambda: folded("n", "first"), {"s: last of n": lambda: folded("n", "last")}),
    "aggregate by another field": (
        lambda: folded("n", "argmax", "ts"),
        {"argmax of n by n": lambda: folded("n", "argmax", "n"), "argmax of ts by ts": lambda: folded("ts", "argmax", "ts")},
    ),
    "top": (top, {"ranks: 1 by s; the code has ranks: 2 by s": lambda: top(2)}),
    "join": (
        joined,
        {
            "y by n joined": lambda: joined(second="n"),
            "x by n": lambda: joined(first="n"),
            "left joined": lambda: joined(how="left_join"),
            "x by id joined to y": lambda: joined(names=("y", "x")),
        },
    ),
    "interval join": (
        near,
        {
            "before: 20000 ms": lambda: near(TWENTY),
            "before 10000001 us": lambda: near(timedelta(seconds=10, microseconds=1)),
            "after: 10000 ms": lambda: near(after=TEN),
            "join: left": lambda: near(how="left"),
            "left key": lambda: near(left={"key": "n"}, right={"key": "n"}),
            "right time": lambda: near(right={"time": "n"}),
            "right time: field 'ts' in ms": lambda: near(right={"unit": "ms"}),
            "right id": lambda: near(right={"id": "n"}),
            "right partition": lambda: near(right={"partition": "n"}),
            "right columns": lambda: near(right={"columns": {"n": int}}),
            "right kept as text: key, n; .*: key$|right kept as text: key, n": lambda: near(right={"columns": {"n": str}}),
            "left kept as text: key": lambda: near(left={"columns": {"id": str}}, right={"columns": {"id": str}}),
        },
    ),
    "long interval": (lambda: near(HOUR), {"bounds": lambda: near(HOUR + timedelta(milliseconds=1))}),
    "delay": (
        delayed,
        {"after": lambda: delayed(TWENTY), "kept as text": lambda: delayed(columns={"n": str}), "key": lambda: delayed(key="n")},
    ),
    "deduplicator": (
        lambda: one(Deduplicator("id", keep=TEN)),
        {"id: n": lambda: one(Deduplicator("n", keep=TEN), by="n"), "id: id, n": lambda: one(Deduplicator(["id", "n"], keep=TEN))},
    ),
    "state per task": (
        counting,
        {
            "keys: text": lambda: counting(key_type=str),
            "values: text; the code has values: int64": lambda: counting(value_type=int),
            "its keys belong to tasks": lambda: counting(tasks=3),
            "now declared are any number": lambda: counting(shared=True),
            "another state_provider": lambda: counting("memory"),
        },
    ),
    "typed state": (
        lambda: counting(key_type=str, value_type=int),
        {"keys: string": lambda: counting(value_type=int), "values: int64": lambda: counting(key_type=str, value_type=float)},
    ),
    "state outside": (
        lambda: counting("memory"),
        {
            "2 states": lambda: counting("memory", tasks=3),
            "one state for all tasks": lambda: counting("memory", shared=True),
            "keySerializerClass": lambda: counting("memory", conf={"keySerializerClass": "a:B"}),
            "another state_provider": counting,
        },
    ),
    "monoid": (
        monoid,
        {
            r"monoid: Sum\(int\); the code has monoid: Max\(int\)": lambda: monoid(Max()),
            r"Sum\(float\)": lambda: monoid(Sum(float)),
            "state of: n; the code has state of: ts": lambda: monoid(field="ts"),
            "column 'ts'": lambda: monoid(key={"ts": int}),
        },
    ),
    "sum": (
        lambda: one(SumByKey("id", "n", "s")),
        {
            "column 'ts'": lambda: one(SumByKey("id", "ts", "s")),
            "column 'n' is declared as decimal": lambda: one(SumByKey("id", {"n": Decimal}, "s")),
            "the table has int64": lambda: one(SumByKey("id", {"n": float}, "s")),
            "ttl 1 day": lambda: one(SumByKey("id", "n", "s", ttl=timedelta(days=1))),
            "layout 'merge'": lambda: one(SumByKey("id", "n", "s", layout="merge")),
            "column 'm'": lambda: one(CountByKey("id", "s", count="m")),
        },
    ),
}  # fmt: skip
"""Component → its declaration, and others: part of the message → the declaration that is refused with it."""
FREE: dict[str, tuple[Build, Build]] = {
    "windowed bolt": (lambda: one(timed()), lambda: one(timed().with_lag(TEN).with_idle_timeout(TEN).with_late_tuple_stream("late"))),
    "windows per key": (lambda: one(timed().with_key("id")), lambda: one(timed().with_key("id", ttl=TEN), 3)),
    "aggregate": (lambda: one(aggregate()), lambda: one(aggregate(retractions=True), 3)),
    "join": (joined, lambda: two(JoinBolt("x", "id").join("y", "id", "x").with_window(TEN, TEN).with_timestamp_field("ts", "s"))),
    "interval join": (near, lambda: near(left={"lag": TEN}, right={"grace": TEN}, select=["x:n"])),
    "deduplicator": (lambda: one(Deduplicator("id", keep=TEN)), lambda: one(Deduplicator("id", keep=TWENTY), 3)),
    "monoid": (monoid, lambda: monoid(tasks=3)),
}  # fmt: skip


def tables(data_dir: Path) -> list[str]:
    parts = ("state", "changes", "sinks", "history", "checkpoints")
    return sorted(str(path) for part in parts for path in (data_dir / part).rglob("*") if path.is_file())


@pytest.mark.parametrize("name", FIXED_BY)
def test_another_declaration_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    before, others = FIXED_BY[name]
    data_dir = tmp_path / "data"
    ended(before(), data_dir, until_txid=2)
    for message, other in others.items():
        found = tables(data_dir), identity_of(data_dir)
        with pytest.raises(StateError, match=f"(?s)'(w|r|s|m)(-.*)?'.*({message})") as refused:
            run(other(), engine="local", data_dir=data_dir, available_now=True)
        if "the code has" in str(refused.value) and name != "state outside":  # before the epoch is raised
            assert (tables(data_dir), identity_of(data_dir)) == found, message
    assert ended(before(), data_dir).committed >= 4


@pytest.mark.parametrize("name", FREE)
def test_what_nothing_stored_depends_on_may_change(name: str, tmp_path: Path) -> None:
    before, other = FREE[name]
    ended(before(), tmp_path / "data", until_txid=2)
    assert ended(other(), tmp_path / "data").committed >= 4


NEWER = ("join", "bounds", "left kept as text", "right kept as text", "aggregates", "allowed lateness")
"""Facts that tables of before lack."""


@pytest.mark.parametrize(
    ("name", "message"), [("join", "y by n joined"), ("long interval", "bounds"), ("aggregate", "s: sum of ts")]
)
def test_a_table_of_before_gets_the_facts_that_it_lacks(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what the first start declares; the next one compares them."""
    before, others = FIXED_BY[name]
    data_dir = tmp_path / "data"

    def older(table: DeclaredTable, ref: TableRef, about: Any = DeclaredTable.about) -> Any:
        made = about(table, ref)
        facts = {fact: text for fact, text in json.loads(made.get(FIXED, "{}")).items() if fact not in NEWER}
        return {**made, FIXED: json.dumps(facts)} if FIXED in made else made

    with monkeypatch.context() as patch:
        patch.setattr(DeclaredTable, "about", older)
        ended(before(), data_dir, until_txid=1)
    ended(before(), data_dir, until_txid=2)
    with pytest.raises(StateError, match=message):
        run(others[message](), engine="local", data_dir=data_dir, available_now=True)
