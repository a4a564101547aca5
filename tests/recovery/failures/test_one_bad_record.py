"""Dead letters of every ready-made component: n good records and one bad one give n results and one letter."""

import json
import math
import os
from collections import Counter as Bag
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from outlet_nets import MemoryWriter, Target
from seeded import seeded

import txstorm
from txstorm import Count, Duration, Outlet, StatefulBolt, TopPerWindow, WindowAggregate, WindowedBolt, bolts, joins
from txstorm.engine.task import dead_letters
from txstorm.joins import Side
from txstorm.results.views import DeadLettersView
from txstorm.sinks import DeltaSink, kafka
from txstorm.state import keyed
from txstorm.stateful import StatefulWindowedBolt
from txstorm.testing import FeedSpout, TopologyTestDriver

FIELDS = ("id", "key", "n", "at")
STRANGE: dict[type, list[Any]] = {
    int: ["x", 1.5, 2**70, [1], {"a": 1}, b"x", True, Decimal("1e30"), Decimal("1.5"), date(2026, 1, 1), (1, "x")],
    str: [1, 1.5, [1], {"a": "x"}, b"x", True, datetime(2026, 1, 1, tzinfo=UTC), (1, "x")],
}
LISTS = [[1], ["x", 2], {"a": 1}]
ROUNDS = int(os.environ.get("ROUNDS", "1"))


class Case(NamedTuple):
    """A component with what it reads: how it is declared, and what its fields must not be."""

    make: Callable[[Any, Path, int], None]
    bad: dict[str, list[Any]]
    emits: bool = True
    table: str | None = None


def bolt(
    made: Callable[[], Any], bad: Any, by: str = "key", *, keep: Any = None, table: str = "", streams: str = "s"
) -> Case:
    """Return a case of a bolt that reads streams by a field, the id in turn; `keep`: the columns of a sink behind it."""

    def make(builder: Any, place: Path, tasks: int) -> None:
        declarer = builder.set_bolt("made", made(), tasks)
        for stream in streams:
            if by == "id":
                declarer.shuffle_grouping("feed", stream)
            else:
                declarer.fields_grouping("feed", stream, [by])
        if keep is not None:
            builder.set_bolt("keep", DeltaSink("kept", keep), tasks).shuffle_grouping("made")

    return Case(make, bad, not table and keep is None, table or (None if keep is None else "kept"))


INTS, TEXTS = {"n": STRANGE[int]}, {"key": STRANGE[str]}
COLUMNS = {"id": str, "key": str, "n": int}


def lookup(builder: Any, place: Path, tasks: int) -> None:
    if not (place / "users").exists():
        write_deltalake(place / "users", pa.table({"n": list(range(9)), "name": [f"u{n}" for n in range(9)]}))
    join = joins.LookupJoin(("feed", "s"), place / "users", on="n", how="left", select=["id", "name"])
    builder.set_bolt("made", join, tasks).shuffle_grouping("feed", "s")


def store(builder: Any, place: Path, tasks: int) -> None:
    held = joins.MemoryStore()
    right, left = (Side("feed", name, key="key", time="at", id="id") for name in "rs")
    fill = builder.set_bolt("fill", joins.StoreFeed(right, held, retain=Duration.hours(9)), tasks)
    fill.fields_grouping("feed", "r", ["key"])
    sync = builder.set_bolt("sync", joins.DataDelaySync(left), tasks)
    sync.fields_grouping("feed", "s", ["key"]).all_grouping("fill", "position")
    match = joins.StoreJoin(
        Side("sync", key="key", time="at"), held, before=Duration.hours(1), how="left", select=["left:id", "right:id"]
    )
    builder.set_bolt("made", match, tasks).fields_grouping("sync", ["key"])


class Ids(WindowedBolt):
    fields = ("ids",)

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, window: Any) -> None:
        for one in window.get():
            self.collector.emit(one["id"])


class StatefulIds(StatefulWindowedBolt):
    fields, prepare, execute = ("ids",), Ids.prepare, Ids.execute


