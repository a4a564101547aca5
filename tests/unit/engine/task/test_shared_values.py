"""Value isolation between bolts, groupings, states and stores: no component can mutate the values of another one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from runs import ended
from spout_samples import PlainSpout
from watched import Gathering

from txstorm import Committer, KeyedState, MapState, MemoryBackend, SinkTable, TransactionalTopologyBuilder
from txstorm.engine.port import Engine
from txstorm.errors import EmitError, SpoutError
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

Factory = Callable[[], Engine]
LISTS = pa.list_(pa.int64())


class Pass(Gathering):
    """Base class of the test bolts."""

    fields = ("values",)


class EmitsAndChanges(Pass):
    """A faulty bolt that emits the same list in all its tuples and mutates it in between."""

    def execute(self, tuple):
        super().execute(tuple)
        self.collector.emit(self.taken)


class EmitsAndChangesInside(Pass):
    """A faulty bolt that mutates a list nested in an emitted tuple when the batch ends."""

    def execute(self, tuple):
        self.inside = [1]
        self.collector.emit({"a": self.inside})

    def finish_batch(self):
        self.inside.append(2)


class EmitsOneArray(Pass):
    """A faulty bolt that reuses the memory of one array for all its record batches."""

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.array = np.zeros(2, np.int64)

    def execute(self, tuple):
        self.array += tuple["n"]
        self.collector.emit_batch(pa.record_batch([pa.array(self.array)], names=["values"]))


class EmitsDirectly(EmitsAndChanges):
    fields = ()

    def declare_output_fields(self, declarer):
        declarer.declare(("values",), direct=True)

    def execute(self, tuple):
        self.taken.append(tuple["n"])
        self.collector.emit_direct(0, self.taken)


class SpoutChanges(PlainSpout):
    """A faulty spout whose emitter mutates a list after emitting it."""

    def emit_batch(self, attempt, metadata, collector):
        values = [1]
        collector.emit(values)
        values.append(2)


class ChangesItsPayload(PlainSpout):
    """A faulty spout whose emitter mutates the payload of its context."""

    def payload(self, metadata):
        return [[1, "a"], [2, "b"]]

    def emit_batch(self, attempt, metadata, collector):
        for row in self.context.payload:
            collector.emit(row.pop())


def memory(*numbers: int) -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([list(numbers)], "n")


def commit_fails(builder: TransactionalTopologyBuilder, says: str) -> None:
    """Check that the test driver raises an error with this message when it commits a transaction."""
    with pytest.raises((EmitError, SpoutError), match=says):
        with TopologyTestDriver(builder.build_topology()) as driver:
            driver.commit()


def ran(builder: TransactionalTopologyBuilder, engine: Any, data_dir: Path, until_txid: int) -> Any:
    """Run a topology up to a txid; return its handle."""
    return ended(builder.build_topology(), data_dir, engine, until_txid=until_txid)


CHANGED = "a tuple was changed after it was emitted"


@pytest.mark.parametrize(
    ("bolt", "says"),
    [
        (EmitsAndChanges, rf"{CHANGED}: emitted \(\[1\],\), now \(\[1, 2, 3\],\); .*emit a copy"),
        (EmitsAndChangesInside, CHANGED),
        (EmitsOneArray, "a record batch was changed after it was emitted.*copy of the array"),
        (EmitsDirectly, CHANGED),
    ],
)
@pytest.mark.parametrize("phase", ["processing", "commit"])
def test_the_test_driver_detects_values_mutated_after_emission(bolt, says, phase, tmp_path):
    builder = TransactionalTopologyBuilder("shared", "numbers", memory(1, 2, 3))
    bolts = {"processing": builder.set_bolt, "commit": builder.set_committer_bolt}
    bolts[phase]("changes", bolt()).shuffle_grouping("numbers")
    commit_fails(builder, rf"(?s)changes.*changes, stream 'default': {says}")


@pytest.mark.parametrize(
    ("spout", "says"),
    [(SpoutChanges, "changed after it was emitted"), (ChangesItsPayload, "an emitter changed its payload")],
)
def test_the_test_driver_detects_emitters_that_mutate_shared_values(spout, says):
    builder = TransactionalTopologyBuilder("shared", "numbers", spout())
    commit_fails(builder, f"(?s)numbers.*{says}")


class EmitsTwice(Pass):
    """A bolt that emits a nested mutable value on one stream, and the same object twice on another one."""

    streams = {"more": ("values",)}

    def execute(self, tuple):
        value = {"n": [tuple["n"]], "t": ([1], {2})}
        self.collector.emit(value)
        self.collector.emit(value, stream="more")
        self.collector.emit(value, stream="more")


class Spoils(Pass):
    """A bolt that mutates the nested values of its input, and emits the number that it found."""

    fields = ("n",)

    def execute(self, tuple):
        (value,) = tuple
        assert value == {"n": [value["n"][0]], "t": ([1], {2})}, value
        number = value["n"].pop()
        value["t"][0].append(3)
        value["t"][1].clear()
        self.collector.emit(number)


class SpoilingGrouping:
    """A round-robin grouping that mutates the values it is passed."""

    def prepare(self, component, stream, targets):
        self.targets = targets

    def choose_tasks(self, source_task, values):
        values[0]["n"].append("spoilt")
        self.asked = getattr(self, "asked", -1) + 1
        return [self.asked % self.targets]


def test_every_bolt_gets_its_own_copy_of_tuples(make_engine: Factory, tmp_path):
    builder = TransactionalTopologyBuilder("shared", "numbers", memory(1, 2, 3))
    builder.set_bolt("emits", EmitsTwice()).shuffle_grouping("numbers")
    for name, stream in (("one", "default"), ("two", "default"), ("three", "more")):
        builder.set_bolt(name, Spoils()).local_or_shuffle_grouping("emits", stream)
    builder.set_bolt("four", Spoils()).custom_grouping("emits", SpoilingGrouping())
    keep = builder.set_bolt("keep", DeltaSink("rows", {"n": int}))
    for name in ("one", "two", "three", "four"):
        keep.global_grouping(name)
    handle = ran(builder, make_engine(), tmp_path, 1)
    assert sorted(handle.sink("rows").to_arrow()["n"].to_pylist()) == sorted([1, 2, 3] * 5)


class EmitsTask(Pass):
    """A bolt that emits each number with the task that received it."""

    fields = ("n", "task")

    def execute(self, tuple):
        self.collector.emit(tuple["values"]["n"][0], self.context.task)


def test_the_state_of_a_grouping_ends_with_the_batch(make_engine: Factory, tmp_path):
    """The grouping's counter restarts with every batch: of three tuples for two tasks, the first goes to task 0."""
    builder = TransactionalTopologyBuilder("shared", "numbers", MemoryTransactionalSpout([range(24)], "n", take=3))
    builder.set_bolt("emits", EmitsTwice()).shuffle_grouping("numbers")
    builder.set_bolt("where", EmitsTask(), 2).custom_grouping("emits", SpoilingGrouping())
    builder.set_bolt("keep", DeltaSink("rows", {"n": int, "task": int})).global_grouping("where")
    handle = ran(builder, make_engine(), tmp_path, 8)
    rows = handle.sink("rows").to_arrow().sort_by("n")
    assert rows["task"].to_pylist() == [n % 3 % 2 for n in range(24)]


