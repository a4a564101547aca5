"""Values, tables and Storm's method names work unchanged on both engines."""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from runs import ended
from watched import Gathering

from txstorm import BasicBolt, BatchBolt, Committer, Fields, KeyedState, SinkTable, TransactionalTopologyBuilder
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.engine.port import Engine
from txstorm.results.read import list_sinks, list_states, read_changes, read_sink, read_state, rows_json
from txstorm.spouts import MemoryTransactionalSpout

Factory = Callable[[], Engine]
NOON = dt.datetime(2026, 2, 28, 12, 0, 0, 1, tzinfo=dt.UTC)
VALUES = [None, True, 1, -(2**63), 2**200, 0.1, float("-inf"), "", "a\0b ü 🦉", b"\0\xff", NOON, dt.date(1, 1, 1)]
VALUES += [Decimal("1.50"), Decimal("123456789012345678.123456789012345678"), (1, "two", None), {"set", "of"}]
VALUES += [[1, [2, (3,)], {"k": {b"bytes": NOON}}], {1: "a", (1, 2): "b", None: 0.5}, frozenset({1})]
OTHER_ZONE = dt.datetime(2026, 7, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45)))


class PassOn(BasicBolt):
    fields = ("at", "value")

    def execute(self, tuple, collector):
        collector.emit(*tuple)


class PassOnAtTheEnd(Gathering):
    fields = ("at", "value")

    def execute(self, tuple):
        self.taken.append(tuple.values)

    def finish_batch(self):
        for row in self.taken:
            self.collector.emit(*row)


class Spell(Gathering, Committer):
    sink = SinkTable("spelt", {"at": int, "text": str})

    def execute(self, tuple):
        self.taken.append((tuple["at"], spelt(tuple["value"])))

    def finish_batch(self):
        for row in sorted(self.taken):
            self.context.sink("spelt").append(*row)


def spelt(value: object) -> str:
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(repr, value))}"
    if isinstance(value, dt.datetime):
        return value.isoformat()  # UTC has two names in Python
    return f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("take", [1, 100], ids=["columns-of-one-kind", "mixed-columns"])
def test_values_of_all_kinds_cross_every_exchange(take: int, make_engine: Factory, tmp_path: Path) -> None:
    source = MemoryTransactionalSpout([list(enumerate(VALUES))], ["at", "value"], take)
    builder = TransactionalTopologyBuilder("values", "values", source)
    builder.set_bolt("a", PassOn(), 3).shuffle_grouping("values")
    builder.set_bolt("b", PassOnAtTheEnd(), 2).fields_grouping("a", ["at"])
    builder.set_committer_bolt("spell", Spell(), 2).shuffle_grouping("b")
    ended(builder.build_topology(), tmp_path, make_engine())
    got = {row["at"]: row["text"] for row in read_sink(tmp_path, "spelt").to_pylist()}
    assert got == {at: spelt(value) for at, value in enumerate(VALUES)}