class Sums(StatefulBolt):
    fields, prepare = ("key", "sum"), Ids.prepare

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> None:
        self.state.put(tuple["key"], self.state.get(tuple["key"], 0) + tuple["n"])
        self.collector.emit(tuple["key"], self.state.get(tuple["key"]))


def aggregate(**aggregates: Any) -> Any:
    made = WindowAggregate({"key": str}, **aggregates)
    return made.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("at")


def ranked(builder: Any, place: Path, tasks: int) -> None:
    builder.set_bolt("sums", aggregate(total=("n", "sum")), tasks).fields_grouping("feed", "s", ["key"])
    builder.set_bolt("made", TopPerWindow(2, "total"), tasks).fields_grouping("sums", ["end"])


def interval() -> Any:
    sides = [
        Side("feed", name, key="key", time="at", id="id", columns={"key": str, "n": int, "at": int, "id": str})
        for name in "sr"
    ]
    return joins.IntervalJoin(*sides, before=Duration.seconds(5), after=Duration.seconds(5), select=["s:id", "r:id"])


def joined() -> Any:
    return (
        joins.JoinBolt("s", "key").join("r", "key", "s").select("s:id,r:id")
        .with_tumbling_window(Duration.seconds(10)).with_timestamp_field("at")
    )  # fmt: skip