class KeepsLists(Gathering, Committer):
    """A committer that mutates every value that it has put, read, updated or appended."""

    fields = ("n",)
    lists = KeyedState("lists", {"key": str}, {"values": LISTS})
    rows = SinkTable("rows", {"values": LISTS})

    def __init__(self, own):
        self.own = own

    def finish_batch(self):
        for handle in (self.context.state("lists"), self.context.state("own")):
            wanted = list(range(1, self.attempt.txid))
            assert handle.get("a", []) == wanted
            for found in (handle.get("a"), handle.get_many(["a"]).get("a"), handle.previous("a")):
                if found is not None:
                    assert found == wanted
                    found.append("spoilt")
            value = [*wanted, self.attempt.txid]
            handle.put("a", value)
            value.append("spoilt")
            assert handle.get("a") == [*wanted, self.attempt.txid]
            handle.update("a", lambda old: old).append("spoilt")
            handle.update_many({"a": []}, lambda old, partial: old)["a"].append("spoilt")
            other = handle.update("b", lambda old: [*(old or []), self.attempt.txid])
            other.append("spoilt")
        values = [self.attempt.txid]
        self.context.sink("rows").append(values)
        values.append(0)


class Keeper(MemoryBackend):
    """A map backend that mutates its arguments: it empties the list of keys, and mutates rows once they are put."""

    def multi_get(self, keys):
        found = []
        while keys:
            found += super().multi_get([keys.pop(0)])
        return found

    def put_marked(self, rows, expected, mark):
        done = super().put_marked(rows, expected, mark)
        for row in rows.values():
            row.value.append("spoilt")
        rows.clear()
        return done


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_values_of_states_maps_and_sinks_are_copies(cache, tmp_path):
    builder = TransactionalTopologyBuilder("shared", "numbers", MemoryTransactionalSpout([range(40)], "n", take=5))
    bolt = KeepsLists(MapState("own", Keeper()))
    builder.set_bolt("keep", bolt).global_grouping("numbers")
    builder.set_settings({"max_group_txids": 3, "index_cache_bytes": cache or 1})
    handle = ran(builder, "local", tmp_path, 8)
    expected: dict[str, Any] = {key: list(range(1, 9)) for key in "ab"}
    assert {row["key"]: row["values"] for row in handle.state("lists").to_arrow().to_pylist()} == expected
    kept = {key: row.value for key, row in bolt.own.backend.rows.items()}
    assert kept == {f'"{key}"': values for key, values in expected.items()}
    assert handle.sink("rows").to_arrow()["values"].to_pylist() == [[txid] for txid in range(1, 9)]
    changed = handle.state("lists").changes(8, 8).to_pylist()
    assert [(one["key"], one["_prev"]) for one in changed] == [(key, {"values": list(range(1, 8))}) for key in "ab"]