COLUMNS = {
    "text": (str, ["", "ü", None]),
    "whole": (int, [-(2**63), 2**63 - 1, None]),
    "real": (float, [0.1, float("inf"), None]),
    "truth": (bool, [True, False, None]),
    "raw": (bytes, [b"", b"\0\xff", None]),
    "moment": (dt.datetime, [NOON, OTHER_ZONE.astimezone(dt.UTC), None]),
    "day": (dt.date, [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "exact": (Decimal, [Decimal("1.500000000000000000"), Decimal(-(10**19)), None]),
    "many": (pa.list_(pa.int64()), [[], [1, None], None]),
    "inner": (pa.struct({"x": pa.int32(), "y": pa.string()}), [{"x": 1, "y": None}, {"x": None, "y": "z"}, None]),
}


class PassOnRows(BasicBolt):
    fields = ("id", *COLUMNS)

    def execute_batch(self, batch, collector):
        collector.emit_batch(batch)


class KeepTyped(Gathering, Committer):
    state = KeyedState("typed", {"id": int}, {name: kind for name, (kind, _) in COLUMNS.items()})
    sink = SinkTable("typed_rows", {"id": int, **{name: kind for name, (kind, _) in COLUMNS.items()}})

    def execute(self, tuple):
        id, *values = tuple
        self.taken.append((id, dict(zip(COLUMNS, values, strict=True))))

    def finish_batch(self):
        self.context.state("typed").put_many(dict(self.taken))
        for id, row in sorted(self.taken, key=itemgetter(0)):
            self.context.sink("typed_rows").append(id, *row.values())


def test_typed_columns_reach_the_tables_as_they_were(make_engine: Factory, tmp_path: Path) -> None:
    rows = [(id, *(values[id] for _, values in COLUMNS.values())) for id in range(3)]
    builder = TransactionalTopologyBuilder("typed", "rows", MemoryTransactionalSpout([rows], ["id", *COLUMNS], 2))
    builder.set_bolt("batches", PassOnRows(), 2).fields_grouping("rows", ["truth"])
    builder.set_committer_bolt("keep", KeepTyped(), 2).fields_grouping("batches", ["id"])
    ended(builder.build_topology(), tmp_path, make_engine())
    expected = [{"id": id, **{name: values[id] for name, (_, values) in COLUMNS.items()}} for id in range(3)]
    assert read_state(tmp_path, "typed").to_pylist() == expected
    in_sink = [{k: v for k, v in row.items() if k != "_txid"} for row in read_sink(tmp_path, "typed_rows").to_pylist()]
    assert sorted(in_sink, key=lambda row: row["id"]) == expected
    document = json.loads(rows_json(read_state(tmp_path, "typed")))
    assert document["rows"][1]["moment"] == "2026-06-30T19:15:00.000000Z"
    assert document["rows"][1]["raw"] == "AP8="


class Tables(Gathering):
    """A committer with two states and two sinks."""

    fields = ("word",)
    takes = "word"

    def __init__(self, name):
        self.name = name
        self.tables = [
            KeyedState(f"{name}_sum", {"word": str}, {"n": int}),
            KeyedState(f"{name}_last", {}, {"word": str, "txid": int}),
            SinkTable(f"{name}_words", {"word": str}),
            SinkTable(f"{name}_sizes", {"n": int}),
        ]

    def finish_batch(self):
        total = self.context.state(f"{self.name}_sum")
        for word in self.taken:
            total.update(word, lambda n: (n or 0) + 1)
            self.context.sink(f"{self.name}_words").append(word)
            self.collector.emit(word)
        if self.taken:
            self.context.state(f"{self.name}_last").put((), {"word": self.taken[-1], "txid": self.attempt.txid})
        self.context.sink(f"{self.name}_sizes").append(len(self.taken))


def rows(table: pa.Table) -> list[tuple]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_several_states_and_sinks_of_several_committers_follow_one_order(make_engine: Factory, tmp_path: Path) -> None:
    words = [["a", "b", "a"], ["c", "a"]]
    builder = TransactionalTopologyBuilder("tables", "words", MemoryTransactionalSpout(words, ["word"], 1))
    builder.set_committer_bolt("one", Tables("one")).global_grouping("words")
    builder.set_committer_bolt("two", Tables("two")).global_grouping("one")
    ended(builder.build_topology(), tmp_path, make_engine(), until_txid=4)
    names = [f"{name}_{kind}" for name in ("one", "two") for kind in ("last", "sum")]
    assert list_states(tmp_path) == names
    assert list_sinks(tmp_path) == [f"{name}_{kind}" for name in ("one", "two") for kind in ("sizes", "words")]
    for name in ("one", "two"):
        assert rows(read_state(tmp_path, f"{name}_sum")) == [("a", 3), ("b", 1), ("c", 1)]
        assert read_state(tmp_path, f"{name}_last").to_pylist() == [{"word": "a", "txid": 3}]
        words = rows(read_sink(tmp_path, f"{name}_words"))
        assert words == [("a", 1), ("c", 1), ("b", 2), ("a", 2), ("a", 3)]
        assert rows(read_sink(tmp_path, f"{name}_sizes")) == [(2, 1), (2, 2), (1, 3), (0, 4)]
        assert rows(read_state(tmp_path, f"{name}_sum", txid=1)) == [("a", 1), ("c", 1)]
        changed = read_changes(tmp_path, f"{name}_sum", 2, 3).select(["word", "n", "_txid"])
        assert rows(changed) == [("a", 2, 2), ("b", 1, 2), ("a", 3, 3)]
        # As any reader of Delta tables sees them:
        state = DeltaTable(tmp_path / "state" / f"{name}_sum").to_pyarrow_table(columns=["word", "n"])
        assert sorted(rows(state)) == [("a", 3), ("b", 1), ("c", 1)]
        sink = DeltaTable(tmp_path / "sinks" / f"{name}_words").to_pyarrow_table(columns=["word", "_txid"])
        assert sorted(rows(sink)) == sorted(words)


class StormSpout(TransactionalSpout):
    def declareOutputFields(self, declarer):
        declarer.declare(Fields("word"))

    def getCoordinator(self, context):
        return StormCoordinator()

    def getEmitter(self, context):
        return StormEmitter()


class StormCoordinator(SpoutCoordinator):
    def isReady(self):
        return True

    def initializeTransaction(self, txid, previous):
        return (previous or 0) + 2


class StormEmitter(Emitter):
    def emitBatch(self, attempt, metadata, collector):
        for number in range(metadata - 2, metadata):
            collector.emit(f"w{number % 3}")

    def cleanupBefore(self, txid):
        pass


class StormSplit(BasicBolt):
    def declareOutputFields(self, declarer):
        declarer.declare(Fields("word"))
        declarer.declareStream("aimed", Fields("word", "length"), direct=True)

    def execute(self, tuple, collector):
        assert tuple.getSourceComponent() == "spout"
        assert tuple.getFields() == ("word",)
        collector.emit(tuple.getString(0))
        collector.emitDirect(1, tuple.getStringByField("word"), tuple.size(), stream="aimed")


class StormCount(BatchBolt):
    fields = ("word", "n")

    def prepare(self, context, collector, attempt):
        self.collector, self.attempt, self.n = collector, attempt, {}

    def execute(self, tuple):
        assert tuple.attempt.getTransactionId() == self.attempt.getTransactionId()
        word = tuple.getValueByField("word")
        self.n[word] = self.n.get(word, 0) + 1

    def finishBatch(self):
        for word, n in self.n.items():
            self.collector.emit(word, n)


class StormKeep(BatchBolt, Committer):
    state = KeyedState("words", {"word": str}, {"n": int})

    def prepare(self, context, collector, attempt):
        self.context, self.n = context, {}

    def execute(self, tuple):
        self.n[tuple.getString(0)] = self.n.get(tuple.getString(0), 0) + tuple.getInteger(1)

    def finishBatch(self):
        self.context.state("words").update_many(self.n, lambda old, n: (old or 0) + n)


class StormAimed(BatchBolt, Committer):
    state = KeyedState("aimed", {"task": int}, {"n": int})

    def prepare(self, context, collector, attempt):
        self.context, self.n = context, 0

    def execute(self, tuple):
        self.n += tuple.getLongByField("length")

    def finishBatch(self):
        self.context.state("aimed").update(self.context.task, lambda old: (old or 0) + self.n)


def test_storm_spellings_work_for_calls_and_overrides(make_engine: Factory, tmp_path: Path) -> None:
    builder = TransactionalTopologyBuilder("storm", "spout", StormSpout(), 1)
    builder.getSpoutDeclarer().setMaxSpoutPending(3)
    builder.setBolt("split", StormSplit(), 2).shuffleGrouping("spout")
    builder.setBolt("count", StormCount(), 2).fieldsGrouping("split", Fields("word"))
    builder.setCommitterBolt("keep", StormKeep(), 2).fieldsGrouping("count", Fields("word"))
    builder.setBolt("aimed", StormAimed(), 2).directGrouping("split", "aimed")
    ended(builder.buildTopology(), tmp_path, make_engine(), until_txid=6)
    assert read_state(tmp_path, "words").to_pylist() == [{"word": f"w{n}", "n": 4} for n in range(3)]
    assert read_state(tmp_path, "aimed").to_pylist() == [{"task": 0, "n": 0}, {"task": 1, "n": 12}]