def sent(builder: Any, place: Path, tasks: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        builder.sent = Target()
        patched.setattr(kafka, "_writer", lambda *_: SimpleNamespace(max_message_bytes=100))
        sink = kafka.KafkaSink("rows", "topic", "broker:9092", key="key", timestamp="at")
    sink.outlet = Outlet("rows", sink.outlet.columns, MemoryWriter(builder.sent))
    builder.set_bolt("made", sink, tasks).fields_grouping("feed", "s", ["key"])


TIMES = {"at": ["x", 1.5, None, [1], 2**70]}
NO_INTS = {"n": ["x", [1], b"x", {"a": 1}]}
NO_QUOTIENT = {"n": [*NO_INTS["n"], 9, 9.0, Decimal(9), -(2**63), 2**70, True]}
NO_KEYS = {"key": LISTS}
UNSENDABLE = {"n": [value for value in STRANGE[int] if type(value) is not int]}


def mapped(one: Any) -> Any:
    return one["id"], one["n"] if type(one["n"]) is int else open


def far(batch: Any) -> Any:
    """Return the records as columns, with a time that Python does not have for one of them."""
    return batch.set_column(FIELDS.index("at"), "at", batch.column("at").cast(pa.timestamp("s", "UTC")))


CASES: dict[str, Case] = {
    "Identity": bolt(lambda: bolts.Identity(*FIELDS), INTS, "id", keep=COLUMNS),
    "Map that raises": bolt(lambda: bolts.Map(lambda one: one["n"] + 1, "n"), NO_INTS, "id"),
    "Map of what cannot be sent": bolt(lambda: bolts.Map(mapped, "id", "n"), UNSENDABLE, "id"),
    "FlatMap": bolt(lambda: bolts.FlatMap(lambda one: [(one["id"], one["n"] + 1)] * 2, "id", "n"), NO_INTS, "id"),
    "Filter": bolt(lambda: bolts.Filter(lambda one: one["n"] >= 0, *FIELDS), NO_INTS, "id"),
    "Filter of columns": bolt(lambda: bolts.Filter("1 / (n - 9) < 1", *FIELDS), NO_QUOTIENT, "id"),
    "Select": bolt(lambda: bolts.Select({"id": "id", "n": "1 / (n - 9)", "key": "key"}), NO_QUOTIENT, "id"),
    "MapBatches": bolt(lambda: bolts.MapBatches(lambda batch: batch, *FIELDS), INTS, "id", keep=COLUMNS),
    "MapBatches of times": bolt(lambda: bolts.MapBatches(far, *FIELDS), {"at": [2**40, -(2**40)]}, "id"),
    "SplitWords": bolt(lambda: bolts.SplitWords("key"), TEXTS, "id"),
    "CountByKey": bolt(lambda: bolts.CountByKey("key", "counts"), TEXTS, table="counts"),
    "SumByKey": bolt(lambda: bolts.SumByKey("key", "n", "counts"), {**TEXTS, **INTS}, table="counts"),
    "DeltaSink": bolt(lambda: DeltaSink("rows", COLUMNS), {**TEXTS, **INTS}, table="rows"),
    "DeltaSink of small numbers": bolt(
        lambda: DeltaSink("rows", {"id": str, "n": pa.int8(), "at": pa.decimal128(7, 0)}),
        {"n": [1000], "at": [10**7]}, table="rows",
    ),
    "KafkaSink": Case(sent, {"at": [*TIMES["at"], -1], "n": [b"x", math.nan, "x" * 99], "key": ["\ud800"]}, False),
    "LookupJoin": Case(lookup, INTS),
    "JoinBolt": bolt(joined, {**NO_KEYS, **TIMES}, streams="sr"),
    "IntervalJoin": bolt(interval, {**TEXTS, **INTS, **TIMES}, streams="sr"),
    "stores": Case(store, {"key": [2**64, "x" * 70_000, *LISTS], **TIMES}),
    "Deduplicator": bolt(lambda: joins.Deduplicator("n", keep=Duration.hours(1)), {"n": ["\ud800"]}, "n"),
    "WindowedBolt": bolt(lambda: Ids().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("at"), TIMES),
    "WindowedBolt with columns": bolt(
        lambda: Ids().with_tumbling_window(Count(1)).with_columns({**COLUMNS, "at": int}), {**INTS, **TEXTS}
    ),
    "WindowedBolt with columns and times": bolt(
        lambda: Ids().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("at")
        .with_columns({**COLUMNS, "at": int}), {**INTS, **TEXTS, **TIMES},
    ),
    "StatefulWindowedBolt": bolt(
        lambda: StatefulIds().with_tumbling_window(Count(1)).with_message_id_field("at"), TIMES
    ),
    "StatefulBolt": bolt(Sums, {**NO_INTS, **NO_KEYS}),
    "WindowAggregate": bolt(
        lambda: aggregate(total=("n", "sum"), most=("n", "max"), first=("n", "first"), mean=({"n": int}, "mean")),
        {**INTS, **TEXTS, **TIMES},
    ),
    "WindowAggregate with late tuples": bolt(
        lambda: aggregate(total=("n", "sum")).with_late_tuple_stream("late"), {**INTS, **TEXTS, **TIMES}
    ),
    "TopPerWindow": Case(ranked, {**INTS, **TEXTS, **TIMES}),
}  # fmt: skip


def outcome(case: Case, place: Path, tasks: int, batches: Iterable[Any]) -> tuple[Any, list[dict[str, Any]]]:
    builder = txstorm.TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": FIELDS, "r": FIELDS}))
    case.make(builder, place, tasks)
    builder.set_settings({"on_error": "dead_letter", "retry_backoff": 0.001})
    found: Bag[str] = Bag()
    with TopologyTestDriver(builder.build_topology()) as running:
        for batch in batches:
            running.commit(running.feed(batch))
        txid = running.end_of_input()
        running.commit(txid)
        if case.emits:
            found.update(repr(one) for number in range(1, txid + 1) for one in running.emitted("made", number))
        if hasattr(builder, "sent"):
            found.update(repr([row["key"], row["value"]]) for row in builder.sent.rows)
        if case.table is not None:
            view = running.state(case.table) if case.table == "counts" else running.sink(case.table)
            found.update(repr([row[name] for name in FIELDS if name in row]) for row in view.to_pylist())
        return found, DeadLettersView(running.data_dir).to_pylist()


@pytest.mark.parametrize("name", CASES)
def test_one_bad_record_is_one_letter_and_costs_no_result(name: str, tmp_path: Path) -> None:
    """In any component, at any place, of any kind: the results are those of the good records alone."""
    chance, case = seeded(), CASES[name]
    for _ in range(ROUNDS):
        field = chance.choice(sorted(case.bad))
        value = chance.choice(case.bad[field])
        n, tasks = chance.choice([6, 12]), chance.choice([1, 2])
        rows = {stream: [(f"{stream}{i}", f"k{i % 3}", i % 8, i * 1000) for i in range(n)] for stream in "sr"}
        at = chance.randrange(n + 1)
        cut = chance.choice([0, max(at + 1, 4), n + 1])  # good ones are always with it
        bad = {"id": "bad", "key": "k1", "n": 3, "at": at * 1000, field: value}
        mixed = [*rows["s"][:at], tuple(bad[one] for one in FIELDS), *rows["s"][at:]]
        parts = mixed[:cut], mixed[cut:]
        good = tuple([one for one in part if one[0] != "bad"] for part in parts)
        (results, letters), (expected, none) = (
            outcome(case, tmp_path, tasks, [{"s": one, "r": rows["r"]}, {"s": two}]) for one, two in (parts, good)
        )
        drawn = field, value, n, tasks, at, cut
        seen = drawn, expected - results, results - expected, letters[:3]
        assert (results, len(letters), none) == (expected, 1, []), seen
        assert expected
        assert "bad" in letters[0]["record"], drawn


@pytest.mark.parametrize(
    ("values", "at", "total"),
    [
        ([1, "x", 2], 1, 3),  # a text makes no texts of the ints beside it, nor a float floats
        ([1, 1.5, 2], 1, 3),
        ([2**62, 1, 2**62, 2], 2, 2**62 + 3),  # good by itself, but not with those before it
    ],
)
@pytest.mark.parametrize("as_batches", [False, True])
def test_the_first_record_is_left_out_with_which_it_fails(values: list[Any], at: int, total: int, as_batches: bool):
    same = bolts.MapBatches(lambda batch: batch, "k", "n") if as_batches else bolts.Identity("k", "n")
    builder = txstorm.TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": ("k", "n")}))
    builder.set_bolt("same", same).global_grouping("feed", "s")
    builder.set_bolt("sum", bolts.SumByKey("k", "n", "sums")).global_grouping("same")
    with TopologyTestDriver(builder.set_setting("on_error", "dead_letter").build_topology()) as running:
        running.commit(running.feed({"s": [("a", value) for value in values]}))
        (letter,) = DeadLettersView(running.data_dir).to_pylist()
        assert json.loads(letter["record"])["n"] == values[at]
        assert [row["n"] for row in running.state("sums").to_pylist()] == [total]


@pytest.mark.parametrize(("runs", "least"), [(None, 43), (5000, 43), (9, 4)])
def test_records_that_fail_only_together_are_told_apart(runs: int | None, least: int, monkeypatch: pytest.MonkeyPatch):
    """By the state, or by runs on parts of the input: some of them, then a part that fails is left out as a whole."""
    if runs is not None:
        monkeypatch.setattr(keyed, "rows_beyond", lambda *_: [])
        monkeypatch.setattr(dead_letters, "MOST_RUNS", runs)
    builder = txstorm.TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": ("k", "n")}))
    builder.set_bolt("sum", bolts.SumByKey("k", "n", "sums")).global_grouping("feed", "s")
    values = [2**61 if number % 2 else 1 for number in range(80)]
    with TopologyTestDriver(builder.set_setting("on_error", "dead_letter").build_topology()) as running:
        for part in (values[:4], values[4:]):
            running.commit(running.feed({"s": [("a", value) for value in part]}))
        letters = [json.loads(one["record"])["n"] for one in DeadLettersView(running.data_dir).to_pylist()]
        assert running.state("sums").to_pylist()[0]["n"] == sum(values) - sum(letters)
    assert least <= len(values) - len(letters) <= 43
