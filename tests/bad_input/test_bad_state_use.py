"""State and sinks used contrary to their declaration: the batch fails with a `StateError` and stores nothing."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from bad_input_cases import Says, go, refused

from txstorm import BasicBolt, BatchBolt, Committer, KeyedState, SinkTable, TransactionalTopologyBuilder
from txstorm.errors import StateError
from txstorm.results.read import list_states, read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout

WHERE = "keep[0], txid 1"
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - that it is naive is the case
LATE: dict = {}


class Use(BatchBolt, Committer):
    counts = KeyedState("counts", key={"word": str}, value={"n": int})
    times = KeyedState("times", key={"id": int}, value={"at": datetime, "mean": float})
    out = SinkTable("out", {"line": str, "n": int})

    def __init__(self, use=None, at="finish_batch"):
        self.use, self.at = use, at

    def prepare(self, context, collector, attempt):
        self.context = context
        self.call("prepare")

    def execute(self, tuple):
        self.call("execute")

    def finish_batch(self):
        self.context.state("counts").put("kept", 1)
        self.context.sink("out").append("kept", 1)
        self.call("finish_batch")

    def call(self, at):
        if at == self.at and self.use:
            self.use(self.context)


def counts(context):
    return context.state("counts")


def keep_for_later(context):
    LATE["state"] = context.state("counts")


def use_too_late(context):
    LATE["state"].put("a", 1)


USES = {
    "value of another type": (lambda c: counts(c).put("a", "x"), "key 'a'", "expected int, got str 'x'; convert it"),
    "key of a read": (lambda c: counts(c).get(5), "key column 'word'", "expected str, got int 5; convert it"),
    "naive time": (
        lambda c: c.state("times").put(1, {"at": NAIVE, "mean": 1.0}),
        "value column 'at', key 1",
        "got the naive datetime.datetime(2024, 1, 1, 0, 0); times are UTC: give it tzinfo=UTC",
    ),
    "missing column": (
        lambda c: c.state("times").put(1, {"at": datetime.now(UTC)}),
        "key 1",
        "expected a dict with ['at', 'mean'], got",
    ),
    "merged type": (
        lambda c: counts(c).merge(pa.record_batch({"word": ["a"], "n": ["1"]}), {"n": "sum"}),
        "value column 'n'",
        "expected int64, got string; cast the column",
    ),
    "unknown state": (lambda c: c.state("cunts"), "state 'cunts' is not declared", "did you mean 'counts'"),

    "sink arity": (lambda c: c.sink("out").append("a"), "sink 'out'", "expected 2 values ['line', 'n'], got 1; append one"),
    "sink type": (lambda c: c.sink("out").append(1, 1), "column 'line'", "expected str, got int 1; convert it"),

    "earlier run": (use_too_late, "state 'counts' of keep[0]", "used outside finish_batch"),
}  # fmt: skip


def topology(bolt, parallelism=1, before=None):
    builder = TransactionalTopologyBuilder("uses", "lines", MemoryTransactionalSpout({0: ["x"]}, ["line"]))
    source = "lines"
    if before is not None:
        builder.set_bolt("before", before).shuffle_grouping("lines")
        source = "before"
    builder.set_committer_bolt("keep", bolt, parallelism).all_grouping(source)
    return builder.build_topology()


def nothing_kept(data_dir):
    rows = [read_state(data_dir, name).num_rows for name in list_states(data_dir)]
    return not any(rows) and not read_sink(data_dir, "out").num_rows


@pytest.mark.parametrize("name", USES)
def test_a_use_against_the_declaration(name, tmp_path):
    use, found, cure = USES[name]
    go(topology(Use(keep_for_later)), tmp_path / "earlier")
    says = Says(StateError, "keep", found, cure)
    with refused(says) as caught:
        go(topology(Use(use)), tmp_path / "data")
    assert "txid 1" in str(caught.value)
    assert nothing_kept(tmp_path / "data")


@pytest.mark.parametrize("at", ["prepare", "execute"])
def test_state_outside_finish_batch(at, tmp_path):
    outside = "used outside finish_batch"
    with refused(Says(StateError, f"state 'counts' of {WHERE}", outside, "collect in execute, write there")):
        go(topology(Use(lambda c: c.state("counts").get("a"), at)), tmp_path / "data")
    with refused(Says(StateError, f"sink 'out' of {WHERE}", outside, "append them in finish_batch")):
        go(topology(Use(lambda c: c.sink("out").append("a", 1), at)), tmp_path / "other")
    assert nothing_kept(tmp_path / "data")


def test_a_key_that_two_tasks_change(tmp_path):
    thing = "state 'counts', txid 1: key 'kept'"
    with refused(Says(StateError, thing, "keep[0], keep[1]", "use fields_grouping on the state's")):
        go(topology(Use(), parallelism=2), tmp_path / "data")
    assert nothing_kept(tmp_path / "data")


class Peek(BasicBolt):
    fields = ("line",)

    def prepare(self, context):
        context.state("counts")

    def execute(self, tuple, collector):
        pass


def test_state_in_the_processing_phase(tmp_path, make_engine):
    says = Says(StateError, "before", "state 'counts' asked for in the processing phase", "only committers have tables")
    with refused(says):
        go(topology(Use(), before=Peek()), tmp_path / "data", make_engine())
    assert nothing_kept(tmp_path / "data")
