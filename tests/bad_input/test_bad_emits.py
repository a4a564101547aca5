"""Tuples of the wrong arity, type or stream: the batch fails with an `EmitError` on both engines, storing nothing."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from bad_input_cases import Keep, Says, go, refused
from topology_samples import Silent

from txstorm import BasicBolt, Committer, Emitter, TransactionalTopologyBuilder
from txstorm.errors import EmitError
from txstorm.results.read import read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout

NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - that it is naive is the case


def endless():
    made = []
    made.append(made)
    return made


EMITS = {
    "too few": (lambda c: c.emit(), "expected 1 value for fields ['line'], got 0", "pass one argument per field"),
    "no stream": (lambda c: c.emit("a", stream=5), "stream 5: not declared", "declares ['default', 'direct', 'error']"),
    "absent task": (lambda c: c.emit_direct(3, "a", stream="direct"), "to task 3 of 'also'", "its tasks are 0 to 0"),
    "object": (lambda c: c.emit(object()), "field 'line': a value of type object cannot be sent", "emit plain values, lists or dicts"),
    "generator": (lambda c: c.emit(iter("ab")), "field 'line': a value of type str_", "emit plain values, lists or dicts"),
    "array": (lambda c: c.emit(np.array([1, 2])), "field 'line': a value of type ndarray cannot be sent", "emit plain values, lists"),
    "object inside": (lambda c: c.emit({"a": [object()]}), "field 'line': a value of type object cannot", "emit plain values"),
    "endless": (lambda c: c.emit(endless()), "field 'line': a value that contains itself", "emit plain values"),
    "naive time": (lambda c: c.emit(NAIVE), "field 'line': datetime datetime.datetime(2024, 1", "times are UTC, give it one"),
    "naive time inside": (lambda c: c.emit([NAIVE]), "field 'line': datetime", "times are UTC, give it one"),
    "long int": (lambda c: c.emit([10**5000]), "field 'line': an int of 16,610 bits, expected at most 14,284", "send a text"),
    "surrogate": (lambda c: c.emit("\ud800"), "field 'line': a string cannot be encoded", "emit bytes instead"),
    "columns of naive times": (
        lambda c: c.emit_batch(pa.record_batch({"line": pa.array([NAIVE], pa.timestamp("us"))})),
        "stream 'default': column 'line' is a timestamp without time zone",
        "cast it",
    ),
}  # fmt: skip


class Bad(BasicBolt):
    fields = ("line",)
    streams = {"error": ("line",)}

    def __init__(self, emit):
        self.do = emit

    def declare_output_fields(self, declarer):
        super().declare_output_fields(declarer)
        declarer.declare_stream("direct", "line", direct=True)

    def execute(self, tuple, collector):
        collector.emit("good")
        if tuple["line"] == "bad":
            self.do(collector)


def made(bolt, lines=("fine", "bad")):
    """Build a topology of two txids, the second of which emits an invalid tuple."""
    builder = TransactionalTopologyBuilder("emits", "lines", MemoryTransactionalSpout({0: lines}, ["line"], take=1))
    builder.set_bolt("bad", bolt).shuffle_grouping("lines")
    builder.set_bolt("also", Silent()).direct_grouping("bad", "direct")
    builder.set_committer_bolt("keep", Keep()).global_grouping("bad")
    return builder.build_topology()


@pytest.mark.parametrize("name", EMITS)
def test_a_bad_emit_fails_its_batch(name, tmp_path, make_engine):
    emit, found, cure = EMITS[name]
    with refused(Says(EmitError, "txid 2", found, cure)) as caught:
        go(made(Bad(emit)), tmp_path / "data", make_engine(), settings={"max_spout_pending": 1})
    assert "bad[0] raised EmitError" in str(caught.value)
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "good", "n": 1}]
    assert read_sink(tmp_path / "data", "lines").num_rows == 1


def test_a_mended_bolt_goes_on_where_the_bad_emit_was(tmp_path):
    with pytest.raises(EmitError):
        go(made(Bad(lambda c: c.emit())), tmp_path / "data")
    assert go(made(Bad(lambda c: c.emit("mended"))), tmp_path / "data") == 2
    assert read_state(tmp_path / "data", "counts").to_pylist() == [{"word": "good", "n": 2}, {"word": "mended", "n": 1}]


class BadEmitter(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        collector.emit("one", "two")


class BadSpout(MemoryTransactionalSpout):
    def emitter(self, context):
        return BadEmitter()


def test_a_bad_emit_of_a_spout(tmp_path, make_engine):
    builder = TransactionalTopologyBuilder("emits", "lines", BadSpout({0: ["a"]}, ["line"]))
    builder.set_committer_bolt("keep", Keep()).global_grouping("lines")
    says = Says(EmitError, "lines[0]", "expected 1 value for fields ['line'], got 2", "pass one argument per field")
    with refused(says):
        go(builder.build_topology(), tmp_path / "data", make_engine())
    assert read_state(tmp_path / "data", "counts").num_rows == 0


class BadCommitter(Silent, Committer):
    fields = ("line",)

    def prepare(self, context, collector, attempt):
        self.collector = collector

    def finish_batch(self):
        self.collector.emit(object())


def test_a_bad_emit_of_a_committer(tmp_path):
    builder = TransactionalTopologyBuilder("emits", "lines", MemoryTransactionalSpout({0: ["a"]}, ["line"]))
    builder.set_committer_bolt("first", BadCommitter()).global_grouping("lines")
    builder.set_committer_bolt("keep", Keep()).global_grouping("first")
    says = Says(EmitError, "first[0]", "field 'line': a value of type object cannot be sent", "emit plain values")
    with refused(says):
        go(builder.build_topology(), tmp_path / "data")
    assert read_state(tmp_path / "data", "counts").num_rows == 0
